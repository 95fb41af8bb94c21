"""Makes the demo model: tokenizer, training, both checkpoint forms, and the tokens other tests
expect of it.

    pip install -r demo/requirements.txt
    python demo/train.py               # all of it
    python demo/train.py --expected    # only expected.json, from the checkpoint already there
    python demo/check.py               # measures the result and writes samples of its output

All text is made by the grammar in stories.py and chat.py from the words in world.py. Seeds are
fixed; with the pinned versions, the same kind of CPU and the same number of threads (2), a run
repeats itself.
"""

import argparse
import itertools
import json
import math
import os
import time
from pathlib import Path

# Threads that spin while they wait for each other made training several times slower on a machine
# with other work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import torch
import torch.nn.functional as F
from sentencepiece import SentencePieceProcessor

import data
import export
from model import Llama, Params, generate, rounded

HERE = Path(__file__).parent
SEED = 20
STEPS = 1500
WARMUP = 100
PEAK_RATE = 3e-3
SAMPLES_PER_STEP = 40

PLAIN_PROMPTS = ("Once upon a time", "The little fox", "Facts about the sea:")
DIALOGS = (
    [{"role": "user", "content": "Tell me a story about a shy fox."}],
    [{"role": "system", "content": "Talk like a pirate."}, {"role": "user", "content": "What is the opposite of hot?"}],
    [
        {"role": "user", "content": "Hello, my name is Rosa."},
        {"role": "assistant", "content": "Nice to meet you, Rosa!"},
        {"role": "user", "content": "What is my name?"},
    ],
)


def loss_sum(model: Llama, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


@torch.no_grad()
def perplexity(model: Llama, sp: SentencePieceProcessor, make, count: int = 400) -> float:
    """Of `count` held-out samples, per learned token."""
    held_out = itertools.islice(data.samples(SEED + 1, held_out=True, make=make), count)
    batches = data.split([data.encode(sp, sample.segments) for sample in held_out])
    total = sum(float(loss_sum(model, *batch)) for batch in batches)
    return math.exp(total / sum(int((targets != -100).sum()) for _, targets in batches))


def learning_rate(step: int) -> float:
    if step < WARMUP:
        return PEAK_RATE * (step + 1) / WARMUP
    return PEAK_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))


def train(sp: SentencePieceProcessor) -> Llama:
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    model = Llama(Params(vocab_size=sp.vocab_size()))
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    stream = data.samples(SEED, held_out=False)
    start, tokens = time.time(), 0
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        batches = data.split([data.encode(sp, next(stream).segments) for _ in range(SAMPLES_PER_STEP)])
        learned = sum(int((targets != -100).sum()) for _, targets in batches)
        total = 0.0
        for inputs, targets in batches:
            loss = loss_sum(model, inputs, targets) / learned
            loss.backward()
            total += loss.item()
            tokens += inputs.numel()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 99 or step == 0:
            line = f"step {step + 1:5}  loss {total:.4f}  tokens {tokens}  seconds {time.time() - start:.0f}"
            if step % 500 == 499:
                line += "  held-out perplexity: " + report(model, sp)
            print(line, flush=True)
    return model


def report(model: Llama, sp: SentencePieceProcessor) -> str:
    kinds = {"stories": data.plain_story, "facts": data.plain_facts, "chat": data.conversation}
    return ", ".join(f"{name} {perplexity(model, sp, make):.3f}" for name, make in kinds.items())


def dialog_ids(sp: SentencePieceProcessor, messages: list[dict[str, str]]) -> list[int]:
    """The prompt of Meta's chat_completion: past turns with BOS and EOS, the last with BOS only."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    users = data.prompts(system, [m["content"] for m in messages if m["role"] == "user"])
    answers = [m["content"].strip() for m in messages if m["role"] == "assistant"]
    return data.encode(sp, list(zip(users, answers)))[0] + [sp.bos_id(), *sp.encode(users[-1])]


def expected(model: Llama, sp: SentencePieceProcessor) -> dict:
    """Greedy continuations of the shipped weights in float32, for the tests of whatever runs this
    model."""
    def case(prompt_ids: list[int]) -> dict:
        result = generate(model, prompt_ids, sp.eos_id(), max_gen_len=64)
        return {
            "prompt_ids": prompt_ids, "tokens": result.tokens, "logprobs": [round(x, 6) for x in result.logprobs],
            "gaps": [round(x, 6) for x in result.gaps], "min_gap": round(min(result.gaps), 6),
            "ended": result.ended, "text": sp.decode(result.tokens),
        }

    return {
        "about": "greedy, at most 64 new tokens, EOS ends and is not included; bf16 weights, float32 arithmetic; "
        "logprobs are natural logs; gaps are the differences of the two highest logits at each "
        "step, EOS's included: coarser arithmetic may choose otherwise from the first gap below its error on",
        "text_completion": [{"prompt": prompt} | case([sp.bos_id(), *sp.encode(prompt)]) for prompt in PLAIN_PROMPTS],
        "chat_completion": [{"dialog": dialog} | case(dialog_ids(sp, dialog)) for dialog in DIALOGS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and export the demo model.")
    parser.add_argument("--expected", action="store_true",
        help="only write expected.json, from the checkpoint in meta/")
    if not parser.parse_args().expected:
        tokenizer = data.train_tokenizer(Params().vocab_size, SEED)
        sp = SentencePieceProcessor(model_proto=tokenizer)
        export.write(HERE, rounded(train(sp)), tokenizer)
    model, sp = export.read(HERE)
    text = json.dumps(expected(model, sp), indent=1)
    (HERE / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
