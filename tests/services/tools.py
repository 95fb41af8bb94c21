"""Tools with the official openai client of PyPI and with LangChain, against a checkpoint of
scripted.py.

tools.py URL FORM [URL FORM...]
"""

import json
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from scripted import ARGUMENTS, SCRIPTS

URL = FORM = client = MODEL = None  # those of the service that is being tested
ASK = {"role": "user", "content": "How warm is it in Zürich?"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": CITY}} for name in ("get_weather", "now")]
ANSWER = "It is 21 degrees in Zürich."


def chat(messages=(ASK,), script="call", tools=TOOLS, **more):
    body = {"chat_template_kwargs": {"script": script, **more.pop("kwargs", {})}, **more.pop("body", {})}
    return client.chat.completions.create(model=MODEL, messages=messages, extra_body=body, **({"tools": tools} if tools else {}), **more)


def refused(param, words, **request):
    try:
        answer = chat(**request)
    except openai.BadRequestError as e:
        assert e.body["param"] == param and words in e.body["message"], (param, words, e.body)
        if e.code == "context_length_exceeded":
            assert (e.body.get("n_prompt_tokens") or e.body["n_prompt_tokens_min"]) > e.body["n_ctx"] == 4096, e.body
        return
    raise AssertionError(f"accepted, though {param} is wrong: {answer}")


def written(script):
    return "".join(SCRIPTS[FORM][script])


def calls_of(message):
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or []]


def round_trip():
    """Question, call, result, answer."""
    first = chat().choices[0]
    assert first.finish_reason == "tool_calls" and first.message.content == "Let me look.", first
    assert calls_of(first.message) == [("get_weather", ARGUMENTS)], first
    call = first.message.tool_calls[0]
    assert call.type == "function" and (len(call.id) == 9 if FORM == "mistral" else call.id.startswith("call_")), call
    assert call.id != chat().choices[0].message.tool_calls[0].id
    result = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "21"}, {"type": "text", "text": " degrees"}]}
    second = chat([ASK, first.message, result]).choices[0]
    assert (second.message.content, second.message.tool_calls, second.finish_reason) == (ANSWER, None, "stop"), second
    # All of it has come to the template: what is left out is missed in the prompt.
    whole = chat([ASK, first.message, result]).usage.prompt_tokens
    silent = {**first.message.model_dump(exclude_none=True), "content": None}
    assert whole - chat([ASK, silent, result]).usage.prompt_tokens == len("Let me look.")
    assert whole - chat([ASK, first.message, {**result, "content": "21"}]).usage.prompt_tokens == len(" degrees")
    assert chat([ASK, first.message, result], tools=None).choices[0].message.content == ANSWER


def sent_back():
    """What OpenAI's client makes of an answer is a message: with the values of its JSON, and put
    together from a stream."""
    strict = [{**one, "function": {**one["function"], "strict": True, "parameters": {**CITY, "additionalProperties": False}}} for one in TOOLS]
    options = dict(model=MODEL, messages=[ASK], tools=strict, extra_body={"chat_template_kwargs": {"script": "call"}})
    with client.chat.completions.stream(**options) as stream:
        streamed = stream.get_final_completion().choices[0].message
    prompts = set()
    for message in (chat(tools=strict).choices[0].message, client.chat.completions.parse(**options).choices[0].message, streamed):
        call = message.tool_calls[0]
        call.id = "123456789"  # for prompts of the same length
        answer = chat([ASK, message, {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}], tools=strict)
        assert answer.choices[0].message.content == ANSWER, answer
        prompts.add(answer.usage.prompt_tokens)
    assert call.index == 0 and call.function.parsed_arguments["city"], "the client adds nothing any more"
    assert len(prompts) == 1, f"the template sees what the client has added: {prompts}"


