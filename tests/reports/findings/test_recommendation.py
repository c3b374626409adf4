"""What to use: the best arm that keeps the constraints, its rivals, and what to expect of one more seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from reports.findings.findings import analyse
from reports.findings.recommendation import prediction_bound
from reports.records.load import load_records
from reports.statistics import two_level
from reports.text.answer import recommendation

ARMS = {"beta_0.01": 0.01, "beta_0.05": 0.05, "beta_1": 1.0}
SHAPE: dict[str, Any] = {"arms": ARMS, "diverged": (), "budget": (), "missing": ()}
GOLD = "objective: {metric: eval/gold, direction: maximize}\n"


def said(build: Any, root: Path, extra: str = "", **changes: Any) -> tuple[Any, str]:
    built = build(root, extra=GOLD + extra, **{**SHAPE, **changes})
    records = load_records(built.folder, built.study)
    findings = analyse(records)
    return findings, recommendation(records, findings)


def test_the_best_arm_within_the_constraints_is_named_first(build: Any, tmp_path: Path) -> None:
    findings, text = said(build, tmp_path / "a")
    found = findings.recommendation
    values = {arm.arm: arm.estimates["eval/gold"].value for arm in findings.arms}
    assert found.arm == max(values, key=values.__getitem__)
    per_seed = findings.arm(found.arm).per_seed["eval/gold"]
    assert found.worst_seed[1] == min(per_seed.values())
    assert found.bad_seed == prediction_bound(list(per_seed.values()), lower=True)
    assert text.startswith(f"Best setting: {found.arm}, of the 3 arms compared (gold reward ")
    drift = {arm.arm: arm.estimates["eval/kl_per_token"].value for arm in findings.arms}
    limit = (drift["beta_0.05"] + drift["beta_1"]) / 2
    bounded, text = said(build, tmp_path / "b", f"constraints: [{{metric: eval/kl_per_token, max: {limit:.6f}}}]\n")
    assert bounded.recommendation.arm == "beta_1"
    assert set(bounded.recommendation.excluded) == {"beta_0.01", "beta_0.05"}
    assert "beta_0.01 and beta_0.05" in text
    none, text = said(build, tmp_path / "c", "constraints: [{metric: eval/kl_per_token, max: 0}]\n", steps=64)
    assert (none.recommendation, text) == (None, "")


@pytest.mark.parametrize(("p", "beaten"), [(0.016, True), (0.018, False)])
def test_the_choice_of_the_best_counts_all_pairs(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, p: float, beaten: bool
) -> None:
    """Three arms are three pairs, though the best is compared with two."""
    monkeypatch.setattr(two_level, "two_level_p", lambda effect: p)
    found = said(build, tmp_path, seeds=(0, 1))[0].recommendation
    assert (found.rivals == (), found.named) == (beaten, beaten)
    assert found.bad_seed is None, "two seeds do not tell what to expect of a third"


def test_one_new_value_in_ten_lies_beyond_the_bound() -> None:
    draws = np.random.default_rng(0).normal(size=(4000, 6))
    below = [row[5] < bound for row in draws if (bound := prediction_bound(list(row[:5]), lower=True)) is not None]
    assert np.mean(below) == pytest.approx(0.1, abs=0.015)
    values = [0.81, 0.86, 0.9, 0.79]
    interval = stats.t.interval(0.8, 3, np.mean(values), np.std(values, ddof=1) * np.sqrt(1.25))
    assert prediction_bound(values, lower=True) == pytest.approx(interval[0])
    assert prediction_bound(values, lower=False) == pytest.approx(interval[1])
