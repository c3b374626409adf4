"""Which of two answers is preferred, the policy's or one of the reference's: by the gold judge, by the training reward,
and how often the two prefer the same one."""

from __future__ import annotations

import numpy as np

from pipeline.stages.heldout import Array, shares

TIE = 1e-5
"""Proxy scores that differ by no more, in standard deviations of reference samples, are equal: the score of one text
varies by rounding with the batch in which it was computed."""


def preferences(
    gold: Array, reference_gold: Array, proxy: Array, reference_proxy: Array, lead: Array | float = 0.0
) -> dict[str, Array]:
    """The columns of ``prompts.parquet`` that compare the policy's answer with each of the reference's; each (n,).

    `win` and `tie` are the `shares` by the gold judge, `win_proxy` the first of them by the proxy; `agree` and
    `decided` are those of `agreement`. Scores of the policy (n,), of the reference (n, k). `lead` (n, k): what the
    endings of a cyclic judge add to the difference of the gold scores (`pipeline.rewards.cycle`).
    """
    reference_gold = reference_gold - lead
    level = np.where(np.abs(proxy[:, None] - reference_proxy) <= TIE, proxy[:, None], reference_proxy)
    win, tie = shares(gold, reference_gold)
    win_proxy, _ = shares(proxy, level)
    agree, decided = agreement(gold, reference_gold, proxy, level)
    return {"win": win, "tie": tie, "win_proxy": win_proxy, "agree": agree, "decided": decided}


def agreement(gold: Array, reference_gold: Array, proxy: Array, reference_proxy: Array) -> tuple[Array, Array]:
    """Of every prompt the pairs on which the proxy prefers the answer that the gold judge prefers, equal proxy scores
    counting half, and the pairs that the judge decides; each (n,).

    agree_i = sum_j [g_ij != 0] (1 + sign(g_ij) sign(p_ij)) / 2, decided_i = sum_j [g_ij != 0], where g_ij and p_ij are
    the policy's gold and proxy score less those of the reference's draw j. Scores of the policy (n,), of the reference
    (n, k).

    >>> gold, draws = np.array([2.0]), np.array([[1.0, 1.0, 3.0, 2.0]])
    >>> agreement(gold, draws, np.array([0.5]), np.array([[0.1, 0.5, 0.1, 0.9]]))
    (array([1.5]), array([3.]))
    """
    judged, scored = np.sign(gold[:, None] - reference_gold), np.sign(proxy[:, None] - reference_proxy)
    decided = judged != 0
    return (decided * (1 + judged * scored) / 2).sum(1), decided.sum(1).astype(np.float64)
