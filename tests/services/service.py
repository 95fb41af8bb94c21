"""A service that a test starts with flags of its own."""

import json
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

# Seconds, for what hangs: more than a busy machine needs for anything else.
PATIENCE = 300


class Service:
    """`with Service(command, ckpt, "--flag", ...) as s:` ends it with SIGTERM, and checks that it
    ended well."""

    def __init__(self, command, ckpt, *flags):
        self.process = subprocess.Popen([*command, "--ckpt_dir", ckpt, "--model_name", "m", "--port", "0", *flags],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.out, self.err = [], []
        self.threads = [threading.Thread(target=lambda to=to, pipe=pipe: to.extend(iter(pipe.readline, "")), daemon=True)
                        for to, pipe in ((self.out, self.process.stdout), (self.err, self.process.stderr))]
        for thread in self.threads:
            thread.start()
        wait(lambda: self.process.poll() is not None or any("listening on" in line for line in self.out), "it listens")
        if self.process.poll() is not None:
            for thread in self.threads:  # what it said last may not have been read yet
                thread.join()
        listening = [line for line in self.out if line.startswith("listening on ")]
        assert listening, self.said()
        self.url = listening[0].split()[-1]
        self.port = int(re.search(r":(\d+)$", self.url)[1])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.stop()
        finally:
            if self.process.poll() is None:
                self.process.kill()
            if kind is not None:
                print(self.said())

    def said(self):
        return "".join(self.out + self.err)

    def stop(self):
        """Ends it; how long that took."""
        begin = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.ended(begin)

    def ended(self, begin):
        status = self.process.wait(PATIENCE)
        took = time.monotonic() - begin
        for thread in self.threads:
            thread.join()
        assert status == 0 and "DATA RACE" not in self.said(), self.said()
        return took

    def requests(self):
        """What the access log on standard output has."""
        return [json.loads(line) for line in self.out if line.startswith("{")]

    def send(self, path, body=None, method=None, **headers):
        """Status, headers and text of an answer."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            headers.setdefault("content-type", "application/json")
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            answer = urllib.request.urlopen(request, timeout=PATIENCE)
        except urllib.error.HTTPError as e:
            answer = e
        with answer:
            return answer.status, answer.headers, answer.read().decode()

    def story(self, **more):
        fields, headers = {}, {}
        for name, value in more.items():
            (headers if name in ("authorization", "x_api_key", "x_request_id") else fields)[name] = value
        status, _, text = self.send("/v1/completions", {"model": "m", "prompt": "Once upon a time", "max_tokens": 5, **fields}, **headers)
        return status, json.loads(text)


def wait(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.01)
