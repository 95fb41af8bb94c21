"""What an operator needs of a service: keys, names, origins, limits of time, and an end.

operations.py DEMO ENDLESS COMMAND...   two checkpoints, the second of a model that never stops by
                                        itself; COMMAND starts the service
"""

import http.client
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import openai

from service import PATIENCE, Service, wait

DEMO, ENDLESS, *COMMAND = sys.argv[1:]
# mha-f32 repeats itself for ever after this.
LONG = dict(model="m", prompt="12345678901234567890", temperature=0, max_tokens=4000)


def client_of(service, key="none"):
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=key, max_retries=0, timeout=600)


def drain():
    """It ends when the last answer does, though the clients keep their connections."""
    with Service(COMMAND, DEMO, "--grace", "100") as service:
        client = client_of(service)
        for _ in range(2):
            client.completions.create(model="m", prompt="Once", max_tokens=3)
        assert service.stop() < 90
    # On a fast machine the first may end before the last has begun.
    for tokens in (1000, 4000, 16000, 64000):
        if drain_running(tokens):
            break
    else:
        raise AssertionError("three answers never ran at the same time")
    # Longer than a fast machine writes in the second that they are given.
    with Service(COMMAND, ENDLESS, "--grace", "1", "--max_seq_len", "32768") as service:
        client = client_of(service)
        longer = {**LONG, "max_tokens": 32000}
        streams = [iter(client.completions.create(**longer, n=n, stream=True)) for n in (1, 7)]
        for stream in streams:
            next(stream)
        threading.Thread(target=service.stop, daemon=True).start()
        for stream in streams:
            try:
                for _ in stream:
                    pass
                raise AssertionError("the stream ended as if it were whole")
            except openai.APIError as e:
                assert "shutting down" in str(e), e
        service.ended(time.monotonic())
        assert "2 requests still run after 1 s, and are cancelled" in service.said(), service.said()


def ready():
    """On SIGTERM it first says that it is not ready, takes requests for a while, and then ends."""
    with Service(COMMAND, DEMO, "--drain", "4", "--api_key", "secret") as service:
        probes = ("/healthz", "/readyz", "/health")
        assert [service.send(path)[0] for path in probes] == [200, 200, 200]
        begin = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        wait(lambda: service.send("/readyz")[0] == 503, "it is not ready")
        status, _, text = service.send("/health")
        assert (status, text) == (503, "shutting down\n"), (status, text)
        assert service.send("/healthz")[0] == 200
        assert service.story(authorization="Bearer secret")[0] == 200
        assert service.ended(begin) >= 4
        assert "requests are taken for another 4 s" in service.said(), service.said()


