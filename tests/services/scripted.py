"""Writes a checkpoint that answers with scripts: scripted.py FORM DIR.

No model at hand calls tools, so this one is made for it. Its only layer adds nothing, its embedding
and its last matrix send each token to the one that follows it in a script. The chat template ends
with the token that begins a script: the one that `chat_template_kwargs` names, or `result` behind a
tool's result. Tokens are single bytes, and the pieces of the scripts.
"""

import json
import struct
import sys
from pathlib import Path

ARGUMENTS = '{"city": "Zürich", "days": 12345678901234567890}'
SCRIPTS = {
    "hermes": {
        "call": ["Let me", " look.\n", "<tool", '_call>\n{"na', 'me": "get_weather", "argu', 'ments": ', ARGUMENTS, "}\n</tool_", "call>"],
        "two": ["<tool_call>", '\n{"name": "get_weather", "arguments": {"city": "A"}}\n', "</tool_call>", "\n<tool_call>\n", '{"name": "now"}', "\n</tool_call>"],
        "broken": ["<tool_call>\n", '{"name": "get_weather", "arguments": {"city": ', '"Paris"}\n</tool_call> oops'],
    },
    "mistral": {
        "call": ["Let me look.", "[TOOL_CALLS]", '[{"name": "get_weather", "arguments": ', ARGUMENTS, "}]"],
        "two": ['[TOOL_', 'CALLS][{"name": "get_weather", "arguments": {"city": "A"}}', ', {"name": "now", "arguments": {}}]'],
        "broken": ["[TOOL_CALLS][", '{"name": "get_weather"]', " oops"],
    },
    "llama": {
        "call": ["Let me look.", "<|python_tag|>", '{"name": "get_weather", "parameters": ', ARGUMENTS, "}"],
        "two": ['{"name": "get_weather", ', '"parameters": {"city": "A"}}', "; ", '{"name": "now", "parameters": {}}'],
        "broken": ['{"name": "get_', 'weather", "parameters": {]', " oops"],
    },
}
BOTH = {
    "result": ["It is 21", " degrees", " in Zürich", "."],
    "plain": ["The sky", " is", " blue."],
}
# What one of the tokenizers drops: soft hyphens, and a space before one.
DROPPED = {"mistral": None, "llama": None, "hermes": {
    "type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": dropped}, "content": ""} for dropped in (" \u00ad", "\u00ad")]}}
MARKERS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": "<|python_tag|>"}
CALLS = {
    "hermes": """{% for c in m.tool_calls or [] %}{{ '\n' }}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}""",
    "mistral": """{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('an id of ' ~ c.id | length) }}{% endif %}
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{{ ', ' if not loop.last }}{% endfor %}]{% endif %}""",
    "llama": """{% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %}""",
}
TEMPLATE = """{% if tools %}<|im_start|>system
{% for t in tools %}{{ t | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}CALLS<|im_end|>
{% endfor %}{{ extra | tojson if extra is defined }}{% if add_generation_prompt %}<|im_start|>assistant
{% if messages[-1].role == 'tool' %}<|result|>BEGINNINGS{% else %}<|plain|>{% endif %}{% endif %}"""


def byte_alphabet():
    """The characters that stand for bytes in tokenizer.json."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def write(form, folder):
    scripts = {**SCRIPTS[form], **BOTH}
    marker = MARKERS[form]
    added = {}  # text: whether it is special

    def token(text, special=False):
        assert text not in added, text
        added[text] = special
        return 256 + len(added) - 1

    end = token("<|im_end|>", True)
    token("<|im_start|>", True)
    follows = {}
    for name, pieces in scripts.items():
        at = token(f"<|{name}|>", True)
        for piece in pieces:
            follows[at] = token(piece, form != "hermes" and piece == marker)
            at = follows[at]
    follows[ord("d")] = token(", it said.")  # of an answer that is begun
    size = 256 + len(added)
    width = -(-size // 64) * 64

    def matrix(rows, columns, ones=()):
        data = bytearray(4 * rows * columns)
        for row, column, value in ones:
            struct.pack_into("<f", data, 4 * (row * columns + column), value)
        return [rows, columns], bytes(data)

    norm = [width], struct.pack("<f", 1) * width
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": matrix(size, width, [(i, i, 1) for i in range(size)]),
        "lm_head.weight": matrix(size, width, [(follows.get(i, end), i, 20) for i in range(size)]),
        "model.norm.weight": norm, layer + "input_layernorm.weight": norm, layer + "post_attention_layernorm.weight": norm,
        **{f"{layer}self_attn.{x}_proj.weight": matrix(width, width) for x in "qkvo"},
        **{f"{layer}mlp.{x}_proj.weight": matrix(64, width) for x in ("gate", "up")},
        layer + "mlp.down_proj.weight": matrix(width, 64),
    }
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header).encode()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + b"".join(data for _, data in tensors.values()))

    def put(name, value):
        (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")

    put("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": width, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": width // 64, "num_key_value_heads": width // 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "max_position_embeddings": 4096, "vocab_size": size, "tie_word_embeddings": False, "torch_dtype": "float32", "eos_token_id": end, "bos_token_id": None})
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    put("tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
                         for i, (text, special) in enumerate(added.items())],
        "normalizer": DROPPED[form], "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": {c: b for b, c in byte_alphabet().items()}, "merges": []}})
    beginnings = "".join("{%% elif script == '%s' %%}<|%s|>" % (name, name) for name in scripts)
    put("tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": TEMPLATE.replace("CALLS", CALLS[form]).replace("BEGINNINGS", beginnings)})


if __name__ == "__main__":
    write(*sys.argv[1:])
