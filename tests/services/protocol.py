"""What the services make of OpenAI's protocol, field by field: docs/services.md says it, this
looks.

protocol.py URL      the service has the demo model, max_batch_size 8 and queue 4
protocol.py URL PID  the service has mha-f32, whose tokens are often bytes of no code point; it is
                     ended
"""

import json
import os
import signal
import sys
import time
import urllib.request

import openai

URL = sys.argv[1]
PID = int(sys.argv[2]) if len(sys.argv) > 2 else None
if PID is None:  # it takes seconds
    from langchain_openai import ChatOpenAI, OpenAI
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600)
MODEL = client.models.list().data[0].id
STORY = dict(model=MODEL, prompt="Once upon a time")
SKY = {"role": "user", "content": "What color is the sky?"}


def chat(messages=(SKY,), **more):
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "temperature": 0, **more})


def complete(**more):
    return client.completions.create(**{**STORY, "temperature": 0, "max_tokens": 20, **more})


def refused(call, param, *words):
    try:
        call()
    except openai.BadRequestError as e:
        said = e.body["message"]
        assert e.body["param"] == param and e.body["type"] == "invalid_request_error", e.body
        assert all(word in said for word in words), (words, said)
        assert "LLAMA_E" not in said and "msgs" not in said and "lens" not in said, said
        if e.code == "context_length_exceeded":
            assert (e.body.get("n_prompt_tokens") or e.body["n_prompt_tokens_min"]) > e.body["n_ctx"] == 512, e.body
        return
    raise AssertionError(f"accepted, though {param} is wrong")


def messages_refused():
    """A message that the model's format has no place for is named in the request's words."""
    def message(**message):
        return lambda: chat([SKY, {"role": "assistant", "content": "Blue."}, {"role": "user", "content": "Why?", **message}])

    for role in ("tool", "function", "stop wizard"):
        refused(message(role=role), "messages[2].role", f"'messages[2].role' is '{role}'", "'developer'")
    refused(message(role=None), "messages[2].role", "missing")
    refused(message(role=5), "messages[2].role", "must be a string, not a number")
    refused(message(name="Anna"), "messages[2].name", "no place for it")
    refused(message(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}]), "messages[2].tool_calls")
    refused(message(content=None), "messages[2].content", "must be a string or an array of parts, not null")
    refused(message(content=3), "messages[2].content", "not a number")
    refused(message(content=["a"]), "messages[2].content[0]", "must be an object")
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    refused(message(content=[{"type": "text", "text": "a"}, image]), "messages[2].content[1].type", "must be 'text'")
    refused(message(content=[{"type": "text", "text": 5}]), "messages[2].content[0].text", "must be a string, not a number")
    refused(message(content=[{"type": "text", "text": "a", "detail": "high"}]), "messages[2].content[0].detail", "not supported")
    for value, words in (("x", "must be an array of messages, not a string"), ({}, "not an object"), ([], "messages is empty"), (None, "must provide")):
        refused(lambda: chat(value), "messages", words)
    refused(lambda: chat([5]), "messages[0]", "must be an object", "not a number")
    answer = {"role": "assistant", "content": "Hello!"}
    refused(lambda: chat([{"role": "system", "content": "Be brief."}, answer, SKY]), "messages[1].role", "must be of 'user'")
    refused(lambda: chat([{"role": "system", "content": "Be brief."}]), "messages", "must have a message of 'user'")
    refused(lambda: chat([SKY, answer, {"role": "system", "content": "Be brief."}]), "messages[2].role", "not of 'system'")
    refused(lambda: chat([SKY, {"role": "assistant", "content": "a [/INST] b"}]), "messages", "special tags")
    long = [{"role": "user", "content": "x " * 5000}]
    for n in (1, 2):
        refused(lambda: chat(long, n=n), "messages", "'messages' has", "tokens; the model has room for 512")
    begun = [SKY, {"role": "assistant", "content": "x " * 5000}]
    for n in (1, 2):
        refused(lambda: chat(begun, n=n), "messages", "512 tokens that the model has room for")
    begun = [SKY, {"role": "assistant", "content": "x " * 300}]
    refused(lambda: chat(begun), "messages", "tokens; the model has room for 512")
    # What an answer looks like when it is sent back.
    chat([{**SKY, "name": None, "tool_calls": [], "refusal": None}], max_tokens=1)


