"""The file of a study whose trials another program ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import UserError
from studies.definition.schema import load_study

HEAD = "question: q\nbaseline: a\nseeds: [0, 1]\nimported: {a: {}, b: {}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "one.yaml"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("profile: tiny\n", "profile: imported trials have none, 'tiny' is given"),
        ("arms: {a: {optimiser.lr: 1e-4}}\n", "both arms and imported are given"),
        ("objective: {metric: objective/scoers}\n", r"no metric 'objective/scoers'; did you mean 'objective/scores'\?"),
    ],
)
def test_study_files_that_contradict_themselves(file: Path, extra: str, words: str) -> None:
    file.write_text(HEAD + extra)
    with pytest.raises(UserError, match=words):
        load_study(file)


@pytest.mark.parametrize(("metric", "direction"), [("objective/kl_per_token", "minimize"), ("eval/gold", "maximize")])
def test_a_direction_that_is_not_given_is_the_metrics_own(file: Path, metric: str, direction: str) -> None:
    file.write_text(f"{HEAD}objective: {{metric: {metric}}}\n")
    assert load_study(file).objective.direction == direction


@pytest.mark.parametrize("metric", ["objective/rlhf_reward", "objective/non_score_reward"])
def test_no_arms_are_compared_by_a_penalised_reward(file: Path, metric: str) -> None:
    claim = f"{{name: n, claim: c, metric: {metric}, op: '<', threshold: 0, before_step: 9"
    for text in (
        f"objective: {{metric: {metric}}}\n",
        f"hypotheses: [{{name: h, claim: c, metric: {metric}, contrast: b - a, expect: higher}}]\n",
        f"objective: {{metric: objective/scores}}\nfalsifiers: [{claim}, relative_to: baseline}}]\n",
    ):
        file.write_text(HEAD + text)
        with pytest.raises(UserError, match="each arm's own KL penalty"):
            load_study(file)
    file.write_text(f"{HEAD}objective: {{metric: objective/scores}}\nfalsifiers: [{claim}}}]\n")
    assert load_study(file).falsifiers[0].metric == metric, "a bound for each arm on its own compares none"
