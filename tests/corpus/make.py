"""Writes the corpus: small files of each format, from which the mutation fuzzers start.

The .pth files are pickled by Python's own pickler, in the protocols and shapes that torch.save can
write, with stand-ins for PyTorch's classes. Standard library only:  python3 make.py
"""

import base64
import collections
import io
import json
import math
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


def quant_config(options, tensors):
    """A config.json in a line, then the safetensors of a model of one layer: every matrix has
    `tensors(rows, cols)`, suffix -> (dtype, shape, bytes)."""
    config = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 32,
              "num_attention_heads": 2, "num_hidden_layers": 1, "rms_norm_eps": 1e-6,
              "vocab_size": 8, "tie_word_embeddings": True, "quantization_config": options}
    all_tensors = {"model.embed_tokens.weight": ("F16", [8, 32], bytes(512))}
    for name in ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm"):
        all_tensors[name + ".weight"] = ("F16", [32], bytes(64))
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                 "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        for suffix, tensor in tensors(32, 32).items():
            all_tensors[f"model.layers.0.{name}.{suffix}"] = tensor
    return json_then_safetensors(config, all_tensors)


def json_then_safetensors(config, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return json.dumps(config).encode() + b"\n" + struct.pack("<Q", len(text)) + text + data


def adapter(**options):
    """An adapter_config.json in a line, then its tensors: two modules of
    tests/data/adapters/base."""
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "bias": "none",
              "target_modules": ["q_proj", "down_proj"], "lora_dropout": 0.0, **options}
    tensors, ranks = {}, options.get("rank_pattern", {})
    for module, rows, cols in (("self_attn.q_proj", 32, 32), ("mlp.down_proj", 32, 48)):
        rank = ranks.get(module.split(".")[1], 2)
        for name, shape in (("A", [rank, cols]), ("B", [rows, rank])):
            name = f"base_model.model.model.layers.0.{module}.lora_{name}.weight"
            tensors[name] = ("F16", shape, bytes(2 * shape[0] * shape[1]))
    return json_then_safetensors(config, tensors)