def streamed():
    """What a stream says is what the whole answer says, and nothing of a call is text."""
    for script in ("call", "two", "broken", "plain"):
        for n in (1, 3):
            whole = chat(script=script, n=n).choices
            chunks = [c.choices[0] for c in chat(script=script, n=n, stream=True)]
            for i, choice in enumerate(whole):
                own = [c for c in chunks if c.index == i]
                deltas = [call for c in own for call in c.delta.tool_calls or []]
                assert "".join(c.delta.content or "" for c in own) == (choice.message.content or ""), (script, own)
                assert own[-1].finish_reason == choice.finish_reason and own[-1].delta.tool_calls is None
                said = {}
                for d in deltas:
                    if d.index not in said:  # the first has id and name, and no arguments
                        assert d.id and d.type == "function" and d.function.name and d.function.arguments == "", d
                        assert d.index == len(said)
                        said[d.index] = [d.function.name, ""]
                    else:
                        assert d.id is None and d.function.name is None and d.function.arguments, d
                        said[d.index][1] += d.function.arguments
                assert [tuple(call) for call in said.values()] == calls_of(choice.message), (script, deltas)
    choice = chat(script="two").choices[0]
    assert calls_of(choice.message) == [("get_weather", '{"city": "A"}'), ("now", "{}")] and choice.message.content is None, choice
    assert len({call.id for call in choice.message.tool_calls}) == 2
    choice = chat(script="broken").choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (written("broken"), None, "stop"), choice
    # Text in front of a call does not wait for it.
    first = next(c.choices[0].delta.content for c in chat(stream=True) if c.choices[0].delta.content)
    assert first == SCRIPTS[FORM]["call"][0], first
    with client.chat.completions.stream(model=MODEL, messages=[ASK], tools=TOOLS, extra_body={"chat_template_kwargs": {"script": "call"}}) as stream:
        final = stream.get_final_completion().choices[0]
    assert calls_of(final.message) == [("get_weather", ARGUMENTS)] and final.finish_reason == "tool_calls"


def cut():
    """An answer that ends within a call ends as text, whatever ends it."""
    pieces = SCRIPTS[FORM]["two"]
    for length in range(1, len(pieces) + 1):
        choice = chat(script="two", max_tokens=length).choices[0]
        made = calls_of(choice.message)
        assert choice.finish_reason == "length" and len(made) <= 2, choice
        text = "".join(pieces[:length])
        assert made or choice.message.content == text, choice
        chunks = [c.choices[0] for c in chat(script="two", max_tokens=length, stream=True)]
        assert "".join(c.delta.content or "" for c in chunks) == (choice.message.content or ""), chunks
    choice = chat(script="two", stop='"city').choices[0]
    assert choice.finish_reason == "stop" and choice.message.content == written("two").split('"city')[0], choice
    choice = chat(script="two", stop="now").choices[0]
    assert calls_of(choice.message) == ([] if FORM == "mistral" else [("get_weather", '{"city": "A"}')]), choice
    assert choice.finish_reason == ("stop" if FORM == "mistral" else "tool_calls"), choice


def choices():
    """tool_choice and parallel_tool_calls."""
    assert calls_of(chat(tool_choice="auto").choices[0].message)
    none, without = chat(tool_choice="none"), chat(tools=None)
    assert none.choices[0].message.tool_calls is None and none.choices[0].finish_reason == "stop"
    assert none.usage == without.usage, (none, without)  # the template gets no tools
    assert calls_of(chat(script="two", parallel_tool_calls=False).choices[0].message) == [("get_weather", '{"city": "A"}')]
    chunks = chat(script="two", parallel_tool_calls=False, stream=True)
    assert {call.index for c in chunks for call in c.choices[0].delta.tool_calls or []} == {0}
    assert len(calls_of(chat(script="two", parallel_tool_calls=True).choices[0].message)) == 2
    refused("parallel_tool_calls", "true or false", body={"parallel_tool_calls": "no"})
    refused("functions", "not supported", body={"functions": [{"name": "f"}]})
    refused("function_call", "not supported", body={"function_call": {"name": "f"}})


