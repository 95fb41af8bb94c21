"""What clients do that mean no good, or know no better: the others are served, and the service ends when it is told to.

hostile.py DEMO ENDLESS COMMAND...   two checkpoints, the second of a model that never stops by itself;
                                     COMMAND starts the service
"""

import json
import os
import re
import socket
import sys
import threading
import time

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
    wait(lambda: any(expected.items() <= line.items() for line in service.requests()), 60, f"{expected} is in the access log")


def many_prompts():
    """A request of as many prompts as there can be keeps nobody out, and takes no more memory than others."""
    body = {"model": "m", "prompt": [[5]] * 65536, "max_tokens": 50, "logprobs": 20, "stream": True}
    with Service(COMMAND, ENDLESS, "--max_batch_size", "4", "--queue", "8") as service:
        assert service.story()[0] == 200
        before = metric(service, "process_resident_memory_bytes")
        with opened(service, "/v1/completions", body) as connection:
            wait(lambda: metric(service, "llamabi_sequences_running") == 4, 60, "it runs")
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
        assert max(waits) < 60, waits  # on a busy machine; all of the large request takes minutes on an idle one
        assert grown < 400e6, f"{grown / 1e6:.0f} MB more"
        wait(lambda: metric(service, "llamabi_sequences_running") == 0, 30, "nothing runs")
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
        with opened(service, "/v1/completions", b'{"model"', 1000) as connection:
            begin = time.monotonic()
            answer = connection.makefile("rb").read()
            assert 0.5 < time.monotonic() - begin < 25 and b" 408 " in answer and b"longer than 1 s to arrive" in answer, answer
        logged(service, status=408)
        with opened(service, "/v1/completions", b'{"model"', 1000):
            pass
        logged(service, status=499)
        for coding in ("gzip", "identity, br"):
            status, headers, text = service.send("/v1/completions", b"\x1f\x8b", content_encoding=coding)
            assert status == 415 and "Content-Encoding" in json.loads(text)["error"]["message"] and headers["accept-encoding"] == "identity", text
        assert service.send("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 1}, content_encoding="identity")[0] == 200
    with Service(COMMAND, DEMO, "--grace", "40") as service:
        idle = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(3)]  # one says nothing,
        idle[1].sendall(b"GET / HT")  # one less than a line,
        idle[2].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")  # and one less than a head
        assert service.send("/healthz")[0] == 200
        assert service.stop(60) < 35
        for connection in idle:
            connection.close()
    with Service(COMMAND, DEMO, "--grace", "1") as service:
        with opened(service, "/v1/completions", b'{"model"', 1000) as connection:
            wait(lambda: service.send("/healthz")[0] == 200, 60, "it is read")
            time.sleep(0.2)
            took = service.stop()
            answer = connection.makefile("rb").read()
            assert 0.5 < took < 5.5, took  # 6 s where it is cut
            assert b" 503 " in answer and b"shutting_down" in answer, answer


def leaving():
    """Whoever leaves before the end of an answer is 499 in the log and the metrics, and nothing goes on for it."""
    with Service(COMMAND, ENDLESS, "--max_seq_len", "100000", "--max_body", "32M") as service:
        for n, stream in enumerate((False, True), 1):
            with opened(service, "/v1/completions", {**ENDLESS_STORY, "stream": stream}, None, f"X-Request-Id: left-{n}") as connection:
                wait(lambda: metric(service, "llamabi_sequences_running") == 1, 60, "it runs")
                if stream:
                    assert b" 200 " in connection.recv(4096)
            logged(service, request_id=f"left-{n}", status=499)
            assert metric(service, "llamabi_abandoned_requests_total") == n
            assert metric(service, 'llamabi_requests_total{route="/v1/completions",code="499"}') == n
            wait(lambda: metric(service, "llamabi_sequences_running") == 0, 60, "nothing runs")
        # A text that takes long is not encoded to its end.
        text = "Once upon a time, there was a fox. " * 400_000
        begin = time.monotonic()
        assert service.send("/tokenize", {"content": text})[0] == 200
        whole = time.monotonic() - begin
        with opened(service, "/tokenize", {"content": text}, None, "X-Request-Id: left-3"):
            time.sleep(whole / 10)
            begin = time.monotonic()
        logged(service, request_id="left-3", status=499)
        took = time.monotonic() - begin
        assert took < whole / 2, f"{took:.2f} s after it left; whole it takes {whole:.2f} s"
        assert metric(service, "llamabi_abandoned_requests_total") == 3


def halves():
    """Whoever closes its own half of a connection has left: it gets no answer, rather than an empty one."""
    with Service(COMMAND, ENDLESS, "--max_seq_len", "100000") as service:
        for n, stream in enumerate((False, True)):
            with opened(service, "/v1/completions", {**ENDLESS_STORY, "stream": stream}, None, f"X-Request-Id: half-{n}") as connection:
                wait(lambda: metric(service, "llamabi_sequences_running") == 1, 30, "it runs")
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


CHECKS = [many_prompts, bodies, leaving, halves, heads]
ran = [check for check in CHECKS if os.environ.get("ONLY", check.__name__) == check.__name__]
for check in ran:
    check()
print("hostile:", ", ".join(check.__name__ for check in ran))
