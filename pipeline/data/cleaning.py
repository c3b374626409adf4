"""One form for all texts: plain, on one line, without what went wrong on the way to us; and one for their labels."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

_BREAK, _SPACE = re.compile(r"</?(?:br|p|hr)\s*/?>", re.IGNORECASE), re.compile(r"\s+")
_STRAY: dict[int, str | None] = {
    **{code: None for code in (*range(0x20), 0x7F, 0xFEFF, *range(0xD800, 0xE000)) if not chr(code).isspace()},
    # Dashes and quotes of Windows-1252 that were read as Latin-1 on the way; hundreds of IMDb's reviews have them.
    **{code: bytes([code]).decode("cp1252", "ignore") or None for code in range(0x80, 0xA0)},
}


def clean(text: str) -> str:
    """Plain text on one line: HTML breaks and entities resolved, stray control characters repaired, white space single.

    >>> clean("Good.<br /><br />Very &amp; truly\\tgood ")
    'Good. Very & truly good'
    >>> clean("bad \\x96 it\\x92s\\x00 dull")
    'bad – it’s dull'
    """
    return _SPACE.sub(" ", html.unescape(_BREAK.sub(" ", text)).translate(_STRAY)).strip()


if TYPE_CHECKING:
    import pandas as pd

POLARITY = {"0": 0, "neg": 0, "negative": 0, "false": 0, "1": 1, "pos": 1, "positive": 1, "true": 1}
UNLABELLED = -1


def polarity(label: object) -> int:
    """1 for positive, 0 for negative, -1 for anything else.

    >>> [polarity(label) for label in (1, 0.0, "neg", "Positive", True, None, 7)]
    [1, 0, 0, 1, 1, -1, -1]
    """
    name = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label).strip().lower()
    return POLARITY.get(name, UNLABELLED)


def pair_labels(
    train: tuple[Sequence[str], Sequence[int]], heldout: tuple[Sequence[str], Sequence[int]], seed: int
) -> pd.DataFrame:
    """Each positive text chosen over a negative one, at random and each text once: prompt (empty), chosen, rejected,
    heldout."""
    import pandas as pd

    parts = []
    for kept, (texts, labels) in ((False, train), (True, heldout)):
        rng = np.random.default_rng([seed, 3, int(kept)])
        sides = [[text for text, label in zip(texts, labels, strict=True) if label == side] for side in (1, 0)]
        n = min(map(len, sides))
        chosen, rejected = ([side[index] for index in rng.permutation(len(side))[:n]] for side in sides)
        parts.append(pd.DataFrame({"prompt": "", "chosen": chosen, "rejected": rejected, "heldout": kept}))
    return pd.concat(parts, ignore_index=True)
