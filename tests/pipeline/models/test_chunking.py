"""How many rankings are in memory at once."""

from __future__ import annotations

import pytest

from pipeline.models.chunking import CARD_POSITIONS, CPU_POSITIONS, ranking_rows


@pytest.mark.parametrize(("on_card", "bound"), [(True, CARD_POSITIONS), (False, CPU_POSITIONS)])
@pytest.mark.parametrize("ranked", [2, 4, 16])
def test_the_answers_of_all_rankings_at_once_stay_within_the_bound(on_card: bool, bound: int, ranked: int) -> None:
    rows = ranking_rows(10_000, ranked, 32, on_card)
    assert rows * ranked * 32 == bound
    assert ranking_rows(3, ranked, 32, on_card) == 3
    assert ranking_rows(10_000, ranked, bound, on_card) == 1
