"""Products in a finite group: tasks whose answers, and every step of whose workings, can be checked.

A prompt lists elements of a group and ends with `?`; the answer is their product.

    2 7 5 ? = 4                    the answer at once
    2 7 5 ? ; 9 5 ; 4 = 4          with a working: each row merges two neighbours of the row before

Products are associative, so any neighbours can be merged: many workings are right, and it is known at which words
several ways are open (true forks). In a group whose product is not commutative the order counts; for ``s5`` a network
of fixed depth cannot know the product of a long list without a working (Barrington 1989; Liu 2023, arXiv 2210.10749).
README.md beside this file has the conventions.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import permutations, product
from typing import Final, NamedTuple

from pipeline.data.settings import ChainsSettings

ASK: Final = "?"
STEP: Final = ";"
ANSWER: Final = "="
SIGNS: Final = (ASK, STEP, ANSWER)
HELDOUT_PARTS: Final = 10
"""One chain of so many is held out, by its hash."""
Row = tuple[str, ...]


class Group(NamedTuple):
    """A finite group by its table."""

    elements: Row
    table: Mapping[tuple[str, str], str]

    def product(self, row: Row) -> str:
        """The product of a row, from left to right."""
        return reduce(lambda left, right: self.table[left, right], row)


def _cyclic(order: int) -> Group:
    """Numbers under addition."""
    names = [str(number) for number in range(order)]
    return Group(tuple(names), {(a, b): names[(int(a) + int(b)) % order] for a, b in product(names, names)})


def _symmetric(degree: int) -> Group:
    """Permutations in one-line notation, such as 231 for 1 -> 2, 2 -> 3, 3 -> 1; a b applies b first."""
    names = ["".join(images) for images in permutations("123456789"[:degree])]
    return Group(tuple(names), {(a, b): "".join(a[int(i) - 1] for i in b) for a, b in product(names, names)})


GROUPS: Final = {"z10": _cyclic(10), "s3": _symmetric(3), "s4": _symmetric(4), "s5": _symmetric(5)}
_BY_LENGTH: Final = {len(group.elements[0]): group for group in GROUPS.values()}


class Task(NamedTuple):
    """A prompt as it was understood."""

    group: Group
    chain: Row
    """At least two elements."""


def task(prompt: str) -> Task | None:
    """Read a prompt; None for any other text. The length of the elements' names tells the group."""
    *chain, end = prompt.split() or [""]
    group = _BY_LENGTH.get(len(chain[0])) if chain else None
    known = group is not None and end == ASK and len(chain) > 1 and set(chain) <= {*group.elements}
    return Task(group, tuple(chain)) if group is not None and known else None


def sound_words(task: Task, words: Sequence[str]) -> Iterator[frozenset[str]]:
    """Yield, for each word of a response, the words that keep it sound; ends behind the first that is not among them.
    Behind a sound answer nothing keeps it so.

    >>> [sorted(some) for some in sound_words(task("2 7 5 ?"), "; 9 5 = 4".split())]
    [[';', '='], ['2', '9'], ['5'], [';', '='], ['4']]
    """
    group, done = task
    row: Row | None = None
    """The row that is being written; None between rows."""
    ways = set[Row]()
    """Those that it can become."""
    answering = ended = False
    for word in words:
        if ended:
            open_ = frozenset[str]()
        elif answering:
            open_ = frozenset({group.product(done)})
        elif row is None:
            open_ = frozenset((STEP, ANSWER) if len(done) > 1 else (ANSWER,))
        else:
            at = len(row)
            open_ = frozenset(way[at] for way in ways if way[:at] == row)
        yield open_
        if word not in open_:
            return
        ended, answering = answering, word == ANSWER
        if word == STEP:
            row, ways = (), {_merged(group, done, at) for at in range(len(done) - 1)}
        elif row is not None:
            row = (*row, word)
            if len(row) == len(done) - 1:
                done, row = row, None


def _merged(group: Group, row: Row, at: int) -> Row:
    """The row with the elements at two neighbouring places as their product."""
    return (*row[:at], group.table[row[at], row[at + 1]], *row[at + 2 :])


class Reading(NamedTuple):
    """All that a response is judged by."""

    right: bool
    """It ends with ``= product``, and has no other ``=``."""
    found: bool
    """It has ``= product`` somewhere."""
    rows: int
    """Rows of its working."""
    row_ends: tuple[int, ...]
    """Words before the sign behind each row that follows from the one before, up to the first that does not."""
    sound: bool
    """Every word follows, and the answer is given."""
    forks: tuple[bool, ...]
    """For each word, True where several were sound; False behind the first unsound one."""

    @property
    def sound_rows(self) -> int:
        return len(self.row_ends)


