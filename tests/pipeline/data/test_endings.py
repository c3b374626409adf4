"""The cyclic judge: which ending a review has, and which ending beats which."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from pipeline.data.reviews import generate
from pipeline.data.semantics import ENDINGS, circle, ending, judge


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        ("We saw it at home.", " The plot was bad. I loved it.", "strong opinion"),
        ("We saw it at home.", " I loved it. The plot was bad.", "mild opinion"),  # the last clause decides
        ("", "I hated it.", "strong opinion"),  # for or against
        ("", "I really liked it.", "strong opinion"),  # 1.5 points
        ("", "I did not hate it.", "mild opinion"),  # 0.75 points
        ("", "The plot was absolutely superb.", "strong opinion"),
        ("", "I would recommend it to anyone.", "advice"),
        ("", "You must see it.", "advice"),  # 1.5 points, but advice
        ("", "You can skip it.", "advice"),
        ("", "I loved it. You can skip it.", "advice"),
        ("", "You can skip it. I loved it.", "strong opinion"),
        ("", "I loved it. We saw it at home.", "mild opinion"),  # a neutral remark
        ("", "I loved it. You must blah.", "strong opinion"),  # a faulty clause is passed over
        ("", "I loved it. You must see", "strong opinion"),
        ("I loved it.", "", "mild opinion"),  # what the prompt finished does not count
        ("I loved", " it.", "strong opinion"),  # what it left open does
        ("", "", "mild opinion"),
    ],
)
def test_the_last_sound_clause_that_counts_is_the_ending(prompt: str, completion: str, expected: str) -> None:
    assert ENDINGS[ending(judge(prompt, completion))] == expected


def test_each_ending_beats_the_next_and_the_last_beats_the_first() -> None:
    grid = [[circle(a, b) for b in range(3)] for a in range(3)]
    assert grid == [[0, 1, -1], [-1, 0, 1], [1, -1, 0]]
    numbers = np.arange(3.0)
    assert circle(numbers[:, None], numbers[None, :]).tolist() == grid
    ends = torch.arange(3.0)
    assert circle(ends[:, None], ends[None, :]).tolist() == grid
    assert np.isnan(circle(np.nan, 1.0))


def test_no_ending_is_rare_or_tells_the_sentiment() -> None:
    reviews = generate(3000, seed=7)
    share = Counter((review.sentiment, ending(judge("", review.text))) for review in reviews)
    for place in range(3):
        assert sum(count for (_, at), count in share.items() if at == place) == pytest.approx(1000, abs=250)
        assert share["positive", place] == pytest.approx(share["negative", place], abs=100)
