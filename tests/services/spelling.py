"""The tokens that a service lists spell its texts, byte for byte, whatever bytes the tokens have.

spelling.py URL each|part   what U+FFFD stands for: each byte that is no part of a code point, as in
                            SentencePiece's texts, or each part that could have become one, as in
                            those of byte-level tokenizers
"""

import codecs
import json
import random
import sys
import urllib.request

import openai

URL, REPLACED = sys.argv[1:]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600)
MODEL = client.models.list().data[0].id
codecs.register_error("each", lambda e: ("\ufffd" * (e.end - e.start), e.end))
codecs.register_error("part", codecs.lookup_error("replace"))


def tokens_of(text, **more):
    """Ids and bytes of a text's tokens."""
    request = urllib.request.Request(URL + "/tokenize", json.dumps({"content": text, "with_pieces": True, **more}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        pieces = json.load(answer)["tokens"]
    return [(p["id"], p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"])) for p in pieces]


def complete(**more):
    return client.completions.create(**{"model": MODEL, "temperature": 0, "logprobs": 1, **more})


def bytes_of(token):
    """As completions write them: the bytes of part of a code point by name."""
    return bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:") else token.encode()


def joined(tokens):
    return b"".join(map(bytes_of, tokens))


def check(text, tokens, offsets):
    assert joined(tokens) == text.encode(), (text, tokens)
    # If a token continues a code point, its offset is where that code point begins.
    for i, offset in enumerate(offsets):
        assert offset == len(joined(tokens[:i]).decode(errors="ignore")), (text, tokens, offsets)


def check_stream(chunks):
    """Text and tokens of a choice's chunks: a token comes with the text that it completes."""
    text, tokens = "", [t for c in chunks if c.logprobs for t in c.logprobs.tokens]
    listed = 0
    for chunk in chunks:
        text += chunk.text
        listed += len(chunk.logprobs.tokens) if chunk.logprobs else 0
        if chunk.text:
            behind = len(text.encode()) - len(joined(tokens[:listed]))
            assert behind >= 0 and (behind == 0 or behind < len(bytes_of(tokens[listed]))), (text, tokens, listed)
    return text, tokens, [o for c in chunks if c.logprobs for o in c.logprobs.text_offset]


def texts():
    """Code points of several tokens each."""
    for prompt in ("a€", "zażółć 😀😀 ü", "😀", "世x日本"):
        choice = complete(prompt=prompt, echo=True, max_tokens=3).choices[0]
        assert choice.text.startswith(prompt), choice
        assert any(token.startswith("bytes:") for token in choice.logprobs.tokens), choice
        check(choice.text, choice.logprobs.tokens, choice.logprobs.text_offset)
        options = dict(prompt="a", max_tokens=30, extra_body={"guided_choice": [prompt]})
        whole = complete(**options)
        choice = whole.choices[0]
        assert choice.text == prompt and len(choice.logprobs.tokens) in (whole.usage.completion_tokens, whole.usage.completion_tokens - 1), whole
        check(choice.text, choice.logprobs.tokens, choice.logprobs.text_offset)
        streamed = check_stream([chunk.choices[0] for chunk in complete(**options, stream=True)])
        assert streamed == (choice.text, choice.logprobs.tokens, choice.logprobs.text_offset), streamed


def expected(tokens):
    """What the tokenizer decodes tokens to. A control token, which has no bytes, ends a code point
    of SentencePiece's."""
    runs = [b""]
    for _, own in tokens:
        runs[-1] += own
        if own == b"" and REPLACED == "each":
            runs.append(b"")
    text = "".join(run.decode(errors=REPLACED) for run in runs)
    return text[1:] if REPLACED == "each" and text.startswith(" ") else text


def any_tokens():
    """Tokens in any order: parts of code points that nothing completes, before, between and behind
    whole ones and control tokens."""
    begin = tokens_of("", add_special=True)
    assert [own for _, own in begin] == [b""], begin
    points = "😀😁世界日本é€üż\u0800\ud7ff\ue000\U00010000\U000e0001\U0010fffd"
    parts = sorted({one for point in points for one in tokens_of(point) if len(one[1]) != len(point.encode()) and one[1].strip()})
    assert REPLACED == "each" or any(len(own) > 1 for _, own in parts), parts
    whole = [one for text in ("a", " b", " ", "\ufffd", "é") for one in tokens_of(text)]
    draw = random.Random(1)
    prompts = [[draw.choice(draw.choice((parts, parts, parts, whole, begin))) for _ in range(draw.randrange(1, 16))] for _ in range(300)]
    options = dict(prompt=[[token for token, _ in prompt] for prompt in prompts], echo=True, max_tokens=0)
    choices = complete(**options).choices
    for prompt, choice in zip(prompts, choices, strict=True):
        assert choice.text == expected(prompt), (prompt, choice.text)
        assert len(choice.logprobs.tokens) == len(prompt), (prompt, choice)
        check(choice.text, choice.logprobs.tokens, choice.logprobs.text_offset)
    # What is generated goes on where an echo has ended, be that in a code point.
    for choice in complete(**{**options, "prompt": options["prompt"][:40], "max_tokens": 2}, n=2, temperature=1, seed=3).choices:
        check(choice.text, choice.logprobs.tokens, choice.logprobs.text_offset)
    chunks = [chunk.choices[0] for chunk in complete(**options, stream=True)]
    for i, choice in enumerate(choices):
        streamed = check_stream([c for c in chunks if c.index == i])
        assert streamed == (choice.text, choice.logprobs.tokens, choice.logprobs.text_offset), (prompts[i], streamed)


def forced(tokens):
    """Options with which the model writes these tokens, each another one."""
    assert len(set(tokens)) == len(tokens) <= 6, tokens
    return {"logit_bias": {str(token): 100 - 14 * i for i, token in enumerate(tokens)}, "extra_body": {"no_repeat_ngram_size": 1}}


def cut():
    """Texts that end in the middle of a code point, because of max_tokens or a stop string."""
    asking = [tokens_of("q")[-1][0]]  # without a space, which could not come a second time
    face = tokens_of("c😀")[-4 if REPLACED == "each" else -3:]
    after = tokens_of(" z")[-1]
    assert b"".join(own for _, own in face) == "😀".encode() and len(after[1]) <= 2, (face, after)
    for asked in (face, face[:2] + [after] + face[2:], face[1:] + face[:1], [after] + face):
        for most in range(1, len(asked) + 1):
            tokens, text = asked[:most], b"".join(own for _, own in asked[:most]).decode(errors=REPLACED)
            options = {"prompt": asking, "max_tokens": most, **forced([token for token, _ in asked])}
            answer = complete(**options, n=2)
            for choice in answer.choices:
                assert choice.text == text and len(choice.logprobs.tokens) == most, (tokens, choice)
                check(text, choice.logprobs.tokens, choice.logprobs.text_offset)
                # An alternative that was taken is listed as it is in the text.
                for token, logprob, top in zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs):
                    assert top.get(token) in (None, logprob) or token == "", choice
            streamed = check_stream([chunk.choices[0] for chunk in complete(**options, stream=True)])
            assert streamed == (text, choice.logprobs.tokens, choice.logprobs.text_offset), streamed
            chat = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "q"}], temperature=0, max_tokens=most, logprobs=True, top_logprobs=20, **forced([token for token, _ in asked]))
            rows = chat.choices[0].logprobs.content
            assert b"".join(bytes(row.bytes) for row in rows) == chat.choices[0].message.content.encode() and len(rows) == most, chat
            for row in (one for row in rows for one in (row, *row.top_logprobs)):
                assert row.token == bytes(row.bytes).decode(errors="replace"), row
    begun, rest = face[:2], after[1].decode()
    replaced = b"".join(own for _, own in begun).decode(errors=REPLACED)
    space = tokens_of(" ")[-1]
    assert space[1] == b" ", space
    for asked, stop, text in (
        ([*begun, after], rest, replaced), ([*begun, after], replaced, ""), ([after, *begun, space], replaced, rest), ([*begun, after], "\ufffd" + rest, replaced[:-1]),
        (face, "😀", ""), ([after, *face, space], "😀 ", rest), ([space, *begun, after], " " + replaced + rest, ""), ([space, *begun, after], " \ufffd", ""),
        ([*begun, *face[2:], after], "\ufffd", "😀" + rest)):
        options = {"prompt": asking, "max_tokens": len(asked), "stop": ["never", stop], **forced([token for token, _ in asked])}
        choice = complete(**options).choices[0]
        assert choice.text == text and choice.finish_reason == ("length" if text.endswith("😀" + rest) else "stop"), (asked, stop, choice)
        check(text, choice.logprobs.tokens, choice.logprobs.text_offset)
        streamed = check_stream([chunk.choices[0] for chunk in complete(**options, stream=True)])
        assert streamed == (text, choice.logprobs.tokens, choice.logprobs.text_offset), streamed
    # A stop string that begins within a token cuts off all that comes behind, though it be nothing.
    word = max(tokens_of(" the"), key=lambda one: len(one[1]))
    control = tokens_of("", add_special=True)[0]
    stop, text = word[1][-1:].decode() + "😀", word[1][:-1].decode()
    choice = complete(prompt=asking, max_tokens=6, stop=stop, **forced([token for token, _ in (word, control, *face)])).choices[0]
    assert (choice.text, choice.logprobs.tokens, choice.finish_reason) == (text, [text], "stop"), choice


checks = (texts, any_tokens, cut)
for one in checks:
    one()
print(f"spelling, {REPLACED}:", ", ".join(one.__name__ for one in checks))
