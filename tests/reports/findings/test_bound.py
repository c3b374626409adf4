"""The best that any policy can reach, against distributions whose answer is known."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from reports.findings.bound import LEAST_EFFECTIVE, best_of, best_win_rate, reference_scores, tilted
from reports.records.load import StudyRecords

if TYPE_CHECKING:
    from tests.reports.conftest import Built


def test_a_normal_reward_can_rise_by_the_root_of_twice_the_kl() -> None:
    path = tilted(np.random.default_rng(0).normal(3.0, 2.0, 100_000))
    inner = (path.kl > 0.01) & (path.effective > 1000)
    np.testing.assert_allclose(path.value[inner] - 3.0, 2.0 * np.sqrt(2 * path.kl[inner]), rtol=0.03)
    np.testing.assert_allclose(path.kl[inner], (2.0 * path.strength[inner]) ** 2 / 2, rtol=0.06)
    assert path.effective.min() >= LEAST_EFFECTIVE


@pytest.mark.parametrize("by_proxy", [False, True])
def test_interval_counts_samples_of_one_prompt_as_one_piece_of_evidence(by_proxy: bool) -> None:
    """Four samples of each of 500 prompts, half of whose variance lies between prompts."""
    rng = np.random.default_rng(5)
    prompts = np.repeat(np.arange(500), 4)
    inside: dict[bool, list[bool]] = {True: [], False: []}
    truth = 0.5 if by_proxy else 1.0  # at b = 1, what the tilt adds: the covariance with what weighs, or the variance
    for _ in range(200):
        gold = rng.normal(size=500)[prompts] * 0.5**0.5 + rng.normal(size=2000) * 0.5**0.5
        weighing = 0.5 * gold + 0.75**0.5 * rng.normal(size=500)[prompts] if by_proxy else gold
        for grouped in inside:
            path = tilted(weighing, gold if by_proxy else None, prompts if grouped else None)
            at, along = (1.0, path.strength) if by_proxy else (0.5, path.kl)
            low, high = (float(np.interp(at, along, side)) for side in (path.low, path.high))
            inside[grouped].append(low <= truth <= high)
    assert 0.9 <= np.mean(inside[True]) <= 0.99
    assert np.mean(inside[False]) < 0.88


def test_two_outcomes_have_the_exact_answer() -> None:
    """A coin under the reference: the tilt by b has P = e^b / (1 + e^b)."""
    path = tilted(np.array([0.0, 1.0] * 500))
    p = 1 / (1 + np.exp(-path.strength))
    np.testing.assert_allclose(path.value, p)
    mixed = p < 1 - 1e-9
    q = p[mixed]
    np.testing.assert_allclose(path.kl[mixed], np.log(2) + q * np.log(q) + (1 - q) * np.log1p(-q), atol=1e-9)
    assert path.kl[-1] == pytest.approx(np.log(2))


def test_no_scores_that_differ_is_an_error() -> None:
    for scores in (np.array([]), np.ones(10)):
        with pytest.raises(ValueError, match="differ"):
            tilted(scores)


def test_win_rate_of_no_policy_passes_the_bound() -> None:
    kl, rate = best_win_rate(20.0)
    assert kl[0] == 0.0
    assert kl[-1] > 20.0
    assert (np.diff(kl) > 0).all()
    for n in (2, 4, 16, 256, 10_000):
        at, reached = best_of(n)
        assert reached <= np.interp(at, kl, rate) + 1e-6
        assert reached == pytest.approx(np.interp(at, kl, rate), abs=0.01)
    uniform = tilted(np.random.default_rng(3).random(200_000))
    shown = uniform.effective > 2000
    np.testing.assert_allclose(uniform.value[shown], np.interp(uniform.kl[shown], kl, rate), atol=0.004)


def test_best_of_n_of_samples() -> None:
    scores = np.random.default_rng(4).random(100_000)
    assert best_of(3, scores)[1] == pytest.approx(0.75, abs=0.005)
    assert best_of(1, scores)[1] == pytest.approx(scores.mean())


def test_scores_are_read_from_the_store_once_each(records: StudyRecords, demo: Built) -> None:
    found = reference_scores(records)
    assert found is not None
    assert len(found.gold) == 300 + 4000
    assert len(found.proxy) == len(found.proxy_gold) == 1300
    assert (len(found.gold_prompts), len(found.proxy_prompts)) == (4300, 1300)
    assert len(set(found.gold_prompts)) == 2000  # two answers to each prompt, and one more to the first 300
    assert len(set(found.proxy_prompts)) == 300 + 500
    assert np.corrcoef(found.proxy, found.proxy_gold)[0, 1] == pytest.approx(0.8, abs=0.05)


SUMMED = """
import numpy as np
from reports.findings.bound import best_of, tilted
rng = np.random.default_rng(0)
weighing, shown = rng.normal(size=(2, 20_000))
print([one.tobytes().hex() for one in vars(tilted(weighing, shown)).values()], best_of(4, weighing))
"""


def test_a_bound_has_the_same_bytes_however_many_threads_sum_it() -> None:
    """A study draws its report with other numbers of threads than the command `report` does; sums of 20,000 terms would
    tell."""
    places = {"PYTHONPATH": os.pathsep.join(sys.path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", SUMMED],
            env=os.environ | places | {"OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert said[0] == said[1] != b""