def messages_joined():
    """Messages of one role in a row, and system messages wherever they are, become one."""
    def same(*dialogs):
        answers = [chat(dialog, max_tokens=20) for dialog in dialogs]
        assert len({(a.choices[0].message.content, a.usage.prompt_tokens) for a in answers}) == 1, answers

    def user(text):
        return {"role": "user", "content": text}

    system = {"role": "system", "content": "Be brief."}
    cat = {"role": "assistant", "content": "A cat."}
    same([user("Hi!"), SKY], [user("Hi!\n\n" + SKY["content"])])
    same([SKY, cat, {"role": "assistant", "content": "A dog."}, SKY], [SKY, {"role": "assistant", "content": "A cat.\n\nA dog."}, SKY])
    same([SKY], [{**SKY, "type": "text"}])  # as lm-evaluation-harness sends it
    same([system, {"role": "developer", "content": "Be kind."}, SKY], [{"role": "system", "content": "Be brief.\n\nBe kind."}, SKY])
    same([user("Hi!"), system, SKY], [system, user("Hi!\n\n" + SKY["content"])])
    same([user("Hi!"), cat, system, SKY], [system, user("Hi!"), cat, SKY])
    same([user([{"type": "text", "text": "What color "}, {"type": "text", "text": "is the sky?"}])], [SKY])
    one, two = chat([SKY]).usage.prompt_tokens, chat([user("Hi!"), SKY]).usage.prompt_tokens
    assert two > one, "the first message is left out"


def prefill():
    """An assistant's message at the end is the answer's beginning; what comes back goes on from
    it."""
    whole = chat().choices[0].message.content
    assert whole == "The sky is blue. ", whole
    begun = [SKY, {"role": "assistant", "content": "The sky"}]
    answer = chat(begun, n=2, logprobs=True)
    for choice in answer.choices:
        assert choice.message.content == whole[len("The sky"):] and choice.finish_reason == "stop", choice
        assert spelt(choice.logprobs.content) == choice.message.content.encode()
    assert answer.usage.prompt_tokens == chat().usage.prompt_tokens + 2
    streamed = "".join(c.choices[0].delta.content or "" for c in chat(begun, stream=True))
    assert streamed == whole[len("The sky"):], streamed
    assert chat([SKY, {"role": "assistant", "content": ""}]).choices[0].message.content == whole
    parts = [SKY, {"role": "assistant", "content": "The"}, {"role": "assistant", "content": "sky"}]
    assert chat(parts).usage.prompt_tokens > answer.usage.prompt_tokens


def chain():
    """What is between logits and text, beyond temperature and its like."""
    def ids(**more):
        said = complete(max_tokens=12, logprobs=0, extra_body=more).choices[0]
        return said, said.logprobs.tokens

    plain, pieces = ids()
    request = urllib.request.Request(URL + "/tokenize", json.dumps({"content": plain.text, "with_pieces": True}).encode(), {"Content-Type": "application/json"})
    known = {str(one["piece"]): one["id"] for one in json.load(urllib.request.urlopen(request))["tokens"]}
    at = next(i for i, piece in enumerate(pieces) if i > 1 and piece in known)
    piece, token = pieces[at], known[pieces[at]]
    assert piece in pieces
    for bias in (-100, -1000.5):
        assert piece not in ids(logit_bias={str(token): bias})[1]
    assert piece.strip() not in ids(bad_words=[piece])[0].text.split()
    assert ids(logit_bias={str(token): 100})[1].count(piece) >= 10
    stopped, _ = ids(stop_token_ids=[token])
    assert stopped.finish_reason == "stop" and plain.text.startswith(stopped.text) and len(stopped.text) < len(plain.text)
    longer, _ = ids(stop_token_ids=[token], min_tokens=12)
    assert longer.finish_reason == "length"
    repeated = ids(no_repeat_ngram_size=1)[1]
    assert len(set(repeated)) == len(repeated)
    assert ids(ignore_eos=False)[0].text == plain.text
    sampled = dict(temperature=1, seed=3)
    assert ids(**sampled, epsilon_cutoff=0.999)[0].text == plain.text == ids(**sampled, eta_cutoff=0.999, top_k=1)[0].text
    assert ids(**sampled, typical_p=0.1)[0].text
    refused(lambda: ids(logit_bias={"x": 1}), "logit_bias", "no token")
    refused(lambda: ids(logit_bias={"999999": 1}), "logit_bias", "no token")
    refused(lambda: ids(logit_bias={"5": 101}), "logit_bias", "at most 100")
    refused(lambda: ids(bad_words=[""]), "bad_words", "empty")
    refused(lambda: ids(bad_words=["\u20ac" * 1365] * 20), "bad_words", "more than 65536 tokens")
    refused(lambda: ids(min_tokens=13), "min_tokens", "'max_tokens', 12")
    refused(lambda: ids(epsilon_cutoff=1), "epsilon_cutoff", "less than 1")
    refused(lambda: ids(stop_token_ids=[-1]), "stop_token_ids", "must be a token")