# A schema whose every answer ends by itself.
CITIES = {"type": "object", "properties": {"city": {"enum": ["A", "Zürich"]}, "days": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["city", "days"], "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}


def tool(name, **function):
    return {"type": "function", "function": {"name": name, **function}}


def forced():
    """tool_choice `required` and a tool's name: whatever the model would say, the answer is calls
    whose arguments are of the schema."""
    both = [tool("get_weather", parameters=CITIES), tool('"now" €')]

    def is_call(name, arguments):
        value = json.loads(arguments)
        if name == '"now" €':
            assert value == {}, arguments
        else:
            assert name == "get_weather" and list(value) == ["city", "days"] and value["city"] in ("A", "Zürich") and value["days"] in range(100), (name, arguments)
        return name

    def answered(**request):
        """Of the answer, whole and as a stream, which must be the same."""
        made = [[], []]
        whole = chat(seed=5, max_tokens=400, n=3, **request)
        chunks = [c.choices[0] for c in chat(seed=5, max_tokens=400, n=3, stream=True, **request)]
        for choice in whole.choices:
            said = {}
            for call in (call for c in chunks if c.index == choice.index for call in c.delta.tool_calls or []):
                name, arguments = said.setdefault(call.index, ("", ""))
                said[call.index] = (name + (call.function.name or ""), arguments + call.function.arguments)
            assert [*said.values()] == calls_of(choice.message), (said, choice)
            if choice.finish_reason == "length":  # of any number of calls
                continue
            assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
            made[len(calls_of(choice.message)) > 1].append([is_call(*call) for call in calls_of(choice.message)])
        return made

    for script in ("plain", "call", "broken"):
        one, more = answered(script=script, tools=both, tool_choice="required", parallel_tool_calls=False)
        assert len(one) == 3 and not more, (one, more)
        for name in ("get_weather", '"now" €'):
            one, more = answered(script=script, tools=both, tool_choice={"type": "function", "function": {"name": name}})
            assert one == [[name]] * 3 and not more, (one, more)
    one, more = [], []
    for temperature in (0.5, 1, 1.5):
        answers = answered(script="plain", tools=both, tool_choice="required", temperature=temperature)
        one, more = one + answers[0], more + answers[1]
    assert one or more
    # What the model would say anyway is what it says; but the marker of Mistral's calls is one
    # token, which this script has not.
    free = [tool("get_weather", parameters={"properties": {"city": {"type": "string"}}, **CITIES["x-guidance"]})]
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert FORM == "mistral" or calls_of(chat(script="two", tools=free, tool_choice=named).choices[0].message) == [("get_weather", '{"city": "A"}')]
    # An answer of a language, or calls.
    answer = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"const": "none", **CITIES["x-guidance"]}}}
    for seed in range(3):
        for choice in ("auto", None):
            said = chat(script="plain", tools=both, tool_choice=choice, parallel_tool_calls=False, response_format=answer, seed=seed, temperature=1.5).choices[0].message
            assert said.content == '"none"' or [is_call(*call) for call in calls_of(said)], said
    assert chat(script="plain", tools=both, tool_choice="none", body={"guided_choice": ["x"]}).choices[0].message.content == "x"
    for field, value in (("guided_choice", ["x"]), ("guided_regex", "x"), ("guided_grammar", 'start: "x"')):
        refused(field, "'tool_choice' is 'none'", tools=both, body={field: value})
    refused("tool_choice", "'response_format' for another", tools=both, tool_choice="required", body={"response_format": answer})
    refused("tool_choice", "there are no 'tools'", tools=None, body={"tool_choice": "required"})
    refused("tool_choice", "there are no 'tools'", tools=None, body={"tool_choice": named})
    refused("tool_choice", "'wizard', which is none of 'tools'", body={"tool_choice": {"type": "function", "function": {"name": "wizard"}}})
    for choice in ("any", 5, [], {}, {"type": "function"}, {"type": "function", "function": {"name": ""}}, {"type": "allowed_tools", "allowed_tools": {}}):
        refused("tool_choice", "must be 'auto', 'none', 'required'", body={"tool_choice": choice})
    refused("tool_choice.function.strict", "not supported", body={"tool_choice": {"type": "function", "function": {"name": "now", "strict": True}}})
    at = "tools[0].function.parameters"
    for parameters, param, words in ((5, at, "must be an object"), ({"type": "string"}, at + ".type", "must be 'object'"), ({"properties": 5}, "tools", "the grammar: ")):
        refused(param, words, tools=[tool("f", parameters=parameters)], tool_choice="required")
        chat(tools=[tool("f", parameters=parameters)])  # the template's to say


