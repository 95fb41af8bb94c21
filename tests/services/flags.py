"""What a service's command line decides.

flags.py CKPT_DIR COMMAND...    COMMAND starts the service
"""

import collections
import json
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.request

from service import PATIENCE, Service

CKPT, *COMMAND = sys.argv[1:]


def fails(*flags):
    """What it says when it ends by itself, which it must do soon and with a status."""
    process = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode > 0, process
    return process.stderr


def serve(*flags):
    """The story of a request without a seed, and the log."""
    process = subprocess.Popen([*COMMAND, "--ckpt_dir", CKPT, "--model_name", "m", "--port", "0", *flags],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url = process.stdout.readline().removeprefix("listening on ").strip()
    body = json.dumps({"model": "m", "prompt": "Once upon a time", "max_tokens": 60})
    assert url, process.communicate()[1]
    request = urllib.request.Request(f"{url}/v1/completions", body.encode(), {"Content-Type": "application/json"})
    text = json.load(urllib.request.urlopen(request))["choices"][0]["text"]
    process.send_signal(signal.SIGTERM)
    log = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, log
    return text, log


def write_heads(folder, token):
    """Two Medusa heads that guess the same token, whatever they see."""
    params = json.loads(pathlib.Path(CKPT, "params.json").read_text())
    dim, vocab = params["dim"], params["vocab_size"]
    rows = [0.0] * (dim * vocab)
    rows[token * dim:(token + 1) * dim] = [1.0] * dim
    header, data = {}, b""
    for head in range(2):
        for name, shape, values in ((f"{head}.0.linear.weight", [dim, dim], [0.0] * dim * dim), (f"{head}.0.linear.bias", [dim], [50.0] * dim),
                                    (f"{head}.1.weight", [vocab, dim], rows)):
            packed = struct.pack(f"<{len(values)}f", *values)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
            data += packed
    header = json.dumps(header).encode()
    pathlib.Path(folder, "medusa_lm_head.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)


def guessed(service, **more):
    """An answer, and how many guesses at its tokens there were and were right."""
    asked = {"model": "m", "prompt": "Once", "max_tokens": 40, "temperature": 0, **more}
    status, _, body = service.send("/v1/completions", asked)
    assert status == 200, body
    figures = dict(line.split() for line in service.send("/metrics")[2].splitlines() if not line.startswith("#"))
    return json.loads(body)["choices"][0]["text"], *(int(figures[f"llamabi_{what}_tokens_total"]) for what in ("drafted", "accepted"))


# Noticed before the checkpoint, which does not exist.
with socket.create_server(("127.0.0.1", 0)) as taken:
    said = fails("--ckpt_dir", "/nonexistent", "--port", str(taken.getsockname()[1]))
    assert "address already in use" in said, said
for flag in ("--weights_dtype", "--kv_dtype"):
    said = fails("--ckpt_dir", CKPT, "--port", "0", flag, "f12")
    assert "f12" in said and "nf4" in said, said

text, log = serve("--seed", "7")
assert serve("--seed", "7")[0] == text and re.search(r"\bseed 7\b", log), log
logs = [serve()[1] for _ in range(2)]
seeds = [re.search(r"\bseed (\d+)", log)[1] for log in logs]
assert seeds[0] != seeds[1], logs
assert len({serve()[0] for _ in range(4)}) > 1, "every start tells the same story"
for weights, kv in (("int8", "int8"), ("int4", "auto"), ("nf4", "f16")):
    text, log = serve("--weights_dtype", weights, "--kv_dtype", kv)
    assert text and weights in log, log

# A draft model tells the same story.
text, log = serve("--seed", "7", "--draft_dir", CKPT, "--draft_weights_dtype", "int4")
assert text == serve("--seed", "7")[0] and log.count("int4") > 0, log
with Service(COMMAND, CKPT, "--draft-dir", CKPT, "--draft-weights-dtype", "int4") as service:
    told, drafted, accepted = guessed(service)
    assert 0 < accepted <= drafted, (drafted, accepted)
    tokens = json.loads(service.send("/tokenize", {"content": told})[2])["tokens"]
# So do Medusa heads, some of whose guesses are right.
with tempfile.TemporaryDirectory() as heads:
    write_heads(heads, collections.Counter(tokens).most_common(1)[0][0])
    with Service(COMMAND, CKPT, "--medusa-dir", heads, "--max-step", "50ms") as service:
        text, drafted, accepted = guessed(service, speculation="medusa", draft_len=2)
        assert text == told and 0 < accepted < drafted, (text, told, drafted, accepted)
        # By what steps were measured to take, which on a busy machine may say no for a while.
        for _ in range(50):
            text, again, _ = guessed(service)
            assert text == told, (text, told)
            if again > drafted:
                break
        else:
            raise AssertionError("heads are asked unless something else is said")
for what in "draft_dir", "medusa_dir":
    said = fails("--ckpt_dir", CKPT, "--port", "0", f"--{what}", "/nonexistent")
    assert "/nonexistent" in said, said

text, log = serve("--ranks", "0,0", "--threads", "1")
assert text and "2 ranks" in log, log
for ranks in ("0,", "a", "1.5", ",".join(["0"] * 65)):
    said = fails("--ckpt_dir", CKPT, "--port", "0", "--ranks", ranks)
    assert "numbers with commas" in said, said
said = fails("--ckpt_dir", CKPT, "--port", "0", "--ranks", "0,999")
assert "devices[1]" in said and "NUMA node" in said, said

# A chat template of the operator's, for a model that has none: it counts, with its own sentences.
with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
    file.write("{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no ' + m.role + ' here') }}{% endif %}{{ m.content }}{% endfor %}")
    file.flush()
    with Service(COMMAND, CKPT, "--chat-template", file.name) as service:
        for role, expected in (("user", 200), ("system", 400)):
            messages = [{"role": role, "content": "Once"}, {"role": "user", "content": " upon"}]
            status, _, answer = service.send("/v1/chat/completions", {"model": "m", "max_tokens": 3, "messages": messages})
            assert status == expected and ("no system here" in answer) == (status == 400), answer
for file, said in (("/dev/null", "empty"), ("/nonexistent", "no such file")):
    assert said in fails("--ckpt_dir", CKPT, "--chat_template", file).lower(), file
print("flags: port, seed, dtypes, draft model, chat template")