def fields():
    """Two names of one field, types, and what is not taken."""
    def text(**more):
        return complete(extra_body=more, max_tokens=40).choices[0].text

    assert text(repeat_penalty=3.0) == text(repetition_penalty=3.0) == text(repeat_penalty=3.0, repetition_penalty=3.0) != text()
    refused(lambda: text(repeat_penalty=3.0, repetition_penalty=2.0), "repeat_penalty", "two names")
    refused(lambda: text(repeat_penalty=0), "repeat_penalty", "more than 0")
    for name in ("frequency_penalty", "presence_penalty"):
        assert text(**{name: 0}) == text() != text(**{name: 2})
        refused(lambda: text(**{name: 2.5}), name, "from -2 to 2")
    chain()
    drawn = dict(temperature=1, seed=4)
    assert text(**drawn, top_k=-1) == text(**drawn, top_k=0) == text(**drawn) != text(**drawn, top_k=1)
    refused(lambda: text(top_k=-2), "top_k", "must be from -1 to")
    assert chat(max_tokens=3, max_completion_tokens=3).usage.completion_tokens == 3
    refused(lambda: chat(max_tokens=3, max_completion_tokens=4), "max_completion_tokens", "'max_tokens'", "'max_completion_tokens'")
    refused(lambda: complete(n=129), "n", "from 1 to 128")
    for name, value in dict(temperature="x", top_p=[], n="2", max_tokens={}, seed=True, top_k=None).items():
        if value is not None:
            refused(lambda: text(**{name: value}), name, f"'{name}' must be a number, not a")
    refused(lambda: text(n=1.5), "n", "must be an integer")
    refused(lambda: text(stream="yes"), "stream", "must be true or false, not a string")
    refused(lambda: text(echo=1), "echo", "must be true or false, not a number")
    refused(lambda: text(stream_options={"include_usage": True}), "stream_options", "needs 'stream'")
    refused(lambda: text(stream=True, stream_options={"usage": True}), "stream_options.usage", "not supported")
    refused(lambda: text(nonsense=1), "nonsense", "'nonsense' is not supported")
    none = {str(token): -100 for token in range(1024)}
    refused(lambda: complete(logit_bias=none), "logit_bias", "no token possible: 'logit_bias'.")
    refused(lambda: complete(logit_bias=none, extra_body={"guided_choice": ["fox"], "bad_words": ["hen"]}), "bad_words", "no token possible: 'bad_words', 'logit_bias', 'guided_choice'.")
    refused(lambda: chat(logit_bias=none, extra_body={"guided_choice": ["fox"]}), "logit_bias", "no token possible: 'logit_bias', 'guided_choice'.")
    refused(lambda: complete(prompt=[1, 99999]), "prompt", "'prompt[1]' is 99999, must be a token from 0 to 1023")
    refused(lambda: complete(prompt=[[1], [-1]]), "prompt", "'prompt[1][0]' is -1")
    refused(lambda: complete(prompt=[[1], []]), "prompt", "'prompt[1]' is empty")
    refused(lambda: complete(prompt=["a", 5]), "prompt", "'prompt[1]' must be a string")
    refused(lambda: complete(prompt={}), "prompt", "not an object")
    refused(lambda: complete(prompt=["a", "x " * 5000], n=2), "prompt", "'prompt[1]' has", "room for 512")


