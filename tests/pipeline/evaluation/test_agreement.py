"""Win rates and preference accuracy: golden values by hand, ties, and what does not change them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.evaluation.heldout import TIE, agreement, preferences
from pipeline.intervals import grouped
from pipeline.stages.evaluate import summarise

GOLD, PROXY = np.array([2.0, 0.0, 5.0]), np.array([0.5, -1.0, 0.0])
GOLD_DRAWS = np.array([[1.0, 3.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [9.0, 9.0, 1.0, 5.0]])
PROXY_DRAWS = np.array([[0.0, 0.0, 9.0, 0.5], [0.0, -2.0, -1.0, -1.0], [1.0, -1.0, 1.0, 0.0]])
"""First prompt: right, wrong, undecided by the judge, equal by the proxy. Second: none decided. Third: right, wrong,
wrong, undecided."""


def columns() -> dict[str, np.ndarray]:
    return preferences(GOLD, GOLD_DRAWS, PROXY, PROXY_DRAWS)


def test_preferences_by_hand() -> None:
    found = {key: values.tolist() for key, values in columns().items()}
    assert found == {
        "win": [0.625, 0.5, 0.375],
        "tie": [0.25, 1.0, 0.25],
        "win_proxy": [0.625, 0.5, 0.375],
        "agree": [1.5, 0.0, 1.0],
        "decided": [3.0, 0.0, 3.0],
    }


def test_the_proxy_that_is_the_judge_agrees_always_and_its_opposite_never() -> None:
    _, decided = agreement(GOLD, GOLD_DRAWS, GOLD, GOLD_DRAWS)
    assert agreement(GOLD, GOLD_DRAWS, GOLD, GOLD_DRAWS)[0].tolist() == decided.tolist() == [3.0, 0.0, 3.0]
    assert agreement(GOLD, GOLD_DRAWS, -GOLD, -GOLD_DRAWS)[0].tolist() == [0.0, 0.0, 0.0]
    constant = np.zeros_like(GOLD), np.zeros_like(GOLD_DRAWS)
    assert agreement(GOLD, GOLD_DRAWS, *constant)[0].tolist() == (decided / 2).tolist()


def test_scores_apart_by_rounding_are_equal() -> None:
    """The score of one text varies with the batch that it is scored in; a comparison must not."""
    equal = preferences(np.zeros(1), np.ones((1, 2)), np.zeros(1), np.array([[-TIE / 2, -TIE / 3]]))
    assert (equal["win_proxy"].item(), equal["agree"].item()) == (0.5, 1.0)
    apart = preferences(np.zeros(1), np.ones((1, 2)), np.zeros(1), np.array([[2 * TIE, 3 * TIE]]))
    assert (apart["win_proxy"].item(), apart["agree"].item()) == (0.0, 2.0)


def table(found: dict[str, np.ndarray]) -> pd.DataFrame:
    """Return a table of three prompts; the other columns of an evaluation are arbitrary."""
    rest = ("policy_gold", "reference_gold", "policy_proxy", "reference_proxy", "kl", "entropy", "reference_nats")
    ones = dict.fromkeys((*rest, "policy_length", "policy_eos"), 1.0)
    return pd.DataFrame({**found, **ones, "policy_completion": "a b"})


def test_the_summary_is_a_ratio_of_sums_and_has_the_interval_of_both_win_rates() -> None:
    found = summarise(table(columns() | {"win_proxy": np.array([1.0, 0.75, 0.5])}), 4)
    assert found["eval/preference_accuracy"] == pytest.approx(2.5 / 6)
    assert (found["eval/win_rate"], found["eval/win_rate_proxy"]) == (0.5, 0.75)
    for key in ("eval/win_rate", "eval/win_rate_proxy"):
        assert 0 < found[f"{key}_low"] < found[key] < found[f"{key}_high"] < 1
    stated = [found[f"eval/win_rate_proxy{end}"] for end in ("", "_low", "_high")]
    assert stated == pytest.approx(grouped([4, 3, 2], [4, 4, 4])), "four comparisons at each prompt"


def test_without_a_decided_pair_there_is_no_key_rather_than_a_nan() -> None:
    zeros = np.zeros(3)
    found = summarise(table(columns() | {"agree": zeros, "decided": zeros}), 4)
    assert "eval/preference_accuracy" not in found
    assert np.isfinite(list(found.values())).all()
