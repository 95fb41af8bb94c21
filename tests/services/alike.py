"""The two services answer the same requests alike.

alike.py ask URL FILE       writes down what the service answers
alike.py tools URL FILE     likewise of requests with tools, to a checkpoint of scripted.py
alike.py compare A B        the two that were written down, which must be the same
"""

import itertools
import json
import pathlib
import re
import socket
import sys

PATHS = ("/healthz", "/readyz", "/health", "/metrics", "/v1/models", "/v1/models/m", "/v1/models/m?a=b", "/v1/models/", "/v1/models/x%2Fy", "/v1/models/x/y",
         "/v1/models/%zz", "/v1/models/%ff", "/%ed%a0%80", "https://localhost/v1/models", "http://user@localhost/healthz", "/v1/completions", "/v1/completions/", "/v1/chat/completions", "/tokenize", "/detokenize", "/nothing", "//healthz",
         "/healthz/", "/HEALTHZ", "/%68ealthz", "/./healthz", "/x/../healthz", "/healthz?x=%zz", "*", "http://localhost/healthz", "http://evil.example/healthz")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND")
HOSTS = ("localhost", "localhost:1", "LOCALHOST:80", "localhost:", "localhost.", "localhost:abc", "127.0.0.1", "127.0.0.1:99", "127.1", "[::1]", "[::1]:5",
         "::1", "", " localhost ", "evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "evil.example:localhost", "localhost/", "local host", "m\u00e9")
STORY = {"model": "m", "prompt": "Once upon a time", "max_tokens": 3, "temperature": 0, "seed": 1}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "What color is the sky?"}], "max_tokens": 3, "temperature": 0, "seed": 1}
SCHEMA = {"type": "object", "properties": {"2": {"enum": [1.50, 12345678901234567890]}, "1": {"type": "string", "maxLength": 2}}, "required": ["1"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
LANGUAGES = [
    {"response_format": {"type": "text"}}, {"response_format": {"type": "json_object"}}, {"response_format": FORMAT, "max_tokens": 40}, {"response_format": FORMAT, "stream": True},
    *({"response_format": value} for value in (5, [], {}, {"type": 5}, {"type": "text", "x": 1, "a": 2}, {"type": "json_object", "json_schema": {}}, {"type": "json_schema"},
                                               {"type": "json_schema", "json_schema": []}, {"type": "text", "json_schema": None}, {**FORMAT, "strict": True})),
    *({"response_format": {"type": "json_schema", "json_schema": value}} for value in (
        {"schema": SCHEMA}, {"name": 5, "schema": {}}, {"name": "a"}, {"name": "a", "schema": True}, {"schema": {}, "strict": None}, {"schema": {}, "strict": 1}, {"schema": {}, "x": 1},
        {"schema": {"type": "wizard"}}, {"schema": {"$ref": "#/nowhere"}}, {"schema": {"const": "\ud83d"}}, {"schema": {"const": "\u2028<&>"}})),
    *({"guided_json": value, "max_tokens": 20} for value in (SCHEMA, json.dumps(SCHEMA), "", "true", "{", "\ud83d", 5, [], {}, True, {"type": "integer", "maximum": 9}, {"$ref": "https://example.org"})),
    *({"guided_regex": value, "max_tokens": 8} for value in ("[a-c]{4}", " [a-c]{4}", "", "(", "a\ud83db", "\0", 5, "[", "(?=a)b", "(a)\\1", "x" * 20)),
    *({"guided_choice": value} for value in (["fox", "cow"], [], ["a", "a"], [""], [5], "a", {}, ["a\ud83d", "\u2028<&>"], [" a"], ["a"] * 3)),
    *({"guided_grammar": value, "max_tokens": 8} for value in ('start: "a" | "b"', "", "start: b", "x: y", 5, 'start: /[ab]+/ "\ud83d"', "start: <[5]>", "%ignore", 'start: start "a" |')),
    {"guided_choice": ["a"], "guided_regex": "a"}, {"guided_json": {}, "response_format": {"type": "text"}}, {"guided_json": {}, "response_format": FORMAT},
    {"guided_regex": "a", "ignore_eos": True}, {"guided_regex": None, "guided_json": None}, {"guided_regex": "a", "min_tokens": 3}, {"guided_regex": "abc", "logit_bias": {"100": -100}},
    {"guided_decoding_backend": "outlines"}, {"grammar": "root ::= a"}, {"guided_regex": "[ab]{3}", "n": 2, "stop": "b"}, {"guided_regex": "[ab]{3}", "logprobs": None, "echo": None}]
# Of two things that are wrong both name the same one.
WRONG = {"max_tokens": -1, "min_tokens": 9, "n": 0, "stream": 1, "stop": [""], "stream_options": 5, "repeat_penalty": -1, "temperature": 3, "logit_bias": [], "ignore_eos": 0, "num_beams": 2,
         "speculation": 5, "draft_len": 17, "guided_regex": 5, "seed": 0.5, "logprobs": "a", "x": 1, "model": "x"}
WRONG_STORY, WRONG_CHAT = {"echo": 1, "best_of": 0, "prompt": 5}, {"top_logprobs": 2, "prediction": 5, "tools": 5, "tool_choice": 5, "chat_template_kwargs": 5, "messages": 5}


def pairs(body, wrong):
    return [{**body, one: wrong[one], other: wrong[other]} for one, other in itertools.combinations(wrong, 2)]


def numbers():
    """Every field of examples/requests.txt: both ends of its range, what is beyond them, and a
    text."""
    for line in (pathlib.Path(__file__).parents[2] / "examples/requests.txt").read_text().splitlines():
        if not line.startswith("#"):
            names, _, given = line.partition(": ")
            least, most = given.partition(" from ")[2].split(" to ")
            least, most = int(least), 2**31 - 1 if most == "max" else int(most.removeprefix("below "))
            yield from ({names.split()[0]: value} for value in (least, most, least - 0.5, most + 0.5, most + 1, "1"))


HALF = "\ud83d"  # of a surrogate pair
# Fields of other requests, some with values that ask for nothing.
UNASKED = ({"tools": []}, {"tools": [1]}, {"tool_choice": "none"}, {"tool_choice": "required"}, {"suffix": ""}, {"suffix": "x"}, {"functions": None}, {"user": 5}, {"max_tokens": 1}, {"__proto__": 5})
BODIES = [
    ("/v1/completions", STORY | more) for more in (
        {}, {"n": 2, "logprobs": 2}, {"echo": True, "logprobs": 1}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}},
        {"prompt": ["a", "b"]}, {"prompt": [1, 5]}, {"prompt": [[1], [2, 3]]}, {"prompt": ""}, {"prompt": []}, {"prompt": [[]]}, {"prompt": ["a", 1]}, {"prompt": None},
        {"prompt": "x " * 5000}, {"prompt": "x " * 600}, {"prompt": ["a", "x " * 600], "n": 2}, {"prompt": [1, 99999]}, {"prompt": [1.5]}, {"prompt": [-1]},
        {"prompt": [[1] * 3] * 40000, "n": 2, "max_tokens": 1}, {"max_tokens": 512, "n": 128, "logprobs": 20}, {"prompt": ["a"] * 3000, "max_tokens": 600},
        {"max_tokens": 0}, {"max_tokens": 0, "echo": True, "logprobs": 0}, {"max_tokens": 1e9}, {"max_tokens": 2**31}, {"max_tokens": -1}, {"max_tokens": "3"},
        {"n": 0}, {"n": 129}, {"n": 1e30}, {"n": 1.5}, {"n": True}, {"n": None}, {"best_of": 1}, {"best_of": 3}, {"logprobs": 21}, {"logprobs": -1}, {"logprobs": True},
        {"temperature": -0.0}, {"temperature": 1e-320}, {"top_k": -0.5}, {"min_p": 1.0000001}, {"repetition_penalty": 1e-46},
        {"repetition_penalty": 0}, {"repetition_penalty": 1e39}, {"seed": 2**63}, {"seed": -(2**63)}, {"seed": 2**64}, {"seed": 0.5}, {"seed": -1}, {"seed": 1e300},
        {"stop": " there"}, {"stop": [" there", 5]}, {"stop": ["a"] * 1025}, {"stop": ""}, {"stop": "\0"}, {"stop": "x" * 4097}, {"stop": {}}, {"stop": "\ud83d"},
        {"stream": 1}, {"stream_options": {}}, {"stream": True, "stream_options": {"x": 1}}, {"stream": True, "stream_options": 5}, {"model": "x"}, {"model": ""}, {"model": 5}, {"model": None},
        {"__proto__": 5}, {"constructor": 1}, {"toString": None}, {"b": 1, "a": 1}, {"logit_bias": {}}, {"logit_bias": {"1": 5}}, {"logit_bias": {"01": 5}}, {"logit_bias": {"1": "a", "2": 101}}, {"logit_bias": {"2": 101}}, {"logit_bias": {"400": -100}}, {"logit_bias": []},
        {"presence_penalty": 1.5}, {"min_tokens": 4}, {"min_tokens": 3, "ignore_eos": True}, {"ignore_eos": 1},
        {"stop_token_ids": [5, 400]}, {"stop_token_ids": 5}, {"stop_token_ids": [1024]}, {"bad_words": ["there", " was"]}, {"bad_words": [""]}, {"bad_words": "a"}, {"bad_words": [5]},
        {"bad_words": ["\ud83d"]}, {"typical_p": 0.5, "temperature": 1}, {"eta_cutoff": 0.3, "temperature": 1}, {"no_repeat_ngram_size": 2},
        {"best_of": 3, "n": 2}, {"best_of": 3, "stream": True}, {"best_of": 2, "n": 3}, {"best_of": 4, "logprobs": 1, "temperature": 1}, {"best_of": 128, "prompt": ["a"] * 600},
        {"best_of": 3, "echo": True, "temperature": 1}, {"stop": " ", "logprobs": 1}, {"stop": " ", "logprobs": 1, "stream": True}, {"max_tokens": 0, "logprobs": 1}, {"best_of": 2, "max_tokens": 0}, *LANGUAGES,
        {"use_beam_search": True}, {"use_beam_search": 1}, {"use_beam_search": False, "num_beams": 2}, {"use_beam_search": True, "num_beams": 3, "n": 2, "logprobs": 1},
        {"use_beam_search": True, "num_beams": 2, "length_penalty": 65}, {"use_beam_search": True, "num_beams": 0}, {"use_beam_search": True, "n": 100},
        {"use_beam_search": True, "best_of": 3, "early_stopping": "never"}, {"use_beam_search": True, "early_stopping": 1}, {"use_beam_search": True, "stream": True},
        *({"use_beam_search": True, "num_beams": width, "stream": True, "stream_options": {"include_beams": True, "include_usage": width == 3}, **more}
          for width, more in ((1, {}), (2, {"n": 2}), (3, {"prompt": ["a", "b"], "logprobs": 1}), (4, {"max_tokens": 40, "early_stopping": True}), (2, {"guided_regex": "[a-c]{4}"}), (3, {"prompt": ""}), (3, {"prompt": "", "echo": True}),
                        (3, {"prompt": [1]}), (3, {"echo": True}), (3, {"echo": True, "guided_regex": "[a-z ]{8}"}), (3, {"guided_regex": " [a-z]+"}))),
        {"stream": True, "stream_options": {"include_beams": True}}, {"stream": True, "stream_options": {"include_beams": 1}}, {"use_beam_search": True, "stream": True, "stream_options": {"include_beams": False}},
        # How much is guessed hangs on measured times; of two tokens nothing is.
        *({"speculation": how, "stream": True, "max_tokens": 2, "logprobs": 1, "stream_options": {"include_drafts": True}} for how in ("off", "ngram", "auto", None)),
        {"speculation": "draft"}, {"speculation": "medusa"}, {"speculation": ""}, {"speculation": 5}, {"speculation": "off", "stream": True, "stream_options": {"include_drafts": True}}, {"speculation": "ngram", "max_tokens": 2},
        {"use_beam_search": True, "num_beams": 2, "prompt": ["a", "x " * 600]}, {"use_beam_search": True, "num_beams": 2, "echo": True, "length_penalty": -1.5},
        {"no_repeat_ngram_size": 1.5}, {"tools": []}, {"user": {"a": [1]}}, {"suffix": "x"},
        {"prompt": "\ud83d"}, {"prompt": "a\ud83d\ude00b", "echo": True}, {"prompt": "a\0b", "echo": True}, {"prompt": "\ufeffa", "echo": True}, {"prompt": "\u2028<&>", "echo": True})
] + [
    ("/v1/chat/completions", CHAT | more) for more in (
        {}, {"logprobs": True, "top_logprobs": 2}, {"stream": True, "n": 2}, {"top_logprobs": 1}, {"max_completion_tokens": 2}, {"max_tokens": 600}, {"max_tokens": None},
        {"max_tokens": None, "n": 128, "logprobs": True, "top_logprobs": 20}, {"messages": []}, {"messages": "x"}, {"messages": [5]}, {"messages": None}, {"messages": [{}]},
        {"messages": [{"role": "tool", "content": "x"}]}, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, 5]}]},
        {"messages": CHAT["messages"] + [{"role": "assistant", "content": "The"}]}, {"messages": CHAT["messages"] + [{"role": "assistant", "content": "x " * 9000}]},
        {"messages": [{"role": "user", "content": "x " * 5000}]}, {"messages": [{"role": "user", "content": "x " * 9000}], "n": 2}, {"stop": "The", "logprobs": True}, {"messages": [{"role": "user", "content": "[INST]"}]}, {"messages": [{"role": "user", "content": "\udc00"}]},
        {"messages": [{"role": "user", "content": "a", "name": "b"}]}, {"messages": [{"role": "assistant", "content": "a"}]},
        *({"messages": [{**CHAT["messages"][0], "type": type}]} for type in ("text", "message", 5, None)),
        *({"messages": [CHAT["messages"][0], {"role": role, "content": "a", "parsed": {"b": 1}}, CHAT["messages"][0]]} for role in ("assistant", "user")),
        {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"tools": []}, {"tools": 5}, {"tool_choice": "required"}, {"tool_choice": "none"},
        {"parallel_tool_calls": False}, {"parallel_tool_calls": 5}, {"chat_template_kwargs": {}}, {"chat_template_kwargs": {"a": 1}}, {"chat_template_kwargs": 5}, *LANGUAGES,
        {"guided_regex": "[0-9]{3}", "messages": CHAT["messages"] + [{"role": "assistant", "content": "The"}]}, {"guided_regex": "[0-9]{3}", "logprobs": True, "top_logprobs": 2})
] + [
    ("/v1/completions", body) for body in pairs(STORY, WRONG | WRONG_STORY)
] + [
    ("/v1/chat/completions", body) for body in pairs(CHAT, WRONG | WRONG_CHAT)
] + [
    (path, body | more) for path, body in (("/v1/completions", STORY), ("/v1/chat/completions", CHAT)) for more in (
        {"model": HALF}, {HALF: 1}, {"stream": True, "stream_options": {HALF: 1}}, {"structured_outputs": {HALF: 1}}, {"response_format": {"type": "text", HALF: 1}}, {"logit_bias": {HALF: 1}},
        *numbers(), {"n": -0.0}, {"top_p": -1e-300}, {"bad_words": ["\u20ac" * 1365] * 20}, {"bad_words": ["zebra"], "logit_bias": {str(token): -100 for token in range(1024)}}, {"guided_choice": ["fox"], "logit_bias": {str(token): -100 for token in range(1024)}, "stream": True})
] + [
    ("/v1/chat/completions", CHAT | {"messages": [message]}) for message in ({"role": HALF * 101, "content": "a"}, {"role": "user", "content": "a", HALF: 1}, {"role": "user", "content": [{"type": "text", "text": "a", HALF: 1}]})
] + [
    ("/tokenize", body) for body in ({"content": "Once"}, *({"content": "a", **more} for more in UNASKED), {"content": "a\ud83d", "with_pieces": True}, {"content": ""}, {"content": 5}, {}, {"content": "a", "add_special": True, "x": 1},
                                     {"content": "\u20ac", "with_pieces": True, "add_special": True}, {"content": "a", "parse_special": True}, {"content": "a", "add_special": 1}, *({"content": "a " * 8192, "with_pieces": pieces} for pieces in (True, False)))
] + [
    ("/detokenize", body) for body in ({"tokens": [1, 713]}, *({"tokens": [1], **more} for more in UNASKED), {"tokens": []}, {"tokens": 5}, {}, {"tokens": [-1]}, {"tokens": [1024]}, {"tokens": ["a"]}, {"tokens": [1.0]}, {"tokens": [0.5]})
]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "\u20ac <b>", "parameters": {"2": 1.0, "1": 12345678901234567890}}}
CALL = {"id": "123456789", "type": "function", "function": {"name": "now", "arguments": "{}"}}
ASK = CHAT["messages"][0]
TOOLS = {"model": "m", "messages": [ASK], "tools": [TOOL], "temperature": 0}