def guesses_shown():
    """A stream says what became of each guess; the usage counts the same."""
    story = complete(max_tokens=40, temperature=0).choices[0].text
    prompt = f"Once upon a time{story}\n" * 2 + "Once upon a time"
    for create, options in ((complete, {"prompt": prompt, "logprobs": 0}), (chat, {"logprobs": True, "prediction": {"type": "content", "content": chat(max_tokens=40).choices[0].message.content}})):
        options = {"max_tokens": 40, "temperature": 0, **options}
        plain = create(**{name: value for name, value in options.items() if name != "prediction"})
        options |= {"stream": True, "stream_options": {"include_usage": True, "include_drafts": True}}
        for how in ("ngram", "auto", "off"):
            *chunks, end = create(extra_body={"speculation": how, "draft_len": 4}, **options)
            found = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
            drafts = [d for one in found for d in (one.drafts if create is complete else [t.draft for t in one.content or []])]
            text = "".join((c.choices[0].text if create is complete else c.choices[0].delta.content) or "" for c in chunks)
            assert text == (plain.choices[0].text if create is complete else plain.choices[0].message.content), how
            details = end.usage.completion_tokens_details
            if how == "off":
                assert set(drafts) == {None} and (details is None or details.accepted_prediction_tokens == 0), (drafts, details)
                continue
            assert drafts.count("accepted") == details.accepted_prediction_tokens > 0, (drafts, details)
            assert 0 <= drafts.count("rejected") <= details.rejected_prediction_tokens, (drafts, details)
    assert not hasattr(complete(max_tokens=3, logprobs=0).choices[0].logprobs, "drafts"), "nobody has asked"
    refused(lambda: complete(extra_body={"speculation": "draft"}), "speculation", "no draft model")
    refused(lambda: complete(extra_body={"speculation": "medusa"}), "speculation", "no Medusa heads")
    refused(lambda: complete(extra_body={"draft_len": 17}), "draft_len", "from 0 to 16")
    refused(lambda: complete(extra_body={"speculation": True}), "speculation", "must be 'off', 'auto', 'ngram', 'draft' or 'medusa'")
    refused(lambda: complete(stream=True, stream_options={"include_drafts": True}), "stream_options.include_drafts", "needs 'logprobs'")
    refused(lambda: chat(stream=True, stream_options={"include_drafts": True}), "stream_options.include_drafts", "needs 'logprobs'")


def predictions():
    """A prediction changes when tokens come and not which; the usage says how many were guessed."""
    for options in (dict(), dict(temperature=1, seed=7), dict(n=2, temperature=1, seed=8)):
        options = {"max_tokens": 40, **options}
        plain = chat(**options)
        assert plain.usage.completion_tokens_details is None, plain.usage
        text = plain.choices[0].message.content
        parts = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
        for content in (text, parts, "Nothing of the kind.", ""):
            # Without `draft_len`, the wrong guesses of the turn before may rest the right ones.
            guessed = chat(prediction={"type": "content", "content": content}, extra_body={"draft_len": 4}, **options)
            assert [c.message.content for c in guessed.choices] == [c.message.content for c in plain.choices], content
            details = guessed.usage.completion_tokens_details
            assert details.rejected_prediction_tokens >= 0, details
            if content in (text, parts):
                assert details.accepted_prediction_tokens > 0, (options, details)
    guesses_shown()
    stream = chat(max_tokens=40, stream=True, stream_options={"include_usage": True}, extra_body={"draft_len": 4}, prediction={"type": "content", "content": chat(max_tokens=40).choices[0].message.content})
    assert list(stream)[-1].usage.completion_tokens_details.accepted_prediction_tokens > 0

    def predict(prediction):
        return lambda: chat(extra_body={"prediction": prediction})

    refused(predict("text"), "prediction", "must be an object", "not a string")
    refused(predict({"content": "text"}), "prediction.type", "must be 'content'")
    refused(predict({"type": "content"}), "prediction.content", "not null")
    refused(predict({"type": "content", "content": 3}), "prediction.content", "not a number")
    refused(predict({"type": "content", "content": [{"type": "image"}]}), "prediction.content[0].type", "must be 'text'")
    refused(predict({"type": "content", "content": "a", "file": 1}), "prediction", "other fields")
    refused(predict({"type": "content", "content": "a b " * 40000}), "prediction", "more than 65536 tokens")
    refused(lambda: complete(extra_body={"prediction": {"type": "content", "content": "a"}}), "prediction", "not supported")


