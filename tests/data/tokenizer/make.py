"""Writes tokenizer.model, a SentencePiece tokenizer of 32,000 pieces, and what SentencePiece itself
says of it.

    python3 -m venv v && v/bin/pip install sentencepiece==0.2.3
    v/bin/python tests/data/tokenizer/make.py

The trainer's settings are those that Llama 2's tokenizer file records: BPE with byte fallback,
digits apart, a dummy prefix, no normalisation, white space kept. The text is the project's own:
stories of the demo model's grammar, lines of program code, and words of an invented language, for
32,000 pieces need more words than the stories have.

cases.json: texts with their ids and what these decode to. dialogs.json: dialogs with their prompts'
ids, in Meta's Llama 2 chat format, which this file states a second time, from its description.
"""
import io
import itertools
import json
import os
import sys
from random import Random

import sentencepiece

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../../demo"))
import stories  # noqa: E402

PIECES = 32_000
ONSETS = "b br c ch d dr f fl g gr h j k l m n p pl pr qu r s sc sh sp st str t th tr v w y z".split()
VOWELS = "a e i o u ai ea ee ie oo ou".split()
CODAS = ["", "", "", *"b ck d ft g l ll m n nd ng nt p r rd s ss st t x".split()]
ENDINGS = ["", "", "", "", *"s ed ing er ly ness able tion al ment".split()]
LETTERS = (*map(chr, range(0xC0, 0x180)), *map(chr, range(0x391, 0x3CA)), *map(chr, range(0x410, 0x450)),
           *"–—‘’“”…•€£°§±×世界你好人大中国日本語水山川木火土金月", "\u3042\u3044\u3046\u3048\u304a")


def words(rng):
    """Distinct invented words, those that are used most first."""
    found = dict.fromkeys(
        "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.choice((1, 2, 2, 3))))
        + rng.choice(ENDINGS) for _ in range(90_000))
    return list(found)


def code(rng):
    """A line of no language in particular."""
    name, other = (rng.choice("i j n x row item value key total self.items count".split()) for _ in range(2))
    indent = " " * (4 * rng.randint(0, 4))
    return indent + rng.choice((f"for {name} in range({other}):", f"{name} = {other}[{rng.randint(0, 99)}];", f"if ({name} != {other}) {{",
                                "}", f"return {name} + {other};", f"// {name}: {other}", f"def {name}({other}, **kwargs):", f"{name} += 1;"))


def text(rng):
    """The lines to learn from."""
    invented = words(rng)
    # Zipf's law, so that frequent words become one piece and rare ones several.
    weights = list(itertools.accumulate(1 / (rank + 20) for rank in range(len(invented))))
    for _ in range(40_000):
        line = rng.choices(invented, cum_weights=weights, k=rng.randint(6, 16))
        if rng.random() < 0.3:
            line.insert(rng.randrange(len(line)), str(rng.randint(0, 10_000)))
        if rng.random() < 0.2:
            at = rng.randrange(len(line))
            line[at] = line[at].capitalize() + rng.choice(LETTERS)
        yield " ".join(line).capitalize() + rng.choice((".", "!", "?", ",", ":", ";"))
    for _ in range(3_000):
        yield stories.tell(rng).text
    for _ in range(6_000):
        yield code(rng)


def train():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=text(Random(1)), model_writer=model, model_type="bpe", vocab_size=PIECES, byte_fallback=True, split_digits=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, character_coverage=1.0,
        max_sentence_length=1 << 16, num_threads=1, minloglevel=1)
    return model.getvalue()


TEXTS = [
    "The lighthouse keeper counts the ships that", "To begin with, a proof by induction needs ", "", "a", " leading", "trailing ", " two  spaces",
    "\n", "\ttab\n\nlines", "Hello, 世界! 🦙", "naïve café — “quotes”", "emoji 👩‍👩‍👧‍👦 zwj", "0123456789 3.14159", "def f(x):\n    return x  # ok\n",
    "for (int i = 0; i < n; ++i) {}", "ΑΒΓ Привет мир", "\u2581 \u2581x", "\0 NUL", "<s> </s> <unk> <0x41>", "Once upon a time there was a little fox.",
    "wordswithoutspacesareonepiece", "ÅÄÖ åäö ßẞ", "\u200b\ufeff", "....----====", "the the the",
]

DIALOGS = [
    [("user", "how long does a pot of lentils have to simmer?")],
    [("user", "My train stops in Ghent for three hours, where do I go?"), ("assistant", "Ghent has canals and a castle in the middle of the town."), ("user", "Is the #2 far from the station?")],
    [("system", "Reply in one rhyming couplet"), ("user", "My train stops in Ghent for three hours, where do I go?")],
    [("system", " Be brief. "), ("user", " Hi "), ("assistant", " Hello\n"), ("user", "Bye")],
    [("system", ""), ("user", "世界 🦙")],
    [("user", "\x1c a \x1f"), ("assistant", ""), ("user", ""), ("assistant", "x"), ("user", "y")],
]


def prompt(tokenizer, dialog):
    """The ids of a dialog: past turns with BOS and EOS, the last one with BOS alone."""
    if dialog[0][0] == "system":
        first = f"<<SYS>>\n{dialog[0][1]}\n<</SYS>>\n\n{dialog[1][1]}"
        dialog = [("user", first), *dialog[2:]]
    ids = []
    for (_, user), (_, answer) in zip(dialog[::2], dialog[1::2]):
        ids += [tokenizer.bos_id(), *tokenizer.encode(f"[INST] {user.strip()} [/INST] {answer.strip()} "), tokenizer.eos_id()]
    return [*ids, tokenizer.bos_id(), *tokenizer.encode(f"[INST] {dialog[-1][1].strip()} [/INST]")]


def write(name, cases):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as file:
        file.write("[" + ",\n ".join(json.dumps(case, ensure_ascii=False) for case in cases) + "]\n")


def main():
    model = train()
    with open(os.path.join(HERE, "tokenizer.model"), "wb") as file:
        file.write(model)
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert tokenizer.vocab_size() == PIECES
    write("cases.json", ({"text": text, "ids": (ids := tokenizer.encode(text)), "decoded": tokenizer.decode(ids)} for text in TEXTS))
    write("dialogs.json", ({"dialog": [{"role": role, "content": content} for role, content in dialog], "prompt_tokens": prompt(tokenizer, dialog)}
                           for dialog in DIALOGS))


if __name__ == "__main__":
    main()
