"""Writes the corpus: small files of each format, from which the mutation fuzzers start.

The .pth files are pickled by Python's own pickler, in the protocols and shapes that torch.save can
write, with stand-ins for PyTorch's classes. Standard library only:  python3 make.py
"""

import base64
import collections
import io
import json
import pathlib
import pickle
import shutil
import struct
import sys
import types
import zipfile

HERE = pathlib.Path(__file__).parent
DATA_FORMATS = {"F32": "f", "F16": "e"}

torch = types.ModuleType("torch")
utils = types.ModuleType("torch._utils")
sys.modules.update({"torch": torch, "torch._utils": utils})


def stand_in(module, name):
    """Something that is pickled as `module.name`."""
    thing = type(name, (), {"__module__": module.__name__})
    setattr(module, name, thing)
    return thing


FloatStorage = stand_in(torch, "FloatStorage")
HalfStorage = stand_in(torch, "HalfStorage")
BFloat16Storage = stand_in(torch, "BFloat16Storage")
rebuild_tensor = stand_in(utils, "_rebuild_tensor_v2")
rebuild_parameter = stand_in(utils, "_rebuild_parameter")


class Storage:
    def __init__(self, kind, key, data, size):
        self.kind, self.key, self.data, self.numel = kind, key, data, len(data) // size


class Tensor:
    def __init__(self, storage, shape, offset=0):
        self.storage, self.shape, self.offset = storage, tuple(shape), offset

    def __reduce__(self):
        strides, step = [], 1
        for n in reversed(self.shape):
            strides.insert(0, step)
            step *= n
        hooks = collections.OrderedDict()
        return rebuild_tensor, (self.storage, self.offset, self.shape, tuple(strides), False, hooks)


class Parameter:
    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return rebuild_parameter, (self.tensor, True, collections.OrderedDict())


class StateDict(collections.OrderedDict):
    """A module's: an OrderedDict with an attribute, which pickles as BUILD."""

    def __reduce__(self):
        state = {"_metadata": collections.OrderedDict([("", {"version": 1})])}
        return collections.OrderedDict, (), state, None, iter(self.items())


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if isinstance(obj, Storage):
            return ("storage", obj.kind, obj.key, "cpu", obj.numel)


def pth(name, protocol, value, storages, compression=zipfile.ZIP_STORED):
    pkl = io.BytesIO()
    Pickler(pkl, protocol).dump(value)
    (HERE / "pickle" / name).with_suffix(".pkl").write_bytes(pkl.getvalue())
    with zipfile.ZipFile(HERE / "pth" / name, "w", compression) as z:
        def add(record, data):
            z.writestr(zipfile.ZipInfo("archive/" + record, (1980, 1, 1, 0, 0, 0)), data)
        add("data.pkl", pkl.getvalue())
        add("byteorder", b"little")
        for s in storages:
            add("data/" + s.key, s.data)
        add("version", b"3\n")


def floats(n, start=0):
    return struct.pack(f"<{n}f", *range(start, start + n))