def seeds():
    def text(seed):
        return complete(seed=seed, temperature=1, max_tokens=40).choices[0].text

    assert len({text(-1) for _ in range(5)}) > 1, "-1 is no seed"
    for seed in (0, -2, -(2**63), 2**63 - 1):
        assert text(seed) == text(seed), seed
    assert len({text(seed) for seed in (0, 1, -2, -3)}) > 2


def stops():
    whole = complete(max_tokens=40).choices[0].text
    many = [f"never said {i}" for i in range(1023)]
    assert complete(max_tokens=40, stop=many + [" kind"]).choices[0].text == whole.split(" kind")[0]
    refused(lambda: complete(stop=many + ["a", "b"]), "stop", "1025", "1024")
    refused(lambda: complete(stop=[""]), "stop", "empty")
    refused(lambda: complete(stop=["a", 5]), "stop", "'stop[1]' must be a string")
    refused(lambda: complete(stop="x" * 4097), "stop", "4097", "4096")
    refused(lambda: complete(stop="a\0"), "stop", "NUL")
    # The text begins with the space of its first token, so a stop string can begin there too.
    for stop in (" ", whole[:3], whole[:9]):
        for stream in (False, True):
            answer = complete(stop=stop, stream=stream, logprobs=0)
            chunks = [chunk.choices[0] for chunk in answer] if stream else answer.choices
            assert "".join(c.text for c in chunks) == "" and chunks[-1].finish_reason == "stop", chunks
            assert not any(c.logprobs and c.logprobs.tokens for c in chunks), chunks
    assert complete(max_tokens=40, stop=whole[:9] + "never").choices[0].text == whole


def spelt(rows):
    return b"".join(bytes(row.bytes) for row in rows)


def joined(tokens):
    """As completions write them: the bytes of part of a code point by name."""
    return b"".join(bytes.fromhex(t[6:].replace("\\x", "")) if t.startswith("bytes:") else t.encode() for t in tokens)


def spells():
    """The tokens that are listed spell the text, byte for byte."""
    whole = complete().choices[0].text
    assert whole.startswith(" there was"), whole
    for cut in (None, whole[12:17], whole[5:9]):  # at a token's end, and within tokens
        said = whole if cut is None else whole.split(cut)[0]
        choice = complete(logprobs=2, stop=cut).choices[0]
        assert choice.text == said and "".join(choice.logprobs.tokens) == said, choice
        for token, logprob, top in zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs):
            assert top[token] == logprob
        chunks = [chunk.choices[0] for chunk in complete(logprobs=2, stop=cut, stream=True)]
        assert "".join(c.text for c in chunks) == said
        assert [t for c in chunks if c.logprobs for t in c.logprobs.tokens] == choice.logprobs.tokens
        assert [o for c in chunks if c.logprobs for o in c.logprobs.text_offset] == choice.logprobs.text_offset
        echo = complete(logprobs=2, stop=cut, echo=True).choices[0]
        assert echo.text == STORY["prompt"] + said and "".join(echo.logprobs.tokens) == echo.text, echo
        for choice in (choice, echo):
            for offset, token in zip(choice.logprobs.text_offset, choice.logprobs.tokens):
                assert choice.text[offset:].startswith(token), (offset, token)
    tokens = [1, 713, 714, 259, 596]  # the same prompt
    assert complete(prompt=tokens).choices[0].text == whole
    assert [c.text for c in complete(prompt=["Once upon a time"] * 2, n=2).choices] == [whole] * 4
    # Nothing to go on from: the text begins as that of an echo does.
    empty = complete(prompt="").choices[0].text
    assert complete(prompt="", echo=True).choices[0].text == empty == complete(prompt=[1]).choices[0].text

    whole = chat().choices[0].message.content
    for stop in (None, " is", "ky i"):
        said = whole if stop is None else whole.split(stop)[0]
        choice = chat(logprobs=True, top_logprobs=3, stop=stop).choices[0]
        assert choice.message.content == said and spelt(choice.logprobs.content) == said.encode(), choice
        assert choice.logprobs.content[0].top_logprobs[0].token == choice.logprobs.content[0].token == "The", choice
        chunks = [chunk.choices[0] for chunk in chat(logprobs=True, top_logprobs=3, stop=stop, stream=True)]
        assert "".join(c.delta.content or "" for c in chunks) == said
        assert [r for c in chunks if c.logprobs for r in c.logprobs.content] == choice.logprobs.content