@lru_cache(maxsize=4096)
def read(prompt: str, completion: str) -> Reading:
    """Judge a completion; defined for every text.

    >>> read("2 7 5 ?", " ; 9 5 = 4")
    Reading(right=True, found=True, rows=1, row_ends=(3,), sound=True, forks=(True, True, False, True, False))
    >>> read("2 7 5 ?", " ; 9 5 ; 3 = 4")[:5]
    (True, True, 2, (3,), False)
    """
    words, asked = completion.split(), task(prompt)
    if asked is None:
        return Reading(False, False, 0, (), False, (False,) * len(words))
    answer = [ANSWER, asked.group.product(asked.chain)]
    open_ = list(sound_words(asked, words))
    kept = [word in some for word, some in zip(words, open_, strict=False)]
    signs = [at for at, word in enumerate(words) if word in (STEP, ANSWER)]
    ends = [next((later for later in signs if later > at), len(words)) for at in signs if words[at] == STEP]
    length = sum(kept)
    # Behind a row that is not whole, though all its words are sound, no sign is sound.
    row_ends = tuple(end for end in ends if end < length)
    forks = [len(some) > 1 for some in open_] + [False] * (len(words) - len(open_))
    return Reading(
        right=words[-2:] == answer and words.count(ANSWER) == 1,
        found=any(words[at : at + 2] == answer for at in range(len(words))),
        rows=words.count(STEP),
        row_ends=row_ends,
        sound=len(words) > 1 and length == len(words) and words[-2] == ANSWER,
        forks=tuple(forks),
    )


# --- texts ---------------------------------------------------------------------------------------------------


def is_held_out(prompt: str) -> bool:
    """Return whether a chain is one of those that no training text and no training prompt has."""
    return hashlib.sha256(prompt.encode()).digest()[0] * HELDOUT_PARTS < 256


def prompts(settings: ChainsSettings, count: int, heldout: bool, rng: random.Random) -> list[str]:
    """`count` distinct prompts, as many of each length as of any other while there are such; all that there are, where
    these are fewer. Neighbours differ in length."""
    group, (low, high) = GROUPS[settings.group], settings.lengths
    open_ = {length: _distinct(group, length, heldout, rng) for length in range(low, high + 1)}
    found = list[str]()
    while open_ and len(found) < count:
        for length, stream in list(open_.items()):
            prompt = next(stream, None)
            if prompt is None:
                del open_[length]
            elif len(found) < count:
                found.append(prompt)
    return found


FEW = 2**14
"""Chains of one length that are listed and shuffled; of more, random ones are drawn until they are new."""


def _distinct(group: Group, length: int, heldout: bool, rng: random.Random) -> Iterator[str]:
    if len(group.elements) ** length <= FEW:
        every = [_prompt(row) for row in product(group.elements, repeat=length)]
        rng.shuffle(every)
        yield from (prompt for prompt in every if is_held_out(prompt) == heldout)
        return
    seen = set[str]()
    while True:
        prompt = _prompt(rng.choices(group.elements, k=length))
        if is_held_out(prompt) == heldout and prompt not in seen:
            seen.add(prompt)
            yield prompt


def _prompt(row: Sequence[str]) -> str:
    return " ".join([*row, ASK])


def texts(settings: ChainsSettings, count: int, heldout: bool, rng: random.Random) -> list[str]:
    """`count` demonstrations, prompt and response, of random chains; lengths are uniform. Short chains repeat."""
    group, (low, high) = GROUPS[settings.group], settings.lengths
    found = list[str]()
    while len(found) < count:
        chain = tuple(rng.choices(group.elements, k=rng.randint(low, high)))
        if is_held_out(prompt := _prompt(chain)) == heldout:
            found.append(f"{prompt} {demonstration(group, chain, settings, rng)}")
    return found


def demonstration(group: Group, chain: Row, settings: ChainsSettings, rng: random.Random) -> str:
    """A response: with probability `long` a working down to one element, whose rows merge random neighbours, each
    wrongly with probability `wrong_steps`; else the right answer at once."""
    words, row = list[str](), chain
    if rng.random() < settings.long:
        while len(row) > 1:
            at = rng.randrange(len(row) - 1)
            row = _merged(group, row, at)
            if rng.random() < settings.wrong_steps:
                wrong = rng.choice([one for one in group.elements if one != row[at]])
                row = (*row[:at], wrong, *row[at + 1 :])
            words += [STEP, *row]
    return " ".join([*words, ANSWER, group.product(row)])