def logprobs():
    """The tokens that are listed are those of the whole answer, as the model has written it."""
    for script in ("call", "two"):
        answer = chat(script=script, logprobs=True, top_logprobs=1).choices[0]
        assert b"".join(bytes(row.bytes) for row in answer.logprobs.content) == written(script).encode(), answer
        chunks = [c.choices[0] for c in chat(script=script, logprobs=True, top_logprobs=1, stream=True)]
        assert [row for c in chunks if c.logprobs for row in c.logprobs.content] == answer.logprobs.content
        assert calls_of(answer.message)


def template():
    """chat_template_kwargs go to the template as they are, and messages as the template can have
    them."""
    base = chat(kwargs={"extra": 1}).usage.prompt_tokens
    chars = '{"model": "%s", "messages": [%s], "chat_template_kwargs": {"script": "plain", "extra": %s}}'
    for extra in ("12345678901234567890", '{"2": 1.0, "1": 1e2}', '"\u00e9"'):
        body = (chars % (MODEL, json.dumps(ASK), extra)).encode()
        answer = client.post("/chat/completions", cast_to=object, content=body, options={"headers": {"content-type": "application/json"}})
        plain = chat(script="plain", tools=None, kwargs={"extra": 1}).usage.prompt_tokens
        rendered = {'{"2": 1.0, "1": 1e2}': '{"2": 1.0, "1": 100.0}'}.get(extra, extra)
        assert answer["usage"]["prompt_tokens"] - plain == len(rendered.encode()) - 1, (extra, answer["usage"], plain)
    assert base == chat(kwargs={"extra": 2}).usage.prompt_tokens
    for name in ("messages", "tools"):
        refused(f"chat_template_kwargs.{name}", "not supported", kwargs={name: []})
    refused("chat_template_kwargs", "must be an object, not an array", body={"chat_template_kwargs": []})
    plain = chat(script="plain", tools=None)
    assert plain.choices[0].message.content == "The sky is blue."
    # Any number of system messages, wherever: the template decides.
    chat([{"role": "developer", "content": "a"}, ASK, ASK, {"role": "system", "content": "b"}], tools=None)
    begun = [ASK, {"role": "assistant", "content": "The tool sai" + "d"}]
    for n in (1, 2):
        answer = chat(begun, n=n)
        assert [c.message.content for c in answer.choices] == [", it said."] * n, answer
    assert chat([ASK, {"role": "assistant", "content": ""}], tools=None).usage == chat(tools=None).usage


