"""What is allowed and misleading is said when a study is planned and when it starts, once."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.console.plan import print_plan
from studies.definition.design import cautions, cells
from studies.definition.schema import single

SAME = "the gold judge (grammar) is also what is trained on (reward): win rates cannot show over-optimisation"


def test_a_reward_that_is_the_judge_is_said_once(layout: Layout) -> None:
    study = single("smoke", {"reward.kind": "grammar"}, 0)
    assert cautions(cells(study)) == [SAME]
    assert cautions(cells(single("smoke", {}, 0))) == []
    console = Console(file=io.StringIO(), width=200)
    print_plan(console, study, None, {}, layout)
    file: Any = console.file
    assert file.getvalue().count(SAME) == 1


def test_only_the_arms_that_it_concerns_are_named() -> None:
    study = single("smoke", {}, 0)
    arms = study.model_copy(update={"arms": {study.baseline: {}, "oracle": {"reward.kind": "grammar"}}})
    assert cautions(cells(arms)) == [f"oracle: {SAME}"]


def test_arms_with_different_numbers_of_episodes_are_named() -> None:
    study = single("tiny", {}, 0)
    arms = {study.baseline: {}, "once": {"algorithm.name": "reinforce"}, "remax": {"algorithm.name": "remax"}}
    named = study.model_copy(update={"arms": arms})
    assert cautions(cells(named)) == [], "an algorithm of one epoch takes as many, smaller steps"
    (line,) = cautions(cells(named, overrides={"train.num_mini_batches": 2}))
    assert line.endswith(f"(16,384: {study.baseline}; 65,536: once, remax)")


def test_single_parts_of_a_composite_reward_can_be_set() -> None:
    parts = {"good": {"kind": "learned"}, "true": {"kind": "grammar", "weight": 0.5}}
    arm = {"reward.kind": "composite", "reward.parts": parts, "reward.parts.true.weight": 0.25}
    (cell,) = cells(single("smoke", arm, 0))
    assert cell.config.reward.parts["true"].weight == 0.25
    assert cell.config.reward.parts["good"].weight == 1.0
    for key, says in (
        ("reward.parts.treu.weight", "there is no 'treu' to change; did you mean 'true'?"),
        ("reward.part.x", "unknown key"),
    ):
        with pytest.raises(UserError, match=says.replace("?", r"\?")):
            cells(single("smoke", {**arm, key: 1.0}, 0))


def test_seeds_that_change_nothing_are_named() -> None:
    study = single("smoke", {}, 0)
    arms = study.model_copy(
        update={"arms": {study.baseline: {}, "best": {"algorithm.name": "best_of_n"}}, "seeds": (0, 1)}
    )
    (line,) = cautions(cells(arms))
    assert line == "best: all seeds give the same result, since nothing is trained and the study has no `vary`"
    assert cautions(cells(arms.model_copy(update={"vary": ("sft",)}))) == []