def templates():
    """A template and its variables, a NUL between them."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \n"},
                {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, None]}}}]}]
    turns = ("{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + (m.content or '') | trim + '\n' }}"
             "{% if m.tool_calls is defined %}{{ m.tool_calls | tojson(indent=2) }}{% endif %}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
    language = ("{%- set ns = namespace(n=0) -%}{% macro f(x, y=2) %}{{ x ~ y }}{% endmacro %}"
                "{% for a in range(5) if a % 2 == 0 recursive %}{% set ns.n = ns.n + a %}{{ loop.index }}{{ f(a) }}{% else %}none{% endfor %}"
                "{{ ns.n }}{{ messages[::-1] | map(attribute='role') | join(', ') | upper }}{{ '%05d' | format(42) }}"
                "{% call(v) f(1) %}{{ v }}{% endcall %}{{ {'a': 1}.items() | list }}{{ 'x' * 3 if messages | length > 2 else 'y' }}"
                "{% filter indent(2) %}a\nb{% endfilter %}{{ messages[0].content.split(' ') | last }}")
    variables = json.dumps({"messages": messages, "add_generation_prompt": True})
    # A macro without `caller` refuses the call block: the language's file has it in a branch that
    # is not taken.
    language = language.replace("{% call(v)", "{% if false %}{% call(v)").replace("{% endcall %}", "{% endcall %}{% endif %}")
    return {name: f"{source}\0{variables}" for name, source in (("turns", turns), ("language", language))}


def quant_configs():
    """One for each method."""
    def gptq(n, k):
        index = struct.pack(f"<{k}i", *([0] * k))
        return {"qweight": ("I32", [k // 8, n], bytes(k * n // 2)), "g_idx": ("I32", [k], index),
                "qzeros": ("I32", [1, n // 8], b"\x77" * (n // 2)), "scales": ("F16", [1, n], bytes(2 * n))}

    def awq(n, k):
        return {"qweight": ("I32", [k, n // 8], bytes(k * n // 2)), "qzeros": ("I32", [1, n // 8], bytes(n // 2)),
                "scales": ("F16", [1, n], bytes(2 * n))}

    def bnb(n, k):
        fp4 = [0, 0.005208333488553762, 0.6666666865348816, 1, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25]
        state = json.dumps({"quant_type": "fp4", "blocksize": 64, "dtype": "float16", "shape": [n, k]}).encode()
        return {"weight": ("U8", [n * k // 2, 1], bytes(n * k // 2)),
                "weight.absmax": ("F32", [n * k // 64], bytes(n * k // 16)),
                "weight.quant_map": ("F32", [16], struct.pack("<16f", *fp4, *(-x for x in fp4))),
                "weight.quant_state.bitsandbytes__fp4": ("U8", [len(state)], state)}

    def packed(n, k):
        return {"weight_packed": ("I32", [n, k // 8], bytes(n * k // 2)), "weight_scale": ("BF16", [n, 1], bytes(2 * n)),
                "weight_zero_point": ("I32", [n // 8, 1], bytes(n // 2)),
                "weight_shape": ("I64", [2], struct.pack("<2q", n, k))}

    def fp8(n, k):
        return {"weight": ("F8_E4M3", [n, k], bytes(n * k)), "weight_scale_inv": ("F32", [2, 2], bytes(16))}

    weights = {"num_bits": 4, "type": "int", "symmetric": False, "group_size": 32, "strategy": "group", "dynamic": False}
    return {
        "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}, gptq),
        "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, awq),
        "bnb": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, bnb),
        "compressed": ({"quant_method": "compressed-tensors", "format": "pack-quantized",
                        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}, packed),
        "fp8": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 16]}, fp8),
    }


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def strings(*parts):
    return struct.pack("<IIQ", 9, 8, len(parts)) + b"".join(map(text, parts))


def gguf(version):
    """A model of one layer's worth of names, with a key of every type."""
    keys = {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "general.alignment": struct.pack("<II", 4, 16),
        "llama.block_count": struct.pack("<IH", 2, 1),
        "llama.attention.head_count_kv": struct.pack("<IIQ2i", 9, 5, 2, 1, 1),
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", 6, 1e-5),
        "llama.rope.freq_base": struct.pack("<Id", 12, 1e4),
        "llama.embedding_length": struct.pack("<IQ", 10, 32),
        "small": struct.pack("<Ib", 1, -1),
        "byte": struct.pack("<IB", 0, 255),
        "short": struct.pack("<Ih", 3, -2),
        "long": struct.pack("<Iq", 11, -3),
        "tokenizer.ggml.add_bos_token": struct.pack("<IB", 7, 1),
        "tokenizer.ggml.tokens": strings("<s>", "", "\u2581a"),
        "tokenizer.ggml.scores": struct.pack("<IIQ3f", 9, 6, 3, 0.0, -1.0, -2.0),
    }
    tensors = [("token_embd.weight", [32, 3], 8, 3 * 34), ("output_norm.weight", [32], 0, 128),
               ("blk.0.attn_q.weight", [256, 1], 12, 144), ("rope_freqs.weight", [4, 1, 1, 1], 1, 8)]
    return gguf_file(version, keys, tensors)


def gguf_model(arch, tokenizer, rope):
    """A model of two layers that loads, as small as one can be: width 4, two heads of 2."""
    number = lambda n: struct.pack("<II", 4, n)
    size = lambda x: struct.pack("<If", 6, x)
    keys = {
        "general.architecture": struct.pack("<I", 8) + text(arch),
        "general.alignment": number(16),
        f"{arch}.block_count": number(2),
        f"{arch}.context_length": number(64),
        f"{arch}.embedding_length": number(4),
        f"{arch}.feed_forward_length": number(4),
        f"{arch}.attention.head_count": number(2),
        f"{arch}.attention.head_count_kv": number(1),
        f"{arch}.attention.layer_norm_rms_epsilon": size(1e-5),
        f"{arch}.rope.freq_base": size(1e4),
        **{f"{arch}.rope.{key}": value for key, value in rope.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()},
        "tokenizer.chat_template": struct.pack("<I", 8) + text("{{ messages[0].content }}"),
    }
    n_tokens = struct.unpack_from("<Q", tokenizer["tokens"], 8)[0]
    norm, square, short = [4], [4, 4], [4, 2]
    layer = {"attn_norm": norm, "attn_q": square, "attn_k": short, "attn_v": short, "attn_output": square,
             "ffn_norm": norm, "ffn_gate": square, "ffn_up": square, "ffn_down": square}
    sizes = {"token_embd": [4, n_tokens], "output_norm": norm}
    sizes.update({f"blk.{i}.{name}": of for i in range(2) for name, of in layer.items()})
    if arch == "llama":
        sizes["rope_freqs"] = [1]
    else:
        sizes.update({f"blk.{i}.attn_{name}.bias": [n] for i in range(2) for name, n in (("q", 4), ("k", 2), ("v", 2))})
    tensors = [(name if name.endswith("bias") else f"{name}.weight", of, 0, 4 * math.prod(of))
               for name, of in sizes.items()]
    return gguf_file(3, keys, tensors, struct.pack("<f", 1))