def large(folder):
    """A checkpoint of zeros, most of them in no block of the disk, that takes a while to load."""
    dim, hidden, layers = 2048, 8192, 4
    source = os.path.join(os.path.dirname(DEMO), "hf")
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": dim // 16}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({**config, **heads, "hidden_size": dim, "intermediate_size": hidden, "num_hidden_layers": layers}, file)
    os.symlink(os.path.join(source, "tokenizer.model"), os.path.join(folder, "tokenizer.model"))
    square, wide, tall = [dim, dim], [hidden, dim], [dim, hidden]
    of_layer = {"input_layernorm": [dim], "post_attention_layernorm": [dim], **{f"self_attn.{one}_proj": square for one in "qkvo"},
                "mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": tall}
    shapes = {"model.embed_tokens": [config["vocab_size"], dim], "model.norm": [dim], "lm_head": [config["vocab_size"], dim],
              **{f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in of_layer.items()}}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def early():
    """Told to end while it loads the model, it ends as well as later."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        large(folder)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        process = subprocess.Popen([*COMMAND, "--ckpt_dir", folder, "--port", str(port), "--weights_dtype", "nf4"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait(lambda: process.poll() is not None or can_connect(port), "it listens")
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=PATIENCE)[0]
            assert process.returncode == 0, (process.returncode, said)
        finally:
            process.kill()


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except OSError:
        return False


def drain_running(tokens):
    """Answers that run when it is told to end are given to their end. Whether all three ran
    then."""
    with Service(COMMAND, ENDLESS, "--grace", "600", "--max_seq_len", str(tokens + 100)) as service:
        # One client for both requests: it keeps the two connections for its next requests.
        client = client_of(service)
        long = {**LONG, "max_tokens": tokens}
        answers = []
        asking = [threading.Thread(target=lambda: answers.append(client.completions.create(**long))) for _ in range(2)]
        for thread in asking:
            thread.start()
        stream = http.client.HTTPConnection("127.0.0.1", service.port)
        stream.request("POST", "/v1/completions", json.dumps({**long, "stream": True}), {"Content-Type": "application/json"})
        streamed = stream.getresponse()
        streamed.read(1)
        all_run = []
        wait(lambda: all_run.append("llamabi_sequences_running 3" in service.send("/metrics")[2]) or all_run[-1] or answers, "all three run")
        threading.Thread(target=service.stop, daemon=True).start()
        wait(lambda: not listens(service), "it takes no new connection")
        assert streamed.read().endswith(b"data: [DONE]\n\n")
        for thread in asking:
            thread.join()
        assert [answer.choices[0].finish_reason for answer in answers] == ["length"] * 2
        assert service.ended(time.monotonic()) < 250
        assert "still run" not in service.said(), service.said()
        stream.close()
        client.close()
        return all_run[-1]


def listens(service):
    try:
        service.send("/healthz")
        return True
    except OSError:
        return False


def keys():
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("# of the second floor\nfrom-the-file\n\n  indented  \n")
        file.flush()
        with Service(COMMAND, DEMO, "--api-key", "first,second", "--api_key", "third", "--api-key-file", file.name) as service:
            for key in ("first", "second", "third", "from-the-file", "indented"):
                assert client_of(service, key).completions.create(model="m", prompt="a", max_tokens=1).choices
                assert service.story(x_api_key=key)[0] == 200
                assert service.story(authorization=f"bearer {key}")[0] == 200
            for key in ("wrong", "firs", "first,second", "# of the second floor"):
                try:
                    client_of(service, key).completions.create(model="m", prompt="a", max_tokens=1)
                    raise AssertionError(f"{key} opens it")
                except openai.AuthenticationError as e:
                    assert (e.status_code, e.type, e.code) == (401, "authentication_error", "invalid_api_key"), e.body
            for path, body in (("/v1/completions", {}), ("/v1/chat/completions", {}), ("/tokenize", {}), ("/detokenize", {}),
                               ("/metrics", None), ("/unknown", None)):
                assert service.send(path, body)[0] == 401, path
            for path in ("/healthz", "/v1/models", "/v1/models/m"):  # as in llama-server
                assert service.send(path)[0] == 200, path
            assert service.send("/metrics", authorization="Bearer first")[0] == 200
            service.stop()
            for key in ("first", "second", "third", "from-the-file"):
                assert key not in service.said(), service.said()
        empty = tempfile.NamedTemporaryFile("w")
        for flags, said in ((("--api-key", ""), "visible ASCII"), (("--api-key-file", empty.name), "has no key"),
                            (("--api-key-file", "/nonexistent"), "no such file")):
            assert said in refusal(*flags), flags


def refusal(*flags):
    """What the service says when it does not start."""
    try:
        with Service(COMMAND, DEMO, *flags):
            pass
    except AssertionError as e:
        return str(e).lower() if "no such file" in str(e).lower() else str(e)
    raise AssertionError(f"it starts with {flags}")


def cors():
    ask = {"origin": "https://a.example", "access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    with Service(COMMAND, DEMO) as service:
        status, headers, _ = service.send("/v1/completions", method="OPTIONS", **ask)
        assert status == 405 and not any("access-control" in name.lower() for name in headers), headers
        assert "access-control-allow-origin" not in service.send("/healthz", origin="https://a.example")[1]
    with Service(COMMAND, DEMO, "--cors", "https://a.example", "--cors", "http://b.example:8000", "--api-key", "k") as service:
        status, headers, _ = service.send("/v1/completions", method="OPTIONS", **ask)
        assert status == 204 and headers["access-control-allow-origin"] == "https://a.example"
        assert headers["access-control-allow-headers"] == "authorization,content-type" and "POST" in headers["access-control-allow-methods"]
        assert headers["vary"] == "Origin" and "access-control-allow-credentials" not in headers
        assert service.send("/v1/models", origin="http://b.example:8000")[1]["access-control-allow-origin"] == "http://b.example:8000"
        for origin in ("https://c.example", "http://a.example", "null"):
            status, headers, _ = service.send("/v1/models", origin=origin)
            assert status == 200 and "access-control-allow-origin" not in headers, origin
        # A browser must be able to read why it was refused.
        status, headers, _ = service.send("/metrics", origin="https://a.example")
        assert status == 401 and headers["access-control-allow-origin"] == "https://a.example"
    with Service(COMMAND, DEMO, "--cors", "*") as service:
        assert service.send("/healthz", origin="https://any.example")[1]["access-control-allow-origin"] == "https://any.example"
    assert "an origin" in refusal("--cors", "a.example/path")


def hosts():
    with Service(COMMAND, DEMO, "--allowed-host", "gpu-box.local") as service:
        for name in ("localhost", "LOCALHOST:1", "127.0.0.1", f"127.0.0.1:{service.port}", "[::1]:80", "gpu-box.local", "gpu-box.local:8080"):
            assert service.send("/v1/models", host=name)[0] == 200, name
        for name in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "x", "gpu-box.local.evil.example", "0.0.0.0"):
            for path, body in (("/v1/models", None), ("/healthz", None), ("/metrics", None), ("/v1/completions", {})):
                status, _, text = service.send(path, body, host=name)
                assert status == 403 and json.loads(text)["error"]["code"] == "host_not_allowed", (name, path, status, text)


def media_types():
    with Service(COMMAND, DEMO) as service:
        body = json.dumps({"model": "m", "prompt": "a", "max_tokens": 1}).encode()
        for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
            assert service.send("/v1/completions", body, content_type=kind)[0] == 200, kind
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "text/plain; a=application/json", ""):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
                status, _, text = service.send(path, body, content_type=kind)
                assert status == 415 and json.loads(text)["error"]["type"] == "invalid_request_error", (kind, path, status)


def tokens():
    with Service(COMMAND, DEMO) as service:
        def tokenize(**body):
            status, _, text = service.send("/tokenize", body)
            return status, json.loads(text)

        text = "Once upon a time"
        plain = tokenize(content=text)[1]["tokens"]
        assert plain == [713, 714, 259, 596]  # demo/expected.json has these tokens
        assert tokenize(content=text, add_special=True)[1]["tokens"] == [1, *plain]
        assert tokenize(content=text, parse_special=False)[1]["tokens"] == plain
        pieces = tokenize(content="Once \u00e9\U0001f98a", with_pieces=True)[1]["tokens"]
        whole = b"".join(bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces)
        assert whole.decode().strip() == "Once \u00e9\U0001f98a" and any(isinstance(p["piece"], list) for p in pieces), pieces
        assert [p["id"] for p in pieces] == tokenize(content="Once \u00e9\U0001f98a")[1]["tokens"]
        assert tokenize(content="")[1]["tokens"] == []
        status, _, answer = service.send("/detokenize", {"tokens": plain})
        assert (status, json.loads(answer)) == (200, {"content": text}), answer
        assert json.loads(service.send("/detokenize", {"tokens": []})[2]) == {"content": ""}
        for path, body, param in (("/tokenize", {}, "content"), ("/tokenize", {"content": 1}, "content"),
                                  ("/tokenize", {"content": "a", "parse_special": True}, "parse_special"),
                                  ("/tokenize", {"content": "a", "prompt": "b"}, "prompt"),
                                  ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"),
                                  ("/detokenize", {"tokens": [1, 99999]}, "tokens"), ("/detokenize", {"tokens": [1.5]}, "tokens")):
            status, _, answer = service.send(path, body)
            assert status == 400 and json.loads(answer)["error"]["param"] == param, (path, body, answer)
        assert service.send("/tokenize")[0] == 405


def cached(service, key, prompt):
    usage = service.story(authorization=f"Bearer {key}", prompt=prompt)[1]["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def prefixes():
    """Cached prefixes are reported only if asked for, and found only by those who may."""
    long = "Once upon a time there was a fox. " * 10
    keys = ("--api-key", "one,two", "--cached-tokens")
    with Service(COMMAND, DEMO) as service:
        for _ in range(2):
            assert "prompt_tokens_details" not in service.story(prompt=long)[1]["usage"]
        assert cached_total(service) > 0
    with Service(COMMAND, DEMO, "--cached-tokens") as service:
        assert (cached(service, "", long), cached(service, "", long) > 50) == (0, True)
    with Service(COMMAND, DEMO, *keys) as service:  # by default those of one key
        found = [cached(service, key, long) for key in ("one", "two", "one", "two")]
        assert found[:2] == [0, 0] and found[2] == found[3] > 50, found
        texts = [service.story(authorization=f"Bearer {key}", prompt=long, temperature=0)[1]["choices"][0]["text"] for key in ("one", "two")]
        assert texts[0] == texts[1]
    with Service(COMMAND, DEMO, *keys, "--cache-scope", "all") as service:
        assert (cached(service, "one", long), cached(service, "two", long) > 50) == (0, True)
    with Service(COMMAND, DEMO, *keys, "--cache-scope", "request") as service:
        assert [cached(service, "one", long) for _ in range(3)] == [0, 0, 0]
        # ... but several answers to one prompt have it in common.
        service.story(authorization="Bearer one", prompt=long, n=4)
        assert cached_total(service, authorization="Bearer one") > 50
    assert "request, key, all" in refusal("--cache-scope", "mine")


def cached_total(service, **headers):
    text = service.send("/metrics", **headers)[2]
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith("llamabi_cached_tokens_total ")))


def timeouts():
    """A request has its time in all: to wait, to run and to be taken."""
    with Service(COMMAND, ENDLESS, "--timeout", "1", "--max_batch_size", "1", "--max_seq_len", "100000") as service:
        client = client_of(service)
        endless = {**LONG, "max_tokens": 90000}
        whole = threading.Thread(target=lambda: outcomes.append(failure(lambda: client.completions.create(**endless))))
        outcomes = []
        whole.start()
        # This request runs, or waits.
        stream = failure(lambda: list(client.completions.create(**endless, stream=True)))
        whole.join()
        for e in (*outcomes, stream):
            assert "longer than 1 s" in str(e) and e.code == "timeout", e
        assert outcomes[0].status_code == 503
        # One that reads a little now and then is patient enough for each write, and yet has an end.
        request = urllib.request.Request(f"{service.url}/v1/completions", json.dumps({**endless, "stream": True, "logprobs": 5}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            try:
                begin = time.monotonic()
                while answer.read1(100):
                    assert time.monotonic() - begin < PATIENCE, "it goes on"
                    time.sleep(0.2)
                    if "llamabi_sequences_running 0" in service.send("/metrics")[2]:
                        break
            except OSError:
                pass
        wait(lambda: "llamabi_sequences_running 0" in service.send("/metrics")[2], "nothing runs")
    assert "must be" in refusal("--timeout", "soon")


def waiting():
    """The model's own bound on calls that wait is a full queue to clients, as the service's is."""
    # The stream, which is not read on, keeps the slot.
    with Service(COMMAND, ENDLESS, "--max-waiting", "1", "--max_batch_size", "1", "--max_seq_len", "100000", "--max-stall", "600") as service:
        client = client_of(service)
        stream = client.completions.create(**{**LONG, "max_tokens": 90000}, stream=True)
        next(iter(stream))
        second = threading.Thread(target=lambda: client.completions.create(model="m", prompt="a", max_tokens=1))
        second.start()
        wait(lambda: "llamabi_sequences_waiting 1" in service.send("/metrics")[2], "one waits")
        for streamed in (False, True):
            e = failure(lambda: client.completions.create(model="m", prompt="a", max_tokens=1, stream=streamed))
            assert (e.status_code, e.type, e.code) == (429, "rate_limit_error", "rate_limit_exceeded"), e
            assert e.response.headers["retry-after"] == "1"
        stream.close()
        second.join()
    with Service(COMMAND, DEMO, "--queue", "2000", "--max_stall", "0.5", "--max-unread", "never", "--stall-memory", "64M", "--gpu-memory", "1G", "--device", "cpu") as service:
        assert service.story()[0] == 200
    for flags, said in ((("--max-unread", "soon"), "never"), (("--stall_memory", "much"), "powers of 1024"), (("--gpu-memory=-1",), "powers of 1024"),
                        (("--device", "gpu"), "cuda:N"), (("--device", "cpu:1"), "cuda:N"), (("--device", "cuda:7"), "")):
        assert said in refusal(*flags), flags


def failure(call):
    try:
        call()
    except openai.APIError as e:
        return e
    raise AssertionError("no error")


def loop():
    """Others are answered while a large request is read, refused or encoded."""
    with Service(COMMAND, DEMO, "--max_body", "4194304") as service:
        # One or two others, if nothing else happens meanwhile, however long it takes.
        for words in (500_000, 1_000_000, 2_000_000):
            alone = during(service, "/tokenize", {"content": "x " * words}, 200)
            if alone["answers"] >= 5:
                break
        assert alone["answers"] >= 5, alone
        # Nor do they wait for most of the time that the pieces of a million tokens take. A busy
        # machine may keep them waiting once, but not each time.
        pieces = {"content": "\x01" * 690_000, "with_pieces": True}
        assert any(during(service, "/tokenize", pieces, 200)["longest"] < 0.5 for _ in range(5))
        status, _, text = service.send("/v1/completions", b"[" * 500_000 + b"]" * 500_000)
        assert status == 400 and "nested more than 64 deep" in text, text[:200]
        # These brackets stand in a string, so nothing is nested.
        assert service.send("/v1/completions", b'{"prompt":"%s\\"[[[","model":1}' % (b"[" * 100))[0] == 400
        assert service.send("/v1/completions", b'{"model":"m","max_tokens":1,"prompt":"%s"}' % (b"[{" * 40))[0] == 200
        if service.send("/playground/next", {})[0] == 404:
            return
        for body in ({"prompt": "x " * 500_000}, {"messages": [{"role": "user", "content": "x " * 500_000}]},
                     {"messages": [{"role": "user", "content": "hi"}], "answer": "x " * 500_000}):
            refused = json.loads(during(service, "/playground/next", body, 400)["text"])["error"]
            assert refused["code"] == "context_length_exceeded", refused
            # It is not encoded to its end, so nobody knows how many tokens it has.
            assert "n_prompt_tokens" not in refused, refused


def during(service, path, body, expected):
    """What a request's answer is, how many of /healthz there are meanwhile, and for how much of the
    time there is none."""
    done, answers = threading.Event(), []

    def ask():
        while not done.is_set():
            assert service.send("/healthz")[0] == 200
            answers.append(time.monotonic())

    asking = threading.Thread(target=ask)
    asking.start()
    begin = time.monotonic()
    status, _, text = service.send(path, body)
    end = time.monotonic()
    done.set()
    asking.join()
    assert status == expected, text[:300]
    between = [begin, *(t for t in answers if begin < t < end), end]
    longest = max(after - before for before, after in itertools.pairwise(between)) / (end - begin)
    return {"answers": len(between) - 2, "longest": longest, "text": text if expected != 200 else ""}


CHECKS = [drain, ready, early, keys, cors, hosts, media_types, tokens, prefixes, timeouts, waiting, loop]
ran = [check for check in CHECKS if os.environ.get("ONLY", check.__name__) == check.__name__]
for check in ran:
    check()
print("operations:", ", ".join(check.__name__ for check in ran))
