"""Measures speed, its share of the limit, and compares it with the prediction:
speed.py ours|switches|peers|llamacpp FOLDER RECORD SECONDS, table RECORD, and steps FOLDER for a
profiler.

ours first measures the machine with torch: the memory bandwidth of a sum over 8 GB, and a bf16
product of 8192^3. Then it measures decode, prefill and start. A decode step has to read the weights
(of the embedding, one row for each token) and the cache; prefill has to multiply. `share` is the
time which that takes at the limit over the time that was taken. Predictions are those of
benches/gpu_cost.py with the limits just measured. Medians of three, in order of importance, until
SECONDS are over. switches measures a few points of eight layers of the 8b shape with each way to
run kernels turned off, the first and the last as they are. RECORD gets a line of JSON for each
number. DAY_TINY=1: a few points of a tiny shape, to see that all of this works.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time

from model import CUDA, IGNORE_EOS, ROOT, Model, warnings
from random_model import SHAPES, checkpoint, device, gpu_cost

START = time.monotonic()
TINY = os.environ.get("DAY_TINY") == "1"
DTYPES = {1: "f32", 2: "f16", 3: "bf16", 4: "int8", 7: "fp8"}
LAST = 3 if TINY else 128  # steps of decode that are timed
# A point with more tokens of prompts than this is measured once.
LARGE = 40_000
PIECES = 500 if TINY else 31_000  # pieces of the tokenizers, without the first few
seed = 0


def prompts(n, batch):
    """Never repeats a first page, because the prefix cache would know it."""
    global seed
    seed += batch
    return [[1] + [3 + (i * i * 31 + i * 17 + (seed - b) * 7919) % PIECES for i in range(n - 1)] for b in range(batch)]


class Record:
    def __init__(self, path, seconds):
        # The steps that write to this file run one after the other.
        self.file, self.seconds = open(path, "a", encoding="utf-8"), seconds

    def __call__(self, what, value, unit, share=None, predicted=None):
        line = {"what": what, "value": value, "unit": unit, "share": share, "predicted": predicted}
        print(shown(line), flush=True)
        print(json.dumps(line), file=self.file, flush=True)

    def late(self, left=20):
        return time.monotonic() - START > self.seconds - left


def shown(line):
    share = f"{100 * line['share']:7.1f} %" if line["share"] else " " * 9
    predicted = f"{line['predicted']:13.2f}{100 * line['value'] / line['predicted'] - 100:+8.0f} %" if line["predicted"] else ""
    return f"{line['what']:<52}{line['value']:>12.2f} {line['unit']:<9}{share}{predicted}"


def table(path):
    print(f"{'':<52}{'measured':>12} {'':<9}{'of limit':>9}{'predicted':>13}{'off':>8}")
    with open(path, encoding="utf-8") as f:
        for line in f:
            print(shown(json.loads(line)))
    return 0


def limits(record):
    """The machine in the terms of gpu_cost, with the limits of this one."""
    if device() == "cpu":
        print("no GPU: predictions are for an H100, and say nothing of what is measured here")
        return gpu_cost.H100
    import torch

    def median(work):
        times = []
        for _ in range(12):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times[4:])

    memory = torch.ones(2_000_000_000, dtype=torch.float32, device="cuda")
    bandwidth = 4 * memory.numel() / median(memory.sum)
    del memory
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    peak = 2 * 8192**3 / median(lambda: a @ b)
    del a, b
    torch.cuda.empty_cache()
    record("torch: a sum over 8 GB", bandwidth / 1e9, "GB/s", predicted=gpu_cost.H100.bandwidth / 1e9)
    record("torch: bf16 product of 8192^3", peak / 1e12, "TFLOP/s", predicted=gpu_cost.H100.matrix / 1e12)
    properties = torch.cuda.get_device_properties(0)
    lanes = 128 * properties.multi_processor_count * getattr(properties, "clock_rate", 1_755_000) * 1e3
    return gpu_cost.H100._replace(name=properties.name, bandwidth=bandwidth, matrix=peak, units=properties.multi_processor_count,
                                  lanes=lanes, cache=lanes)


def decode(model, batch, context, **options):
    """Seconds of a step, greedy unless `options` say else. The prefix cache knows the prompts, so
    that all sequences begin at nearly the same time, and graphs of such steps are already
    recorded."""
    def once():
        texts = prompts(context, batch)
        model.complete(texts, 3, flags=IGNORE_EOS, **options)
        stats = model.timed(texts, LAST + 1, **options)
        return (max(s.total_ms for s in stats) - max(s.first_token_ms for s in stats)) / 1e3 / LAST
    return statistics.median(once() for _ in range(1 if TINY or context * batch > LARGE else 3))


def first_token(model, n):
    model.generate(prompts(n, 1), 1)
    return statistics.median(model.generate(prompts(n, 1), 1)[0].first_token_ms / 1e3 for _ in range(1 if TINY else 3))


def blaslt():
    """Path of the cuBLASLt that torch brings along."""
    names = ["nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.12"]
    paths = [os.path.join(folder, name) for folder in sys.path for name in names]
    return next(filter(os.path.exists, paths), None)


def by_library(record, directory, what, dtype, room, lengths):
    """Measures prefill again if cuBLASLt can do its products."""
    library = blaslt()
    if dtype not in ("f16", "bf16") or not lengths or not library:
        return
    os.environ["LLAMABI_CUDA_BLASLT"] = library
    try:
        with Model(directory, CUDA, dtype, length=room[0], batch=room[1]) as model:
            for n in lengths:
                if record.late():
                    return
                if any("cuBLASLt" in line for line in warnings):
                    raise RuntimeError("cuBLASLt was given up: these would be our own kernels' numbers")
                record(f"{what}: prefill with cuBLASLt, {n} tokens", n / first_token(model, n), "tokens/s")
    finally:
        del os.environ["LLAMABI_CUDA_BLASLT"]


def ours(record, machine, directory, name, dtypes, room, points, lengths):
    """`dtypes`: type of weights and, after a slash, of the cache. `room`: positions and
    sequences of the handle."""
    shape, start = SHAPES[name], time.monotonic()
    what, (dtype, _, cache) = f"{name} {dtypes}", dtypes.partition("/")
    with Model(directory, CUDA, dtype, cache or "auto", length=room[0], batch=room[1]) as model:
        built = time.monotonic() - start
        kv = DTYPES[model.info.kv_dtype]
        model.generate(prompts(16, 1), 1)
        floats = dtype in ("f32", "f16", "bf16")
        if lengths:
            record(f"{what}: llama_build", built, "s")
            record(f"{what}: llama_build to first token", time.monotonic() - start, "s",
                   predicted=gpu_cost.start_seconds(machine, shape) if floats else None)
        for batch, context in points:
            if record.late():
                return False
            seconds = decode(model, batch, context)
            at = context + LAST // 2
            least = (gpu_cost.read_bytes(shape, dtype) + batch * gpu_cost.kv_bytes(shape, kv, at)) / machine.bandwidth
            predicted = gpu_cost.seconds(machine, gpu_cost.decode(shape, dtype, kv, batch, at), follows=True)
            at_point = f"{what}: decode, batch {batch}, context {context}"
            record(at_point, batch / seconds, "tokens/s", least / seconds, batch / predicted)
            if (batch, context) not in DRAWN or record.late():
                continue
            seconds = decode(model, batch, context, temperature=0.6, top_p=0.9)
            predicted = gpu_cost.seconds(machine, gpu_cost.decode(shape, dtype, kv, batch, at, draws=True), follows=True)
            record(f"{at_point}, temperature 0.6", batch / seconds, "tokens/s", least / seconds, batch / predicted)
        hopper = is_hopper(model)
        if not prefill(record, machine if hopper else machine._replace(wgmma=None), model, shape, dtype, room, lengths, what):
            return False
    by_library(record, directory, what, dtype, room, [n for n in lengths if n > 64])
    if not lengths or not (TINY or hopper) or dtype not in ("f16", "bf16", "int8"):
        return True
    # The same without the kernels for compute capability 9.0.
    os.environ["LLAMABI_CUDA_HOPPER"] = "0"
    try:
        with Model(directory, CUDA, dtype, cache or "auto", length=room[0], batch=room[1]) as model:
            model.generate(prompts(16, 1), 1)
            return prefill(record, machine._replace(wgmma=None), model, shape, dtype, room, lengths, f"{what}, mma.sync")
    finally:
        del os.environ["LLAMABI_CUDA_HOPPER"]


def is_hopper(model):
    """Whether prompts go through the kernels for compute capability 9.0."""
    return b"compute capability 9.0" in model.info.device_name and os.environ.get("LLAMABI_CUDA_HOPPER") != "0"


def prefill(record, machine, model, shape, dtype, room, lengths, what):
    kv = DTYPES[model.info.kv_dtype]
    for n in lengths:
        if record.late():
            return False
        seconds = first_token(model, n)
        steps = gpu_cost.prompt(shape, dtype, kv, n, room[1], min(gpu_cost.CHUNK, room[0]))
        slower = machine._replace(gap=gpu_cost.WITHOUT_GRAPHS)
        predicted = sum(gpu_cost.seconds(slower, step) for step in steps)
        record(f"{what}: prefill, {n} tokens", n / seconds, "tokens/s", gpu_cost.must_flops(shape, n) / machine.matrix / seconds,
               n / predicted)
    return True


# What is measured: (positions, sequences) of a handle, (batch, context) of decode, lengths of
# prompts.
BATCHES = [1, 2, 4, 8, 16, 32, 64]
# Of these, (batch, context) that are measured with temperature 0.6 and top-p 0.9, too.
DRAWN = [(1, 16), (8, 16), (32, 16), (64, 16), (1, 512)]
SHORT = ((2304, 64), [(b, 16) for b in BATCHES], [128, 512, 2048])
WIDE = ((2304, 64), [(b, 2048) for b in (1, 8, 32, 64)] + [(32, 512)], [])
LONG = ((8448, 16), [(1, 512), (1, 2048), (1, 8192), (4, 8192), (16, 8192)], [1024, 4096, 8192])
PLAN = [("8b", "bf16", SHORT), ("8b", "bf16", LONG), ("1b", "bf16", SHORT), ("8b", "int8", SHORT), ("8b", "int4", SHORT),
        ("8b", "bf16", WIDE), ("1b", "bf16", LONG), ("8b", "int4", LONG), ("8b", "nf4", SHORT), ("1b", "int8", SHORT),
        ("1b", "int4", SHORT), ("8b", "int8", LONG), ("8b", "fp8", SHORT), ("8b", "fp8/fp8", WIDE), ("8b", "int4", WIDE), ("1b", "f32", SHORT), ("1b", "bf16", WIDE)]
TINY_PLAN = [("tiny", "bf16", ((64, 4), [(1, 16), (3, 5)], [20])), ("tiny", "int4", ((64, 4), [(2, 16)], [])),
             ("tiny", "fp8/fp8", ((64, 4), [(2, 16)], [20]))]


def measure(record, folder):
    machine, bad, unfinished = limits(record), 0, []
    for name, dtype, plan in TINY_PLAN if TINY else PLAN:
        if record.late(40):
            unfinished.append(f"{name} {dtype}")
            continue
        try:
            if not ours(record, machine, checkpoint(name, folder), name, dtype, *plan):
                unfinished.append(f"the rest of {name} {dtype}")
        except Exception as error:
            bad += 1
            print(f"{name} {dtype}: FAILED: {type(error).__name__}: {error}", flush=True)
    print(f"{bad} of the plan failed" + (f"; no time was left for {', '.join(unfinished)}" if unfinished else ""))
    return int(bad > 0) | failed_by_warnings()


# What turns a way to run kernels off.
SWITCHES = [(), ("PDL",), ("CARVEOUT",), ("PDL", "CARVEOUT"), ("GRAPHS",), ("AHEAD",), ("CLUSTERS",), ("QUARTERS",), ("HOPPER",), ()]


def failed_by_warnings():
    """1 if the library has warned, which it then says: a way that it does not go is a failure."""
    if warnings:
        print(f"FAILED: the library warns: {warnings[0]}")
    return int(bool(warnings))


def switches(record, folder):
    name = "tiny" if TINY else "8b8"
    directory = checkpoint(name, folder)
    for dtype in ["bf16"] if TINY else ["bf16", "int4"]:
        for off in SWITCHES:
            if record.late():
                return failed_by_warnings()
            names = [f"LLAMABI_CUDA_{switch}" for switch in off]
            os.environ.update(dict.fromkeys(names, "0"))
            what = f"{name} {dtype}, without {' and '.join(off)}" if off else f"{name} {dtype}"
            try:
                with Model(directory, CUDA, dtype, length=64 if TINY else 2304, batch=4 if TINY else 32) as model:
                    model.generate(prompts(16, 1), 1)
                    for batch in (1,) if TINY else (1, 32):
                        record(f"{what}: step, batch {batch}", 1e6 * decode(model, batch, 16), "us")
                    for n in (20,) if TINY else (128, 2048):
                        record(f"{what}: prefill, {n} tokens", 1e6 * first_token(model, n), "us")
            finally:
                for switch in names:
                    del os.environ[switch]
    return failed_by_warnings()


def torch_speed(record, directory, name, compiled):
    import torch
    from transformers import LlamaForCausalLM

    on = device()
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).to(on).eval()
    kind = "transformers, torch.compile with a static cache" if compiled else "transformers, torch eager"
    # With a static cache, transformers compiles the decode step, with CUDA graphs.
    options = {"cache_implementation": "static"} if compiled else {"disable_compile": True}
    steps = 24 if TINY else 64

    def wait():
        if on == "cuda":
            torch.cuda.synchronize()

    def timed(work):
        wait()
        start = time.monotonic()
        with torch.inference_mode():
            work()
        wait()
        return time.monotonic() - start

    def run(batch, n):
        ids = torch.tensor(prompts(16, batch), device=on)
        return timed(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=n, max_new_tokens=n,
                                            do_sample=False, pad_token_id=0, **options))

    for batch in [1] if TINY else [1, 8, 32]:
        if record.late():
            break
        for n in (8, 8 + steps, 8 + steps):
            run(batch, n)
        # What both runs have in common, including the prompt, is not decoding.
        seconds = statistics.median(run(batch, 8 + steps) - run(batch, 8) for _ in range(3)) / steps
        if seconds <= 0:
            raise RuntimeError(f"{steps} more tokens took no longer: something else ran")
        record(f"{name} bf16: decode, batch {batch}, context 16, {kind}", batch / seconds, "tokens/s")
    if not compiled:
        n = 32 if TINY else 2048
        ids = torch.tensor(prompts(n, 1), device=on)
        times = [timed(lambda: model(ids, logits_to_keep=1)) for _ in range(5)]
        record(f"{name} bf16: prefill, {n} tokens, {kind}", n / statistics.median(times[2:]), "tokens/s")
    del model
    if on == "cuda":
        torch.cuda.empty_cache()


def peers(record, folder):
    bad = 0
    for name in ["tiny"] if TINY else ["8b", "1b"]:
        for compiled in [False] if TINY else [False, True]:
            try:
                torch_speed(record, checkpoint(name, folder), name, compiled)
            except Exception as error:  # the others are still of interest
                bad += 1
                print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
    print(f"{bad} peers failed")
    return int(bad > 0)


def llamacpp(record, folder):
    """llama.cpp's own benchmark with the 1b shape; the converter reads checkpoints of one file."""
    try:
        from convert import converted

        model = converted(checkpoint("1b", folder), "bf16.gguf")
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    command = [shutil.which("llama-bench"), "-m", model, "-ngl", "99", "-p", "128,512,2048", "-n", "128", "-o", "json"]
    for row in json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout):
        what = f"prefill, {row['n_prompt']} tokens" if row["n_prompt"] else "decode, batch 1"
        record(f"1b bf16: {what}, llama.cpp", row["avg_ts"], "tokens/s")
    return 0


def steps(folder):
    """Runs a prompt and some steps of the 1b shape, for ncu."""
    with Model(checkpoint("1b", folder), CUDA, "bf16", length=2304, batch=8) as model:
        model.generate(prompts(2048, 1), 3)


def main(part, folder, path, seconds):
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, on {device()}")
    record = Record(path, float(seconds))
    return {"ours": measure, "switches": switches, "peers": peers, "llamacpp": llamacpp}[part](record, folder)


if __name__ == "__main__":
    sys.path.insert(0, os.path.join(ROOT, "benches/peers"))
    if sys.argv[1] == "table":
        sys.exit(table(sys.argv[2]))
    sys.exit(steps(sys.argv[2]) if sys.argv[1] == "steps" else main(*sys.argv[1:]))
