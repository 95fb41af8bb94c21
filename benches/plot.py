"""Scaling curves of a record: plot.py RECORD.jsonl OUT.svg, or plot.py RECORD.jsonl OUT.svg long
for those of long contexts. Of several figures of one kind the last counts."""

import json
import sys

import matplotlib

matplotlib.use("svg")
# The same record gives the same file; text stays text.
matplotlib.rcParams.update({"svg.hashsalt": "llamabi", "svg.fonttype": "none", "font.size": 9,
                            "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})
import matplotlib.pyplot as plt  # noqa: E402

COLOURS = {"bf16": "#4c72b0", "int8": "#dd8452", "int4": "#55a868", "nf4": "#c44e52"}


def parameters(row):
    """Weights in the matrices, in billions."""
    bits = {"bf16": 16, "int8": 8.5, "int4": 4.5, "nf4": 4.25}[row["weights"]]  # the head has more
    return row["matrix_bytes"] * 8 / bits / 1e9


def long_contexts(rows):
    """Decode of one stream by context and prefill by length, by format of the cache."""
    last = {(row["layers"], row["weights"], row["kv"], row["case"]): row for row in rows if row["bench"] == "cpu"}
    rows = list(last.values())
    at_512 = {(row["layers"], row["weights"], row["kv"]): row["tokens_s"] for row in rows if row["case"] == "prefill of 512"}

    def share_of_512(row):
        return 100 * row["tokens_s"] / at_512[row["layers"], row["weights"], row["kv"]]

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, title, case, x, y, unit in (
            (axes[0], "decode, one stream", "decode", "context", lambda row: row["tokens_s"], "tokens/s"),
            (axes[1], "decode, K and V counted", "decode", "context", lambda row: 100 * row["share"], "% of the read bandwidth"),
            (axes[2], "prefill", "prefill", "rows", share_of_512, "% of the rate at 512")):
        for kv, line in (("bf16", "o-"), ("int8", "s--")):
            points = sorted((row[x], y(row)) for row in rows if row["kv"] == kv and row["case"].startswith(case))
            if points:
                axis.plot(*zip(*points), line, ms=3.5, color=COLOURS[kv], label=kv + " cache")
        axis.set_title(title, loc="left", fontsize=10)
        # Linear below the shortest context but 0.
        axis.set_xscale("symlog", base=2, linthresh=512)
        ticks = sorted({row[x] for row in rows if row["case"].startswith(case)})
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45)
        axis.minorticks_off()
        axis.set_xlabel("tokens of context" if case == "decode" else "tokens of the prompt")
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    layers = " and ".join(str(n) for n in sorted({row["layers"] for row in rows}))
    figure.suptitle(f"1.1B shape, {layers} layers, {rows[-1]['weights']} weights, {rows[-1]['tier']}; medians", fontsize=10)
    figure.savefig(sys.argv[2], metadata={"Date": None})


def main():
    with open(sys.argv[1]) as f:
        rows = [json.loads(line) for line in f]
    if sys.argv[3:] == ["long"]:
        return long_contexts(rows)
    cpu = {}
    for row in rows:
        if row["bench"] == "cpu" and row["kv"] == "bf16":
            cpu[row["model"], row["layers"], row["weights"], row["threads"], row["case"]] = row
    cpu = list(cpu.values())
    most = max(row["threads"] for row in cpu)

    def draw(axes, title, x, y, wanted, **kwargs):
        """A curve a format of the rows that are `wanted`."""
        axes.set_title(title, loc="left", fontsize=10)
        for weights, colour in COLOURS.items():
            points = sorted((x(row), y(row), row) for row in cpu if row["weights"] == weights and wanted(row))
            if points:
                axes.plot([p[0] for p in points], [p[1] for p in points], "o-", ms=3.5, color=colour, label=weights, **kwargs)
                low, high = ([p[2][k] * p[1] / p[2]["tokens_s"] for p in points] for k in ("low", "high"))
                axes.fill_between([p[0] for p in points], low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_ylim(bottom=0)

    def tokens(row):
        return row["tokens_s"]

    def decode(row, **of):
        want = {"model": "1b", "threads": most, "rows": 1, **of}
        return row["case"].startswith("decode") and all(v is None or row[k] == v for k, v in want.items())

    def prefill(row, **of):
        want = {"model": "1b", "threads": most, **of}
        return row["case"].startswith("prefill") and all(v is None or row[k] == v for k, v in want.items())

    figure, axes = plt.subplots(2, 3, figsize=(11, 6.2), layout="constrained")
    draw(axes[0, 0], "decode by context, batch 1", lambda r: r["context"], tokens, lambda r: decode(r, batch=1))
    draw(axes[0, 1], "decode by batch, context 0, all streams", lambda r: r["batch"], tokens, lambda r: decode(r, context=0))
    draw(axes[0, 2], "prefill by length of the prompt", lambda r: r["rows"], tokens, prefill)
    draw(axes[1, 0], "decode by threads, batch 1, context 0", lambda r: r["threads"], tokens,
         lambda r: decode(r, batch=1, context=0, threads=None))
    draw(axes[1, 1], "prefill of 512 by threads", lambda r: r["threads"], tokens, lambda r: prefill(r, rows=512, threads=None))
    draw(axes[1, 2], "share of read bandwidth by size, decode", parameters, lambda r: 100 * r["share"],
         lambda r: decode(r, batch=1, context=0, model=None))
    for panel, label in zip(axes.flat, ("tokens of context", "sequences", "tokens", "threads", "threads",
                                        "weights, billions")):
        panel.set_xlabel(label)
        panel.set_ylabel("tokens/s")
    axes[1, 2].set_ylabel("%")
    axes[1, 2].set_ylim(0, 100)
    for panel in axes[1, :2]:
        panel.set_xticks(range(1, most + 1))
    axes[0, 1].set_xticks([1, 2, 4, 8, 16])
    axes[0, 0].legend(frameon=False)
    figure.suptitle(f"1.1B shape unless said otherwise, {cpu[-1]['tier'].split(',')[0]}, {most} threads; "
                    "medians and middle halves", fontsize=10)
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
