"""Texts and conversations as token ids: the tokenizer, the samples, what is held out, the batches.

A sample is a list of segments (prompt, answer): a plain text is one segment without a prompt, each
turn of a dialog is a segment. Each segment is encoded as BOS prompt answer EOS, and only the answer
is learned.
"""

import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from zlib import crc32

import sentencepiece
import torch
from sentencepiece import SentencePieceProcessor

import chat
import stories
import world

FACT_TITLES = {
    "colour": "colours", "opposite": "opposites", "sound": "animal sounds", "baby": "baby animals", "home": "homes",
        "capital": "capitals",
    "after": "days and months", "kind": "things", "job": "jobs", "legs": "legs", "food": "food", "use": "useful things",
}


@dataclass(frozen=True)
class Sample:
    segments: list[tuple[str, str]]
    keys: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        return is_held_out(self.keys)


def is_held_out(keys: tuple[str, ...]) -> bool:
    """One combination in sixteen, chosen by a hash of its key: the same in every run and every kind
    of text."""
    return any(crc32(key.encode()) % 16 == 0 for key in keys)


def plain_story(rng: Random) -> Sample:
    story = stories.tell(rng)
    return Sample([("", story.text)], (story.key,))


def plain_facts(rng: Random) -> Sample:
    if rng.random() < 0.6:
        topic = rng.choice(list(world.TOPICS))
        sentences = rng.sample(world.TOPICS[topic], rng.randint(3, 5))
    else:
        kind = rng.choice(list(FACT_TITLES))
        topic, question = FACT_TITLES[kind], chat.QUESTIONS[kind]
        pairs = rng.sample(list(question.facts.items()), rng.randint(3, 5))
        sentences = [question.answer.format(x=x, y=y, X=stories.capital(x), Y=stories.capital(y)) for x, y in pairs]
    title = rng.choice(("Facts about {}:", "Some facts about {}:", "What we know about {}:")).format(topic)
    return Sample([("", f"{title} {' '.join(sentences)}")], ("facts " + " ".join(sentences),))


def conversation(rng: Random) -> Sample:
    dialog = chat.dialog(rng)
    keys = tuple(key for turn in dialog.turns for key in turn.keys)
    users = [turn.user for turn in dialog.turns]
    return Sample(list(zip(prompts(dialog.system, users), (turn.answer for turn in dialog.turns))), keys)


def prompts(system: str, users: list[str]) -> list[str]:
    """Meta's chat format; the system message becomes part of the first user message before that is
    stripped."""
    if system:
        users = [f"<<SYS>>\n{system}\n<</SYS>>\n\n{users[0]}", *users[1:]]
    return [f"[INST] {user.strip()} [/INST]" for user in users]


def any_sample(rng: Random) -> Sample:
    return rng.choices((plain_story, plain_facts, conversation), (20, 7, 73))[0](rng)


def samples(seed: int, held_out: bool, make=any_sample) -> Iterator[Sample]:
    rng = Random(seed)
    return (sample for sample in iter(lambda: make(rng), None) if sample.held_out == held_out)


def train_tokenizer(vocab_size: int, seed: int) -> bytes:
    """A SentencePiece model like Llama 2's, but small; its text is the training set's."""
    texts = (f"{prompt} {answer}" for sample in itertools.islice(samples(seed, held_out=False), 20000) for prompt,
        answer in sample.segments)
    lines = (line.strip() for text in texts for line in text.split("\n"))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=filter(None, lines), model_writer=model, model_type="bpe", vocab_size=vocab_size,
            byte_fallback=True,
        normalization_rule_name="identity", add_dummy_prefix=True, remove_extra_whitespaces=False, split_digits=True,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, character_coverage=1.0, num_threads=1, minloglevel=2,
    )
    return model.getvalue()


def encode(sp: SentencePieceProcessor, segments: list[tuple[str, str]]) -> tuple[list[int], list[bool]]:
    """Token ids and, for each, whether it is to be learned. A past turn is `prompt answer ` in one
    piece, as Meta's chat_completion encodes it; at inference the prompt stands alone, so its tokens
    must be a prefix of the whole."""
    ids, learned = [], []
    for prompt, answer in segments:
        head = sp.encode(prompt)
        whole = sp.encode(f"{prompt} {answer} " if prompt else answer)
        assert whole[:len(head)] == head, prompt
        ids += [sp.bos_id(), *whole, sp.eos_id()]
        learned += [False] * (len(head) + 1) + [True] * (len(whole) - len(head) + 1)
    return ids, learned


def batch(encoded: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets [samples, longest]; -100 marks what is not learned. Attention is causal,
    so padding behind a sample changes nothing in it."""
    longest = max(len(ids) for ids, _ in encoded) - 1
    inputs = torch.zeros(len(encoded), longest, dtype=torch.long)
    targets = torch.full((len(encoded), longest), -100)
    for row, (ids, learned) in enumerate(encoded):
        ids = torch.tensor(ids)
        inputs[row, :len(ids) - 1] = ids[:-1]
        targets[row, :len(ids) - 1] = torch.where(torch.tensor(learned[1:]), ids[1:], -100)
    return inputs, targets


def split(encoded: list[tuple[list[int], list[bool]]], most: int = 1000) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of samples of like length, so that little of them is padding; at most `most` tokens
    with it."""
    groups = []
    for pair in sorted(encoded, key=lambda pair: -len(pair[0])):
        if groups and len(groups[-1][0][0]) * (len(groups[-1]) + 1) <= most:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return [batch(group) for group in groups]
