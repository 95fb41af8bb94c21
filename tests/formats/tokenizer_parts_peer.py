"""Random tokenizer.json files with what tokenizers makes of texts and ids, a line of JSON each:
tokenizer_parts_peer.py SEED COUNT

`{"seed", "file": JSON text, "texts": [[text, ids]], "ids": [[ids, text, text with special
tokens]]}`, or "error" for the last two. tests/formats/tokenizer_random.rs compares.
"""
import json, random, sys

from tokenizers import Tokenizer

CHARS = list("abcxy12.,'") + ["é", "中", " ", "▁", "\n", "ﬁ", "<", ">"]
BITS = CHARS + ["ab", "abc", "  ", "   ", " a", "▁a", "\r\n", "e\u0301", "ﬁ", "👋", "\u00a0", "\t", "<e>", "<t>", "x y", "12", "a b", "▁▁", ".a",
                "\u3000", "²", "A", "_", "-", "'s", "?!", "1a", "\u2028", "<0x41>", "ßÄ"]
ALPHABET = {b: chr(b) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE else None for b in range(256)}
for n, b in enumerate([b for b in range(256) if ALPHABET[b] is None]): ALPHABET[b] = chr(256 + n)


class Gen:
    def __init__(self, r):
        self.r = r

    def pick(self, *xs):
        return self.r.choice(xs)

    def flip(self, p=.5):
        return self.r.random() < p

    def text(self, most):
        return "".join(self.r.choice(BITS) for _ in range(self.r.randint(0, most)))

    def model(self, byte_level):
        if byte_level:
            base = [ALPHABET[b] for b in range(256) if b < 128 or self.flip(.9)]
        else:
            base = [c for c in CHARS if self.flip(.85)] or ["a"]
        vocab, merges = list(base), []
        for _ in range(self.r.randint(0, 25)):
            left, right = self.r.choice(vocab), self.r.choice(vocab)
            if byte_level and self.flip(.8): left = self.r.choice([ALPHABET[b] for b in b" abcxy.1\n"] + vocab[256:])
            if left in vocab and left + right not in vocab and len(left + right) < 8:
                merges.append([left, right])
                vocab.append(left + right)
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                 "fuse_unk": self.flip(), "byte_fallback": False, "ignore_merges": self.flip(.3)}
        if not byte_level:
            if self.flip(.6):
                vocab.append("<unk>")
                model["unk_token"] = "<unk>"
            if self.flip(.4):
                model["byte_fallback"] = True
                vocab += [f"<0x{b:02X}>" for b in range(256)]
            if self.flip(.2): vocab.append("<t>")
        model["vocab"] = {text: id for id, text in enumerate(vocab)}
        model["merges"] = merges if self.flip() or any(" " in a + b for a, b in merges) else [a + " " + b for a, b in merges]
        return model

    def replace(self):
        kind, pattern, content = self.pick(("String", " ", "▁"), ("String", " ", "▁"), ("String", "x", "y"), ("String", "ab", "c"), ("String", "a", ""), ("String", "x", "yy"), ("String", "  ", " "),
                                           ("Regex", r"\A +| +\z", ""), ("Regex", " {2,}", " "), ("Regex", "\\A▁", "▁▁"))
        return {"type": "Replace", "pattern": {kind: pattern}, "content": content}

    def sequence(self, key, steps, p=.5):
        if not steps: return None
        return {"type": "Sequence", key: steps} if len(steps) > 1 or self.flip(p) else steps[0]

    def normalizer(self):
        step = lambda: self.r.choice([lambda: {"type": "NFC"}, lambda: {"type": "NFKC"}, lambda: {"type": "Prepend", "prepend": self.pick("▁", "▁", " ", "x", " x")}, self.replace, self.replace, self.replace])()
        return self.sequence("normalizers", [step() for _ in range(self.pick(0, 0, 1, 1, 2, 3))])

    def metaspace(self):
        return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": self.pick("always", "first", "never"), "split": self.flip()}

    def split(self):
        pattern = self.pick({"String": "."}, {"String": "ab"}, {"Regex": r"\s+"}, {"Regex": r"\p{L}+| ?[^\s\p{L}]+|\s+"}, {"Regex": r"[\r\n]"}, {"Regex": r"\s+(?!\S)|\s+"}, {"Regex": r"(?i:'s|'t)|\p{N}{1,2}"})
        behavior, invert = self.pick(("Isolated", False), ("Isolated", False), ("Removed", True), ("Removed", False), ("Isolated", True))
        return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}

    def cutter(self):
        return self.r.choice([self.split, self.split, lambda: {"type": "Whitespace"}, lambda: {"type": "WhitespaceSplit"}, lambda: {"type": "Digits", "individual_digits": self.flip()},
                              lambda: {"type": "Punctuation", "behavior": self.pick("Isolated", "Contiguous")}])()

    def pre_tokenizer(self, byte_level):
        if byte_level:
            steps = [self.cutter() for _ in range(self.pick(0, 0, 1, 2))]
            steps.append({"type": "ByteLevel", "add_prefix_space": self.flip(.3) and not steps, "trim_offsets": True, "use_regex": self.flip()})
            return self.sequence("pretokenizers", steps)
        steps = [self.metaspace()] if self.flip(.5) else []
        if not steps or not steps[0]["split"]: steps += [self.cutter() for _ in range(self.pick(0, 0, 1, 2))]
        return self.sequence("pretokenizers", steps)

    def decoder(self, byte_level, fallback):
        if byte_level:
            return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        steps = []
        if self.flip(.8): steps.append(self.pick({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, self.metaspace()))
        if fallback or self.flip(.1): steps.append({"type": "ByteFallback"})
        if not steps or self.flip(.6):
            steps.append({"type": "Fuse"})
            if self.flip() and not (steps and steps[0]["type"] == "Metaspace"): steps.append({"type": "Strip", "content": " ", "start": self.pick(1, 1, 0), "stop": 0})
        return self.sequence("decoders", steps)

    def added(self, vocab):
        tokens, n = [], len(vocab)
        for content in self.r.sample(["<e>", "<t>", "x y", "▁▁", "  ", "\n", " z", "é", "Ġq", "ab", "▁t", "ﬁx", "<0x41>", "<e><t>", "<s>"], self.pick(0, 1, 2, 3, 5)):
            id = vocab.get(content)
            if id is None: id, n = n, n + 1
            tokens.append({"id": id, "content": content, **{flag: self.flip(.25) for flag in ("single_word", "lstrip", "rstrip")}, "normalized": self.flip(.4), "special": self.flip(.4)})
        return sorted(tokens, key=lambda token: token["id"])

    def file(self):
        byte_level = self.flip(.4)
        model = self.model(byte_level)
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": self.added(model["vocab"]), "normalizer": self.normalizer(), "pre_tokenizer": self.pre_tokenizer(byte_level),
                "post_processor": None, "decoder": self.decoder(byte_level, model["byte_fallback"]), "model": model}


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    for n in range(seed, seed + count):
        gen = Gen(random.Random(n))
        file = gen.file()
        case = {"seed": n, "file": json.dumps(file, ensure_ascii=False)}
        texts = [gen.text(gen.pick(2, 5, 12)) for _ in range(12)] + [token["content"] for token in file["added_tokens"]]
        last = len(file["model"]["vocab"]) + len(file["added_tokens"])
        runs = [[gen.r.randrange(last) for _ in range(gen.r.randint(1, 5))] for _ in range(8)]
        try:
            tokenizer = Tokenizer.from_str(case["file"])
            case["texts"] = [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]
            runs += [ids for _, ids in case["texts"]] + [[token["id"]] for token in file["added_tokens"]]
            case["ids"] = [[ids, tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False)] for ids in runs]
        except BaseException as error:
            case["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(case))


if __name__ == "__main__":
    main()
