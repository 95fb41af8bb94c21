"""What a service says of itself: metrics, as Prometheus wants them, request ids and the access log.

observe.py DEMO COMMAND...   COMMAND starts the service
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time

from prometheus_client.parser import text_string_to_metric_families

from service import Service, wait

DEMO, *COMMAND = sys.argv[1:]
UNITS = ("seconds", "bytes", "total")
HISTOGRAMS = {"llamabi_queue_seconds", "llamabi_first_token_seconds", "llamabi_between_tokens_seconds", "llamabi_request_duration_seconds"}


def families(service):
    return {family.name: family for family in text_string_to_metric_families(service.send("/metrics")[2])}


def lint(text):
    """The rules of `promtool check metrics`, for machines without it; what breaks one of them."""
    wrong, seen = [], set()
    for family in text_string_to_metric_families(text):
        name, kind = family.name, family.type
        shown = name + ("_total" if kind == "counter" else "")
        if name in seen:
            wrong.append(f"{name} is there twice")
        seen.add(name)
        if not family.documentation:
            wrong.append(f"{name} has no help text")
        if kind == "unknown":
            wrong.append(f"{name} has no type")
        if kind != "counter" and name.endswith("_total"):
            wrong.append(f"{name} is a {kind} and ends in _total")
        if kind == "counter" and not all(sample.name.endswith("_total") for sample in family.samples):
            wrong.append(f"{name} is a counter and does not end in _total")
        if kind != "histogram" and re.search(r"_(count|sum|bucket)$", name):
            wrong.append(f"{name} ends as a part of a histogram")
        if re.search(r"(^|_)(counter|gauge|histogram|summary)(_|$)", name):
            wrong.append(f"{name} has its type in its name")
        if re.search(r"(^|_)(ms|milliseconds|us|minutes|kib|mib|kilobytes|megabytes|percent)(_|$)", shown):
            wrong.append(f"{name} has another unit than seconds and bytes")
        if re.search(r"[A-Z]|:", name):
            wrong.append(f"{name} has a capital letter or a colon")
        if kind == "histogram":
            wrong += histogram(family)
    return wrong


def histogram(family):
    """What is wrong with it: buckets rise, end at +Inf, and agree with the count."""
    by_labels = {}
    for sample in family.samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        by_labels.setdefault(labels, []).append(sample)
    wrong = []
    for labels, samples in by_labels.items():
        buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket")]
        count = next(s.value for s in samples if s.name.endswith("_count"))
        if buckets != sorted(buckets) or [v for _, v in buckets] != sorted(v for _, v in buckets):
            wrong.append(f"{family.name} {labels}: buckets do not rise")
        if buckets[-1][0] != float("inf") or buckets[-1][1] != count:
            wrong.append(f"{family.name} {labels}: the last bucket is not all")
    return wrong


def lint_lints():
    """The rules above find what promtool finds."""
    for text in ("# HELP a_total x\n# TYPE a_total gauge\na_total 1\n", "# TYPE a gauge\na 1\n", "# HELP a x\na 1\n",
                 "# HELP a_count x\n# TYPE a_count gauge\na_count 1\n", "# HELP a_ms x\n# TYPE a_ms gauge\na_ms 1\n"):
        assert lint(text), text
        if shutil.which("promtool") and "# TYPE" in text:  # it leaves metrics without a type alone
            assert promtool(text).returncode != 0, text


def promtool(text):
    return subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)


def metrics(service):
    def value(name, part="_count", **labels):
        family = families(service).get(name)
        return sum(s.value for s in family.samples if s.name == name + part and labels.items() <= s.labels.items()) if family else 0

    before = {name: value(name) for name in HISTOGRAMS}
    assert service.story(n=2, max_tokens=5, seed=1)[0] == 200
    assert service.story(max_tokens=0, echo=True)[0] == 200
    wait(lambda: value("llamabi_request_duration_seconds", route="/v1/completions") >= 2, "both requests are counted")
    grown = {name: value(name) - before[name] for name in HISTOGRAMS - {"llamabi_request_duration_seconds"}}
    # Three sequences, of which two have five tokens each.
    assert grown == {"llamabi_queue_seconds": 3, "llamabi_first_token_seconds": 2, "llamabi_between_tokens_seconds": 8}, grown
    # In seconds: each of them is of the time since the service began.
    for name in HISTOGRAMS:
        assert 0 < value(name, "_sum") <= value(name) * (time.monotonic() - BEGIN), name
    text = service.send("/metrics")[2]
    found = families(service)
    assert HISTOGRAMS <= found.keys() and all(found[name].type == "histogram" for name in HISTOGRAMS)
    assert {"llamabi_kv_pages", "llamabi_kv_pages_used", "llamabi_sequences_running", "llamabi_requests"} <= found.keys(), found.keys()
    assert lint(text) == []
    if shutil.which("promtool"):
        checked = promtool(text)
        assert checked.returncode == 0 and not checked.stderr, checked


def request_ids(service):
    def id_of(**headers):
        return service.send("/v1/models", **headers)[1]["x-request-id"]

    assert id_of(x_request_id="client-7.a:b_c") == "client-7.a:b_c"
    for bad in ("a b", "x" * 129, '"', "\u00e9"):
        assert re.fullmatch(r"[\w-]{20,40}", id_of(x_request_id=bad)), bad
    assert len({id_of() for _ in range(5)}) == 5
    for path, body in (("/nothing", None), ("/v1/completions", {}), ("/healthz", None)):
        assert service.send(path, body)[1]["x-request-id"], path


def access_log(service):
    secret = "a secret prompt"
    assert service.story(prompt=secret, max_tokens=4, ignored_key="x", x_request_id="whole")[0] == 400
    assert service.story(prompt=secret, max_tokens=4, n=2, temperature=0, x_request_id="two", authorization="Bearer a-secret-key")[0] == 200
    status, _, streamed = service.send("/v1/completions", {"model": "m", "prompt": secret, "max_tokens": 4, "temperature": 0, "stream": True}, x_request_id="stream")
    assert status == 200
    service.send("/a-secret-path?and=query", x_request_id="nowhere")
    service.send("/v1/models/m", x_request_id="model")
    wait(lambda: any(line["request_id"] == "model" for line in service.requests()), "all is in the log")
    lines = {line["request_id"]: line for line in service.requests()}
    names = {"time", "request_id", "remote", "method", "route", "status", "bytes", "duration_ms", "prompt_tokens", "generated_tokens"}
    for line in lines.values():
        assert line.keys() == names and line["remote"] == "127.0.0.1" and line["duration_ms"] >= 0, line
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), line
    def of(id):
        return tuple(lines[id][name] for name in ("method", "route", "status", "generated_tokens"))
    assert of("whole") == ("POST", "/v1/completions", 400, 0), lines
    assert of("two") == ("POST", "/v1/completions", 200, 8) and lines["two"]["prompt_tokens"] > 3, lines
    assert of("stream") == ("POST", "/v1/completions", 200, 4) and lines["stream"]["bytes"] == len(streamed.encode()), lines
    assert of("nowhere") == ("GET", "/", 404, 0) and of("model") == ("GET", "/v1/models/{id}", 200, 0), lines
    for word in ("secret", "query"):
        assert word not in service.said(), service.said()


lint_lints()
BEGIN = time.monotonic()
with Service(COMMAND, DEMO) as service:
    metrics(service)
    request_ids(service)
    access_log(service)
with tempfile.NamedTemporaryFile("r") as file:
    with Service(COMMAND, DEMO, "--access-log", file.name) as service:
        service.send("/healthz", x_request_id="in-the-file")
        service.stop()
        assert service.requests() == [], service.said()
    assert json.loads(file.read().splitlines()[-1])["request_id"] == "in-the-file"
    with Service(COMMAND, DEMO, "--access-log", "none") as service:
        service.send("/healthz")
        service.stop()
        assert service.requests() == [], service.said()
print(f"observe: metrics ({'promtool' if shutil.which('promtool') else 'no promtool: by rules of our own'}), request ids, access log")