def gguf_models():
    ints = lambda *n: struct.pack(f"<IIQ{len(n)}i", 9, 5, len(n), *n)
    word = lambda s: struct.pack("<I", 8) + text(s)
    number = lambda n: struct.pack("<II", 4, n)
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "\u2581ab"]
    scores = [0.0, 0.0, 0.0, -4.0, -3.0, -3.0, -1.0, -2.0]
    yield "sentencepiece", gguf_model("llama", {
        "model": word("llama"), "pre": word("default"), "tokens": strings(*pieces),
        "scores": struct.pack(f"<IIQ{len(scores)}f", 9, 6, len(scores), *scores),
        "token_type": ints(2, 3, 3, 1, 1, 1, 1, 1),
        "bos_token_id": number(1), "eos_token_id": number(2), "unknown_token_id": number(0),
    }, {"dimension_count": number(2)})
    # The alphabet in which GPT-2's vocabulary spells bytes.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    tokens = letters + ["ab", "\u0120a", "<|im_end|>"]
    yield "byte-level", gguf_model("qwen2", {
        "model": word("gpt2"), "pre": word("qwen2"), "tokens": strings(*tokens),
        "token_type": ints(*[1] * (len(tokens) - 1), 3), "merges": strings("a b", "\u0120 a"),
        "eos_token_id": number(len(tokens) - 1),
    }, {"scaling.type": word("linear"), "scaling.factor": struct.pack("<If", 6, 2.0)})


