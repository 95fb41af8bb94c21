"""Masks of llguidance's own Python package on the reference tokenizer: which ids may follow each
beginning of some texts.

usage: grammars.py ../reference/mha-f32/hf/tokenizer.model grammar-masks.json
(llguidance 1.9.1, sentencepiece 0.2, numpy 2)

A token's bytes are its contribution in the middle of a text (llama_token_bytes); control pieces are
special tokens. `mask` is a bit set over all ids, 32-bit words as hex, id t is bit t % 32 of word
t / 32. `rows` are of what llama_grammar_new compiles for a tokenizer that drops a leading space:
the same language after one space, which may be missing where the language cannot begin with one
itself (so that the text without it is of the language in any case). Row i is the state after i
tokens; a row with `refused` says that the token before it cannot follow."""
import json, re, sys
import numpy as np, sentencepiece as spm
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask


def tokenizer(path):
    sp = spm.SentencePieceProcessor(model_file=path)

    def word(i):
        piece = sp.id_to_piece(i)
        if sp.is_byte(i):
            return bytes([int(piece[3:5], 16)])
        if sp.is_control(i):
            return b"\xff" + piece.encode()
        if sp.is_unknown(i):
            return b"\xff<unk>"
        return piece.replace("\u2581", " ").encode()

    class Own:
        eos_token_id, bos_token_id = sp.eos_id(), sp.bos_id()
        tokens = [word(i) for i in range(sp.get_piece_size())]
        special_token_ids = [i for i in range(sp.get_piece_size()) if sp.is_control(i) or sp.is_unknown(i)]

        def __call__(self, s):  # byte by byte: never used for what is checked
            return [self.tokens.index(bytes([b])) for b in (s if isinstance(s, bytes) else s.encode())]

    return sp, LLTokenizer(TokenizerWrapper(Own()), slices=None)


def literal(s):
    return re.sub(r"([!-/:-@\[-^`{-~])", r"\\\1", s)


def compiled(kind, source, wrap=""):
    """What llguidance is given. `wrap`: "" for the language itself, " " and " ?" for one that has a
    space before it, or perhaps."""
    if kind == "json":
        kind, source = "json_schema", {"type": "object"}
    if kind == "choice":
        kind, source = "regex", "|".join("(%s)" % literal(c) for c in source)
    space = 'start: %s body\nSP: " "\n' % ("SP" if wrap == " " else "SP?")
    if kind == "regex":
        return LLMatcher.grammar_from_regex("%s(%s)" % (wrap, source) if wrap else source)
    if kind == "json_schema":
        return LLMatcher.grammar_from_lark(space + "body: %%json %s\n" % json.dumps(source)) if wrap else LLMatcher.grammar_from_json_schema(source)
    assert kind == "lark"
    return LLMatcher.grammar_from_lark(space + "body: %%lark {\n%s\n}\n" % source if wrap else source)


def may_begin_with_space(sp, ll, kind, source):
    m, mask = LLMatcher(ll, compiled(kind, source), log_level=0), allocate_token_bitmask(1, ll.vocab_size)
    fill_next_token_bitmask(m, mask)
    return any(int(mask[0, t // 32]) >> t % 32 & 1 for t in range(ll.vocab_size) if sp.id_to_piece(t).startswith("\u2581") or sp.id_to_piece(t) == "<0x20>")


def walk(ll, grammar, tokens):
    m = LLMatcher(ll, grammar, log_level=0)
    if m.is_error():
        raise ValueError(m.get_error())
    mask, rows = allocate_token_bitmask(1, ll.vocab_size), []
    for i in range(len(tokens) + 1):
        stopped = m.is_stopped()
        row = dict(accepting=m.is_accepting(), stopped=stopped)
        if not stopped:
            fill_next_token_bitmask(m, mask)
            row["mask"] = "".join("%08x" % (int(w) & 0xFFFFFFFF) for w in mask[0])
        rows.append(row)
        if stopped or i == len(tokens):
            break
        if not m.consume_token(tokens[i]) or m.is_error():
            rows.append(dict(refused=tokens[i]))
            break
    return rows


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2}}, "required": ["name", "age"], "additionalProperties": False}
REFERENCE = [
    ("json_schema", PERSON, ['{"name": "Ann", "age": 41}', '{"name":"Zo\u00eb","age":150,"tags":["red","green"]}', '{"name": "Ann", "age": 151}']),
    ("json_schema", {"type": "array", "items": {"type": "boolean"}, "minItems": 1}, ["[true, false]", "[]"]),
    ("json_schema", {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-f]{2,4}$"}]}, ["null", '"cafe"', '"g"']),
    ("json", None, ['{"a": [1, -2.5e3, "x\\n", null, {"b": {}}]}']),
    ("regex", "[0-9]{4}-[0-9]{2}-[0-9]{2}", ["2024-02-29", "2024-2"]),
    ("regex", "(the|to|generate)+ ?[a-z]*", ["thetogenerate words", "tokens"]),
    ("choice", ["temperature", "temp", "top_p", "a+b"], ["temp", "temperature", "a+b", "b"]),
    ("lark", 'start: sum\nsum: prod (("+"|"-") prod)*\nprod: atom (("*"|"/") atom)*\natom: NUM | "(" sum ")"\nNUM: /[0-9]+/\n', ["1+2*(34-5)/6", "(1", "1++"]),
]


def main(path, out):
    sp, ll = tokenizer(path)
    cases = []
    for kind, source, texts in REFERENCE:
        wrap = " " if may_begin_with_space(sp, ll, kind, source) else " ?"
        for text in texts:
            # Two ways to cut the same text: as the tokenizer would after other text, and byte by
            # byte.
            cuts = {"pieces": [i for i in sp.encode(text)], "bytes": None}
            bytes_of = [sp.piece_to_id("<0x%02X>" % b) for b in text.encode()]
            cuts["bytes"] = bytes_of
            for cut, tokens in cuts.items():
                case = dict(kind=kind, source=source, text=text, cut=cut, tokens=tokens)
                if cut == "bytes" and wrap == " ":
                    case["tokens"] = tokens = [sp.piece_to_id("<0x20>")] + tokens
                case["rows"] = walk(ll, compiled(kind, source, wrap), tokens)
                cases.append(case)
    import importlib.metadata
    with open(out, "w") as f:
        f.write('{"llguidance": "%s", "vocab_size": %d, "cases": [\n' % (importlib.metadata.version("llguidance"), ll.vocab_size))
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]}\n")
    return cases


if __name__ == "__main__":
    main(*sys.argv[1:])
