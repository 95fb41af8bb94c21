"""A client that does not read its answer holds nobody up.

unread.py ENDLESS COMMAND...   a checkpoint of a model that never stops by itself; COMMAND starts the service
"""

import json
import socket
import sys
import time

from service import Service, wait

ENDLESS, *COMMAND = sys.argv[1:]
PATIENCE = 30  # seconds that the service waits for one write
BODY = json.dumps(dict(model="m", prompt="12345678901234567890", temperature=0, max_tokens=90000, logprobs=20, stream=True)).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def unread(service):
    """A connection on which an answer begins that nobody reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", service.port))
    connection.sendall(HEAD % len(BODY) + BODY)
    wait(lambda: running(service) == 1, 5, "it runs")
    return connection


def running(service):
    lines = service.send("/metrics")[2].splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("llamabi_sequences_running ", "llamabi_sequences_waiting ")))


flags = ("--max_batch_size", "1", "--max_seq_len", "100000", "--max-stall", "0.2", "--timeout", "0")
with Service(COMMAND, ENDLESS, *flags, "--max-unread", "never") as service:
    with unread(service):
        begin = time.monotonic()
        assert service.story()[0] == 200  # it has the only slot, since the other's reader is behind
        took = time.monotonic() - begin
        assert took < PATIENCE / 2, took
with Service(COMMAND, ENDLESS, *flags, "--max-unread", "1") as service:
    with unread(service):
        begin = time.monotonic()
        wait(lambda: running(service) == 0, PATIENCE - 5, "the answer that nobody reads has ended")
        took = time.monotonic() - begin
print(f"unread: another is answered meanwhile; ended after {took:.1f} s")
