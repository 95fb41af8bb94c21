"""Compares what benches/gpu_cost.py predicts for a step with what the library does: the bytes of
weights and cache that llama_get_info reports and, if the stand-in driver runs the kernels, the
launches that it counts.
"""

import ctypes
import os
import re
import sys

from model import CUDA, IGNORE_EOS, ROOT, Model
from parity import check, label, outcome, path, prompt

sys.path.insert(0, os.path.join(ROOT, "benches"))
import gpu_cost  # noqa: E402

TINY = os.environ.get("DAY_TINY") == "1"


def launches():
    """Kernels that the stand-in driver has run so far."""
    # This is the copy that the library has open, because it has the same name.
    driver = ctypes.CDLL("libcuda.so.1")
    text = ctypes.create_string_buffer(2048)
    driver.emu_cuda_report(text, ctypes.c_size_t(len(text)))
    return int(re.search(rb"(\d+) launches", text.value)[1])


def shape_of(model, tied):
    i = model.info
    return gpu_cost.Shape(i.dim, i.n_layers, i.n_heads, i.n_kv_heads, i.head_dim, i.ffn_dim, i.vocab_size, tied)


def told(directory, tied, weights, kv, length, batch):
    """Compares the bytes that llama_get_info reports."""
    what = f"{label(directory)} {weights}, cache {kv}"
    with Model(directory, CUDA, weights, kv, length=length, batch=batch) as model:
        shape = shape_of(model, tied)
        want = gpu_cost.weight_bytes(shape, weights)
        check(model.info.weight_bytes == want, f"{what}: {model.info.weight_bytes} bytes of weights, predicted {want}")
        want = batch * gpu_cost.kv_bytes(shape, kv, length)
        check(model.info.kv_bytes == want, f"{what}: {model.info.kv_bytes} bytes of cache, predicted {want}")
        print(f"{what}: {model.info.weight_bytes} bytes of weights, {model.info.kv_bytes} of cache")


def counted(directory, tied, weights, kv, n, batch, room):
    """Compares the launches of a call: `batch` prompts of `n` tokens, for which one step has
    room, then two decode steps."""
    what = f"{label(directory)} {weights}, cache {kv}, {batch} x {n}"
    with Model(directory, CUDA, weights, kv, length=64, batch=room) as model:
        shape = shape_of(model, tied)
        before = launches()
        model.complete([prompt(n, 7 * i) for i in range(batch)], 3, flags=IGNORE_EOS)
        got = launches() - before
    decoded = [gpu_cost.decode(shape, weights, kv, batch, n + i) for i in range(2)]
    want = len(gpu_cost.prefill(shape, weights, kv, 0, n, wanted=batch)) + sum(map(len, decoded))
    check(got == want, f"{what}: {got} launches, predicted {want}")
    print(f"{what}: {got} launches")


def main():
    demo, mha, gqa = os.path.join(ROOT, "demo/meta"), path("mha-f32/meta"), path("gqa-bf16/hf")
    for directory in [demo, mha, gqa]:
        for weights in ["f32", "f16", "bf16", "int8", "fp8", "int4"] + ["nf4"] * (directory != gqa):
            for kv in ["f32", "bf16", "int8", "fp8"] if weights in ("f32", "int4") else ["bf16"]:
                told(directory, False, weights, kv, 64, 3)
    if TINY:
        for weights, kv, n, batch, room in [("f32", "f32", 5, 1, 1), ("bf16", "bf16", 40, 1, 3), ("int4", "int8", 5, 1, 1),
                                            ("nf4", "bf16", 1, 1, 4), ("fp8", "fp8", 1, 1, 4), ("f32", "int8", 1, 5, 8), ("int8", "bf16", 1, 33, 40)]:
            counted(mha, False, weights, kv, n, batch, room)
    else:
        print("launches are counted on the stand-in driver only")
    return outcome()


if __name__ == "__main__":
    sys.exit(main())
