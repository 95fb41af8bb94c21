"""Measures what a gateway makes of two replicas: measure.py GO_SERVER CKPT [CHATS], with $SMG.

Every chat begins with one of some long system prompts, as those of a service with several
assistants do. A prefix is cold where a replica meets it for the first time: round robin shows every
prompt to every replica, a gateway that knows prefixes to one.
"""

import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

SERVER, CKPT = sys.argv[1:3]
CHATS = int(sys.argv[3]) if len(sys.argv) > 3 else 200
SYSTEMS = 12
CLIENTS = 8
PATIENCE = 120


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url, body=None):
    """Status and text; 0 where nobody answers."""
    request = urllib.request.Request(url, body and json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except OSError:
        return 0, ""


def wait(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"scale-out: not within {PATIENCE} s: {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def process(command, log):
    with open(log, "w") as out:
        p = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield p
    finally:
        p.kill()
        p.wait()


@contextlib.contextmanager
def cluster(policy):
    """Two replicas and a gateway: its URL, and the replicas' URLs and processes."""
    work = os.path.dirname(os.path.abspath(os.environ["SMG"])) + "/.."
    with contextlib.ExitStack() as stack:
        replicas = []
        for name in "ab":
            url = f"http://127.0.0.1:{(own := port())}"
            command = [SERVER, "--ckpt_dir", CKPT, "--model_name", "m", "--port", str(own), "--threads", "1", "--cached_tokens",
                       "--drain", "4", "--access_log", "none"]
            replicas.append((url, stack.enter_context(process(command, f"{work}/replica-{name}.log"))))
        for url, _ in replicas:
            wait(lambda: get(f"{url}/readyz")[0] == 200, "a replica is ready")
        gateway = f"http://127.0.0.1:{(own := port())}"
        command = [os.environ["SMG"], "launch", "--host", "127.0.0.1", "--port", str(own), "--policy", policy,
                   "--worker-urls", *(url for url, _ in replicas), "--health-check-endpoint", "/readyz", "--health-check-interval-secs", "1",
                   "--health-failure-threshold", "1", "--health-success-threshold", "1", "--prometheus-port", str(port()),
                   "--disable-tokenizer-autoload", "--log-level", "warn"]
        stack.enter_context(process(command, f"{work}/gateway-{policy}.log"))
        wait(lambda: chat(gateway, 0, 0)[0] == 200 and chat(gateway, 0, 1)[0] == 200, f"the gateway answers, see {work}/gateway-{policy}.log")
        yield gateway, replicas


def chat(url, system, user):
    """Status, cached tokens and tokens of a prompt, and seconds."""
    words = " ".join(f"Assistant {system} knows about part {i} of everything." for i in range(7))
    body = {"model": "m", "max_tokens": 4, "temperature": 0,
            "messages": [{"role": "system", "content": words}, {"role": "user", "content": f"Question {user}?"}]}
    begin = time.monotonic()
    status, text = get(f"{url}/v1/chat/completions", body)
    took = time.monotonic() - begin
    if status != 200:
        return status, 0, 0, took
    usage = json.loads(text)["usage"]
    return status, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"], took


def chats(url, n, before=lambda i: None):
    systems = random.Random(7).choices(range(1, SYSTEMS + 1), k=n)

    def one(i):
        before(i)
        return chat(url, systems[i], i)

    with ThreadPoolExecutor(CLIENTS) as clients:
        return list(clients.map(one, range(n)))


def prefixes(policy):
    """Cold prefixes, and the share of prompt tokens that came from a cache."""
    with cluster(policy) as (gateway, _):
        answers = chats(gateway, CHATS)
        assert all(status == 200 for status, *_ in answers), [status for status, *_ in answers if status != 200]
        cold = sum(cached < length // 2 for _, cached, length, _ in answers)
        share = sum(cached for _, cached, _, _ in answers) / sum(length for _, _, length, _ in answers)
        p50 = statistics.median(took for *_, took in answers)
        print(f"{policy:12} {cold:3} of {CHATS} prompts met a cold prefix, {100 * share:.0f} % of their tokens came from a cache, median {1e3 * p50:.0f} ms")
        return cold


def killed():
    """A replica is killed while it has no request: all later requests are answered."""
    with cluster("cache_aware") as (gateway, replicas):
        chats(gateway, 2 * SYSTEMS)
        replicas[0][1].send_signal(signal.SIGKILL)
        replicas[0][1].wait()
        answered = sum(status == 200 for status, *_ in chats(gateway, CHATS))
        print(f"one replica killed: {answered} of {CHATS} requests answered")
        assert answered == CHATS


def drained():
    """A replica is told to end under load: no request is lost."""
    with cluster("cache_aware") as (gateway, replicas):
        once = threading.Lock()

        def before(i):
            if i >= CHATS // 4 and once.acquire(blocking=False):
                replicas[0][1].send_signal(signal.SIGTERM)

        answered = 0
        begin = time.monotonic()
        while replicas[0][1].poll() is None or not answered:
            answers = chats(gateway, CHATS, before)
            answered += sum(status == 200 for status, *_ in answers)
            assert all(status == 200 for status, *_ in answers), [status for status, *_ in answers if status != 200]
            assert time.monotonic() < begin + PATIENCE, "the replica does not end"
        assert replicas[0][1].returncode == 0, replicas[0][1].returncode
        print(f"one replica drained: {answered} of {answered} requests answered, and it ended by itself")


cold = [prefixes(policy) for policy in ("round_robin", "cache_aware")]
assert 2 * cold[1] <= cold[0] + 2, cold
killed()
drained()