def more_than_slots():
    """A request of more sequences than run at a time, and than wait, is answered; so are
    LangChain's batches."""
    whole = complete(max_tokens=8).choices[0].text
    for n in (9, 40):
        answer = complete(n=n, max_tokens=8)
        assert [(c.index, c.text) for c in answer.choices] == [(i, whole) for i in range(n)]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 8 * n)
    chunks = list(chat(n=20, max_tokens=4, stream=True))
    assert {c.choices[0].index for c in chunks if c.choices[0].finish_reason} == set(range(20))
    refused(lambda: client.completions.create(model=MODEL, n=128, prompt=[""] * 513), "prompt", "65664", "65536")

    options = dict(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600, temperature=0, max_tokens=8, model=MODEL)
    prompts = [f"Once upon a time there was a {animal}" for animal in "cat dog fox cow hen pig owl bee ant bat rat elk".split()]
    texts = [complete(prompt=prompt, max_tokens=8).choices[0].text for prompt in prompts]
    assert len(prompts) == 12 and OpenAI(**options).batch(prompts) == texts
    dialogs = [[("system", "Be brief."), ("human", prompt)] for prompt in prompts]
    answers = ChatOpenAI(**options).batch(dialogs, config={"max_concurrency": 4})
    assert all(answer.content for answer in answers) and len(answers) == 12


def queue():
    """Requests of many sequences count as what they can have running; when the queue is full,
    others are told to come back."""
    # What has no sequences leaves the queue as it was.
    for path, body in (("/tokenize", {"content": "a"}), ("/detokenize", {"tokens": [5]})):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
        assert urllib.request.urlopen(request).status == 200
    options = dict(model=MODEL, prompt="12345678901234567890", max_tokens=400)
    streams = []
    for _ in range(2):  # 8 of 40 sequences run, so a second request comes in
        streams.append(client.completions.create(**options, n=40, stream=True))
    next(iter(streams[0]))
    try:
        client.completions.create(**options)
        raise AssertionError("taken, though 16 sequences run or wait where 12 may")
    except openai.RateLimitError as e:
        assert e.code == "rate_limit_exceeded" and int(e.response.headers["retry-after"]) >= 0, e.body
        assert "16 sequences run or wait" in e.body["message"] and "fewer than 12" in e.body["message"], e.body
    for stream in streams:
        stream.close()
    deadline = time.monotonic() + 300
    while True:
        try:
            client.completions.create(**{**options, "max_tokens": 1})
            return
        except openai.RateLimitError:
            assert time.monotonic() < deadline, "the queue stays full, though nobody is there"
            time.sleep(0.05)


def code_points():
    """Tokens of parts of code points, and of bytes that are no part of one, spell the text too."""
    stray = split = 0
    for seed in range(1, 13):
        options = dict(model=MODEL, seed=seed, temperature=2, max_tokens=200, stop=["\u0001", "never"])
        choice = client.chat.completions.create(messages=[SKY], logprobs=True, top_logprobs=2, **options).choices[0]
        rows = choice.logprobs.content
        assert spelt(rows) == choice.message.content.encode(), choice
        stray += choice.message.content.count("\ufffd")
        split += sum(len(row.bytes) == 1 and row.bytes[0] >= 0x80 for row in rows)
        text = client.completions.create(prompt="a", logprobs=1, **options).choices[0]
        lists = text.logprobs
        assert joined(lists.tokens) == text.text.encode(), text
        assert lists.text_offset == sorted(lists.text_offset)
        for offset, token in zip(lists.text_offset, lists.tokens):
            assert token.startswith("bytes:") or text.text[offset:].startswith(token), (offset, token)
        chunks = [chunk.choices[0] for chunk in client.completions.create(prompt="a", logprobs=1, stream=True, **options)]
        assert [t for c in chunks if c.logprobs for t in c.logprobs.tokens] == lists.tokens
    assert stray and split, (stray, split)
    os.kill(PID, signal.SIGTERM)


checks = ((messages_refused, messages_joined, prefill, fields, predictions, seeds, stops, spells, more_than_slots)
          if PID is None else (queue, code_points))
for check in checks:
    check()
print("protocol:", ", ".join(check.__name__ for check in checks))
