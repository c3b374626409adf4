"""The best that any policy can reach, against distributions whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from reports.findings import bound
from reports.findings.bound import LEAST_EFFECTIVE, best_win_rate, reference_scores, tilted
from reports.records.load import StudyRecords


def test_a_normal_reward_can_rise_by_the_root_of_twice_the_kl() -> None:
    path = tilted(np.random.default_rng(0).normal(3.0, 2.0, 100_000))
    inner = (path.kl > 0.01) & (path.effective > 1000)
    np.testing.assert_allclose(path.value[inner] - 3.0, 2.0 * np.sqrt(2 * path.kl[inner]), rtol=0.03)
    assert path.effective.min() >= LEAST_EFFECTIVE


def test_interval_counts_samples_of_one_prompt_as_one_piece_of_evidence() -> None:
    """Four samples of each of 500 prompts, half of whose variance lies between prompts; at 0.5 nats a standard normal
    score rises by 1."""
    rng, prompts = np.random.default_rng(5), np.repeat(np.arange(500), 4)
    inside: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(200):
        gold = rng.normal(size=500)[prompts] * 0.5**0.5 + rng.normal(size=2000) * 0.5**0.5
        for grouped in inside:
            path = tilted(gold, prompts if grouped else None)
            low, high = (float(np.interp(0.5, path.kl, side)) for side in (path.low, path.high))
            inside[grouped].append(low <= 1.0 <= high)
    assert 0.9 <= np.mean(inside[True]) <= 0.99
    assert np.mean(inside[False]) < 0.88


def test_two_outcomes_have_the_exact_answer() -> None:
    """A coin with the probability p of heads has log 2 + p log p + (1 - p) log(1 - p) nats to a fair one."""
    path = tilted(np.array([0.0, 1.0] * 500))
    p = path.value[path.value < 1 - 1e-9]
    np.testing.assert_allclose(path.kl[: len(p)], np.log(2) + p * np.log(p) + (1 - p) * np.log1p(-p), atol=1e-9)
    assert path.kl[-1] == pytest.approx(np.log(2))
    with pytest.raises(ValueError, match="differ"):
        tilted(np.ones(10))


def test_win_rate_of_no_policy_passes_the_bound() -> None:
    kl, rate = best_win_rate(20.0)
    assert (kl[0], rate[0]) == (0.0, 0.5)
    assert kl[-1] > 20.0
    assert (np.diff(kl) > 0).all()
    for n in (2, 4, 16, 256, 10_000):
        most = float(np.interp(np.log(n) - (n - 1) / n, kl, rate))  # best of n
        assert most - 0.01 < n / (n + 1) <= most + 1e-6
    uniform = tilted(np.random.default_rng(3).random(200_000))
    shown = uniform.effective > 2000
    np.testing.assert_allclose(uniform.value[shown], np.interp(uniform.kl[shown], kl, rate), atol=0.004)


def test_scores_are_read_from_the_store_once_each(records: StudyRecords) -> None:
    found = reference_scores(records)
    assert [len(part) for part in found] == [300 + 4000] * 2  # held-out pairs are among the samples
    assert len(set(found[1])) == 2000  # two answers to each prompt, and one more to the first 300
    assert found[0].mean() == pytest.approx(0.4, abs=0.05)


def test_scores_of_several_references_are_moved_to_their_common_mean(
    records: StudyRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {
        "a": pd.DataFrame({"prompt": ["p", "q"], "gold": [0.0, 2.0]}),
        "b": pd.DataFrame({"prompt": ["p", "r"], "gold": [10.0, 14.0]}),
    }
    monkeypatch.setattr(bound, "_scores", lambda _, where: tables.get(where))
    stages = tuple({"stage": "reward", "path": where} for where in ("a", "b", "a", "lost"))
    found = reference_scores(replace(records, upstream=stages))
    assert found[0].tolist() == [5.5, 7.5, 4.5, 8.5]
    assert found[1].tolist() == [0, 1, 0, 2], "answers to one prompt are one piece of evidence"