def gguf_file(version, keys, tensors, number=None):
    """`tensors`: name, sizes innermost first, type, bytes. They are full of `number`, or of bytes
    that differ."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    out += b"".join(text(key) + value for key, value in keys.items())
    offset = 0
    for name, sizes, kind, n_bytes in tensors:
        out += text(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
        out += struct.pack("<IQ", kind, offset)
        offset += n_bytes + -n_bytes % 16
    data = number * (offset // 4) if number else bytes(i % 251 for i in range(offset))
    return out + bytes(-len(out) % 16) + data


def grammars():
    """Sources, each behind the digit that says of which kind it is."""
    record = {
        "type": "object", "required": ["a"], "additionalProperties": False,
        "properties": {"a": {"type": "string", "maxLength": 5, "pattern": "^[a-z]+$"},
                       "b": {"type": "integer", "minimum": -3, "multipleOf": 2},
                       "c": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]}},
        "$defs": {"d": {"type": "array", "items": {"enum": [1, "x"]}, "maxItems": 3}},
    }
    row = {
        "type": "array", "items": False, "x-guidance": {"whitespace_flexible": False},
        "prefixItems": [{"type": "string", "format": "date-time"}, {"type": "number", "exclusiveMaximum": 1.5}],
    }
    lark = 'start: a ("," a)*\na: /[ab]{1,3}/ | "x" b?\nb: %json {"type": "boolean"}\n%ignore " "\n'
    return {
        "record": "0" + json.dumps(record), "row": "0" + json.dumps(row),
        "regex": "1(ab|c{2,3})+[^a-y]?\\d{1,4}(\u00e9|\u65e5\u672c)",
        "lark": "2" + lark, "choice": "3" + json.dumps(["red", "green and", "\u00e9"], ensure_ascii=False),
    }


def main():
    for folder in ("pth", "pickle", "safetensors", "config", "index", "tokenizer_json", "tiktoken", "gguf", "gguf_model",
                   "quant_config", "adapter", "jinja", "chat_json", "grammar"):
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

    for name, (options, tensors) in quant_configs().items():
        (HERE / "quant_config" / name).write_bytes(quant_config(options, tensors))

    for name, options in {"plain": {}, "patterns": {"use_rslora": True, "rank_pattern": {"q_proj": 1}}}.items():
        (HERE / "adapter" / name).write_bytes(adapter(**options))

    for name, text in templates().items():
        (HERE / "jinja" / name).write_text(text)

    for name, text in grammars().items():
        (HERE / "grammar" / name).write_text(text)

    dialogs = {
        "texts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "<s>b"}]}],
        "tools": [{"role": "user", "content": "Hi"},
                  {"role": "assistant", "content": None, "reasoning_content": "Hm",
                   "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": [1, null]}"}}]},
                  {"role": "tool", "tool_call_id": "1", "name": "f", "content": "{}"}, {"role": "user", "content": "So?"}],
    }
    for name, messages in dialogs.items():
        (HERE / "chat_json" / f"{name}.json").write_text(json.dumps(messages))

    for version in (2, 3):
        (HERE / "gguf" / f"version{version}.gguf").write_bytes(gguf(version))
    for name, model in gguf_models():
        (HERE / "gguf_model" / f"{name}.gguf").write_bytes(model)

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
        "tekken": {
            "config": {"pattern": expression, "num_vocab_tokens": len(ranks), "version": "v11",
                       "default_vocab_size": len(ranks) + 4, "default_num_special_tokens": 4},
            "vocab": [{"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
                      for i, token in enumerate(ranks)],
            "special_tokens": [{"rank": i, "token_str": text, "is_control": True}
                               for i, text in enumerate(("<unk>", "<s>", "</s>"))],
        },
    }
    for name, tokenizer in files.items():
        (HERE / "tokenizer_json" / f"{name}.json").write_text(json.dumps(tokenizer))


def rank_messages():
    """Messages between ranks, as src/ranks/processes writes them: a step, options, what a rank has
    found, a failure, pages, adapters."""
    folder = HERE / "rank_message"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()

    def sizes(*numbers):
        return b"".join(struct.pack("<Q", n) for n in numbers)

    def numbers(*of):
        return sizes(len(of)) + b"".join(struct.pack("<I", n) for n in of)

    def text(of):
        return sizes(len(of)) + of

    def span(decode, position, rows, pages):
        return struct.pack("<I", decode) + sizes(position, *rows, *pages)

    step = numbers(1, 2, 99) + numbers(159, 0xFFFFFFFF, 17) + sizes(2)
    step += span(1, 47, (0, 1), (0, 3)) + span(0, 0, (1, 3), (3, 4))
    step += numbers(4, 5, 9, 1) + numbers(0, 2) + numbers(0, 3)
    options = sizes(64, 2, 0) + struct.pack("<III", 3, 0, 1) + sizes(1500, 100, 2, 1)
    options += text(b"adapters/a") + struct.pack("<f", 0.5) + text(bytes(range(128)))
    found = struct.pack("<I", 0) + sizes(0x1234567890ABCDEF) + text(b"models/a") + sizes(1000, 800, 100, 4000) + text(b"a processor")
    messages = {
        "step": (8, step),
        "nothing": (8, numbers() + numbers() + sizes(0) + numbers() + numbers() + numbers()),
        "options": (2, options),
        "found": (3, found),
        "failed": (17, struct.pack("<I", 4) + text(b"the weights need 10 bytes")),
        "copy": (9, numbers(1, 2) + numbers(3, 4)),
        "save": (10, numbers(0, 9)),
        "progress": (5, struct.pack("<f", 0.25)),
        "ready": (6, sizes(4096)),
        "beat": (13, b""),
        "adapt": (19, struct.pack("<If", 3, 0.5) + text(b"adapters/a")),
        "adapted": (20, struct.pack("<II", 3, 0) + sizes(0x1234567890ABCDEF)),
        "refused": (20, struct.pack("<III", 3, 1, 1) + text(b"adapters/a: No such file")),
        "forget": (21, struct.pack("<I", 3)),
    }
    for name, (kind, body) in messages.items():
        (folder / name).write_bytes(struct.pack("<IIQ", kind, len(body), 0) + body)


main()
rank_messages()
