"""Answers in a language, and the best of several, with the official openai client of PyPI and with
LangChain.

constrained.py URL      the service has the demo model
"""

import json
import re
import sys
from typing import Literal, Optional

import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

URL = sys.argv[1]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600)
MODEL = client.models.list().data[0].id
FOX = {"role": "user", "content": "Tell me a story about a fox."}
SEARCH = ("use_beam_search", "num_beams", "length_penalty", "early_stopping")
TIGHT = {"x-guidance": {"whitespace_flexible": False}}
# Every answer of it ends by itself, and soon.
ANIMAL = {
    "type": "object", "additionalProperties": False, "required": ["name", "legs", "colours"], **TIGHT,
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,6}$"}, "legs": {"type": "integer", "minimum": 0, "maximum": 99},
                   "colours": {"type": "array", "items": {"enum": ["red", "grey"]}, "maxItems": 2}},
}


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def chat(**more):
    extra = {name: more.pop(name) for name in [*more] if name.startswith(("guided", "structured", "ignore_eos", "draft_len", *SEARCH))}
    return client.chat.completions.create(**{"model": MODEL, "messages": [FOX], "seed": 1, "extra_body": extra, **more})


def complete(**more):
    extra = {name: more.pop(name) for name in [*more] if name.startswith(("guided", "structured", "response_format", "ignore_eos", *SEARCH))}
    return client.completions.create(**{"model": MODEL, "prompt": "Once upon a time", "seed": 1, "max_tokens": 60, "extra_body": extra, **more})


def answers(**more):
    """Texts and ends of a chat and of a completion, whole and as streams, which must be the
    same."""
    found = []
    for n in (1, 3):
        whole = [[(c.message.content, c.finish_reason) for c in chat(n=n, **more).choices], [(c.text, c.finish_reason) for c in complete(n=n, **more).choices]]
        chunks = [[(c.index, c.delta.content or "", c.finish_reason) for c in (chunk.choices[0] for chunk in chat(n=n, stream=True, **more))],
                  [(c.index, c.text, c.finish_reason) for c in (chunk.choices[0] for chunk in complete(n=n, stream=True, **more))]]
        for texts, pieces in zip(whole, chunks):
            for i, (text, end) in enumerate(texts):
                own = [piece for piece in pieces if piece[0] == i]
                assert ("".join(piece[1] for piece in own), own[-1][2]) == (text, end), (own, text, end)
            found += texts
    assert found and len({text for text, _ in found}) > 1 or "guided_choice" in more, "every answer is the same, so nothing is shown"
    return found


def is_animal(text):
    value = json.loads(text)
    assert list(value) == ["name", "legs", "colours"] and re.fullmatch("[a-z]{1,6}", value["name"]), text
    assert value["legs"] in range(100) and len(value["colours"]) < 3 and {*value["colours"]} <= {"red", "grey"}, text
    return True


