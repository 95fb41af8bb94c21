"""What fp8 makes of weights, for a backend that has no fp8: a copy of a checkpoint in float32 whose
layers' matrices are rounded as compute/src/quant/fp8.rs rounds them. Without PyTorch, for tiny
models.
"""

import array
import json
import math
import os
import shutil
import struct

GROUP = 128  # columns that share a scale
MOST = 448.0


def widened(dtype, raw):
    if dtype == "F32":
        return array.array("f", raw)
    if dtype == "F16":
        return array.array("f", struct.unpack(f"<{len(raw) // 2}e", raw))
    assert dtype == "BF16", dtype
    return array.array("f", b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)))


def at_least(x):
    """The least f16 that is not below x, which is not negative."""
    bits = struct.unpack("<H", struct.pack("<e", x))[0]
    near = struct.unpack("<e", struct.pack("<H", bits))[0]
    return near if near >= x else struct.unpack("<e", struct.pack("<H", bits + 1))[0]


def nearest(x):
    """The nearest e4m3, ties to even."""
    m = min(abs(x), MOST)
    if m < 2**-6:
        m = round(m * 512) / 512
    else:
        fraction, exponent = math.frexp(m)
        m = math.ldexp(round(fraction * 16), exponent - 4)
    return math.copysign(m, x)


def round_row(row):
    for first in range(0, len(row), GROUP):
        group = row[first:first + GROUP]
        scale = at_least(max(map(abs, group)) / MOST)
        if scale:
            row[first:first + GROUP] = array.array("f", [nearest(x / scale) * scale for x in group])


def rounded(directory, to):
    """`directory`: a checkpoint in Hugging Face's form with one file of weights. `to`: the copy."""
    os.makedirs(to, exist_ok=True)
    for name in ("config.json", "tokenizer.model"):
        shutil.copy(os.path.join(directory, name), to)
    with open(os.path.join(directory, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    out, written = {}, b""
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        values = widened(tensor["dtype"], data[begin:end])
        if name.endswith("_proj.weight"):
            columns = tensor["shape"][1]
            for first in range(0, len(values), columns):
                row = values[first:first + columns]
                round_row(row)
                values[first:first + columns] = row
        raw = values.tobytes()
        out[name] = {"dtype": "F32", "shape": tensor["shape"], "data_offsets": [len(written), len(written) + len(raw)]}
        written += raw
    text = json.dumps(out).encode()
    with open(os.path.join(to, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + written)
    return to
