"""Best of n against every choice of n samples, one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from reports.statistics.best_of_n import best_of, win_rate

SIZE = 6
NUMBERS = np.random.default_rng(3)
PROXY, GOLD = NUMBERS.normal(size=(5, SIZE)), NUMBERS.integers(0, 4, (5, SIZE)).astype(float)


@pytest.mark.parametrize("n", range(1, SIZE + 1))
def test_the_mean_is_over_all_choices_and_the_opponents_are_outside_of_it(n: int) -> None:
    gold, wins = [], []
    for row in range(len(PROXY)):
        chosen = {c: max(c, key=lambda i, row=row: PROXY[row, i]) for c in combinations(range(SIZE), n)}
        gold.append(np.mean([GOLD[row, best] for best in chosen.values()]))
        apart = [GOLD[row, best] - GOLD[row, j] for c, best in chosen.items() for j in range(SIZE) if j not in c]
        wins.append(np.mean((np.sign(apart) + 1) / 2) if apart else np.nan)
    np.testing.assert_allclose(best_of(n, PROXY, GOLD), gold)
    if n < SIZE:
        np.testing.assert_allclose(win_rate(n, PROXY, GOLD), wins)


def test_equal_scores_share_a_place() -> None:
    proxy, gold = np.array([[1.0, 1.0, 0.0]]), np.array([[4.0, 2.0, 9.0]])
    # Choices {0, 1}, {0, 2}, {1, 2}: 4 or 2, 4, 2.
    assert best_of(2, proxy, gold).item() == pytest.approx((3 + 4 + 2) / 3)
    assert best_of(3, proxy, gold).item() == pytest.approx(3.0)


def test_a_cyclic_judge_decides_by_endings_between_equal_points() -> None:
    """Three equally sound samples whose endings beat each other in turn, then one of them with a fault."""
    ranking, sound, endings = np.array([[3.0, 2.0, 1.0]]), np.zeros((1, 3)), np.array([[0.0, 1.0, 2.0]])
    assert win_rate(1, ranking, sound, endings).tolist() == pytest.approx([0.5])
    # Of two the first of {0, 1} loses to 2, that of {0, 2} beats 1, that of {1, 2} loses to 0.
    assert win_rate(2, ranking, sound, endings).tolist() == pytest.approx([1 / 3])
    assert win_rate(2, ranking, sound).tolist() == pytest.approx([0.5])
    faulty = np.array([[0.0, 0.0, -2.0]])
    assert win_rate(2, ranking, faulty, endings).tolist() == pytest.approx([2 / 3])