def languages():
    for strict in ({}, {"strict": True}, {"strict": False}, {"strict": None, "description": "An animal."}):
        assert all(end == "stop" and is_animal(text) for text, end in answers(response_format=schema_format(ANIMAL, **strict)))
    for schema in (ANIMAL, json.dumps(ANIMAL)):
        assert all(end == "stop" and is_animal(text) for text, end in answers(guided_json=schema))
    for text, end in answers(response_format={"type": "json_object"}):
        assert text.startswith("{") and (end != "stop" or isinstance(json.loads(text), dict)), text
    for text, end in answers(guided_regex="(fox|cow){1,3} [0-9]{2,3}"):
        assert end == "stop" and re.fullmatch("(fox|cow){1,3} [0-9]{2,3}", text), text
    # A language may begin with the space that a text loses.
    for text, end in answers(guided_regex=" [a-c]{1,8}"):
        assert end == "stop" and re.fullmatch(" [a-c]{1,8}", text), repr(text)
    choices = ["fox", "fox and hound", "€ 5"]
    assert {text for text, end in answers(guided_choice=choices, temperature=2) if end == "stop"} <= {*choices}
    for text, end in answers(guided_grammar='start: A ("," A)*\nA: /[ab]{1,3}/'):
        assert end != "stop" or re.fullmatch("[ab]{1,3}(,[ab]{1,3})*", text), text
    for text, end in answers(structured_outputs={"regex": "(fox|cow)[0-9]{2}", "json": None, "json_object": False}):
        assert end == "stop" and re.fullmatch("(fox|cow)[0-9]{2}", text), text
    assert all(end == "stop" and is_animal(text) for text, end in answers(structured_outputs={"json": ANIMAL}))
    assert complete(structured_outputs={"choice": ["fox"]}).choices[0].text == "fox"
    assert complete(structured_outputs={"json_object": True}, max_tokens=40).choices[0].text.startswith("{")
    plain = chat(temperature=0).choices[0].message.content
    for same in (dict(response_format={"type": "text"}), dict(response_format=None), dict(guided_json=None, guided_regex=None)):
        assert chat(temperature=0, **same).choices[0].message.content == plain
    # An answer that is begun, and one whose tokens are listed.
    begun = chat(messages=[FOX, {"role": "assistant", "content": "It has"}], guided_regex="[0-9]{2}", logprobs=True, top_logprobs=3).choices[0]
    assert re.fullmatch("[0-9]{2}", begun.message.content) and b"".join(bytes(r.bytes) for r in begun.logprobs.content) == begun.message.content.encode(), begun
    listed = complete(guided_choice=["fox", "cow"], logprobs=2).choices[0]
    assert "".join(listed.logprobs.tokens) == listed.text in ("fox", "cow"), listed
    echo = complete(guided_choice=["fox", "cow"], echo=True).choices[0]
    # Behind the prompt the space is part of it again.
    assert re.fullmatch("Once upon a time ?(fox|cow)", echo.text), echo
    cut = chat(guided_regex="[0-9]{50}", max_tokens=3).choices[0]
    assert cut.finish_reason == "length" and re.fullmatch("[0-9]{1,49}", cut.message.content), cut


def predicted():
    """A prediction in a language: of the same answer its tokens are right, of another one the
    answer is still the same."""
    for form in (schema_format(ANIMAL), {"type": "json_object"}):
        for options in (dict(temperature=0), dict(temperature=1, seed=4, n=2)):
            options = {"response_format": form, "max_tokens": 60, **options}
            plain = chat(**options)
            texts = [c.message.content for c in plain.choices]
            for content, right in ((texts[0], True), ("Once upon a time there was a fox.", False)):
                prediction = {"type": "content", "content": content}
                # Without `draft_len`, the wrong guesses of the turn before may rest the right ones.
                guessed = chat(prediction=prediction, draft_len=4, **options)
                assert [c.message.content for c in guessed.choices] == texts, content
                details = guessed.usage.completion_tokens_details
                assert details.accepted_prediction_tokens > 0 or not right, (form, options, details)
                chunks = list(chat(prediction=prediction, stream=True, **{**options, "n": 1}))
                assert "".join(c.choices[0].delta.content or "" for c in chunks) == texts[0], content


def as_sent():
    """Keys in their order, which what is read of JSON has lost."""
    schema = '{"type": "object", "properties": {"2": {"const": 1.5}, "10": {"const": 123456789012345}, "1": {"const": "\\ud83d"}}, "required": ["1", "2", "10"],' \
             ' "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}'
    for constraint in (f'"guided_json": {schema}', f'"guided_json": {json.dumps(schema)}',
                       f'"response_format": {{"type": "json_schema", "json_schema": {{"schema": {schema}}}}}'):
        body = f'{{"model": {json.dumps(MODEL)}, "prompt": "a", "max_tokens": 99, {constraint}}}'.encode()
        if "\\\\ud83d" in body.decode():  # in a string it is for the library to say
            body = body.replace(b"\\\\ud83d", "\ufffd".encode())
        answer = client.post("/completions", cast_to=object, content=body, options={"headers": {"content-type": "application/json"}})
        assert answer["choices"][0]["text"] == '{"2":1.5,"10":123456789012345,"1":"\ufffd"}', answer


class Tail(BaseModel):
    length: int = Field(ge=0, le=9)
    parts: list["Tail"] = Field(max_length=1)


class Animal(BaseModel):
    """A recursive one, with an option."""

    kind: Literal["fox", "cow"]
    tail: Tail
    name: Optional[Literal["Tom"]]
    legs: int = Field(ge=0, le=99)


