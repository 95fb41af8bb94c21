"""Whether answers that must follow a JSON Schema do, as PyPI's jsonschema sees it, at temperature
1.

schemas.py URL [N [M]]      half of the answers whole, half streamed

N answers (100) for schemas whose strings and arrays are bounded must end by themselves. Of M others
(N / 2) those that do must follow the schema, and how many do is said.
"""

import itertools
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai

URL = sys.argv[1]
N = int(sys.argv[2]) if len(sys.argv) > 2 else 100
M = int(sys.argv[3]) if len(sys.argv) > 3 else N // 2
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600)
MODEL = client.models.list().data[0].id
MAX_TOKENS = 400

WORD = {"type": "string", "minLength": 1, "maxLength": 12}
COUNT = {"type": "integer", "minimum": -20, "maximum": 1000}


def whole(properties, **more):
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False, **more}


BOUNDED = {
    "flat": whole({"name": WORD, "age": COUNT, "alive": {"type": "boolean"}, "nothing": {"type": "null"}}),
    "optional": {**whole({"a": WORD, "b": COUNT, "c": {"enum": ["x", 5, None, "y\"z"]}}), "required": ["b"]},
    "nested": whole({"animal": whole({"kind": {"enum": ["fox", "cow"]}, "tail": whole({"length": COUNT})}), "name": WORD}),
    "array": whole({"words": {"type": "array", "items": WORD, "minItems": 1, "maxItems": 4}}),
    "array of objects": {"type": "array", "items": whole({"x": COUNT, "y": COUNT}), "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [WORD, COUNT, {"type": "boolean"}], "items": False, "minItems": 3},
    "either": whole({"value": {"anyOf": [COUNT, WORD, whole({"deep": {"type": "boolean"}})]}}),
    "pattern": whole({"code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"}, "hex": {"type": "string", "pattern": "^#([0-9a-f]{3}|[0-9a-f]{6})$"}}),
    # No `date`: RFC 3339 has a year 0, Python has not.
    "format": whole({"id": {"type": "string", "format": "uuid"}, "at": {"type": "string", "format": "ipv4"}}),
    "references": {**whole({"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}}), "$defs": {"leaf": whole({"colour": {"enum": ["red", "grey"]}, "weight": COUNT})}},
    "scalar": {"enum": ["yes", "no", 0, 1.5, True, None]},
    "letters": whole({"é ü": {"type": "string", "maxLength": 6}, "\u4e2d\"": {"type": "string", "enum": ["\u4e2d\u6587", "\U0001f98a"]}}),
}
OPEN = {
    "a string": whole({"text": {"type": "string"}}),
    "an array": {"type": "array", "items": COUNT},
    "numbers": whole({"n": {"type": "number"}, "m": {"type": "number", "minimum": 0}}),
    "other keys": {"type": "object", "additionalProperties": WORD},
    "a tree": {"$ref": "#/$defs/node", "$defs": {"node": whole({"name": WORD, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}})}},
    "anything": {},
}
# Each schema with one space at most, and with none.
SPACED = ({}, {"x-guidance": {"whitespace_flexible": False}})


def checker(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())


CHECKERS = {name: checker(schema) for name, schema in (BOUNDED | OPEN).items()}


def answer(name, schema, seed):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema | SPACED[seed // len(BOUNDED) % 2]}}
    request = dict(model=MODEL, messages=[{"role": "user", "content": "Describe an animal, as JSON."}], seed=seed, temperature=1, max_tokens=MAX_TOKENS, response_format=form)
    if seed % 2:
        choice = client.chat.completions.create(**request).choices[0]
        return name, choice.message.content, choice.finish_reason
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **request) if chunk.choices]
    return name, "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].finish_reason


def follows(name, text):
    """Whether a text follows its schema, and has no key of the schema's own twice. (Of keys that a
    model makes up, nothing says that they differ.)"""
    def once(pairs):
        assert name in OPEN or len({key for key, _ in pairs}) == len(pairs), f"{name}: a key comes twice: {text}"
        return dict(pairs)

    CHECKERS[name].validate(json.loads(text, object_pairs_hook=once))


# One that the checker must not let pass, so that the others mean something.
for name, text in (("flat", '{"name":"a","age":2000,"alive":true,"nothing":null}'), ("array", '{"words":[]}'), ("format", '{"id":"x","at":"1.2.3.4"}')):
    try:
        follows(name, text)
    except jsonschema.ValidationError:
        continue
    raise AssertionError(f"jsonschema takes {text} for {name}")

for schemas, must_end, n in ((BOUNDED, True, N), (OPEN, False, M)):
    asked = [(name, schema, seed) for seed, (name, schema) in zip(range(1, n + 1), itertools.cycle(schemas.items()))]
    ended, texts = Counter(), set()
    with ThreadPoolExecutor(8) as pool:
        for name, text, end in pool.map(lambda each: answer(*each), asked):
            assert end == "stop" or end == "length" and not must_end, (name, end, text)
            if end == "stop":
                follows(name, text)
            ended[name, end] += 1
            texts.add(text)
    assert len(texts) > len(schemas), "every answer is the same, so nothing is shown"
    stopped = sum(count for (_, end), count in ended.items() if end == "stop")
    said = f"{stopped} of {n} have ended by themselves, and these follow their schemas"
    if not must_end:
        said += ": " + ", ".join(f"{name} {ended[name, 'stop']} of {ended[name, 'stop'] + ended[name, 'length']}" for name in schemas)
    print(f"schemas: {'bounded' if must_end else 'unbounded'}: {said}")