def messages_refused():
    made = {"id": "123456789", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "123456789", "content": "12:00"}

    def sent(*messages):
        return {"messages": [ASK, *messages]}

    def called(**change):
        return sent({"role": "assistant", "tool_calls": [{**made, **change}]}, result)

    assert chat(**called()).choices[0].message.content == ANSWER
    # Empty text means no arguments.
    assert chat(**called(function={"name": "now", "arguments": ""})).usage == chat(**called()).usage
    at = "messages[1].tool_calls[0]"
    refused(at + ".id", "must be a string, not null", **called(id=None))
    refused(at + ".type", "must be 'function'", **called(type="custom"))
    refused(at + ".extra", "not supported", **called(extra=1))
    refused(at + ".function", "not a string", **called(function="now"))
    refused(at + ".function.name", "must be a string, not null", **called(function={"arguments": "{}"}))
    for arguments in ("now", "[1]", "{", '{"a": ' + "[" * 70 + "]" * 70 + "}"):
        refused(at + ".function.arguments", "JSON object in a string", **called(function={"name": "now", "arguments": arguments}))
    refused(at + ".function.arguments", "must be a string, not an object", **called(function={"name": "now", "arguments": {}}))
    refused(at, "not a string", **sent({"role": "assistant", "tool_calls": ["now"]}, result))
    refused("messages[1].tool_calls", "not a string", **sent({"role": "assistant", "tool_calls": "now"}, result))
    refused("messages[1].tool_calls", "must be followed", **sent({"role": "assistant", "content": "a", "tool_calls": [made]}))
    refused("messages[1].tool_calls", "no place", **sent({"role": "user", "content": "a", "tool_calls": [made]}))
    refused("messages[1].content", "not null", **sent({"role": "assistant", "content": None}, ASK))
    refused("messages[1].tool_call_id", "missing", **sent({"role": "tool", "content": "a"}))
    refused("messages[1].tool_call_id", "must be a string, not a number", **sent({**result, "tool_call_id": 5}))
    refused("messages[1].tool_call_id", "no place", **sent({"role": "user", "content": "a", "tool_call_id": "a"}))
    refused("messages[1].role", "'user', 'assistant' and 'tool'", **sent({"role": "function", "name": "now", "content": "a"}))
    refused("messages", "before the one of 'assistant'", messages=[{"role": "assistant", "content": ""}])
    if FORM == "mistral":  # the template's own sentence
        refused("messages", "an id of 3", **called(id="abc"))
    if FORM == "hermes":
        # The tokenizer drops soft hyphens.
        refused("bad_words", "'bad_words[1]' has no tokens", body={"bad_words": ["a", " \u00ad\u00ad"]})
    function = TOOLS[0]["function"]
    for tools, param in (("x", "tools"), ([5], "tools[0]"), ([{"type": "web_search"}], "tools[0].type"), ([{"type": "function"}], "tools[0].function"),
                         ([TOOLS[0], {"type": "function", "function": {**function, "name": ""}}], "tools[1].function.name")):
        refused(param, "must be", tools=None, body={"tools": tools})
    long = [{"role": "user", "content": "x" * 5000}]
    for n in (1, 2):
        refused("messages", "the model has room for 4096", messages=long, n=n)
    refused("messages", "900000 bytes of text", messages=[{"role": "user", "content": "x" * 900_000}], n=2)


def langchain():
    model = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600, model=MODEL, extra_body={"chat_template_kwargs": {"script": "call"}})
    bound = model.bind_tools(TOOLS)
    question = HumanMessage(ASK["content"])
    answer = bound.invoke([question])
    assert isinstance(answer, AIMessage) and [(c["name"], c["args"]) for c in answer.tool_calls] == [("get_weather", json.loads(ARGUMENTS))], answer
    made = model.bind_tools([tool("get_weather", parameters=CITIES)], tool_choice="get_weather").invoke([question])
    assert made.tool_calls[0]["args"]["city"] in ("A", "Zürich"), made
    result = ToolMessage("21 degrees", tool_call_id=answer.tool_calls[0]["id"])
    assert bound.invoke([question, answer, result]).content == ANSWER
    whole = None
    for chunk in bound.stream([question]):
        whole = chunk if whole is None else whole + chunk
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [("get_weather", json.loads(ARGUMENTS))], whole


checks = (round_trip, sent_back, streamed, cut, choices, forced, logprobs, template, messages_refused, langchain)
for URL, FORM in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600)
    MODEL = client.models.list().data[0].id
    for check in checks:
        check()
    print(f"tools, {FORM}:", ", ".join(check.__name__ for check in checks))
