"""Prints how long each kernel of a step takes, and the gaps between kernels, beside what
benches/gpu_cost.py predicts for an H100: trace.py FOLDER.

torch's profiler sees the kernels of every library of a process. Launches do not start early here
(LLAMABI_CUDA_PDL=0): a kernel that waits for the one before it would count as running.
"""

import json
import os
import statistics
import sys
import tempfile

from model import CUDA, IGNORE_EOS, Model
from random_model import SHAPES, checkpoint, device, gpu_cost
from speed import DTYPES, prompts

STEPS = 6


def kernels(work):
    """What the GPU runs meanwhile: (start, microseconds, name, grid), in order."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        work()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        trace.export_chrome_trace(file.name)
        with open(file.name, encoding="utf-8") as f:
            events = json.load(f)["traceEvents"]
    found = [(e["ts"], e["dur"], e["name"].split("(")[0], tuple(e["args"]["grid"])) for e in events if e.get("cat") == "kernel"]
    return sorted(found)


def show(what, ran, predicted, step):
    """`ran`: kernels of steps that are alike; `predicted`: launches of one; `step`: its seconds."""
    if not ran:
        raise RuntimeError(f"{what}: the profiler saw no kernel")
    times = {}
    for _, took, name, grid in ran:
        times.setdefault((name, grid), []).append(took)
    gaps = [b[0] - a[0] - a[1] for a, b in zip(ran, ran[1:])]
    # Between steps the host may have work to do.
    gaps = [gap for gap in gaps if gap < 50]
    print(f"kernels of {what}: {len(ran)} launches, {sum(t for _, t, _, _ in ran) / 1e3:.3f} ms of kernels, "
          f"gap {statistics.median(gaps) if gaps else 0:.2f} us (median), {statistics.mean(gaps) if gaps else 0:.2f} (mean); "
          f"a step is predicted to take {1e3 * step:.3f} ms")
    for (name, grid), took in sorted(times.items(), key=lambda item: -sum(item[1])):
        print(f"  {name:<34}{'x'.join(map(str, grid)):>12}{len(took):>6} x{statistics.median(took):>10.2f} us"
              f"{min(took):>10.2f} least{max(took):>10.2f} most{sum(took) / 1e3:>10.3f} ms")
    model = {}
    for launch in predicted:
        us = 1e6 * gpu_cost.kernel_seconds(gpu_cost.H100, launch)
        model[launch.kernel, round(us, 1)] = model.get((launch.kernel, round(us, 1)), 0) + 1
    print("  predicted us: " + ", ".join(f"{kernel} {us} ({n} x)" for (kernel, us), n in model.items()) + "\n", flush=True)


def trace(directory, name, dtypes, batches, lengths):
    shape, (dtype, _, cache) = SHAPES[name], dtypes.partition("/")
    with Model(directory, CUDA, dtype, cache or "auto", length=2304, batch=max(batches)) as model:
        kv = DTYPES[model.info.kv_dtype]
        for batch in batches:
            texts = prompts(512, batch)
            model.complete(texts, STEPS, flags=IGNORE_EOS)
            # The prefix cache knows the prompts but for their last page, so the first step is
            # another kind.
            ran = kernels(lambda: model.complete(texts, STEPS, flags=IGNORE_EOS))
            choices = [i for i, kernel in enumerate(ran) if kernel[2].startswith("sample_")]
            launches = gpu_cost.decode(shape, dtype, kv, batch, 512 + STEPS // 2)
            show(f"{name} {dtypes}, {STEPS - 1} steps, batch {batch}, context 512", ran[choices[0] + 1:], launches,
                 gpu_cost.seconds(gpu_cost.H100, launches, follows=True))
        for n in lengths:
            text = prompts(n, 1)
            model.generate(prompts(n, 1), 1)
            launches = gpu_cost.prefill(shape, dtype, kv, 0, n)
            machine = gpu_cost.H100._replace(gap=gpu_cost.WITHOUT_GRAPHS)
            show(f"{name} {dtypes}, a prompt of {n}", kernels(lambda: model.generate(text, 1)), launches, gpu_cost.seconds(machine, launches))


def main(folder):
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    if device() == "cpu":
        print("skipped: the profiler sees no kernels of the stand-in driver")
        return 77
    torch.cuda.init()
    kernels(lambda: torch.ones(8, device="cuda") + 1)
    directory = checkpoint("8b8", folder)
    os.environ["LLAMABI_CUDA_PDL"] = "0"
    for dtypes in ("bf16", "int8", "int4", "nf4", "fp8/fp8"):
        trace(directory, "8b8", dtypes, (1, 8, 32), (128, 2048))
    print("microseconds of kernels, without early starts")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