def pydantic():
    """What the official client makes of a class, and LangChain, and of the answer."""
    parse = dict(model=MODEL, messages=[FOX], temperature=0, max_tokens=200)
    for create in (client.beta.chat.completions.parse, client.chat.completions.parse):
        for seed in range(3):
            choice = create(**{**parse, "temperature": 1, "seed": seed, "response_format": Animal}).choices[0]
            assert choice.message.parsed.kind in ("fox", "cow") and choice.finish_reason == "stop", choice
    with client.chat.completions.stream(**parse, response_format=Animal) as stream:
        final = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(final, Animal), final
    model = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600, model=MODEL, temperature=0, max_tokens=200)
    assert isinstance(model.with_structured_output(Animal, method="json_schema").invoke(FOX["content"]), Animal)
    assert is_animal(json.dumps(model.with_structured_output({"title": "animal", **ANIMAL}, method="json_schema").invoke(FOX["content"])))


def refused(call, param, *words, **fields):
    try:
        answer = call(**fields)
        for _ in answer if fields.get("stream") else ():
            pass
    except openai.BadRequestError as e:
        said = e.body["message"]
        assert e.body["param"] == param and e.body["type"] == "invalid_request_error", (param, e.body)
        assert all(word in said for word in words), (words, said)
        return
    raise AssertionError(f"accepted, though {param} is wrong: {answer}")


def refusals():
    for call in (chat, complete):
        for stream in (False, True):
            def no(param, *words, **fields):
                refused(call, param, *words, stream=stream, **fields)

            at = "response_format.json_schema"
            no("response_format", "must be an object, not a string", response_format="json_object")
            no("response_format.type", "'text', 'json_object' or 'json_schema'", response_format={})
            no("response_format.type", "'text', 'json_object' or 'json_schema'", response_format={"type": "grammar"})
            no("response_format.schema", "not supported", response_format={"type": "json_object", "schema": {}})
            no(at, "must be an object with a 'schema', not null", response_format={"type": "json_schema"})
            no(at + ".schema", "must be an object, not null", response_format={"type": "json_schema", "json_schema": {"name": "a"}})
            no(at + ".name", "must be a string, not a number", response_format=schema_format({}, name=5))
            no(at + ".strict", "true or false, not a string", response_format=schema_format({}, strict="yes"))
            no(at + ".extra", "not supported", response_format=schema_format({}, extra=1))
            no("guided_json", "must be an object or a string, not an array", guided_json=[])
            no("guided_regex", "must be a string, not an object", guided_regex={})
            no("guided_grammar", "must be a string, not a boolean", guided_grammar=True)
            no("guided_choice", "must be an array of strings, not a string", guided_choice="a")
            no("guided_choice", "'guided_choice[1]' must be a string, not a number", guided_choice=["a", 5])
            # The parser's own sentences.
            no("response_format", "the grammar: ", response_format=schema_format({"type": "wizard"}))
            no("guided_json", "the grammar: ", "JSON", guided_json="{")
            no("guided_regex", "the grammar: ", guided_regex="(")
            no("guided_grammar", "the grammar: ", "start", guided_grammar="a: /b/")
            for texts, words in (([], "no elements"), ([""], "empty"), (["a", "a"], "twice")):
                no("guided_choice", "the grammar: ", words, guided_choice=texts)
            no("guided_regex", "'guided_choice' and 'guided_regex' are two constraints", guided_choice=["a"], guided_regex="a")
            no("response_format", "'guided_json' and 'response_format' are two", guided_json={}, response_format={"type": "json_object"})
            no("ignore_eos", "'guided_regex'", guided_regex="a", ignore_eos=True)
            at = "structured_outputs"
            no(at, "must be an object, not a string", structured_outputs="a")
            no(at, "must have one of 'choice', 'grammar', 'json', 'json_object' and 'regex'", structured_outputs={"json_object": False})
            no(at + ".structural_tag", "not supported", structured_outputs={"structural_tag": "a"})
            no(at + ".json_object", "true or false, not a number", structured_outputs={"json_object": 1})
            no(at + ".regex", "must be a string, not an object", structured_outputs={"regex": {}})
            no(at + ".regex", "'structured_outputs.json' and 'structured_outputs.regex' are two", structured_outputs={"json": {}, "regex": "a"})
            no(at, "'guided_regex' and 'structured_outputs' are two", guided_regex="a", structured_outputs={"regex": "a"})
            no(at + ".grammar", "the grammar: ", "start", structured_outputs={"grammar": "a: /b/"})
            no("ignore_eos", "'structured_outputs.regex'", structured_outputs={"regex": "a"}, ignore_eos=True)
    refused(chat, "tools", "not supported", tools=[{"type": "function", "function": {"name": "f"}}], guided_regex="a")


