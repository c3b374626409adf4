"""Hypotheses and confirmations as a study file states them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_trial import SEARCH, STUDY

from pipeline.errors import UserError
from studies.definition.design import cells
from studies.definition.hypotheses import weights_of
from studies.definition.schema import Study, load_study

ONE = "  - {name: wins, claim: it wins, metric: eval/win_rate, contrast: strong - weak, expect: higher}\n"
GRID = """
question: q
baseline: beta=0.05+cliprange=0.2
seeds: [0, 1]
grid: {kl.beta: [0.01, 0.05], algorithm.cliprange: [0.1, 0.2]}
hypotheses:
  - name: interaction
    claim: a tight clip matters more at a small beta
    metric: eval/gold
    contrast: beta=0.01+cliprange=0.1 - beta=0.01+cliprange=0.2 - beta=0.05+cliprange=0.1 + beta=0.05+cliprange=0.2
    expect: higher
"""


def with_hypothesis(line: str = ONE) -> str:
    return f"{STUDY}hypotheses:\n{line}"


def test_a_contrast_in_words_is_one_in_weights(write_study: Callable[..., Study]) -> None:
    study = write_study(with_hypothesis())
    same = write_study(with_hypothesis(ONE.replace("strong - weak", "{strong: 1, weak: -1}")))
    assert study.hypotheses == same.hypotheses
    assert study.hypotheses[0].contrasts == ({"strong": 1.0, "weak": -1.0},)
    assert study.hypotheses[0].condition == "eval/win_rate: strong - weak > 0"


def test_an_order_is_its_adjacent_contrasts(write_study: Callable[..., Study]) -> None:
    order = ONE.replace("contrast: strong - weak, expect: higher", "order: [weak, strong], expect: lower, margin: 0.1")
    hypothesis = write_study(with_hypothesis(order)).hypotheses[0]
    assert hypothesis.contrasts == ({"strong": 1.0, "weak": -1.0},)
    assert hypothesis.condition == "eval/win_rate: weak > strong, each by more than 0.1"


def test_arms_of_a_grid_and_of_a_search_can_be_contrasted(write_study: Callable[..., Study]) -> None:
    assert list(write_study(GRID).hypotheses[0].arms) == [
        "beta=0.01+cliprange=0.1",
        "beta=0.01+cliprange=0.2",
        "beta=0.05+cliprange=0.1",
        "beta=0.05+cliprange=0.2",
    ]
    write_study(f"{SEARCH}hypotheses:\n{ONE.replace('strong - weak', 'confirm-1 - baseline')}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "strong - weak",
            "storng - weak",
            r"hypotheses.wins.contrast: 'storng' is not an arm; did you mean",
        ),
        ("strong - weak", "strong-weak", "weights of strong-weak sum to 1, and must sum to 0; write ARM - OTHER"),
        ("strong - weak", "strong weak", "'strong weak' is no contrast; write ARM - OTHER, with spaces"),
        ("strong - weak", "strong - weak -", "is no contrast"),
        ("strong - weak", "strong - strong", "names an arm twice"),
        ("strong - weak", "{strong: 1, weak: -0.5}", "weights of strong, weak sum to 0.5, and must sum to 0"),
        ("strong - weak", "{strong: 0, weak: 0}", "must sum to 0"),
        ("contrast: strong - weak", "order: [weak]", "order: name at least two arms, each once"),
        ("contrast: strong - weak", "order: [weak, storng]", r"hypotheses.wins.order: 'storng' .* mean 'strong'"),
        ("contrast: strong - weak, ", "", "give contrast or order, one of them"),
        ("contrast: strong - weak", "contrast: strong - weak, order: [weak, strong]", "give contrast or order"),
        ("expect: higher", "expect: highest", "did you mean 'higher'"),
        ("expect: higher", "expect: equal", "expect: equal needs a contrast and a margin above 0"),
        ("expect: higher", "expect: higher, margin: -1", "hypotheses.wins.margin = -1"),
        ("eval/win_rate", "eval/winrate", r"hypotheses.wins.metric: no metric 'eval/winrate'; did you mean"),
        ("name: wins", "name: drift", "hypotheses.drift.name: 'drift' is the name of two claims"),
    ],
)
def test_faults(write_study: Callable[..., Study], old: str, new: str, message: str) -> None:
    assert old in ONE
    with pytest.raises(UserError, match=message) as caught:
        write_study(with_hypothesis(ONE.replace(old, new)))
    assert len(str(caught.value).splitlines()) == 1


def test_signs_and_arms_alternate() -> None:
    assert weights_of("- a + b") == {"a": -1.0, "b": 1.0}
    with pytest.raises(ValueError, match="no contrast"):
        weights_of("")


def test_a_study_may_have_no_hypothesis(write_study: Callable[..., Study]) -> None:
    study = write_study(STUDY.replace("hypothesis: It does.\nrefuted_if: It does not.\n", ""))
    assert (study.hypothesis, study.refuted_if) == (None, None)


def test_a_confirmation_is_the_study_on_fresh_seeds(write_study: Callable[..., Study]) -> None:
    study = write_study(f"{STUDY}confirm: {{seeds: [7, 8, 9]}}\n")
    fresh = load_study(f"{study.source}+confirm")
    assert (fresh.name, fresh.seeds, fresh.confirms) == ("small+confirm", (7, 8, 9), "small")
    assert fresh.arm_overrides() == study.arm_overrides()
    assert fresh.falsifiers == study.falsifiers
    assert {cell.seed for cell in cells(fresh)} == {7, 8, 9}
    assert load_study(fresh.argument) == fresh


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{STUDY}confirm: {{seeds: [1, 9]}}\n", "confirm.seeds: 1 is one of the study's own seeds"),
        (f"{STUDY}confirm: {{seeds: [9, 9]}}\n", "confirm.seeds: a seed is given more than once"),
        (f"{SEARCH}confirm: {{seeds: [9]}}\n", "fresh seeds go under search.confirm"),
        (f"{STUDY}confirms: other\n", "unknown key 'confirms'"),
    ],
)
def test_faults_of_confirmations(write_study: Callable[..., Study], text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_study(text)


def test_a_confirmation_needs_seeds_and_its_ending_is_no_file_s(
    write_study: Callable[..., Study], tmp_path: Path
) -> None:
    study = write_study()
    with pytest.raises(UserError, match=r"small names no seeds for a confirmation; add `confirm: {seeds: \[...\]}`"):
        load_study(f"{study.source}+confirm")
    (tmp_path / "mine+confirm.yaml").write_text(STUDY)
    with pytest.raises(UserError, match="rename the file"):
        load_study(tmp_path / "mine+confirm.yaml")
    with pytest.raises(UserError, match="no study 'kl_ablaton'; did you mean 'kl_ablation'"):
        load_study("kl_ablaton+confirm")
