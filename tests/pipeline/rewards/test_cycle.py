"""The cyclic judge as a judge, and how any judge decides a pair."""

from __future__ import annotations

import pytest
import tinynets
import torch

from pipeline.rewards import collection
from pipeline.rewards.base import Completions
from pipeline.rewards.collection import judged, judged_pairs, spread
from pipeline.rewards.grammar import CycleJudge
from pipeline.rewards.learned_settings import LearnedSettings
from pipeline.rewards.settings import RewardConfig

STRONG, MILD, ADVICE = "I loved it.", "I liked it.", "You must see it."
FAULTY = "I loved loved it."

FEW = RewardConfig(learned=LearnedSettings(pairs=12, heldout_pairs=4, label_noise=0.0))


def completions(*texts: str) -> Completions:
    return tinynets.completions(*(("We saw it.", text) for text in texts))


def gap(first: str, second: str) -> float:
    return collection.gap(judged(CycleJudge(), completions(first), completions(second))).item()


def test_sound_texts_go_in_a_circle_and_faults_always_lose() -> None:
    assert [gap(STRONG, MILD), gap(MILD, ADVICE), gap(ADVICE, STRONG)] == [1, 1, 1]
    assert [gap(MILD, STRONG), gap(ADVICE, MILD), gap(STRONG, ADVICE)] == [-1, -1, -1]
    assert gap(STRONG, "The plot was superb.") == 0
    for text in (STRONG, MILD, ADVICE):
        assert gap(text, FAULTY) > 0 > gap(FAULTY, text)


def test_the_scale_of_a_judge() -> None:
    names = ("gold_first", "gold_second", "ending_first", "ending_second")
    points = [torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2.0, 2.0, 2.0])]
    assert spread(dict(zip(names, points, strict=False))) == float(torch.cat(points).std(correction=0))
    # Gaps 1, -1 and 2: the mean square is 2, half of it 1.
    columns = [torch.tensor(column) for column in ([0.0, 0.0, 2.0], [0.0] * 3, [0.0, 1.0, 0.0], [1.0, 0.0, 0.0])]
    assert spread(dict(zip(names, columns, strict=True))) == pytest.approx(1.0)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(50_000, generator=generator) for _ in range(2)]
    with_endings, without = (
        spread(dict(zip(names, (*drawn, *endings), strict=False))) for endings in ([0 * drawn[0]] * 2, [])
    )
    assert with_endings == pytest.approx(without, rel=0.02)


def test_labels_follow_the_circle() -> None:
    texts = {"first": [STRONG, MILD, ADVICE, STRONG], "second": [MILD, ADVICE, STRONG, FAULTY]}

    def answers(rows: torch.Tensor, label: str, seed: int) -> Completions:
        return completions(*[texts[label][row % 4] for row in range(len(rows))])

    pairs = judged_pairs(answers, CycleJudge(), 16, FEW)
    assert pairs.first_wins.all()
    table = pairs.table()
    assert table["ending_first"].tolist()[:4] == [0.0, 1.0, 2.0, 0.0]
    assert table["ending_second"].tolist()[:3] == [1.0, 2.0, 0.0]
    texts = {"first": texts["second"], "second": texts["first"]}
    assert not judged_pairs(answers, CycleJudge(), 16, FEW).first_wins.any()