def best_of():
    def sampled(**more):
        return complete(**{"temperature": 1.2, "seed": 7, "max_tokens": 12, "logprobs": 0, **more})

    prompts = ["Once upon a time", "The fox"]
    for echo in (False, True):
        all_ = sampled(n=6, prompt=prompts, echo=echo)
        for n, logprobs in ((1, 0), (2, None), (6, 0)):
            best = sampled(n=n, prompt=prompts, echo=echo, best_of=6, logprobs=logprobs)
            assert best.usage == all_.usage and [c.index for c in best.choices] == [*range(2 * n)], best
            for p, prompt in enumerate(prompts):
                own = all_.choices[6 * p:6 * p + 6]
                generated = [c.logprobs.token_logprobs[-all_.usage.completion_tokens // 12:] for c in own]
                assert all_.usage.completion_tokens == 12 * 12, "a sequence has ended early, so its figures are not those of the last 12 tokens"
                means = [sum(g) / len(g) for g in generated]
                ranked = sorted(range(6), key=lambda i: -means[i]) if n < 6 else range(6)
                assert [c.text for c in best.choices[n * p:n * p + n]] == [own[i].text for i in ranked][:n], (best, means)
                assert all((c.logprobs is None) == (logprobs is None) for c in best.choices), best
    refused(complete, "best_of", "must be at least 'n', 3", n=3, best_of=2)
    refused(complete, "best_of", "from 1 to 128", best_of=129)
    refused(complete, "best_of", "'stream' is true", n=1, best_of=2, stream=True)
    assert "".join(c.choices[0].text for c in sampled(n=2, best_of=2, stream=True) if c.choices[0].index == 1) == sampled(n=2).choices[1].text
    # An answer without a token is none of the best.
    assert complete(n=1, best_of=3, max_tokens=0).choices[0].text == ""


def beams():
    def searched(create=complete, **more):
        return create(**{"max_tokens": 12, "logprobs": 0, "ignore_eos": True, "use_beam_search": True, **more})

    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    prompts = ["Once upon a time", "The fox"]
    four = searched(n=4, prompt=prompts)
    assert [c.index for c in four.choices] == [*range(8)] and four.usage.completion_tokens == 8 * 12, four
    for p in range(2):
        own = four.choices[4 * p:4 * p + 4]
        assert len({c.text for c in own}) == 4 and [c.text for c in own] == [c.text for c in sorted(own, key=mean, reverse=True)], own
        # The best of several is no worse than what is found without looking further ahead.
        greedy = complete(prompt=prompts[p], max_tokens=12, temperature=0, logprobs=0, ignore_eos=True).choices[0]
        assert mean(own[0]) >= mean(greedy) - 1e-4, (own[0], greedy)
        assert searched(prompt=prompts[p], num_beams=1).choices[0].text == greedy.text
        # Draws change nothing, and a narrower request gets the best of the same search.
        for width in ({"num_beams": 4}, {"best_of": 4}, {"num_beams": 4, "temperature": 1.5, "seed": 7}):
            assert searched(prompt=prompts[p], n=2, **width).choices[1].text == own[1].text, width
    both = [searched(prompt=prompt, n=3).usage.prompt_tokens for prompt in prompts]
    assert four.usage.prompt_tokens == sum(both), "a prompt counts once for all its answers"
    long = searched(prompt=prompts[0], num_beams=3, ignore_eos=False, length_penalty=2.5, early_stopping="never", max_tokens=40).choices[0]
    short = searched(prompt=prompts[0], num_beams=3, ignore_eos=False, length_penalty=-2.5, early_stopping=True, max_tokens=40).choices[0]
    assert len(short.logprobs.tokens) <= len(long.logprobs.tokens), (short, long)
    answers = chat(max_tokens=8, n=2, use_beam_search=True, num_beams=3).choices
    assert len(answers) == 2 and answers[0].message.content != answers[1].message.content, answers
    assert json.loads(searched(prompt="The fox", num_beams=2, guided_json={"type": "integer", "minimum": 1, "maximum": 9}, ignore_eos=False).choices[0].text) in range(1, 10)
    refused(complete, "use_beam_search", "'stream' are true", use_beam_search=True, stream=True)
    refused(complete, "num_beams", "must be at least 'n', 3", use_beam_search=True, n=3, num_beams=2)
    refused(complete, "num_beams", "needs 'use_beam_search'", num_beams=2)
    refused(complete, "length_penalty", "needs 'use_beam_search'", length_penalty=1)
    refused(complete, "early_stopping", "true, false or 'never'", use_beam_search=True, early_stopping="soon")
    refused(complete, "num_beams", "from 1 to", use_beam_search=True, num_beams=1000)
    refused(complete, "n", "more beams than", use_beam_search=True, n=100)
    refused(complete, "best_of", "two names", use_beam_search=True, num_beams=2, best_of=3)


def tree():
    """A stream shows every step of a search, and the answers are paths of its tree."""
    def shown(create=complete, **more):
        return list(create(stream=True, stream_options={"include_beams": True, "include_usage": True}, use_beam_search=True, **more))

    def names(choice):
        return choice.logprobs.tokens if hasattr(choice, "text") else [t.token for t in choice.logprobs.content]

    for create, width, options in ((complete, 4, {"prompt": ["Once upon a time", "The fox"], "n": 2, "max_tokens": 12}), (complete, 3, {"max_tokens": 60, "early_stopping": True}),
                                   (chat, 3, {"n": 3, "max_tokens": 12, "length_penalty": 0.5}), (complete, 3, {"prompt": "", "max_tokens": 6}), (complete, 3, {"guided_regex": "[a-z ]{8}", "max_tokens": 6})):
        logprobs = {"logprobs": 0} if create is complete else {"logprobs": True}
        whole = create(num_beams=width, use_beam_search=True, **logprobs, **options)
        chunks = shown(create, num_beams=width, **logprobs, **options)
        n = options.get("n", 1)
        beams = [chunk.beam for chunk in chunks if hasattr(chunk, "beam")]
        assert all(chunk.choices == [] and chunk.usage is None for chunk in chunks if hasattr(chunk, "beam")), chunks
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens, chunks[-1]
        steps = {}
        for beam in beams:
            steps.setdefault((beam["index"], beam["step"]), []).append(beam)
        paths = {}
        for (index, step), own in steps.items():
            running = [b for b in own if b["finish_reason"] is None]
            ended = [b for b in own if b["finish_reason"] is not None]
            assert [b["beam"] for b in own if b in running] == [*range(len(running))] and all(b["beam"] >= width for b in ended), own
            assert all(a["score"] >= b["score"] for a, b in zip(running, running[1:])), running
            for b in own:
                sum_before, texts = paths[index, step - 1, b["parent"]] if step > 1 else (0, [])
                assert b["sum_logprob"] <= sum_before + 1e-6, b
                paths[index, step, b["beam"]] = (b["sum_logprob"], [*texts, b["text"]])
        first = [chunks[i].choices[0].index for i in range(len(chunks)) if chunks[i].choices and chunks[i].choices[0].finish_reason]
        assert sorted(first) == [*range(len(whole.choices))], first
        for i, choice in enumerate(whole.choices):
            last = next(c.choices[0] for c in chunks if c.choices and c.choices[0].index == i and c.choices[0].finish_reason)
            assert last.finish_reason == choice.finish_reason
            found = [b for b in beams if b["index"] == i - i % n and b["score"] == last.score and b["finish_reason"] == choice.finish_reason]
            assert len(found) >= 1, (last, beams)
            _, texts = paths[found[0]["index"], found[0]["step"], found[0]["beam"]]
            told = names(choice)
            assert texts in (told, [*told, ""]), (texts, told)  # an end has no text
            pieces = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == i]
            text = "".join((p.text if create is complete else p.delta.content) or "" for p in pieces)
            assert text == (choice.text if create is complete else choice.message.content)
    # A search of one beam has no tree; its tokens come one by one.
    assert not any(hasattr(chunk, "beam") for chunk in shown(num_beams=1, max_tokens=5))
    refused(complete, "stream_options.include_beams", "needs 'use_beam_search'", stream=True, stream_options={"include_beams": True})
    refused(complete, "stream_options.include_beams", "true or false", stream=True, use_beam_search=True, n=2, stream_options={"include_beams": 1})


checks = (languages, predicted, as_sent, pydantic, refusals, best_of, beams, tree)
for check in checks if len(sys.argv) < 3 else checks[int(sys.argv[2]):]:
    check()
print("constrained:", ", ".join(check.__name__ for check in checks))
