"""A real model, with the official openai client of PyPI: a chat by its own template, and tool calls
by one that shows tools.

smollm2.py GGUF COMMAND...    GGUF is what scripts/smollm2 fetches; COMMAND starts the service
"""

import json
import sys
import tempfile
from pathlib import Path

import openai

from service import PATIENCE, Service

MODEL, *COMMAND = sys.argv[1:]
# Its answer in transformers begins so, by a margin that neither 16 bits nor int8 can take away
# (../data/smollm2/cases.json).
QUESTION, BEGINNING = "What is 7 times 8?", "To find 7 times 8"
# ChatML, which the model knows, with tools as Hermes and Qwen show them, which it does not.
TEMPLATE = """{% if tools %}<|im_start|>system
You may call these functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Zürich"]}}, "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY}}
ASK = {"role": "user", "content": "What is the weather in Paris?"}


def served(*flags):
    return Service(COMMAND, MODEL, "--max_seq_len", "1024", *flags)


def chat(service, messages, **more):
    client = openai.OpenAI(base_url=service.url + "/v1", api_key="none", timeout=PATIENCE, max_retries=0)
    return client.chat.completions.create(model="m", messages=messages, temperature=0, max_tokens=48, **more)


def its_own_template():
    with served() as service:
        said = chat(service, [{"role": "user", "content": QUESTION}]).choices[0].message.content
        assert said.startswith(BEGINNING), said
        pieces = chat(service, [{"role": "user", "content": QUESTION}], stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == said
        try:
            chat(service, [ASK], tools=[TOOL])
        except openai.BadRequestError as e:
            assert e.body["param"] == "tools", e.body
        else:
            raise AssertionError("its template shows no tools, and they are accepted")


def a_template_with_tools(path):
    with served("--chat-template", path) as service:
        said = chat(service, [{"role": "user", "content": QUESTION}]).choices[0].message.content
        assert said and not said.startswith("<"), said
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice in ("required", named):
            first = chat(service, [ASK], tools=[TOOL], tool_choice=choice).choices[0]
            # `required` allows any number of calls, and this model does not stop.
            call, *_ = first.message.tool_calls
            assert call.function.name == "get_weather", first
            assert json.loads(call.function.arguments)["city"] in CITY["properties"]["city"]["enum"], first
        assert first.finish_reason == "tool_calls" and len(first.message.tool_calls) == 1, first
        pieces = [piece.choices[0] for piece in chat(service, [ASK], tools=[TOOL], tool_choice=named, stream=True) if piece.choices]
        calls = [call for piece in pieces for call in piece.delta.tool_calls or []]
        assert "".join(call.function.arguments or "" for call in calls) == call_of(first), calls
        assert pieces[-1].finish_reason == "tool_calls", pieces
        result = {"role": "tool", "tool_call_id": call.id, "content": "Rain, 12 degrees."}
        second = chat(service, [ASK, first.message, result]).choices[0].message
        assert second.content and not second.tool_calls, second


def call_of(choice):
    return choice.message.tool_calls[0].function.arguments


its_own_template()
with tempfile.TemporaryDirectory() as folder:
    template = Path(folder, "tools.jinja")
    template.write_text(TEMPLATE)
    a_template_with_tools(template)
print("a real model answers, and calls a tool")