def called(calls, *more):
    return {"messages": [ASK, {"role": "assistant", "tool_calls": calls}, *more]}


RESULT = {"role": "tool", "tool_call_id": "123456789", "content": "21"}
TOOL_BODIES = [
    {**TOOLS, **more, "chat_template_kwargs": {"script": script, **more.get("chat_template_kwargs", {})}}
    for script in ("call", "two", "broken", "plain") for more in (
        {}, {"stream": True}, {"n": 2}, {"stream": True, "n": 2, "stream_options": {"include_usage": True}}, {"logprobs": True, "top_logprobs": 2},
        {"stream": True, "logprobs": True}, {"max_tokens": 1}, {"max_tokens": 3, "stream": True}, {"max_tokens": 5}, {"stop": "name"}, {"stop": ["city"], "stream": True},
        {"tool_choice": "none"}, {"tool_choice": "auto"}, {"parallel_tool_calls": False}, {"chat_template_kwargs": {"extra": {"2": 1.0, "1": 2**63}}})
] + [
    TOOLS | more for more in (
        {"tool_choice": "required", "max_tokens": 60}, {"tool_choice": 5}, {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "max_tokens": 60}, {"parallel_tool_calls": "x"},
        {"tool_choice": {"type": "function", "function": {"name": "x" * 200}}}, {"tool_choice": {"type": "function", "function": {"name": "a", "b": 1}}}, {"tool_choice": {"type": "function", "function": 5}},
        {"tool_choice": "required", "tools": []}, {"tool_choice": "required", "tools": None}, {"tool_choice": "required", "guided_regex": "a"}, {"tool_choice": "none", "guided_regex": "[ab]{3}"},
        {"guided_regex": "a"}, {"guided_grammar": 'start: "a"'}, {"response_format": {"type": "json_object"}, "max_tokens": 60}, {"guided_json": {"const": 5}, "max_tokens": 60},
        *({"tool_choice": "required", "max_tokens": 80, "parallel_tool_calls": one, "tools": [{"type": "function", "function": {"name": name, "parameters": parameters}}, TOOL]}
          for one in (True, False) for name, parameters in (
              ("a", None), ("a\"<&>", {}), ("\ud83d", {"x": 5}), ("a", 5), ("a", {"type": "string"}), ("a", {"type": ["object"]}), ("a", {"type": "object"}), ("a", {"$ref": "#/$defs/x"}),
              ("a", {"$defs": {"x": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}}, "$ref": "#/$defs/x"}), ("a", {"properties": []}))),
        {"functions": [{"name": "f"}]}, {"bad_words": ["\u00ad"]}, {"function_call": "auto"}, {"tools": {}}, {"tools": [5]}, {"tools": [{}]}, {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function"}]}, {"tools": [{"type": "function", "function": {}}]}, {"tools": [{"type": "function", "function": {"name": ""}}]},
        {"tools": [TOOL, {"type": "function", "function": {"name": "\ud83d"}}]}, {"chat_template_kwargs": []}, {"chat_template_kwargs": {"tools": 1, "messages": 2}},
        {"chat_template_kwargs": {"script": "\ud83d"}}, {"chat_template_kwargs": {"bos_token": 5, "add_generation_prompt": False}}, {"chat_template_kwargs": None},
        {"messages": []}, {"messages": [{"role": "wizard", "content": "a"}]}, {"messages": [{"role": "developer", "content": "a"}]}, {"messages": [ASK, RESULT]},
        {"messages": [ASK, {"role": "tool", "content": "a"}]}, {"messages": [ASK, {**RESULT, "tool_call_id": 5}]}, {"messages": [{**ASK, "name": "a", "x": None}]},
        {"messages": [{**ASK, "name": 5}]}, {"messages": [{**ASK, "tool_calls": [CALL]}]}, {"messages": [{**ASK, "refusal": "a"}]}, {"messages": [{"role": "user"}]},
        {"messages": [{"role": "assistant", "content": ""}]}, {"messages": [ASK, {"role": "assistant", "content": "said"}]}, {"messages": [{"role": "assistant"}, ASK]},
        {"messages": [ASK, {"role": "assistant", "content": "said", "reasoning_content": "so"}]}, {"messages": [ASK, {"role": "assistant", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": "\ud83d<|im_end|>"}]}, {"messages": [{"role": "user", "content": "x" * 5000}]}, {"messages": [{"role": "user", "content": "x" * 5000}], "n": 2},
        called([CALL], RESULT), called([CALL]), called([], RESULT), called(5, RESULT), called([5], RESULT), called([{}], RESULT), called([{**CALL, "id": 5}], RESULT),
        called([{**CALL, "type": "x"}], RESULT), called([{**CALL, "x": 1}], RESULT), called([{**CALL, "index": 0, "function": {**CALL["function"], "parsed_arguments": {"a": 1}}}], RESULT), called([{**CALL, "parsed_arguments": {}}], RESULT),
        *({"messages": [{**ASK, "type": type}]} for type in ("text", "message")),
        *({"messages": [ASK, {"role": role, "content": "said", "parsed": {"a": 1}}, ASK]} for role in ("assistant", "user")), called([{**CALL, "function": 5}], RESULT), called([{**CALL, "function": {"name": "a"}}], RESULT),
        *(called([{**CALL, "function": {"name": "a", "arguments": arguments}}], {**RESULT, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
          for arguments in ("", " {} ", "[]", "5", "{", '{"a": 1e999}', '{"a": "\\ud83d"}', '{"a": %s}' % ("[" * 70 + "]" * 70), {}, None)))
]
RAW = [b"", b"null", b"[]", b"5", b'"x"', b"{", b"{}x", b'{"model":"m","model":"x","prompt":"a"}', b'{"model":"m","prompt":"a","n":1e999}', b'{"model":"m","prompt":"a","metadata":{"a":[1e999]}}', b'{"model":"m","prompt":"a","guided_json":{"const":-1e999}}', b"\xff", b'{"model":"\xc3"}', b"\xef\xbb\xbf{}",
       b"[" * 65 + b"]" * 65, b"[" * 64 + b"]" * 64, b'{"a":' * 100000, b'{"model":"m","prompt":"a","max_tokens":1,}', b"{'model':'m'}", b'{"model":"m","prompt":"\\ud83d","max_tokens":1,"temperature":0}',
       b'{"model":"m","prompt":"a","n":' + b"9" * 5000 + b"}", b" {} ", b'{"model":"m","prompt":"a\x01"}', b" " * (1 << 20) + b"{}"]
TYPES = ("application/json", "APPLICATION/JSON; charset=utf-8", "application/json;", " application/json ", "text/plain", "application/jsonx", "application/x-www-form-urlencoded", "", "json", "application/json, text/plain")
CODINGS = ("gzip", "identity", "Identity", "deflate, gzip", "", "x")


def head_and_post(port):
    def head(method, path, *lines, host=f"localhost:{port}"):
        return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *lines, "", "")).encode()

    def post(path, body, *lines, type="application/json"):
        return head("POST", path, f"Content-Type: {type}", f"Content-Length: {len(body)}", *lines) + body

    return head, post


def tool_requests(port):
    _, post = head_and_post(port)
    for i, body in enumerate(TOOL_BODIES):
        yield f"{i} {json.dumps(body)[-200:]}", post("/v1/chat/completions", json.dumps(body).encode())


def requests(port):
    """Name and bytes of each request."""
    head, post = head_and_post(port)
    for path in PATHS:
        for method in METHODS:
            yield f"{method} {path}", head(method, path, *(["Content-Length: 0"] if method in ("POST", "PUT", "PATCH") else []))
    for host in HOSTS:
        yield f"Host {host!r}", head("GET", "/healthz", host=host)
    for i, (path, body) in enumerate(BODIES):
        yield f"{i} {path} {json.dumps(body)[:200]}", post(path, json.dumps(body).encode())
    for body in RAW:
        yield f"raw {body[:60]!r} {len(body)}", post("/v1/completions", body)
    body = json.dumps(STORY).encode()
    for size in (20_000, 60_000):
        yield f"a head of {size} bytes", post("/v1/completions", body, f"Cookie: {'a' * size}")
    for type in TYPES:
        yield f"type {type!r}", post("/v1/completions", body, type=type)
    for coding in CODINGS:
        yield f"coding {coding!r}", post("/v1/completions", body, f"Content-Encoding: {coding}")
    yield "two codings", post("/v1/completions", body, "Content-Encoding: identity", "Content-Encoding: gzip")
    yield "chunked", head("POST", "/v1/completions", "Content-Type: application/json", "Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    yield "expect", post("/v1/completions", body, "Expect: 100-continue")
    yield "form in the query", post("/v1/completions?model=x", body)
    yield "a body where none belongs", head("GET", "/healthz", "Content-Length: 3") + b"abc"
    yield "origin", post("/v1/completions", body, "Origin: https://a.example")
    for key in ("Bearer x", "Basic x", "bearer", ""):
        yield f"authorization {key!r}", post("/v1/completions", body, f"Authorization: {key}")
    for id in ("a.b:c_d-e", "x" * 129, "", "a b"):
        yield f"id {id!r}", head("GET", "/v1/models", f"X-Request-Id: {id}")
    yield "HTTP/1.0 without a host", b"GET /healthz HTTP/1.0\r\n\r\n"


def ask(port, request):
    """Status, headers and body."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(request)
        except OSError:
            pass
        answer = b""
        try:
            while data := connection.recv(1 << 16):
                answer += data
        except ConnectionResetError:
            pass
    while answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(unchunked(body))
    return status.split(" ")[1] if " " in status else status, headers, body.decode()


def unchunked(body):
    while body:
        size, _, body = body.partition(b"\r\n")
        yield body[:int(size, 16)]
        body = body[int(size, 16) + 2:]


# Of the headers, those that a client goes by.
KEPT = ("content-type", "allow", "retry-after", "accept-encoding", "access-control-allow-origin", "vary", "cache-control")


def comparable(status, headers, body):
    """What has to be the same: without times, ids, and what only one of the two has."""
    if "x-request-id" not in headers:
        return [status]  # no request at all to the HTTP library, which answers by itself
    kept = {name: headers[name] for name in KEPT if name in headers}
    if "application/json" in headers.get("content-type", "") and body:
        body = neutral(json.loads(body))
    elif body.startswith("data:"):
        body = [neutral(json.loads(line[6:])) if line != "data: [DONE]" else line for line in body.split("\n") if line]
    elif body.startswith("# HELP"):
        body = sorted(re.findall(r"# (?:HELP|TYPE) .*", body))
    return [status, kept, body]


def neutral(value):
    if isinstance(value, list):
        return [neutral(one) for one in value]
    if not isinstance(value, dict):
        return round(value, 3) if isinstance(value, float) else value
    same = {name: neutral(one) for name, one in value.items()}
    if str(same.get("message")).startswith("The request is not valid JSON: "):
        same["message"] = "The request is not valid JSON"  # and the parser's own words
    for name in ("id", "created", "first_token_ms", "total_ms"):
        if name in same and not (name == "id" and same[name] == "m"):
            same[name] = "a number" if isinstance(same[name], (int, float)) else type(same[name]).__name__
    return same


def main(what, *rest):
    if what in ("ask", "tools"):
        url, file = rest
        port = int(url.rpartition(":")[2])
        answers = {name: comparable(*ask(port, request)) for name, request in (requests if what == "ask" else tool_requests)(port)}
        with open(file, "w") as f:
            json.dump(answers, f, indent=1)
        return
    a, b = (json.load(open(file)) for file in rest)
    def same(one, other):
        return one == other or one and other and one[0] == other[0] and 1 in (len(one), len(other))

    differ = [name for name in a | b if not same(a.get(name), b.get(name))]
    for name in differ:
        print(f"--- {name}\n{json.dumps(a.get(name))[:700]}\n{json.dumps(b.get(name))[:700]}")
    assert not differ, f"{len(differ)} of {len(a)} requests are answered otherwise"
    print(f"alike: both services answer {len(a)} requests in the same way")


main(*sys.argv[1:])
