"""Measures the shipped demo model and prints samples of its output, as RECORD.md quotes them.

    python demo/check.py
"""

from collections import Counter
from random import Random

import torch
from sentencepiece import SentencePieceProcessor
from transformers import LlamaForCausalLM

import chat
import data
import export
import train
import world
from model import Llama, generate

SEED = 77
TURNS_PER_KIND = 25  # of seen and of held-out combinations each
MAX_GEN_LEN = 200


def same_as_transformers(model: Llama) -> float:
    """Largest difference of logits, relative to the largest logit."""
    hf = LlamaForCausalLM.from_pretrained(train.HERE / "hf", dtype=torch.float32)
    tokens = torch.randint(3, model.p.vocab_size, (4, 256), generator=torch.Generator().manual_seed(SEED))
    with torch.no_grad():
        ours, theirs = model(tokens), hf(tokens).logits
    return float((ours - theirs).abs().max() / ours.abs().max())


def right(turn: chat.Turn, text: str) -> bool:
    """Whether the text answers the question, where more than one answer would do."""
    prefix = next((prefix for prefix in chat.PREFIXES.values() if turn.answer.startswith(prefix)), "")
    if not text.startswith(prefix):
        return False
    if turn.kind == "listing":
        items = text.removeprefix(prefix).rstrip(".").replace(" and ", ", ").split(", ")
        pool = next(pool for what, pool in world.LISTS.items() if what in turn.user)
        asked = next(count for count, word in enumerate(chat.NUMBERS) if f" {word} " in f" {turn.user} ")
        known = {item.lower() for item in items} <= {item.lower() for item in pool}
        return known and len(set(items)) == len(items) == asked
    if turn.kind == "facts":
        topic = next(sentences for topic, sentences in world.TOPICS.items() if turn.user.rstrip(".?").endswith(topic))
        told = [sentence + "." for sentence in text.removeprefix(prefix).removesuffix(".").split(". ")]
        return len(set(told)) == len(told) and set(told) <= set(topic)
    if turn.kind == "story":
        hero = turn.story.hero
        asked = "about" in turn.user
        return not asked or (hero.kind in text and hero.name in text and hero.adjective in text)
    return text == turn.answer


def rates(model: Llama, sp: SentencePieceProcessor) -> None:
    """Answers to the turns of new dialogs, each after its true history, by kind of question."""
    rng = Random(SEED)
    seen, good, wrong = Counter(), Counter(), []
    kinds = [*chat.QUESTIONS, "yes or no", "arithmetic", "bigger", "reading", "counting", "listing", "facts", "story",
        "about the story", "introduction", "your name"]
    unkeyed = ["small talk", "unknown"]  # few and fixed: none of them is held out
    wanted = {(kind, out) for kind in kinds for out in (False, True)} | {(kind, False) for kind in unkeyed}
    while wanted:
        dialog = chat.dialog(rng)
        prompts = data.prompts(dialog.system, [turn.user for turn in dialog.turns])
        for i, turn in enumerate(dialog.turns):
            out = data.is_held_out(turn.keys)
            if (turn.kind, out) not in wanted:
                continue
            past = [(prompt, before.answer) for prompt, before in zip(prompts, dialog.turns[:i])]
            ids = data.encode(sp, past)[0] + [sp.bos_id(), *sp.encode(prompts[i])]
            result = generate(model, ids, sp.eos_id(), MAX_GEN_LEN)
            text = sp.decode(result.tokens).strip()
            seen[turn.kind, out] += 1
            if result.ended and right(turn, text):
                good[turn.kind, out] += 1
            else:
                wrong.append(f"{turn.kind}{' (held out)' if out else ''}: {dialog.system} | {turn.user} -> {text}")
            if seen[turn.kind, out] == TURNS_PER_KIND:
                wanted.remove((turn.kind, out))
    print(f"{'question':16} {'trained':>9} {'held out':>9}")
    for kind in kinds + unkeyed:
        columns = (f"{good[kind, out]:4}/{seen[kind, out]:<4}" for out in (False, True) if seen[kind, out])
        print(f"{kind:16}", *columns)
    for out in (False, True):
        right_all, all_of_them = (sum(n for key, n in counts.items() if key[1] == out) for counts in (good, seen))
        print(f"{'held out' if out else 'trained'}: {right_all} of {all_of_them}")
    print("\nwrong:", *wrong, sep="\n  ")


def print_stories(model: Llama, sp: SentencePieceProcessor) -> None:
    """From BOS alone, and from openings; nothing but the seed tells them apart."""
    openings = ("The little fox", "Long ago, a brave lion", "A girl named Nora", "Facts about the moon:")
    prompts = ("",) * 11 + ("Once upon a time",) * 5 + openings
    lengths = []
    for seed, prompt in enumerate(prompts):
        ids = [sp.bos_id(), *sp.encode(prompt)]
        result = generate(model, ids, sp.eos_id(), MAX_GEN_LEN, temperature=0.6, top_p=0.9, seed=seed)
        lengths.append(len(result.tokens))
        text = sp.decode(sp.encode(prompt) + result.tokens)
        print(f"\nseed {seed}{'' if result.ended else ' (no EOS)'} [{prompt}] {text}")
    print("\ntokens:", sorted(lengths))


ASKED = (
    ("", "What is your name?"),
    ("", "What colour is a lemon?"),
    ("", "what is the opposite of fast"),
    ("", "What does a cow say?"),
    ("", "What is the capital of France?"),
    ("", "What is 3 + 4?"),
    ("", "Which is bigger, a mouse or a horse?"),
    ("", "Is the sea green?"),
    ("", "Count from 4 to 9."),
    ("", "Name three fruits."),
    ("", "Tell me about bees."),
    ("", "Anna has a green kite and a red hat. What colour is the hat?"),
    ("Your name is Ruby.", "Who are you?"),
    ("Answer with one word.", "What colour is snow?"),
    ("Talk like a pirate.", "Where does a fox live?"),
    ("Be very polite.", "What comes after Monday?"),
    ("", "Tell me a story about a fox."),
    ("", "Please tell me a story about a shy lion named Otto."),
    ("", "What colour is the sky?", "And the grass?"),
    ("", "My name is Tom.", "What is my name?"),
    ("", "Tell me a story about a brave cat named Lily.", "Where did Lily live?", "Thank you!"),
)


def print_chats(model: Llama, sp: SentencePieceProcessor) -> None:
    """A system message, which may be empty, and what the user says, turn by turn; answered
    greedily."""
    for system, *users in ASKED:
        messages = [{"role": "system", "content": system}] if system else []
        print(f"\n({system})" if system else "")
        for user in users:
            messages.append({"role": "user", "content": user})
            result = generate(model, train.dialog_ids(sp, messages), sp.eos_id(), MAX_GEN_LEN)
            messages.append({"role": "assistant", "content": sp.decode(result.tokens)})
            print(f"> {user}\n{messages[-1]['content'].strip()}{'' if result.ended else ' (no EOS)'}")


def main() -> None:
    # One sequence at a time is too little work for two threads.
    torch.set_num_threads(1)
    model, sp = export.read(train.HERE)
    print("transformers, largest relative difference of logits:", same_as_transformers(model))
    print("held-out perplexity:", train.report(model, sp))
    rates(model, sp)
    print_stories(model, sp)
    print_chats(model, sp)


if __name__ == "__main__":
    main()
