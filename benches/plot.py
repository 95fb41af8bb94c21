"""Scaling curves of a record: plot.py RECORD.jsonl OUT.svg. Of several figures of one kind the
last counts."""

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


def main():
    with open(sys.argv[1]) as f:
        rows = [json.loads(line) for line in f]
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
