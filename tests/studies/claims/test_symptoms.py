from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import publish
from light_study import record_of

from pipeline.config.loading import dotted_keys
from pipeline.run.layout import StageRef, StudyFolder, TrialRecord
from pipeline.run.metrics import METRICS
from studies.claims.symptoms import BANDS, LEAST, Health, Series, Symptom, by_arm, examine, health_of

START = 20


def of(values: list[float] | np.ndarray, first: int = 1, every: int = 1) -> Series:
    held = np.asarray(values, dtype=np.float64)
    return first + every * np.arange(len(held), dtype=np.float64), held


def mixed(healthy: float, sick: float, outside: int, n: int = 1000) -> list[float]:
    """`outside` sick values among `n`, after a healthy start and, as far as there is room, before a healthy end."""
    return [healthy] * START + [sick] * outside + [healthy] * (n - START - outside)


def conditions(series: Mapping[str, Series], **settings: object) -> dict[str, str]:
    found = examine(series, {key.replace("__", "."): value for key, value in settings.items()}).symptoms
    return {one.key: one.side for one in found}


def test_a_symptom_by_hand() -> None:
    values = [0.01] * 4 + [0.03] * 6 + [0.02] * 2
    assert examine({"policy/approxkl": of(values)}, {}) == Health(
        (
            Symptom(
                "policy/approxkl", "above", 0.02, 6, 12, 5,
                "each update moves the policy too far", BANDS["policy/approxkl"][1].advice,
            ),
        ),
        ("policy/approxkl",),
    )  # fmt: skip


SICK = (
    ("policy/approxkl", "above", 0.001, 0.03, 0.2),
    ("policy/approxkl", "above", 0.001, 0.6, 0.05),
    ("policy/pg_clipfrac", "above", 0.05, 0.4, 0.2),
    ("policy/ratio", "above", 1.0, 1.2, 0.1),
    ("policy/ratio", "below", 1.0, 0.8, 0.1),
    ("policy/entropy", "below", 1.1, 0.1, 0.2),
    ("policy/entropy", "above", 1.1, 2.3, 0.2),
    ("policy/grad_norm", "above", 0.5, 5.5, 0.05),
    ("value/explained_variance", "below", 0.3, -0.2, 0.2),
    ("objective/kl_exact_per_token", "above", 0.2, 0.6, 0.2),
    ("objective/kl_per_token", "above", 0.2, 0.6, 0.2),
    ("objective/repetition", "above", 0.03, 0.4, 0.2),
    ("objective/eos_rate", "below", 0.98, 0.4, 0.2),
    ("objective/length", "below", 20.0, 4.0, 0.2),
)


@pytest.mark.parametrize(("key", "side", "healthy", "sick", "share"), SICK)
def test_a_series_leaves_its_band_when_more_than_its_share_is_outside(
    key: str, side: str, healthy: float, sick: float, share: float
) -> None:
    allowed = round(1000 * share)
    assert conditions({key: of(mixed(healthy, sick, allowed))}) == {}
    (found,) = examine({key: of(mixed(healthy, sick, allowed + 1))}, {}).symptoms
    assert (found.key, found.side, found.outside, found.n) == (key, side, allowed + 1, 1000)
    assert found.first == START + 1
    assert not found.late
    assert found.cause
    assert found.knob


@pytest.mark.parametrize("key", BANDS)
def test_bands_are_of_listed_metrics_lie_within_their_bounds_and_say_what_to_do(key: str) -> None:
    assert key in METRICS
    for band in BANDS[key]:
        assert set(re.findall(r"[a-z]+\.[a-z_.]*[a-z]", band.advice)) <= set(dotted_keys())
        assert band.advice.startswith(("raise ", "lower "))
        assert 0 < band.share < 1
        assert band.low < band.high
        assert bool(band.below) == math.isfinite(band.low)
        assert bool(band.above) == math.isfinite(band.high)
        if not band.base:
            assert METRICS[key].low <= band.high
            assert band.low <= METRICS[key].high
        assert not band.unless or band.unless in BANDS


def test_nan_is_no_record_and_an_infinite_value_is_outside() -> None:
    values = np.array([math.nan, *[1.0] * 10, math.nan, *[0.05] * 3, -math.inf, -math.inf])
    (found,) = examine({"policy/entropy": of(values)}, {}).symptoms
    assert (found.bound, found.side, found.outside, found.n, found.first) == (0.1, "below", 5, 15, 13)
    assert examine({"policy/entropy": of(np.full(50, math.nan))}, {}) == Health((), ())


