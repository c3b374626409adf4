"""The guard's measures, its thresholds, and the judge that it makes of a lexicon."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.models.policy import Episodes
from pipeline.rewards.base import Completions
from pipeline.rewards.fluency import FEWEST, Guard, Reading, Thresholds, lowest
from pipeline.rewards.fluent_lexicon import FluentLexicon
from pipeline.rewards.lexicon import LexiconReward
from pipeline.rewards.ngrams import NGrams

LETTERS = " abcdefghijklmnopqrstuvwxyz."


def letters(text: str, **_: Any) -> dict[str, Any]:
    """A tokenizer of pairs of letters: a prompt can end within a token."""
    starts = range(0, len(text), 2)
    ids = [1 + 28 * LETTERS.index(text[at]) + LETTERS.index(text[at + 1 : at + 2] or " ") for at in starts]
    return {"input_ids": ids, "offset_mapping": [(at, min(at + 2, len(text))) for at in starts]}


TEXTS = ["the film is good.", "the plot is bad. ", "the cast is fun. "]


@pytest.fixture(scope="module")
def model() -> NGrams:
    return NGrams.fit([letters(text)["input_ids"] for text in TEXTS], 800, 0)


def guard(model: NGrams, fluency: float = -4.0, repetition: float = 0.4, end: float = -4.0, length: int = 8) -> Guard:
    return Guard(letters, model, length, Thresholds((fluency,), (repetition,), end))


def reading(fluency: float = 0.0, repetition: float = 0.0, end: float | None = None) -> Reading:
    return Reading(np.array([fluency]), np.array([repetition]), end)


def completions(*rows: tuple[str, str, bool]) -> Completions:
    ones = torch.ones(len(rows), 1, dtype=torch.bool)
    ended = torch.tensor([ended for _, _, ended in rows])
    episodes = Episodes(torch.zeros(len(rows), 2, dtype=torch.long), ones, ones, ended)
    return Completions(episodes, [prompt for prompt, _, _ in rows], [text for _, text, _ in rows])


def test_a_reading_is_that_of_the_completion_after_its_prompt(model: NGrams) -> None:
    read = guard(model).read("the fi", "lm is ", False)
    expected = np.log(model.probabilities(letters("the film is ")["input_ids"], 3))
    assert read.fluency.tolist() == pytest.approx([expected[0], expected[:2].mean(), expected.mean()])
    assert read.end is None
    within = guard(model).read("the f", "ilm is ", False)
    assert within.fluency.tolist() == pytest.approx(
        [expected_of(model, "the film is ", 2)[:n].mean() for n in (1, 2, 3, 4)]
    )


def expected_of(model: NGrams, text: str, first: int) -> np.ndarray[Any, Any]:
    return np.log(model.probabilities(letters(text)["input_ids"], first))


def test_the_end_is_judged_where_the_text_ended_by_itself(model: NGrams) -> None:
    whole = letters("the film is good.")["input_ids"]
    good = guard(model).read("the fi", "lm is good.", True).end
    assert good == pytest.approx(math.log(model.probabilities([*whole, 0], len(whole))[0]))
    early = guard(model).read("the fi", "lm is ", True).end
    assert early is not None
    assert good is not None
    assert early < good
    assert guard(model, -99, 1, (good + early) / 2).faults("the fi", "lm is ", True) == 1
    assert guard(model, -99, 1, (good + early) / 2).faults("the fi", "lm is ", False) == 0
    assert guard(model, -99, 1, (good + early) / 2).faults("the fi", "lm is good.", True) == 0
    assert guard(model, -99, 1, 0.0).faults("the fi", "", True) == 1, "an empty completion has an end alone"
    assert guard(model, -99, 1, 0.0).faults("the fi", "", False) == 0


def test_only_the_length_of_a_response_is_read(model: NGrams) -> None:
    short, long = (guard(model, length=2).read("the fi", text, False) for text in ("lm is", "lm is zzzzzzzz"))
    assert len(long.fluency) == 2
    assert long.fluency[0] == short.fluency[0]


def test_every_threshold_counts_by_itself() -> None:
    thresholds = Thresholds((-5.0, -4.0), (0.0, 0.5), -3.0)
    assert thresholds.faults(reading(-5.0, 0.0, -3.0)) == 0, "on a threshold is not beyond it"
    assert thresholds.faults(reading(-5.1)) == 1
    assert thresholds.faults(reading(-5.1, 0.1, -3.1)) == 3
    two = Reading(np.array([-9.0, -4.5]), np.array([0.0, 0.5]), None)
    assert thresholds.faults(two) == 1, "by the length's own thresholds"
    longer = Reading(np.array([-9.0, -9.0, -4.0]), np.array([0.9, 0.9, 0.6]), None)
    assert thresholds.faults(longer) == 1, "the last thresholds hold for all longer ones"


def test_thresholds_are_those_of_their_length() -> None:
    texts = [Reading(-np.arange(1.0, 4) * n, np.array([0, 0.25, 0.5]) * n / 200, -float(n)) for n in range(199)]
    texts += [Reading(np.array([-500.0]), np.array([0.0]), None)]
    found = Thresholds.of(texts, 2)
    assert found.fluency == (-198.0, -2 * 197.0), "the second lowest of 200, and of the 199 with two tokens"
    assert found.repetition == (0.0, pytest.approx(0.25 * 197 / 200))
    assert found.end == -197.0
    assert len(Thresholds.of(texts, 9).fluency) == 3
    short = Reading(np.array([-500.0]), np.array([0.0]), -1.0)
    assert len(Thresholds.of([*texts[: FEWEST - 1], short], 9).fluency) == 1, "more tokens have too few texts"
    with pytest.raises(ValueError, match="98 values give no threshold"):
        Thresholds.of(texts[: FEWEST - 1], 9)


def test_of_further_real_texts_at_most_1_in_100_is_beyond_a_threshold() -> None:
    rng = np.random.default_rng(1)
    beyond = [float((rng.normal(size=400) < lowest(rng.normal(size=FEWEST).tolist())).mean()) for _ in range(2000)]
    assert np.mean(beyond) == pytest.approx(0.01, abs=0.001)
    assert lowest(list(range(198))) == 0
    assert lowest(list(range(199))) == 1


def test_a_text_with_a_fault_loses_against_every_text_without(model: NGrams) -> None:
    judge = FluentLexicon(LexiconReward(), guard(model))
    rows = [
        ("the film ", "is bad. awful. horrible. terrible. ", False),
        ("the film ", "is good.", True),
        ("the film ", "wonderful superb great best", False),
        ("the film ", "great great great great great great ", False),
    ]
    lenient = FluentLexicon(LexiconReward(), guard(model, -99, 1, -99))
    strict = FluentLexicon(LexiconReward(), guard(model, 0.0, -1, 0))
    plain = LexiconReward()(completions(*rows)).tolist()
    assert lenient(completions(*rows)).tolist() == plain
    assert strict(completions(*rows)).tolist() == [-3, -4, -3, -3], "-1 - faults"
    scores = judge(completions(*rows)).tolist()
    assert scores[1] == plain[1] > 0
    assert scores[3] == -3 < -1 <= plain[0]
    assert scores[2] == -2
    assert plain[3] > plain[1], "without the guard the praise wins"


def test_a_score_does_not_depend_on_the_batch(model: NGrams) -> None:
    judge = FluentLexicon(LexiconReward(), guard(model))
    rows = [
        ("the film ", text, ended) for text in ("is good.", "is the is the is", "", "best") for ended in (True, False)
    ]
    alone = [judge(completions(row)).item() for row in rows]
    assert judge(completions(*rows)).tolist() == alone
    assert judge(completions(*rows[::-1])).tolist() == alone[::-1]


def test_a_guard_is_read_as_it_was_written(model: NGrams, tmp_path: Path) -> None:
    one = guard(model, -1 / 3, 0.1, -2 / 7)
    one.save(tmp_path)
    again = Guard.load(tmp_path, letters)
    assert (again.thresholds, again.length) == (one.thresholds, one.length)
    assert again.read("the ", "film", True).fluency.tolist() == one.read("the ", "film", True).fluency.tolist()
    with pytest.raises(ValueError, match="without thresholds"):
        Guard(letters, model, 8).faults("", "", False)
