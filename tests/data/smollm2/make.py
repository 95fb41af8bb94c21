#!/usr/bin/env python3
"""Ten dialogs with SmolLM2-135M-Instruct, answered greedily by transformers and by llama.cpp:
make.py MODEL.gguf OUT.json

MODEL.gguf is what scripts/smollm2 fetches. transformers 5.23.0 (torch 2.15.0) dequantises it to
float32. llama.cpp is that of xllamacpp 2026.10.11549, at its defaults for a CPU: it rounds
activations to 8 bits, so its answers may part from the others where two tokens are nearly as
likely. `gaps` says how near: by how much the token's logit is above the next one's.
"""
import json, sys
import torch, xllamacpp
from transformers import AutoModelForCausalLM, AutoTokenizer
from pathlib import Path

MODEL, OUT = Path(sys.argv[1]), Path(sys.argv[2])
STEPS = 40
user = lambda text: {"role": "user", "content": text}
assistant = lambda text: {"role": "assistant", "content": text}
DIALOGS = [
    [user("What is the capital of France?")],
    [user("Write a haiku about the sea.")],
    [user("List three primary colours.")],
    [user("What is 7 times 8?")],
    [user("Write a Python function that adds two numbers.")],
    [user("Erkläre in einem Satz, was ein Hund ist.")],
    [user("Why is the sky blue?"), assistant("Because air scatters blue light more than red light."), user("And why is a sunset red?")],
    [{"role": "system", "content": "You are a pirate. You answer in one short sentence."}, user("Who are you?")],
    [user("Translate to French: good morning, my friend.")],
    [user("Hello! 你好! 🙂"), assistant("Hello!"), user("What did I say first?\n\n  Quote it.")],
]

tokenizer = AutoTokenizer.from_pretrained(MODEL.parent, gguf_file=MODEL.name)
model = AutoModelForCausalLM.from_pretrained(MODEL.parent, gguf_file=MODEL.name, dtype=torch.float32, attn_implementation="eager").eval()
torch.set_grad_enabled(False)


def transformers_answer(prompt):
    ids, tokens, gaps, past, eos = prompt, [], [], None, tokenizer.eos_token_id
    for _ in range(STEPS):
        out = model(torch.tensor([ids]), past_key_values=past, use_cache=True)
        past, best = out.past_key_values, out.logits[0, -1].topk(2)
        tokens.append(best.indices[0].item())
        gaps.append(round((best.values[0] - best.values[1]).item(), 4))
        ids = tokens[-1:]
        if tokens[-1] == eos:
            break
    return tokens, gaps


params = xllamacpp.CommonParams()
params.model.path = str(MODEL)
params.n_ctx, params.n_parallel, params.n_gpu_layers = 1024, 1, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)


def llama_cpp_answer(prompt):
    asked = {"prompt": prompt, "n_predict": STEPS, "temperature": 0, "samplers": ["temperature"], "logprobs": 1, "cache_prompt": False}
    return [token["id"] for token in server.handle_completions(asked)["choices"][0]["logprobs"]["content"]]


cases = []
for dialog in DIALOGS:
    text = tokenizer.apply_chat_template(dialog, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    tokens, gaps = transformers_answer(prompt)
    other = llama_cpp_answer(prompt)
    same = next((i for i, (a, b) in enumerate(zip(tokens, other)) if a != b), min(len(tokens), len(other)))
    print(f"{same} of {len(tokens)} tokens alike, then gap {gaps[same] if same < len(gaps) else None}: {tokenizer.decode(tokens)!r}")
    cases.append({"messages": dialog, "prompt": prompt, "transformers": tokens, "gaps": gaps, "llama_cpp": other, "text": tokenizer.decode(tokens, skip_special_tokens=True)})
OUT.write_text("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")
