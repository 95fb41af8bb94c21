"""Writes tests/data/quant/held-out.json: the token ids of stories that the demo model was not
trained on.

    python demo/held_out.py
"""

import itertools
import json

from sentencepiece import SentencePieceProcessor

import data
import train

COUNT = 100

sp = SentencePieceProcessor(str(train.HERE / "meta" / "tokenizer.model"))
stories = itertools.islice(data.samples(train.SEED + 2, held_out=True, make=data.plain_story), COUNT)
ids = [data.encode(sp, story.segments)[0] for story in stories]
path = train.HERE.parent / "tests" / "data" / "quant" / "held-out.json"
path.write_text(json.dumps(ids, separators=(",", ":")) + "\n")
print(COUNT, "stories,", sum(map(len, ids)), "tokens")
