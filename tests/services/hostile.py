"""What clients do that mean no good, or know no better: the others are served, and the service ends
when it is told to.

hostile.py DEMO ENDLESS COMMAND...   two checkpoints, the second of a model that never stops by
                                     itself; COMMAND starts the service
"""

import json
import os
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from service import Service, wait

DEMO, ENDLESS, *COMMAND = sys.argv[1:]
ENDLESS_STORY = {"model": "m", "prompt": "12345678901234567890", "temperature": 0, "max_tokens": 90000}


def opened(service, path, body, length=None, *headers):
    """A connection with a request, of whose body more may be announced than there is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", service.port))
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length or len(data)}", *headers]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
    return connection


def metric(service, name):
    return float(re.search(rf"^{re.escape(name)} (\S+)$", service.send("/metrics")[2], re.M)[1])


def logged(service, **expected):
    wait(lambda: any(expected.items() <= line.items() for line in service.requests()), f"{expected} is in the access log")


def many_prompts():
    """A request of as many prompts as there can be keeps nobody out, and takes no more memory than
    others."""
    body = {"model": "m", "prompt": [[5]] * 65536, "max_tokens": 50, "logprobs": 20, "stream": True}
    with Service(COMMAND, ENDLESS, "--max_batch_size", "4", "--queue", "8") as service:
        assert service.story()[0] == 200
        before = metric(service, "process_resident_memory_bytes")
        with opened(service, "/v1/completions", body) as connection:
            wait(lambda: metric(service, "llamabi_sequences_running") == 4, "it runs")
            reading = threading.Thread(target=lambda: drain(connection))
            reading.start()
            waits = []
            for _ in range(3):
                begin = time.monotonic()
                status, answer = service.story()
                waits.append(time.monotonic() - begin)
                assert status == 200, answer
            grown = metric(service, "process_resident_memory_bytes") - before
            connection.shutdown(socket.SHUT_RDWR)
            reading.join()
        # So much on a busy machine; all of the large request takes minutes on an idle one.
        assert max(waits) < 100, waits
        assert grown < 400e6, f"{grown / 1e6:.0f} MB more"
        wait(lambda: metric(service, "llamabi_sequences_running") == 0, "nothing runs")
        # Sent as a whole it would have to be kept until then.
        for more, tokens in (({}, 65536 * 50 * 21), ({"logprobs": None}, 65536 * 50), ({"logprobs": 0, "max_tokens": 1, "echo": True, "prompt": [[5] * 3] * 16384, "n": 17}, None)):
            status, _, text = service.send("/v1/completions", {**body, "stream": False, **more})
            error = json.loads(text)["error"]
            if tokens is None:  # more sequences than there may be, whatever they have
                assert (status, error["param"]) == (400, "prompt") and "65536" in error["message"], error
                continue
            assert (status, error["param"]) == (400, "max_tokens") and f"{tokens}" in error["message"] and "1048576" in error["message"], error
    with Service(COMMAND, ENDLESS, "--max-answer", "100") as service:
        def status(**more):
            return service.story(**more)[0]

        assert (status(max_tokens=100), status(max_tokens=101), status(max_tokens=50, n=2), status(max_tokens=51, n=2)) == (200, 400, 200, 400)
        assert (status(max_tokens=25, logprobs=3), status(max_tokens=26, logprobs=3)) == (200, 400)
        assert (status(max_tokens=90, echo=True, prompt=[5] * 10), status(max_tokens=90, echo=True, prompt=[5] * 11)) == (200, 400)
        chat = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 101}
        assert service.send("/v1/chat/completions", chat)[0] == 400


def drain(connection):
    try:
        while connection.recv(1 << 20):
            pass
    except OSError:
        pass


def bodies():
    """A body that does not come, or is packed, is no request, and does not hold up the end."""
    with Service(COMMAND, DEMO, "--timeout", "1") as service:
        begin = time.monotonic()
        with opened(service, "/v1/completions", b'{"model"', 1000) as connection:
            answer = connection.makefile("rb").read()
            assert time.monotonic() - begin > 0.9 and b" 408 " in answer and b"longer than 1 s to arrive" in answer, answer
        logged(service, status=408)
        # Nor does it hold up the answer of what does not read it.
        with opened(service, "/no/such/path", b"{", 1000) as connection:
            connection.settimeout(60)
            line = connection.makefile("rb").readline()
            assert b" 404 " in line, line
        with opened(service, "/v1/completions", b'{"model"', 1000):
            pass
        logged(service, status=499)
        for coding in ("gzip", "identity, br"):
            status, headers, text = service.send("/v1/completions", b"\x1f\x8b", content_encoding=coding)
            assert status == 415 and "Content-Encoding" in json.loads(text)["error"]["message"] and headers["accept-encoding"] == "identity", text
        assert service.send("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 1}, content_encoding="identity")[0] == 200
    with Service(COMMAND, DEMO, "--grace", "100") as service:
        # One says nothing, one less than a line, and one less than a head.
        idle = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(3)]
        idle[1].sendall(b"GET / HT")
        idle[2].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
        assert service.send("/healthz")[0] == 200
        assert service.stop() < 90
        for connection in idle:
            connection.close()
    # That its head has been read nobody can see: a connection of which nothing was read is closed
    # without an answer, and then the service was told too early.
    for patience in (0.2, 1, 5, 20):
        with Service(COMMAND, DEMO, "--grace", "1") as service, opened(service, "/v1/completions", b'{"model"', 1000) as connection:
            time.sleep(patience)
            took = service.stop()
            answer = connection.makefile("rb").read()
        if answer:
            break
    # It was given the second, and was not cut, as it is five seconds later: then there is no
    # answer.
    assert took > 0.9 and b" 503 " in answer and b"shutting_down" in answer, (took, answer)


def leaving():
    """Whoever leaves before the end of an answer is 499 in the log and the metrics, and nothing
    goes on for it."""
    with Service(COMMAND, ENDLESS, "--max_seq_len", "100000", "--max_body", "32M") as service:
        for n, stream in enumerate((False, True), 1):
            with opened(service, "/v1/completions", {**ENDLESS_STORY, "stream": stream}, None, f"X-Request-Id: left-{n}") as connection:
                wait(lambda: metric(service, "llamabi_sequences_running") == 1, "it runs")
                if stream:
                    assert b" 200 " in connection.recv(4096)
            logged(service, request_id=f"left-{n}", status=499)
            assert metric(service, "llamabi_abandoned_requests_total") == n
            assert metric(service, 'llamabi_requests_total{route="/v1/completions",code="499"}') == n
            wait(lambda: metric(service, "llamabi_sequences_running") == 0, "nothing runs")
        # A text that takes long is not encoded to its end.
        text = "Once upon a time, there was a fox. " * 120_000
        ratios = []
        # A busy machine can lengthen either of these two times.
        while min(ratios, default=1) >= 0.5:
            assert len(ratios) < 8, f"after it left it takes {ratios} of the time of the whole"
            begin = time.monotonic()
            assert service.send("/tokenize", {"content": text})[0] == 200
            whole = time.monotonic() - begin
            name = f"left-{3 + len(ratios)}"
            with opened(service, "/tokenize", {"content": text}, None, f"X-Request-Id: {name}"):
                time.sleep(whole / 10)
                begin = time.monotonic()
            logged(service, request_id=name, status=499)
            ratios.append((time.monotonic() - begin) / whole)
        assert metric(service, "llamabi_abandoned_requests_total") == 2 + len(ratios)


def halves():
    """Whoever closes its own half of a connection has left: it gets no answer, rather than an empty
    one."""
    with Service(COMMAND, ENDLESS, "--max_seq_len", "100000") as service:
        for n, stream in enumerate((False, True)):
            with opened(service, "/v1/completions", {**ENDLESS_STORY, "stream": stream}, None, f"X-Request-Id: half-{n}") as connection:
                wait(lambda: metric(service, "llamabi_sequences_running") == 1, "it runs")
                connection.shutdown(socket.SHUT_WR)
                answer = b""
                try:
                    while more := connection.recv(1 << 16):
                        answer += more
                except ConnectionResetError:
                    pass
            assert (stream or answer == b"") and not answer.endswith(b"0\r\n\r\n"), answer[-200:]
            logged(service, request_id=f"half-{n}", status=499)


def heads():
    """Two hosts are none: a proxy may have looked at the other one."""
    with Service(COMMAND, DEMO) as service:
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
            answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 400 "), answer


def nested(depth, inside, around):
    return inside if depth == 0 else around(nested(depth - 1, inside, around))


def bombs():
    """Sources of grammars that are large, endless, or harmless to look at."""
    words = [f"word{i}" for i in range(20_000)]
    yield "guided_choice", words
    yield "guided_choice", ["a" * 900_000]
    yield "guided_json", {"enum": words}
    yield "guided_json", {"type": "object", "properties": {word: {"type": "string"} for word in words[:5000]}, "required": words[:5000]}
    yield "guided_json", {"description": "x" * 1_000_000}
    yield "guided_json", "[" * 1_000_000
    yield "guided_json", nested(28, {}, lambda s: {"properties": {"a": s}})
    yield "guided_json", {"$ref": "#"}
    yield "guided_json", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    yield "guided_json", {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}
    yield "guided_json", {"$defs": {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 4} for i in range(40)} | {"a40": {"type": "null"}}, "$ref": "#/$defs/a0"}
    yield "guided_json", {"$defs": {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)} | {"a40": {"type": "null"}}, "$ref": "#/$defs/a0"}
    yield "guided_json", {"type": "array", "items": {"type": "array", "minItems": 1000, "maxItems": 100_000}, "minItems": 100_000}
    yield "guided_json", {"type": "string", "minLength": 1_000_000_000, "maxLength": 4_000_000_000}
    yield "guided_json", {"type": "number", "multipleOf": 1e-300, "minimum": -1e300, "maximum": 1e300}
    yield "guided_json", {"type": "string", "pattern": "(a{1000}){1000}"}
    yield "guided_json", {"$ref": "file:///etc/passwd"}
    yield "guided_regex", "((a{1,100}){1,100}){1,100}"
    yield "guided_regex", "(.*a.{30}){3}"
    yield "guided_regex", "(" * 100_000 + ")" * 100_000
    yield "guided_regex", "(a?){1000}a{1000}"
    yield "guided_regex", "|".join(words)
    yield "guided_regex", "[\\p{L}\\p{N}]{1,5000}" * 20
    yield "guided_grammar", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000
    yield "guided_grammar", 'start: start start start | "a" |'
    yield "guided_grammar", "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(60)) + 'a60: "a" |'
    yield "guided_grammar", "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60)) + 'A60: "a"'
    yield "guided_grammar", 'start: "a"~1000000..2000000'
    yield "guided_grammar", "start: /" + "(a|b)*" * 3000 + "/"
    yield "guided_grammar", "start: " + " | ".join(f'"{word}"' for word in words[:2000])


def constraints():
    """What a stranger may ask to be kept to costs a status: in bounded time and memory, and others
    are served meanwhile."""
    with Service(COMMAND, DEMO, "--max_body", "3M") as service:
        assert service.story()[0] == 200
        slowest, begin = 0.0, time.monotonic()
        for field, source in bombs():
            status, answer = None, None
            began = time.monotonic()
            status, answer = service.story(**{field: source}, max_tokens=8, seed=1, temperature=1)
            took = time.monotonic() - began
            slowest = max(slowest, took)
            what = f"{field} {json.dumps(source)[:80]}: {status} after {took:.1f} s"
            print(what, str(answer)[:150]) if os.environ.get("SAY") else None
            assert status in (200, 400) and took < 250, (what, str(answer)[:500])
            assert status == 200 or answer["error"]["param"] == field and len(answer["error"]["message"]) < 10_000, (what, str(answer)[:500])
        grown = metric(service, "process_resident_memory_bytes")
        assert grown < 4e9, f"{grown / 1e6:.0f} MB"
        # The same one from many at a time, among many others: the ones that were used last are
        # kept.
        one = {"guided_regex": "[a-f]{8}"}
        with ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda i: service.story(**(one if i % 2 else {"guided_regex": f"[a-f]{{8}}|{i}"}), max_tokens=12), range(400)))
        assert all(status in (200, 429) for status, _ in texts) and texts[1][0] == 200, texts[:4]
        assert all(re.fullmatch(r"[a-f]{8}|\d+", answer["choices"][0]["text"]) for status, answer in texts if status == 200), texts[:4]
        assert service.story()[0] == 200


CHECKS = [many_prompts, bodies, leaving, halves, heads, constraints]
ran = [check for check in CHECKS if os.environ.get("ONLY", check.__name__) == check.__name__]
for check in ran:
    check()
print("hostile:", ", ".join(check.__name__ for check in ran))
