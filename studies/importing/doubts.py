"""Series that contradict each other: what no single value shows, above all a unit other than the one that is
assumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from studies.importing.problems import Problem
from studies.importing.trajectory import Array, Trajectory

_KEPT = "drawn as logged, in doubt"
_NEGATIVE = -0.1
"""Mean KL in nats per sequence below which chance no longer explains the sign of the k1 estimator."""


def doubts(trajectory: Trajectory, name: str, settings: Mapping[str, Any]) -> list[Problem]:
    """One line per contradiction in a trial; `settings` are what the study says of its arm."""
    return [
        *_negative_kl(trajectory, name),
        *_penalty(trajectory, name, settings),
        *_reward(trajectory, name),
        *_lengths(trajectory, name),
    ]


def _negative_kl(trajectory: Trajectory, name: str) -> Iterator[Problem]:
    for ours in ("objective/kl", "objective/kl_per_token"):
        series = trajectory.series.get(ours)
        if series is None or (ours == "objective/kl_per_token" and "objective/kl" in trajectory.series):
            continue
        mean = float(series.values.mean())
        if mean < _NEGATIVE * (1.0 if ours == "objective/kl" else 0.05):
            why = (
                "negative on average, which no KL is: were completions sampled from the policy as it is (top-k,"
                " temperature, padding)?"
            )
            yield _doubt(name, series.key, ours, mean, why, int((series.values < 0).sum()), len(series.values))


def _penalty(trajectory: Trajectory, name: str, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """non_score_reward = -kl_coef x kl, where the arm's kl_coef is known or was logged."""
    stated = next((settings[key] for key in ("kl.beta", "ppo.kl_coef", "kl_coef") if key in settings), None)
    known = float(stated) if isinstance(stated, int | float) and not isinstance(stated, bool) else None
    three = _together(
        trajectory, "objective/kl", "objective/non_score_reward", *(["objective/kl_coef"] if known is None else [])
    )
    if three is None:
        return
    kl, penalty, beta = three if known is None else (*three, np.full(len(three[0]), known))
    large = (np.abs(kl) > 1e-3) & (beta > 0)
    if not large.any():
        return
    ratio = float(np.median(-penalty[large] / (beta * kl)[large]))
    if abs(ratio - 1) <= 0.05:
        return
    guess = (
        "KL is in bits"
        if abs(ratio - math.log(2)) < 0.03
        else "KL is per token"
        if ratio > 2
        else "one of the two has another unit"
    )
    coefficient = f"kl_coef {known:g}" if known is not None else "the logged kl_coef"
    why = f"the KL penalty is {ratio:.3g} x {coefficient} x KL: {guess}, or kl_coef was another"
    yield _doubt(
        name,
        trajectory.series["objective/kl"].key,
        "objective/kl",
        float(np.median(kl)),
        why,
        int(large.sum()),
        len(kl),
    )


def _reward(trajectory: Trajectory, name: str) -> Iterator[Problem]:
    """rlhf_reward = scores + non_score_reward."""
    three = _together(trajectory, "objective/rlhf_reward", "objective/scores", "objective/non_score_reward")
    if three is None:
        return
    total, scores, penalty = three
    off = np.abs(total - scores - penalty) > 1e-2 * (np.abs(total) + np.abs(scores) + np.abs(penalty)) + 1e-6
    if off.mean() > 0.1:
        why = "is not the score plus the KL penalty: one of the three has another unit or another name"
        series = trajectory.series["objective/rlhf_reward"]
        yield _doubt(
            name, series.key, "objective/rlhf_reward", float(total[np.argmax(off)]), why, int(off.sum()), len(off)
        )


def _lengths(trajectory: Trajectory, name: str) -> Iterator[Problem]:
    """What is summed over a sequence cannot be less than its mean over tokens."""
    for sequence, token in (("objective/kl", "objective/kl_per_token"), ("objective/entropy", "policy/entropy")):
        if sequence not in trajectory.series or token not in trajectory.series:
            continue
        summed, other = trajectory.series[sequence], trajectory.series[token]
        length = float(np.median(np.abs(summed.values))) / max(float(np.median(np.abs(other.values))), 1e-12)
        if length < 0.99 and float(np.median(np.abs(summed.values))) > 1e-3:
            why = (
                f"is {length:.2g} x {other.key}, though a sum over a sequence is no less than its mean over tokens:"
                " units are mixed up"
            )
            yield _doubt(
                name, summed.key, sequence, float(np.median(summed.values)), why, len(summed.values), len(summed.values)
            )


def _together(trajectory: Trajectory, *metrics: str) -> tuple[Array, ...] | None:
    """Values of these series at the steps that all of them have."""
    if any(metric not in trajectory.series for metric in metrics):
        return None
    shared = trajectory.series[metrics[0]].steps
    for metric in metrics[1:]:
        shared = np.intersect1d(shared, trajectory.series[metric].steps)
    if not len(shared):
        return None
    return tuple(
        series.values[np.searchsorted(series.steps, shared)]
        for series in (trajectory.series[metric] for metric in metrics)
    )


def _doubt(name: str, key: str, metric: str, value: float, why: str, count: int, of: int) -> Problem:
    return Problem("doubt", name, 0, key, metric, f"{value:.4g}", why, count, of, _KEPT)
