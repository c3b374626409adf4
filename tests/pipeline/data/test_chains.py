from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.chains import GROUPS, Group, demonstration, is_held_out, prompts, read, sound_words, task, texts
from pipeline.data.settings import ChainsSettings, longest_response
from pipeline.stages.checked import pass_at

NAMES = list(GROUPS)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_group(name: str) -> None:
    elements, table = GROUPS[name].elements, GROUPS[name].table
    (one,) = [e for e in elements if all(table[e, a] == a == table[a, e] for a in elements)]
    assert all(any(table[a, b] == one == table[b, a] for b in elements) for a in elements)
    some = random.Random(0).choices(elements, k=24)
    assert all(table[table[a, b], c] == table[a, table[b, c]] for a, b, c in product(some, repeat=3))
    assert all(table[a, b] == table[b, a] for a, b in product(elements, repeat=2)) == (name == "z10")
    assert len(elements) == {"z10": 10, "s3": 6, "s4": 24, "s5": 120}[name]


def test_a_permutation_is_applied_after_the_one_to_its_right() -> None:
    """213 exchanges 1 and 2, 132 exchanges 2 and 3: first 132, then 213 sends 1 to 2, 2 to 3, 3 to 1."""
    assert GROUPS["s3"].product(("213", "132")) == "231"


@pytest.mark.parametrize("name", NAMES)
def test_demonstrations_are_sound_but_for_their_wrong_steps(name: str) -> None:
    def read_all(wrong: float, long: float) -> list[tuple[str, bool]]:
        settings = ChainsSettings(group=name, lengths=(2, 6), long=long, wrong_steps=wrong)
        split = [text.partition(" ?") for text in texts(settings, 200, False, random.Random(1))]
        found = [(rest, read(f"{asked} ?", rest)) for asked, _, rest in split]
        assert all(one.steps == rest.count(";") for rest, one in found)
        assert max(len(rest.split()) + 1 for rest, _ in found) <= longest_response(6)
        return [(rest, one.sound and one.right) for rest, one in found]

    assert all(fine for _, fine in read_all(0.0, 1.0))
    assert all(fine and ";" not in rest for rest, fine in read_all(1.0, 0.0))
    assert not any(fine for _, fine in read_all(1.0, 1.0))
    group = GROUPS[name]
    settings = ChainsSettings(group=name, lengths=(4, 4), long=1.0, wrong_steps=0.0)
    rows = [tuple(group.elements[at] for at in (0, 1, 2, 3))] * 200
    stream = random.Random(2)
    merged = Counter(rows[0].index(demonstration(group, row, settings, stream).split()[1]) for row in rows)
    assert min(merged[at] for at in range(3)) > 40, "any neighbours are merged, each pair as often"


def workings(group: Group, row: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield "=", reduce(lambda a, b: group.table[a, b], row)
    for at, (a, b) in enumerate(pairwise(row)):
        made = group.table[a, b]
        for rest in workings(group, (*row[:at], made, *row[at + 2 :])):
            yield ";", a, b, made, *rest


@pytest.mark.parametrize("chain", ["2 2 2", "2 7 5", "213 213 132 213", "231 312 123 321"])
def test_what_is_sound_is_what_can_be_listed(chain: str) -> None:
    """Every sound response is, and of those with one other word none that is not in the list; the words that are open
    after each beginning are those with which the list goes on."""
    asked = task(f"{chain} ?")
    assert asked is not None
    every = {*workings(*asked)}
    for words in every:
        found = read(f"{chain} ?", " ".join(words))
        assert (found.sound, found.right, found.sound_steps) == (True, True, found.steps)
        assert not read(f"{chain} ?", " ".join([*words, *words[-2:]])).sound, "nothing follows an answer"
        for at, open_ in enumerate(sound_words(asked, words)):
            assert open_ == {one[at] for one in every if one[:at] == words[:at]}
            assert found.forks[at] == (len(open_) > 1)
            for other in {*asked.group.elements, ";", "="} - {words[at]}:
                changed = (*words[:at], other, *words[at + 1 :])
                assert read(f"{chain} ?", " ".join(changed)).sound == (changed in every)


@pytest.mark.parametrize("name", ["z10", "s3"])
def test_the_strict_judge_against_brute_force(name: str) -> None:
    group = GROUPS[name]
    for k in (2, 3, 4):
        for chain in random.Random(k).sample(list(product(group.elements, repeat=k)), 30):
            right = reduce(lambda a, b: group.table[a, b], chain)
            accepted = [e for e in group.elements if read(" ".join([*chain, "?"]), f" = {e}").right]
            assert accepted == [right]


@given(st.lists(st.sampled_from(["=", ";", "2", "7", "9", "4", "junk", "?"]), max_size=12))
def test_what_counts_as_an_answer(words: list[str]) -> None:
    found = read("2 7 5 ?", " ".join(words))
    assert found.right == (words[-2:] == ["=", "4"] and words.count("=") == 1)
    assert found.found == ("= 4" in " ".join(words))
    assert not found.sound or found.right
    assert found.sound_steps <= found.steps
    assert len(found.forks) == len(words)


def test_other_texts_are_no_prompts() -> None:
    for text in ("", "?", "2 ?", "2 7", "2 12 ?", "2 213 ?", "The film ?"):
        assert task(text) is None
        assert not read(text, "= 4").found


def test_prompts_are_distinct_held_out_by_their_hash_and_even_over_lengths() -> None:
    settings = ChainsSettings(group="s3", lengths=(2, 4))
    train, heldout = (prompts(settings, 240, kept, random.Random(0)) for kept in (False, True))
    assert len({*train}) == 240
    assert not {*train} & {*heldout}
    assert all(map(is_held_out, heldout))
    short = [len(one.split()) == 3 for one in train]
    assert sum(short) == sum(not is_held_out(f"{a} {b} ?") for a, b in product(GROUPS["s3"].elements, repeat=2))
    assert len(heldout) < 240, "the groups have no more"
    held = {one.partition(" ?")[0] + " ?" for one in texts(settings, 500, True, random.Random(0))}
    assert all(map(is_held_out, held))


def test_the_estimator_of_several_samples_has_no_bias() -> None:
    """Over all ways to draw n samples with a probability p of a right one its mean is 1 - (1 - p)^k."""
    n, p = 6, 0.3
    for k in (1, 4, 6):
        counts = [sum(way) for way in product((0, 1), repeat=n)]
        weights = [p**c * (1 - p) ** (n - c) for c in counts]
        assert np.dot(weights, pass_at(k, n, np.array(counts))) == pytest.approx(1 - (1 - p) ** k)
