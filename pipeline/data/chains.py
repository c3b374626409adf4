"""Products in a finite group: tasks whose answers, and every step of whose workings, can be checked.

A prompt lists elements of a group and ends with `?`; the answer is their product.

    2 7 5 ? = 4                    the answer at once
    2 7 5 ? ; 7 5 2 ; 2 2 4 = 4    with a working: each step names two neighbours and their product, which replaces them

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
from itertools import pairwise, permutations, product
from typing import Final, NamedTuple

from pipeline.data.settings import ChainsSettings

ASK: Final = "?"
STEP: Final = ";"
ANSWER: Final = "="
SIGNS: Final = (ASK, STEP, ANSWER)
STEP_WORDS: Final = 4
"""Words of a step: its sign, two neighbours, their product."""
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

    Equal neighbours can stand at several places, so a step can lead to several rows. A word is sound where it follows
    from one of them.

    >>> [sorted(some) for some in sound_words(task("2 7 5 ?"), "; 7 5 2 = 4".split())]
    [[';', '='], ['2', '7'], ['5'], ['2'], [';', '='], ['4']]
    """
    group, rows = task.group, {task.chain}
    step: list[str] | None = None
    """Words of the step that is being written; None between steps."""
    answering = ended = False
    for word in words:
        if ended:
            open_ = frozenset[str]()
        elif answering:
            open_ = frozenset({group.product(next(iter(rows)))})
        elif step is None:
            open_ = frozenset((STEP, ANSWER) if len(next(iter(rows))) > 1 else (ANSWER,))
        elif len(step) == 2:
            open_ = frozenset({group.table[step[0], step[1]]})
        else:
            pairs = [pair for row in rows for pair in pairwise(row)]
            open_ = frozenset(pair[len(step)] for pair in pairs if [*pair[: len(step)]] == step)
        yield open_
        if word not in open_:
            return
        ended, answering = answering, word == ANSWER
        if word == STEP:
            step = []
        elif step is not None:
            step.append(word)
            if len(step) == 3:
                first, second, made = step
                rows = {
                    _merged(row, at, made)
                    for row in rows
                    for at, pair in enumerate(pairwise(row))
                    if pair == (first, second)
                }
                step = None


def _merged(row: Row, at: int, made: str) -> Row:
    """The row with what takes the place of two neighbours."""
    return (*row[:at], made, *row[at + 2 :])


class Reading(NamedTuple):
    """All that a response is judged by."""

    right: bool
    """It ends with ``= product``, and has no other ``=``."""
    found: bool
    """It has ``= product`` somewhere."""
    steps: int
    """Steps of its working."""
    step_ends: tuple[int, ...]
    """The last word of each step that follows from those before, up to the first that does not."""
    sound: bool
    """Every word follows, and the answer is given."""
    forks: tuple[bool, ...]
    """For each word, True where several were sound; False behind the first unsound one."""

    @property
    def sound_steps(self) -> int:
        return len(self.step_ends)


@lru_cache(maxsize=4096)
def read(prompt: str, completion: str) -> Reading:
    """Judge a completion; defined for every text.

    >>> read("2 7 5 ?", " ; 7 5 2 = 4")
    Reading(right=True, found=True, steps=1, step_ends=(3,), sound=True, forks=(True, True, False, False, True, False))
    >>> read("2 7 5 ?", " ; 7 5 2 ; 2 2 3 = 4")[:5]
    (True, True, 2, (3,), False)
    """
    words, asked = completion.split(), task(prompt)
    if asked is None:
        return Reading(False, False, 0, (), False, (False,) * len(words))
    answer = [ANSWER, asked.group.product(asked.chain)]
    open_ = list(sound_words(asked, words))
    length = sum(word in some for word, some in zip(words, open_, strict=False))
    return Reading(
        right=words[-2:] == answer and words.count(ANSWER) == 1,
        found=any(words[at : at + 2] == answer for at in range(len(words))),
        steps=words.count(STEP),
        step_ends=tuple(at + STEP_WORDS - 1 for at in range(length - STEP_WORDS + 1) if words[at] == STEP),
        sound=len(words) > 1 and length == len(words) and words[-2] == ANSWER,
        forks=tuple(at < len(open_) and len(open_[at]) > 1 for at in range(len(words))),
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
    """A response: with probability `long` a working down to one element, whose steps merge random neighbours, each
    wrongly with probability `wrong_steps`; else the right answer at once."""
    words, row = list[str](), chain
    if rng.random() < settings.long:
        while len(row) > 1:
            at = rng.randrange(len(row) - 1)
            made = group.table[row[at], row[at + 1]]
            if rng.random() < settings.wrong_steps:
                made = rng.choice([one for one in group.elements if one != made])
            words += [STEP, row[at], row[at + 1], made]
            row = _merged(row, at, made)
    return " ".join([*words, ANSWER, group.product(row)])
