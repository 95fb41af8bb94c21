"""Writes nf4.json: codes and scales that bitsandbytes (CPU) gives to fixed weights.

    python -m venv v && v/bin/pip install bitsandbytes==0.50.2 torch==2.15.0
    v/bin/python tests/data/quant/nf4.py > tests/data/quant/nf4.json

The weights are a formula over integers that float32 computes exactly, so that the test makes the
same ones; only what bitsandbytes makes of them is stored. Its native CPU library is kept out: that
looks scales up in a table of 2^-15 resolution, where the code that all devices have in common takes
the nearest value.
"""
import ctypes
import json

import torch


def refuse(*_):
    raise OSError("kept out")


ctypes.cdll.LoadLibrary, load = refuse, ctypes.cdll.LoadLibrary
from bitsandbytes import functional  # noqa: E402

ctypes.cdll.LoadLibrary = load


def weights(rows, cols, seed):
    state, out = seed, []
    for _ in range(rows * cols):
        total = 0
        for _ in range(4):  # about normal
            state = (state * 1664525 + 1013904223) % 2**32
            total += (state >> 16) - 32768
        out.append(total / 2**19)
    out[5], out[70 * 7 % len(out)] = 7.0, -9.5  # outliers
    for i in range(64, 128):  # a block of zeros
        out[i] = 0.0
    return torch.tensor(out, dtype=torch.float32).reshape(rows, cols)


def case(rows, cols, seed):
    codes, state = functional.quantize_4bit(
        weights(rows, cols, seed), blocksize=64, compress_statistics=True, quant_type="nf4"
    )
    bits = lambda t: [x & 0xFFFFFFFF for x in t.reshape(-1).float().view(torch.int32).tolist()]
    return {
        "rows": rows,
        "cols": cols,
        "seed": seed,
        "codes": bytes(codes.reshape(-1).tolist()).hex(),
        "absmax": bytes(state.absmax.reshape(-1).tolist()).hex(),
        "nested_absmax_bits": bits(state.state2.absmax),
        "offset_bits": bits(state.offset)[0],
    }


tables = {
    "codebook_bits": [x & 0xFFFFFFFF for x in functional.get_4bit_type("nf4", device="cpu").view(torch.int32).tolist()],
    "dynamic_bits": [x & 0xFFFFFFFF for x in functional.create_dynamic_map().view(torch.int32).tolist()],
}
print(json.dumps(tables | {"cases": [case(40, 448, 1), case(3, 64, 2), case(16, 1024, 3)]}))
