#!/usr/bin/env python3
"""Writes the ranks of a tiktoken file as tokenizer.json and as GGUF, for `cargo bench --bench
tokenizer`: tokenizer_files.py RANKS FOLDER. A real file of Llama 3's size is in PyPI's llama-models
(0.3.0)."""
import base64, json, struct, sys
from pathlib import Path

RANKS, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
tokens = [base64.b64decode(line.split()[0]) for line in RANKS.read_bytes().splitlines() if line.strip()]
ids = {token: i for i, token in enumerate(tokens)}
# GPT-2's alphabet: a character for each byte, itself where it is visible.
visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
hidden = [byte for byte in range(256) if byte not in visible]
letter = {**{b: chr(b) for b in visible}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}
spell = lambda token: "".join(letter[byte] for byte in token)
# Every way to make a token of two, in the order of transformers' converter.
merges = []
for token in tokens:
    ways = [(ids[token[:i]], ids[token[i:]]) for i in range(1, len(token)) if token[:i] in ids and token[i:] in ids]
    merges += [(spell(tokens[a]), spell(tokens[b])) for a, b in sorted(ways)]
special = ["<|begin_of_text|>", "<|end_of_text|>"] + [f"<|reserved_special_token_{i}|>" for i in range(254)]
added = [dict(id=len(tokens) + i, content=text, special=True, single_word=False, lstrip=False, rstrip=False,
              normalized=False) for i, text in enumerate(special)]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
FOLDER.mkdir(parents=True, exist_ok=True)
level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
split = dict(type="Split", pattern=dict(Regex=LLAMA3), behavior="Isolated", invert=False)
(FOLDER / "tokenizer.json").write_text(json.dumps(dict(
    version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
    pre_tokenizer=dict(type="Sequence", pretokenizers=[split, level]), post_processor=level, decoder=level,
    model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
               fuse_unk=False, byte_fallback=False, ignore_merges=True,
               vocab={spell(token): i for i, token in enumerate(tokens)},
               merges=[list(merge) for merge in merges])), ensure_ascii=False, indent=2))

text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
strings = lambda list_: struct.pack("<IIQ", 9, 8, len(list_)) + b"".join(map(text, list_))
words = [spell(token) for token in tokens] + special
kinds = [1] * len(tokens) + [3] * len(special)
keys = {
    "general.architecture": struct.pack("<I", 8) + text("llama"),
    "tokenizer.ggml.model": struct.pack("<I", 8) + text("gpt2"),
    "tokenizer.ggml.pre": struct.pack("<I", 8) + text("llama-bpe"),
    "tokenizer.ggml.tokens": strings(words),
    "tokenizer.ggml.token_type": struct.pack("<IIQ", 9, 5, len(kinds)) + struct.pack(f"<{len(kinds)}i", *kinds),
    "tokenizer.ggml.merges": strings([f"{a} {b}" for a, b in merges]),
}
# No tensor: the tokenizer is read without the weights.
head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(text(k) + v for k, v in keys.items())
(FOLDER / "tokenizer.gguf").write_bytes(head + b"\0" * (-len(head) % 32))
print(f"{len(tokens)} ranks, {len(merges)} merges")
