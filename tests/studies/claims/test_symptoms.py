from __future__ import annotations

from pathlib import Path

import pandas as pd
from helpers import publish
from light_study import record_of

from pipeline.run.layout import StageRef, StudyFolder, TrialRecord
from pipeline.run.symptoms import Health, Symptom
from studies.claims.symptoms import by_arm, health_of


def record(tmp_path: Path, table: pd.DataFrame, **config: object) -> tuple[StudyFolder, TrialRecord]:
    path = tmp_path / "store/train/k"
    path.mkdir(parents=True)
    table.to_parquet(path / "metrics.parquet", index=False)
    ref = StageRef(key="k", path="store/train/k", digest=publish(path))
    made = record_of("a", config=config, steps=40, stages={"train": ref})
    return StudyFolder(tmp_path, tmp_path / "studies/s/tiny"), made


def series() -> pd.DataFrame:
    """Two cadences in one table: the clip fraction at steps 1 to 40, KL at every fourth from 0 on."""
    frame = pd.DataFrame({"step": range(41), "policy/pg_clipfrac": [float("nan")] + [0.4] * 40, "unheard/of": 1.0})
    return frame.assign(**{"objective/kl_exact_per_token": [0.1 * s if s % 4 == 0 else None for s in range(41)]})


def test_a_record_is_judged_by_the_series_that_it_left(tmp_path: Path) -> None:
    health = health_of(*record(tmp_path, series()))
    assert health.words == "policy/pg_clipfrac 100 %, objective/kl_exact_per_token 82 %"
    assert (health.symptoms[1].outside, health.symptoms[1].n, health.symptoms[1].first) == (9, 11, 8)


def test_a_trial_that_diverged_is_never_ok(tmp_path: Path) -> None:
    folder, made = record(tmp_path, pd.DataFrame({"step": range(40), "policy/entropy": 1.0}))
    assert health_of(folder, made).words == "ok"
    ended = made.model_copy(update={"status": "diverged"})
    assert health_of(folder, ended).words == "diverged"
    (tmp_path / "store/train/k/metrics.parquet").unlink()
    assert health_of(folder, ended).words == "diverged"
    (arm,) = by_arm({("a", 0): health_of(folder, ended)})
    assert (arm.ill, arm.judged, arm.diverged, arm.worst) == (1, 1, (0,), None)


def test_arms_are_counted_and_the_largest_share_is_the_worst() -> None:
    kl = Symptom("objective/kl_exact_per_token", "above", 0.5, 30, 100, 4, "far", "raise kl.beta")
    ratio = Symptom("policy/ratio", "above", 1.1, 90, 100, 4, "explodes", "lower optimiser.lr")
    ok, unknown = Health((), ("policy/ratio",)), Health((), ())
    trials = {
        ("b", 0): ok,
        ("a", 0): Health((kl,), ("x",)),
        ("a", 1): ok,
        ("a", 2): unknown,
        ("a", 3): Health((ratio, kl), ("x",)),
    }
    b, a = by_arm(trials)
    assert (b.arm, b.judged, dict(b.unhealthy), b.worst, b.others) == ("b", 1, {}, None, ())
    assert (a.arm, a.judged, list(a.unhealthy), a.worst) == ("a", 3, [0, 3], (3, ratio))
    assert a.others == ("objective/kl_exact_per_token",)