@pytest.mark.parametrize(
    ("key", "values", "side"),
    [
        # a value on its bound is healthy
        ("policy/approxkl", [0.02] * 50, ""),
        ("policy/ratio", [0.9] * 25 + [1.1] * 25, ""),
        ("policy/entropy", [1.0] * LEAST + [0.1] * 25 + [2.0] * 25, ""),
        ("policy/grad_norm", [1.0] * 40 + [10.0] * 9, ""),
        ("policy/approxkl", [0.001] * 60 + [math.inf] * 40, "above"),
        ("policy/grad_norm", [0.5] * 20 + [math.inf] * 30, "above"),
        ("value/explained_variance", [-math.inf] * 20, "below"),
        # the start is the median of the first records: 0.29 is below a tenth of 3, not of 2
        ("policy/entropy", [3.0] * 6 + [0.0] * 4 + [0.29] * 30, "below"),
        ("policy/entropy", [2.0] * LEAST + [0.29] * 30, ""),
        ("policy/entropy", [5.0] + [1.0] * (LEAST - 1) + [0.4] * 30, ""),
        # spikes are multiples of the median of positive norms; that of all is 0
        ("policy/grad_norm", [0.0] * 600 + [1.0] * 390 + [9.0] * 20, ""),
        ("policy/grad_norm", [0.0] * 600 + [1.0] * 200 + [11.0] * 60 + [1.0] * 150, "above"),
    ],
)
def test_bounds_starts_and_spikes(key: str, values: list[float], side: str) -> None:
    assert conditions({key: of(values)}) == ({key: side} if side else {})


def test_a_trial_that_collapses_at_its_end_is_unhealthy() -> None:
    """25 of 128 records are 19.5 %, less than the band allows in all; the policy that is evaluated is the last."""
    (found,) = examine({"objective/kl_exact_per_token": of([0.1] * 103 + [5.0] * 25, 0, 16)}, {}).symptoms
    assert (found.outside, found.n, found.first, found.late) == (12, 12, 116 * 16, True)
    assert found.sentence.startswith(
        "objective/kl_exact_per_token above 0.5 in 100 % of the last 12 records, first at step 1,856. Likely cause:"
    )
    assert Health((found,), ()).words == "objective/kl_exact_per_token 100 % at the end"


def test_a_trial_that_diverged_is_never_ok() -> None:
    healthy = {"policy/entropy": of([1.0] * 30)}
    assert examine(healthy, {}).words == "ok"
    assert examine(healthy, {}, diverged=True).words == "diverged"
    assert examine({}, {}, diverged=True).words == "diverged"
    ill = {"policy/approxkl": of([0.03] * 30)}
    assert examine(ill, {}, diverged=True).words == "diverged, policy/approxkl 100 %"


@pytest.mark.parametrize("better", [[math.nan] * 20, [0.1] * (LEAST - 1), [0.1] * (LEAST - 1) + [math.nan] * 20])
def test_an_exact_kl_that_cannot_be_judged_hides_nothing(better: list[float]) -> None:
    far = {"objective/kl_per_token": of([1.0] * 20), "objective/kl_exact_per_token": of(better)}
    health = examine(far, {})
    assert [one.key for one in health.symptoms] == list(health.judged) == ["objective/kl_per_token"]
    far["objective/kl_exact_per_token"] = of([0.1] * LEAST)
    assert examine(far, {}).words == "ok"


def test_bands_hold_only_where_their_settings_do() -> None:
    stored = {"policy/approxkl": of([1.0] * 20), "policy/ratio": of([2.0] * 20)}
    assert set(conditions(stored, train__data="rollouts")) == {"policy/approxkl", "policy/ratio"}
    assert conditions(stored, train__data="pairs") == {}  # there they compare with the reference
    clipped = {"policy/pg_clipfrac": of([0.5] * 20)}
    assert conditions(clipped) == conditions(clipped, algorithm__ratio="token", algorithm__trust_region="clip")
    assert conditions(clipped, algorithm__ratio="sequence_mean", algorithm__trust_region="clip") == {}
    assert conditions(clipped, algorithm__ratio="token", algorithm__trust_region="kl_penalty") == {}


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


def test_a_trial_that_diverged_is_ill_without_its_series(tmp_path: Path) -> None:
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
