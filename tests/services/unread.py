"""A client that does not read its answer holds nobody up, nor do many.

unread.py ENDLESS COMMAND...   a checkpoint of a model that never stops by itself; COMMAND starts
                               the service

CLIENTS is how many do not read at the same time (10; a minute for each 64 on two busy cores).
"""

import json
import os
import socket
import sys
import time

from service import Service, wait

ENDLESS, *COMMAND = sys.argv[1:]
BODY = json.dumps(dict(model="m", prompt="12345678901234567890", temperature=0, max_tokens=90000, logprobs=20, stream=True)).encode()
HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


CLIENTS = int(os.environ.get("CLIENTS", 10))
# Tokens of an answer that are generated though nobody reads it: 1,024 events are kept for it, and
# what the socket takes.
MOST = 6000


def unread(service, body=BODY, path="/v1/completions"):
    """A connection on which an answer begins that nobody reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", service.port))
    connection.sendall(HEAD % (path.encode(), len(body)) + body)
    return connection


def one(service):
    connection = unread(service)
    wait(lambda: running(service) == 1, "it runs")
    return connection


def figure(service, *names):
    lines = service.send("/metrics")[2].splitlines()
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in names)


def running(service):
    return figure(service, "llamabi_sequences_running", "llamabi_sequences_waiting")


flags = ("--max_batch_size", "1", "--max_seq_len", "100000", "--max-stall", "0.2", "--timeout", "0")
with Service(COMMAND, ENDLESS, *flags, "--max-unread", "never") as service:
    with one(service):
        assert service.story()[0] == 200
        # It had the only slot, which the other has given up: that one has not ended.
        assert figure(service, "llamabi_sequences_parked") == 1
with Service(COMMAND, ENDLESS, *flags, "--max-unread", "1") as service:
    with one(service):
        begin = time.monotonic()
        wait(lambda: running(service) == 0, "the answer that nobody reads has ended")
        took = time.monotonic() - begin
        time.sleep(0.3)
        # Its connection has not: the service waits half a minute for a write.
        assert figure(service, "llamabi_abandoned_requests_total") == 0

# Many that have come before, without log probabilities: as many tokens as there can be in so many
# bytes.
small = json.dumps({**json.loads(BODY), "logprobs": None}).encode()
with Service(COMMAND, ENDLESS, *flags[2:], "--max_batch_size", "8", "--max-unread", "never", "--queue", str(CLIENTS)) as service:
    crowd = [unread(service, small) for _ in range(CLIENTS)]
    wait(lambda: running(service) == CLIENTS, "all have come")
    begin = time.monotonic()
    assert service.story()[0] == 200
    waited = time.monotonic() - begin
    each = figure(service, "llamabi_generated_tokens_total") / CLIENTS
    assert each < MOST, each
    for connection in crowd:
        connection.close()

# Whole answers that nobody reads have left the queue, and after half a minute the service.
whole = json.dumps({**json.loads(BODY), "max_tokens": 3000, "stream": False}).encode()
# More than any socket takes.
tokens = json.dumps({"content": "x" * 1_000_000, "with_pieces": True}).encode()
with Service(COMMAND, ENDLESS, *flags, "--queue", "1") as service:
    crowd = [unread(service, whole) for _ in range(2)]
    wait(lambda: figure(service, "llamabi_generated_tokens_total") >= 2 * 3000 and running(service) == 0, "both are made")
    wait(lambda: service.story()[0] == 200, "there is room in the queue")
    crowd += [unread(service, tokens, "/tokenize") for _ in range(2)]
    # That takes half a minute: asked twice a second, not a hundred times.
    wait(lambda: time.sleep(0.5) or figure(service, "llamabi_abandoned_requests_total") >= 2, "they are given up")
    assert service.story()[0] == 200
    for connection in crowd:
        connection.close()
print(f"unread: behind {CLIENTS} another waited {waited:.1f} s, for {each:.0f} tokens of each; another is answered meanwhile; ended after {took:.1f} s")
