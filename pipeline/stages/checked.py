"""Columns of an evaluation whose answers can be checked: right and wrong, workings, forks, and several samples."""

from __future__ import annotations

from collections.abc import Iterable
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pipeline.rewards.base import Completions, Reward
from pipeline.rewards.verifier import elements_of, marks_of
from pipeline.training.judging import FORKS

MARK = "mark/"
"""Prefix of the columns of the reference's draws."""
PASSES = (1, 4, 16, 64)
"""Numbers of samples for which the probability of a right one is estimated."""


def marks_of_draws(judge: Reward, drawn: Completions) -> dict[str, Any]:
    """Columns of draws of the reference; none where answers cannot be checked."""
    marks = marks_of(judge, drawn, 1)
    return {f"{MARK}{name}": marks[name].numpy() for name in ("right", "worked") if name in marks}


def checked(judge: Reward, answers: Completions, entropy: Tensor) -> dict[str, Any]:
    """Columns of the policy's answers by the names in pipeline/run/metrics.csv; entropy (B, T) on the CPU, nats. None
    where answers cannot be checked."""
    marks = marks_of(judge, answers, entropy.shape[1])
    if not marks:
        return {}
    mask, lengths = answers.episodes.response_mask.cpu(), answers.episodes.lengths.cpu().double()
    right, worked, sound = (marks[name].double() for name in ("right", "worked", "sound"))
    forks = marks[FORKS] & mask
    columns = {
        "right": right,
        "wrong": 1 - right,
        "worked": worked,
        "right_by_working": right * worked,
        "right_by_sound_working": right * worked * sound,
        "length_right": lengths * right,
        "length_wrong": lengths * (1 - right),
        "entropy_forks": (entropy * forks).double().sum(1),
        "forks": forks.sum(1),
        "entropy_elsewhere": (entropy * (mask & ~forks)).double().sum(1),
        "no_forks": (mask & ~forks).sum(1),
    }
    asked = np.array([elements_of(prompt) for prompt in answers.prompts])
    for length in sorted(set(asked)):
        columns |= {f"asked/k{length}": asked == length, f"right/k{length}": right.numpy() * (asked == length)}
    return {name: np.asarray(column) for name, column in columns.items()}


def passed(judge: Reward, draws: Iterable[Completions]) -> dict[str, Any]:
    """Columns ``pass_at_<k>`` of prompts that were answered several times, for the k that do not exceed the number of
    draws."""
    rights = [marks_of(judge, one, 1)["right"].numpy() for one in draws]
    count = np.sum(rights, axis=0).astype(int)
    return {f"pass_at_{k}": pass_at(k, len(rights), count) for k in PASSES if k <= len(rights)}


def pass_at(k: int, n: int, right: NDArray[np.int_]) -> NDArray[np.float64]:
    """1 - C(n - c, k) / C(n, k): the probability that one of k samples is right, without bias, from the c of n samples
    that are right; c (B,). Chen 2021 (arXiv 2107.03374, section 2.1).

    >>> pass_at(1, 4, np.array([0, 1, 4])).tolist(), pass_at(4, 4, np.array([0, 1])).tolist()
    ([0.0, 0.25, 1.0], [0.0, 1.0])
    """
    return np.array([1 - comb(n - int(c), k) / comb(n, k) for c in right])
