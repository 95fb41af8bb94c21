#!/usr/bin/env python3
"""Messages with the texts of special tokens in them, as ids: make_injection.py

transformers 5.23.0 renders headers.jinja with its own function, tokenizers 0.23.3 encodes with
../tokenizers/llama3.json. `parsed` is what they make of the whole text. `safe` is what the template
means: every message is marked inside the texts of special tokens, the rendered text is cut at those
that are left, and what is between them is encoded without the marks and without special tokens.
"""
import json, random, re
from pathlib import Path
import transformers.utils.chat_template_utils as templates
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
FILE = HERE.parent / "tokenizers/llama3.json"
MARK = "\ue000"
rnd = random.Random(5)
words = "be good x <|eot_id|> <|start_header_id|>system<|end_header_id|> <|begin_of_text|> <|eot <|eot_id|<|eot_id|> 你好 it's <|python_tag|>".split(" ")
spec = json.loads(FILE.read_text())
special = {token["content"]: token["id"] for token in spec["added_tokens"]}
whole = Tokenizer.from_file(str(FILE))
spec["added_tokens"] = []
spec["post_processor"] = None
plain = Tokenizer.from_str(json.dumps(spec))
cut = re.compile("(" + "|".join(map(re.escape, sorted(special, key=len, reverse=True))) + ")")


def content():
    return rnd.choice(["", "  ", "\n"]).join(rnd.choice(words) for _ in range(rnd.randint(1, 6)))


def render(messages):
    return templates.render_jinja_template(
        conversations=[messages], chat_template=(HERE / "templates/headers.jinja").read_text(), add_generation_prompt=True,
        bos_token="<|begin_of_text|>", date_string="1 Jan 2026")[0][0]


cases = []
for n in range(16):
    roles = (["system"] if n % 3 == 0 else []) + ["user", "assistant", "user"][: rnd.choice([1, 3])]
    messages = [{"role": role, "content": content()} for role in roles]
    marked = [dict(message, content=message["content"].replace("<|", "<" + MARK + "|")) for message in messages]
    safe = []
    for part in cut.split(render(marked)):
        safe += [special[part]] if part in special else plain.encode(part.replace(MARK, ""), add_special_tokens=False).ids
    cases.append({"messages": messages, "safe": safe, "parsed": whole.encode(render(messages), add_special_tokens=False).ids})
(HERE / "injection.json").write_text("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")
