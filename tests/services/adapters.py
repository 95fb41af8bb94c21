"""LoRA adapters that requests choose as their model, with the official openai client of PyPI.

adapters.py DATA COMMAND...    DATA is tests/data/adapters; COMMAND starts the service
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai

from service import PATIENCE, Service

DATA, *COMMAND = sys.argv[1:]
DATA = Path(DATA)
CASES = json.loads((DATA / "cases.json").read_text())
# Names of models, and of what the reference has of them.
MODELS = {"m": "base", "plain": "plain*1.0", "other/one": "rslora-patterns*1.0"}


def refused(call, status, code, param, *words):
    try:
        call()
    except openai.APIStatusError as e:
        assert (e.status_code, e.body["code"], e.body["param"]) == (status, code, param), e.body
        assert all(word in e.body["message"] for word in words), e.body
        return
    raise AssertionError("accepted")


def fails(*flags):
    process = subprocess.run([*COMMAND, "--ckpt_dir", DATA / "base", "--model_name", "m", "--port", "0", *flags], capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode > 0 and "listening" not in process.stdout, process
    return process.stderr


def chosen(client, service):
    listed = client.models.list().data
    assert [(one.id, one.object, one.owned_by, getattr(one, "parent", None)) for one in listed] == [
        ("m", "model", "llamabi", None), ("plain", "model", "llamabi", "m"), ("other/one", "model", "llamabi", "m")], listed
    for one in listed:
        path = f"/v1/models/{one.id}"
        assert json.loads(service.send(path)[2]) == one.model_dump(exclude_none=True), path

    def ask(job):
        name, case = job
        expected = case["logprobs"]
        answer = client.completions.create(model=name, prompt=case["prompt"], max_tokens=len(expected), logprobs=0, temperature=0, extra_body={"ignore_eos": True})
        found = answer.choices[0].logprobs.token_logprobs
        assert answer.model == name and len(found) == len(expected) and all(abs(a - b) < 2e-3 for a, b in zip(found, expected)), (name, found, expected)
        return answer.choices[0].text

    jobs = [(name, case) for name, key in MODELS.items() for case in CASES[key]["cases"]]
    alone = [ask(job) for job in jobs]
    # Different adapters in one step, and each other's prefixes in the cache.
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert list(pool.map(ask, jobs)) == alone
    # All that is an answer says which model it is of, and a chat can choose one.
    texts = {}
    for name in MODELS:
        chunks = list(client.completions.create(model=name, prompt=[5, 6, 7, 8], max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True}))
        assert {chunk.model for chunk in chunks} == {name}, chunks
        texts[name] = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        assert client.completions.create(model=name, prompt=[5, 6, 7, 8], max_tokens=20, temperature=0, n=3).choices[2].text == texts[name]
    assert len({*texts.values()}) == len(texts), texts
    answer = client.completions.create(model="plain", prompt="a", max_tokens=3, extra_body={"guided_regex": "[ab]{3}"})
    assert set(answer.choices[0].text) <= set("ab") and answer.model == "plain", answer


def refusals(client, service):
    for name in ("Plain", "plain ", "one", "other/one/"):
        refused(lambda: client.completions.create(model=name, prompt="a"), 404, "model_not_found", "model", f"'{name}'", "this server has 'm', 'plain', 'other/one'")
        refused(lambda: client.chat.completions.create(model=name, messages=[{"role": "user", "content": "a"}]), 404, "model_not_found", "model")
        refused(lambda: client.models.retrieve(name), 404, "model_not_found", "model")
    for flags, words in ((("plain",), "NAME=DIR"), (("=x",), "NAME=DIR"), (("x=",), "NAME=DIR"), (("m=x",), "there is a model of that name"),
                         (("a=x", "a=y"), "there is a model of that name"), ((f"a={DATA}/nowhere",), "nowhere"), ((f"a={DATA}/with-head",), "lm_head")):
        said = fails(*(part for flag in flags for part in ("--adapter", flag)))
        assert words in said, (flags, said)


with Service(COMMAND, str(DATA / "base"), "--weights_dtype", "f32", "--max_seq_len", "64", "--adapter", f"plain={DATA}/plain",
             f"--adapter=other/one={DATA}/rslora-patterns") as service:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=600)
    checks = (chosen, refusals)
    for check in checks:
        check(client, service)
print("adapters:", ", ".join(check.__name__ for check in checks))
