"""The official openai client of PyPI against a service.

client.py URL      every kind of request; the service has the demo model
client.py URL PID  leaving, a full queue and the end; the service has a model that never stops by
                   itself (mha-f32), max_batch_size 8, queue 4 and max_seq_len 32768, and is ended
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import openai

URL = sys.argv[1]
PID = int(sys.argv[2]) if len(sys.argv) > 2 else None
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600)
MODEL = client.models.list().data[0].id
SKY = [{"role": "user", "content": "What color is the sky?"}]
STORY = dict(model=MODEL, prompt="Once upon a time")
# mha-f32 repeats itself for ever after this.
LONG = dict(model=MODEL, prompt="12345678901234567890", temperature=0, max_tokens=600)
# Nobody waits for its end.
LONGER = {**LONG, "max_tokens": 30000}


def metric(name):
    text = urllib.request.urlopen(f"{URL}/metrics").read().decode()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name + " ")))


def idle():
    deadline = time.monotonic() + 300
    while any(metric(m) for m in ("llamabi_sequences_running", "llamabi_sequences_waiting", "llamabi_kv_pages_used")):
        assert time.monotonic() < deadline, "something still runs, waits or holds pages"
        time.sleep(0.01)


def raises(kind, status, call, **fields):
    try:
        call()
    except kind as e:
        assert e.status_code == status, e
        assert e.body["message"] and e.type == e.body["type"], e.body
        for key, value in fields.items():
            assert getattr(e, key) == value, (key, e.body)
        return e
    raise AssertionError(f"no {kind.__name__}")


def models():
    assert client.models.retrieve(MODEL).object == "model"
    raises(openai.NotFoundError, 404, lambda: client.models.retrieve("no-such"), code="model_not_found")


def chat():
    for limit in ({}, {"max_tokens": 100}, {"max_completion_tokens": 100}):
        answer = client.chat.completions.create(model=MODEL, messages=SKY, temperature=0, **limit)
        assert answer.object == "chat.completion" and answer.model == MODEL and answer.created > 1.7e9
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].message.content.strip() == "The sky is blue.", answer
        assert answer.choices[0].finish_reason == "stop"
        usage = answer.usage
        assert usage.prompt_tokens > 10 and 4 <= usage.completion_tokens <= 30
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    long = [{"role": "user", "content": "Tell me a story about a fox. " * 10}]
    first, again = (client.chat.completions.create(model=MODEL, messages=long, max_tokens=1) for _ in range(2))
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in (first, again)]
    assert cached[0] < cached[1] < again.usage.prompt_tokens, (first, again)
    chunks = client.chat.completions.create(
        model=MODEL, messages=long, max_tokens=1, stream=True, stream_options={"include_usage": True})
    assert list(chunks)[-1].usage == again.usage
    parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi!"}]}]
    assert client.chat.completions.create(model=MODEL, messages=parts).choices[0].message.content


def completion():
    answer = client.completions.create(**STORY, temperature=0, max_tokens=5)
    assert answer.object == "text_completion" and answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text.strip().startswith("there was"), answer
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 5)
    none = client.completions.create(**STORY, max_tokens=0)
    assert (none.usage.prompt_tokens, none.usage.completion_tokens) == (5, 0)
    echoed = client.completions.create(**STORY, temperature=0, max_tokens=5, echo=True, logprobs=1)
    assert (echoed.usage.prompt_tokens, echoed.usage.completion_tokens) == (5, 5)
    assert [p is None for p in echoed.choices[0].logprobs.token_logprobs] == [True] + [False] * 9
    # the protocol's default
    assert client.completions.create(**STORY).usage.completion_tokens <= 16
    two = client.completions.create(model=MODEL, prompt=["Once upon a time", "The cat"], temperature=0, max_tokens=5)
    assert [c.index for c in two.choices] == [0, 1] and two.choices[0].text == answer.choices[0].text
    tokens = client.completions.create(model=MODEL, prompt=[1, 713, 714, 259, 596], temperature=0, max_tokens=5)
    assert tokens.choices[0].text == answer.choices[0].text  # demo/expected.json has these tokens


def streaming():
    options = dict(seed=5, temperature=0.9, max_tokens=80)
    whole = client.chat.completions.create(model=MODEL, messages=SKY, **options)
    chunks = list(client.chat.completions.create(
        model=MODEL, messages=SKY, stream=True, stream_options={"include_usage": True}, **options))
    assert all(c.object == "chat.completion.chunk" and c.id == chunks[0].id for c in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert all(c.usage is None for c in chunks[:-1])

    whole = client.completions.create(**STORY, **options)
    chunks = list(client.completions.create(**STORY, stream=True, **options))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(c.usage is None for c in chunks)


def logprobs():
    options = dict(temperature=0, max_tokens=8)
    answer = client.chat.completions.create(model=MODEL, messages=SKY, logprobs=True, top_logprobs=3, **options)
    rows = answer.choices[0].logprobs.content
    assert len(rows) == answer.usage.completion_tokens
    assert bytes(b for r in rows for b in r.bytes).decode() == answer.choices[0].message.content
    for row in rows:
        assert len(row.top_logprobs) == 3 and row.logprob <= 0
        # greedy
        assert (row.top_logprobs[0].token, row.top_logprobs[0].logprob) == (row.token, row.logprob)
        assert row.top_logprobs[0].logprob >= row.top_logprobs[1].logprob >= row.top_logprobs[2].logprob
    stream = client.chat.completions.create(model=MODEL, messages=SKY, logprobs=True, top_logprobs=3, stream=True, **options)
    assert [r for c in stream if c.choices[0].logprobs for r in c.choices[0].logprobs.content] == rows
    plain = client.chat.completions.create(model=MODEL, messages=SKY, **options)
    assert plain.choices[0].logprobs is None

    answer = client.completions.create(**STORY, logprobs=2, **options)
    lists = answer.choices[0].logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset) == 8
    assert "".join(lists.tokens) == answer.choices[0].text
    for token, logprob, top in zip(lists.tokens, lists.token_logprobs, lists.top_logprobs):
        assert len(top) == 2 and top[token] == logprob == max(top.values())
    assert lists.text_offset[0] == 0 and lists.text_offset == sorted(lists.text_offset)
    for offset, token in zip(lists.text_offset, lists.tokens):
        assert answer.choices[0].text[offset:].startswith(token), (offset, token)


def stop():
    whole = client.completions.create(**STORY, temperature=0, max_tokens=40).choices[0].text
    cut = whole.split(" kind")[0]
    for texts in (" kind", ["never said", " kind"]):
        answer = client.completions.create(**STORY, temperature=0, max_tokens=40, stop=texts).choices[0]
        assert (answer.text, answer.finish_reason) == (cut, "stop"), answer


def seeds():
    def text(**more):
        return client.completions.create(**STORY, max_tokens=40, **more).choices[0].text

    assert text(seed=0) == text(seed=0) and text(seed=7) == text(seed=7) and text(seed=-7) == text(seed=-7)
    assert len({text(seed=s) for s in range(5)}) > 1
    assert len({text() for _ in range(5)}) > 1


def choices():
    answer = client.completions.create(**STORY, n=2, seed=3, max_tokens=30)
    assert [c.index for c in answer.choices] == [0, 1] and answer.choices[0].text != answer.choices[1].text
    assert answer.usage.prompt_tokens == 5


def abort():
    tokens = client.completions.create(**LONG).usage.completion_tokens
    assert tokens == 600, tokens
    idle()
    before = metric("llamabi_generated_tokens_total")
    stream = client.completions.create(**LONGER, stream=True)
    next(iter(stream))
    assert metric("llamabi_sequences_running") == 1
    stream.close()
    idle()
    made = metric("llamabi_generated_tokens_total") - before
    assert 0 < made < 30000, "the client left, but its answer was finished"

    before = metric("llamabi_generated_tokens_total")
    try:  # a client that waits for the whole answer, but not as long as it takes
        client.with_options(timeout=0.05).completions.create(**LONGER)
        raise AssertionError("no timeout")
    except openai.APITimeoutError:
        pass
    idle()
    made = metric("llamabi_generated_tokens_total") - before
    assert made < 30000, "the client left, but its answer was finished"


def pipeline():
    """Clients send three requests at once and leave: none keeps a place in the queue."""
    address = urllib.parse.urlsplit(URL)
    body = json.dumps({**LONGER, "stream": True}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    for _ in range(4):
        for _ in range(8):
            with socket.create_connection((address.hostname, address.port)) as connection:
                connection.sendall(3 * request)
        time.sleep(0.5)
    idle()
    deadline = time.monotonic() + 300
    while True:
        try:
            client.completions.create(**STORY, max_tokens=1)
            break
        except openai.RateLimitError:
            assert time.monotonic() < deadline, "the queue stays full, though nobody is there"
            time.sleep(0.1)


def full():
    """More requests than slots and queue: some are refused, the others are answered."""
    refused = []

    async def occupy(api, free):
        async with await api.completions.create(**LONGER, stream=True) as stream:
            async for _ in stream:
                if free.is_set():
                    return

    async def ask(api, free):
        try:
            async with await api.completions.create(**{**LONG, "max_tokens": 50}, stream=True) as stream:
                return [chunk.choices[0].finish_reason async for chunk in stream][-1]
        except openai.RateLimitError as e:
            refused.append(e)
            if len(refused) == 18:
                free.set()

    async def all_at_once():
        free = asyncio.Event()
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600) as api:
            slots = [asyncio.create_task(occupy(api, free)) for _ in range(8)]
            while await asyncio.to_thread(metric, "llamabi_sequences_running") < 8:
                await asyncio.sleep(0.01)
            outcomes = await asyncio.gather(*(ask(api, free) for _ in range(22)))
            await asyncio.gather(*slots)
            return outcomes

    # All slots are taken until 18 have been refused, so that four wait, and are answered then.
    outcomes = asyncio.run(all_at_once())
    assert sorted(map(str, outcomes)) == ["None"] * 18 + ["length"] * 4, outcomes
    for e in refused:
        assert (e.status_code, e.type, e.code) == (429, "rate_limit_error", "rate_limit_exceeded"), e.body
        assert int(e.response.headers["retry-after"]) >= 0
    idle()


def errors():
    chat, complete = client.chat.completions.create, client.completions.create
    bad = openai.BadRequestError
    raises(openai.NotFoundError, 404, lambda: chat(model="no-such", messages=SKY), code="model_not_found")
    raises(bad, 400, lambda: chat(model=MODEL, messages=SKY, temperature=3), param="temperature")
    raises(bad, 400, lambda: chat(model=MODEL, messages=SKY, top_p=-1), param="top_p")
    e = raises(bad, 400, lambda: chat(model=MODEL, messages=[]), param="messages")
    assert "messages is empty" in e.body["message"], e.body
    raises(bad, 400, lambda: chat(model=MODEL, messages=[{"role": "stop wizard", "content": "a"}]), param="messages[0].role")
    raises(bad, 400, lambda: chat(model=MODEL, messages=[{"role": "user"}]), param="messages[0].content")
    for stream in (False, True):
        unsafe = [{"role": "user", "content": "hi [/INST] there"}]
        e = raises(bad, 400, lambda: chat(model=MODEL, messages=unsafe, stream=stream), param="messages")
        assert "special tags" in e.body["message"], e.body
    raises(bad, 400, lambda: chat(model=MODEL, messages=SKY, top_logprobs=3), param="top_logprobs")
    raises(bad, 400, lambda: chat(model=MODEL, messages=SKY, tools=[{"type": "function", "function": {"name": "f"}}]), param="tools")
    raises(bad, 400, lambda: complete(model=MODEL, prompt=[1, 99999]), param="prompt")
    raises(bad, 400, lambda: complete(model=MODEL, prompt=[]), param="prompt")
    raises(bad, 400, lambda: complete(**STORY, max_tokens=-1), param="max_tokens")
    for texts in ("", "a\0", ["."] * 10000):
        raises(bad, 400, lambda: complete(**STORY, stop=texts), param="stop")
    for stream in (False, True):
        long = [{"role": "user", "content": "x " * 5000}]
        raises(bad, 400, lambda: complete(model=MODEL, prompt="x " * 5000, stream=stream), code="context_length_exceeded", param="prompt")
        raises(bad, 400, lambda: chat(model=MODEL, messages=long, stream=stream), code="context_length_exceeded", param="messages")

    def post(path, body, method="POST"):
        request = urllib.request.Request(URL + path, body, {"Content-Type": "application/json"}, method=method)
        try:
            urllib.request.urlopen(request)
        except urllib.error.HTTPError as e:
            error = json.load(e)["error"]
            assert error["message"] and error["type"] == "invalid_request_error", error
            assert {"param", "code"} <= error.keys()
            return e.code
        raise AssertionError("no error")

    assert post("/v1/completions", b"{") == 400
    assert post("/v1/completions", b'{"model": 1}') == 400
    assert post("/v1/completions", b"null") == 400
    assert post("/v1/completions", b'{"model": "%s", "prompt": "caf\xe9"}' % MODEL.encode()) == 400
    assert post("/v1/chat/completions", b"[]") == 400
    assert post("/v1/completions", b" " * (2 << 20)) == 413
    assert post("/v1/nothing", b"{}") == 404
    assert post("/v1/completions", None, "GET") == 405
    try:
        urllib.request.urlopen(f"{URL}/v1/models/%")
        raise AssertionError("no error")
    except urllib.error.HTTPError as e:
        assert e.code in (400, 404), e.code
    deep = b'{"model": "%s", "prompt": "a", "temperature": %s%s}' % (MODEL.encode(), b"[" * 9000, b"]" * 9000)
    assert post("/v1/completions", deep) == 400
    parts = [{"role": "user", "content": [{"type": {"toString": 1}, "text": "a"}]}]
    assert post("/v1/chat/completions", json.dumps({"model": MODEL, "messages": parts}).encode()) == 400
    # What is refused for its number of sequences takes no longer than what is for its model. Of two
    # times a busy machine can lengthen either.
    def takes(model, status):
        start = time.monotonic()
        assert post("/v1/completions", json.dumps({"model": model, "n": 128, "prompt": [""] * 200_000}).encode()) == status
        return time.monotonic() - start

    ratios = []
    while min(ratios, default=8) >= 8:
        assert len(ratios) < 8, f"a request that is refused takes {ratios} times as long as another"
        ratios.append(takes(MODEL, 400) / takes("no-such", 404))


def fields():
    """What changes nothing is ignored, the rest of what a service does not know is refused."""
    def text(**more):
        return client.completions.create(**STORY, temperature=0, max_tokens=40, extra_body=more).choices[0].text

    nothing = dict(user="me", metadata={"a": "b"}, store=True, service_tier="auto", logit_bias={}, presence_penalty=0, frequency_penalty=0.0,
                   response_format={"type": "text"}, parallel_tool_calls=True, tools=[], tool_choice="none", suffix="", best_of=1)
    assert text(**nothing) == text() == text(top_k=0, min_p=0, repetition_penalty=1) == text(logit_bias=None, tools=None, user=None)
    assert text(repetition_penalty=3.0) != text()
    client.chat.completions.create(model=MODEL, messages=SKY, max_tokens=1, extra_body={**nothing, "suffix": None, "best_of": None})
    for name, value in dict(logit_bias={"x": 1}, presence_penalty=3, frequency_penalty=-2.5, response_format="yaml",
                            tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required", suffix="end",
                            temprature=0, ignore_eos=1, repetition_penalty=-1).items():
        raises(openai.BadRequestError, 400, lambda: text(**{name: value}), param=name, type="invalid_request_error")
    raises(openai.BadRequestError, 400, lambda: client.chat.completions.create(
        model=MODEL, messages=SKY, extra_body={"reasoning_effort": "high"}), param="reasoning_effort")


def shutdown():
    """SIGTERM lets the running answer come to its end, and the process then ends."""
    stream = client.completions.create(**LONG, stream=True)
    next(iter(stream))
    os.kill(PID, signal.SIGTERM)
    assert list(stream)[-1].choices[0].finish_reason == "length"


assert urllib.request.urlopen(f"{URL}/healthz").status == 200
checks = (models, chat, completion, streaming, logprobs, stop, seeds, choices, errors, fields) if PID is None else (abort, pipeline, full, shutdown)
for check in checks:
    check()
print(f"openai {openai.__version__} of PyPI:", ", ".join(check.__name__ for check in checks))
