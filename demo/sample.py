"""Writes src/llama/quantise/sample.txt, the text on which llamabi-quantize calibrates unless it is
given another.

    python demo/sample.py

Stories, facts and dialogs of the demo's grammars, prose of the documentation, and code, in turns.
"""

import itertools
from pathlib import Path
from random import Random

import chat
import stories

ROOT = Path(__file__).resolve().parent.parent
SEED = 11
PROSE = (
    "README.md", "demo/RECORD.md", "docs/ARCHITECTURE.md", "docs/behaviour.md", "docs/chat.md", "docs/glossary.md",
    "docs/models.md", "docs/several-ranks.md", "CONTRIBUTING.md", "docs/compression.md",
)
CODE = ("src/engine/line.rs", "bindings/go/options.go", "demo/world.py", "examples/chat.c")
PIECE = 1500


def pieces(names: tuple[str, ...], most: int) -> list[str]:
    """Pieces of files that begin and end with a line."""
    found = []
    for name in names:
        piece = ""
        for line in (ROOT / name).read_text().splitlines(keepends=True):
            if len(piece) > PIECE:
                found.append(piece)
                piece = ""
            piece += line
    return found[:: max(1, len(found) // most)][:most]


def told(rng: Random) -> str:
    dialog = chat.dialog(rng)
    turns = "\n".join(f"User: {turn.user}\nAssistant: {turn.answer}" for turn in dialog.turns)
    return f"{stories.tell(rng).text}\n\n{turns}\n"


rng = Random(SEED)
prose, code = pieces(PROSE, 32), pieces(CODE, 8)
grammars = [told(rng) for _ in range(24)]
mixed = itertools.chain.from_iterable(itertools.zip_longest(prose, grammars[: len(prose)], code))
text = "\n".join(piece for piece in mixed if piece)
path = ROOT / "src" / "llama" / "quantise" / "sample.txt"
path.write_text(text)
print(len(text), "characters")