def main():
    for folder in ("pth", "pickle", "safetensors", "config", "index", "tokenizer_json", "tiktoken"):
        shutil.rmtree(HERE / folder, ignore_errors=True)
        (HERE / folder).mkdir()

    a = Storage(FloatStorage, "0", floats(6), 4)
    b = Storage(BFloat16Storage, "1", struct.pack("<4H", 0x3F80, 0x4000, 0x4040, 0x4080), 2)
    for protocol in (2, 3, 4, 5):
        dict_of_two = {"a": Tensor(a, (2, 3)), "b": Tensor(b, (4,))}
        pth(f"protocol{protocol}.pth", protocol, dict_of_two, [a, b])
    state = StateDict([("a", Parameter(Tensor(a, (2, 3)))), ("b", Tensor(b, (2, 2)))])
    pth("state_dict.pth", 2, state, [a, b])
    # Two tensors in one storage, the second from element 2 on.
    pth("shared.pth", 2, {"a": Tensor(a, (2, 3)), "tail": Tensor(a, (4,), 2)}, [a])

    entries = {
        "x": ("F32", [2, 3], floats(6)),
        "y": ("BF16", [4], struct.pack("<4H", 0x3F80, 0x4000, 0x4040, 0x4080)),
        "z": ("F16", [1, 2], struct.pack("<2e", 1, 2)),
    }
    for name, metadata in (("plain", {}), ("metadata", {"__metadata__": {"format": "pt"}})):
        header, data = dict(metadata), b""
        for key, (dtype, shape, content) in entries.items():
            offsets = [len(data), len(data) + len(content)]
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
            data += content
        text = json.dumps(header).encode()
        file = struct.pack("<Q", len(text)) + text + data
        (HERE / "safetensors" / f"{name}.safetensors").write_bytes(file)

    index = {"metadata": {"total_size": 36}, "weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}
    (HERE / "index" / "index.json").write_text(json.dumps(index))

    configs = {
        "params2": {"dim": 64, "multiple_of": 32, "n_heads": 4, "n_layers": 3, "norm_eps": 1e-5,
                    "vocab_size": -1},
        "params3": {"dim": 64, "ffn_dim_multiplier": 1.3, "multiple_of": 16, "n_heads": 4,
                    "n_kv_heads": 2, "n_layers": 3, "norm_eps": 1e-5, "rope_theta": 500000.0,
                    "use_scaled_rope": True, "vocab_size": 512},
        "config4": {"architectures": ["LlamaForCausalLM"], "eos_token_id": [2, 3], "head_dim": 16,
                    "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 160,
                    "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2,
                    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                    "rope_scaling": {"type": "linear", "factor": 2.0}, "torch_dtype": "float32",
                    "vocab_size": 512},
        "config5": {"dtype": "bfloat16", "eos_token_id": 2, "hidden_size": 64,
                    "intermediate_size": 160, "model_type": "llama", "num_attention_heads": 4,
                    "num_hidden_layers": 2, "rms_norm_eps": 1e-6,
                    "rope_parameters": {"factor": 8.0, "high_freq_factor": 4.0,
                                        "low_freq_factor": 1.0, "rope_theta": 500000.0,
                                        "original_max_position_embeddings": 64,
                                        "rope_type": "llama3"},
                    "tie_word_embeddings": True, "vocab_size": 512},
    }
    for name, config in configs.items():
        (HERE / "config" / f"{name}.json").write_text(json.dumps(config))

    ranks = [bytes([b]) for b in range(256)] + [b"ab", b"abab", b" a"]
    lines = (f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(ranks))
    (HERE / "tiktoken" / "bytes.model").write_text("".join(lines))

    def added(id, content, **flags):
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        return {"id": id, "content": content, **{name: flags.get(name, False) for name in names}}

    bos = {"id": "<s>", "ids": [9], "tokens": ["<s>"]}
    expression = "'s| ?\\p{L}+|\\p{N}{1,3}|[^\\s\\p{L}]+|\\s+(?!\\S)|\\s+"
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    vocab = {"a": 0, "b": 1, "e": 2, "ab": 3, "abab": 4, "\u0120": 5, "\u0120a": 6, "\u010a": 7, "1": 8}
    pieces = {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "\u2581": 4, "\u2581a": 5, "<0x41>": 6}
    files = {
        "bytes": {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(9, "<s>", special=True), added(10, "1234", lstrip=True, normalized=True)],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": True}, split, byte_level]},
            "post_processor": {"type": "TemplateProcessing", "special_tokens": {"<s>": bos},
                               "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "byte_fallback": False, "ignore_merges": True, "vocab": vocab,
                      "merges": ["a b", ["ab", "ab"], "\u0120 a"]},
        },
        "pieces": {
            "added_tokens": [added(7, "<s>", special=True, rstrip=True)],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a"}]},
            "pre_tokenizer": metaspace,
            "decoder": {"type": "Sequence", "decoders": [
                replace, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                      "vocab": pieces, "merges": ["a b", ["\u2581", "a"]]},
        },
    }
    for name, tokenizer in files.items():
        (HERE / "tokenizer_json" / f"{name}.json").write_text(json.dumps(tokenizer))


main()
