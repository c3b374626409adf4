"""Laws of a training: how far they miss its end when they are fitted to its beginning."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.run.metrics import FEWEST_OF_LAW

Array = NDArray[np.float64]
FORETOLD = 0.1
"""Share of the updates, at the end, whose mean is foretold."""


def entropy_law(series: pd.DataFrame) -> dict[str, float]:
    """Return how far accuracy = a exp(H) + b misses, H the entropy in nats per token (Cui 2025, arXiv 2505.22617),
    fitted to the first fifth of a training with the metrics `series`.

    Empty with fewer than `FEWEST_OF_LAW` updates, without a change of the entropy, or where answers cannot be checked.
    """
    seen = series.reindex(columns=["objective/accuracy", "objective/entropy_per_token"]).dropna()
    right, entropy = seen.to_numpy(float).T
    return _missed("eval/entropy_law_miss", [np.exp(entropy), np.ones_like(entropy)], right, 0.2)


def reward_laws(series: pd.DataFrame, gold_at_0: float) -> dict[str, float]:
    """Return how far two laws of rewards miss, fitted to the first half of a training with the metrics `series`.

    With d the square root of the exact KL, in nats per response, and c = `gold_at_0`, that of the reference on held-out
    prompts: gold = c + d (a - b log d) (Gao 2022, arXiv 2210.10760, section 1), and proxy = a d (Bai 2022, arXiv
    2204.05862), whose zero is the reference. Empty as `entropy_law`, and where no policy sampled.
    """
    keys = ["objective/gold", "objective/scores", "objective/kl_exact_per_token", "objective/length"]
    gold, proxy, kl, length = series.reindex(columns=keys).dropna().to_numpy(float).T
    d = np.sqrt(kl * length)
    return {
        **_missed("eval/gold_law_miss", [d, d * np.log(np.maximum(d, 1e-9))], gold - gold_at_0, 0.5),
        **_missed("eval/proxy_law_miss", [d], proxy, 0.5),
    }


def _missed(metric: str, features: list[Array], seen: Array, fitted: float) -> dict[str, float]:
    """``|mean of the law - mean of what was seen|`` over the last updates; features and `seen` (U,).

    The law is the least-squares sum of the features, over the first `fitted` of the updates.
    """
    table, early, late = np.stack(features, axis=1), round(fitted * len(seen)), -round(FORETOLD * len(seen))
    if len(seen) < FEWEST_OF_LAW:
        return {}
    found, _, rank, _ = np.linalg.lstsq(table[:early], seen[:early])
    return {metric: float(abs((table @ found - seen)[late:].mean()))} if rank == len(features) else {}
