"""The recommendation: the best arm that keeps the constraints, its rivals, and what to expect of one more seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from synthetic import WHOLE, build

from reports.findings.recommendation import prediction_bound
from reports.statistics import two_level
from reports.text.answer import recommendation

ARMS = {"beta_0.01": 0.01, "beta_0.05": 0.05, "beta_1": 1.0}


def found_in(root: Path, extra: str = "", **changes: Any) -> tuple[Any, str]:
    gold = "objective: {metric: eval/gold, direction: maximize}\n"
    built = build(root, extra=gold + extra, arms=ARMS, **{**WHOLE, **changes})
    return built.findings, recommendation(built.records, built.findings)


def test_the_best_arm_within_the_constraints_is_named_first(tmp_path: Path) -> None:
    findings, text = found_in(tmp_path / "a")
    found = findings.recommendation
    values = {arm.arm: arm.estimates["eval/gold"].value for arm in findings.arms}
    assert found.arm == max(values, key=values.__getitem__)
    per_seed = findings.arm(found.arm).per_seed["eval/gold"]
    assert found.worst_seed[1] == min(per_seed.values())
    assert found.bad_seed == prediction_bound(list(per_seed.values()), lower=True)
    assert text.startswith(f"Best setting: {found.arm}")
    drift = {arm.arm: arm.estimates["eval/kl_per_token"].value for arm in findings.arms}
    limit = (drift["beta_0.05"] + drift["beta_1"]) / 2
    bounded, text = found_in(tmp_path / "b", f"constraints: [{{metric: eval/kl_per_token, max: {limit:.6f}}}]\n")
    assert bounded.recommendation.arm == "beta_1"
    assert set(bounded.recommendation.excluded) == {"beta_0.01", "beta_0.05"}
    assert "beta_0.01 and beta_0.05" in text
    none, text = found_in(tmp_path / "c", "constraints: [{metric: eval/kl_per_token, max: 0}]\n", steps=64)
    assert (none.recommendation, text) == (None, "")


@pytest.mark.parametrize(("p", "beaten"), [(0.016, True), (0.018, False)])
def test_the_choice_of_the_best_counts_all_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, p: float, beaten: bool
) -> None:
    """Three arms are three pairs, though the best is compared with two."""
    monkeypatch.setattr(two_level, "two_level_p", lambda effect: p)
    found = found_in(tmp_path, seeds=(0, 1))[0].recommendation
    assert (found.rivals == (), found.named) == (beaten, beaten)
    assert found.bad_seed is None, "two seeds do not tell what to expect of a third"


def test_one_new_value_in_ten_lies_beyond_the_bound() -> None:
    draws = np.random.default_rng(0).normal(size=(4000, 6))
    below = [row[5] < prediction_bound(list(row[:5]), lower=True) for row in draws]
    assert np.mean(below) == pytest.approx(0.1, abs=0.015)
    values = [0.81, 0.86, 0.9, 0.79]
    interval = stats.t.interval(0.8, 3, np.mean(values), np.std(values, ddof=1) * np.sqrt(1.25))
    assert [prediction_bound(values, lower=lower) for lower in (True, False)] == pytest.approx(interval)
