from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tinynets import completions
from torch import Tensor

from pipeline.config.networks import ModelConfig
from pipeline.errors import UserError
from pipeline.models.loading import scratch_model
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes, response_mask
from pipeline.rewards import collection
from pipeline.rewards.base import Calibrated, Completions, as_scores, calibration
from pipeline.rewards.collection import Ranked, accuracy, judged, judged_pairs, prefer, split_prompts, spread
from pipeline.rewards.grammar import CycleJudge
from pipeline.rewards.learned import LearnedReward, PairwiseModel, RewardModel, train_reward_model
from pipeline.rewards.settings import LearnedSettings, RewardConfig


def test_calibration_gives_mean_0_and_std_1_on_the_reference() -> None:
    def raw(batch: Completions) -> Tensor:
        return as_scores([float(len(text)) for text in batch.texts])

    batch = completions(("", "a"), ("", "bbb"), ("", "ccccccccc"))
    calibrated = Calibrated(raw, *calibration(raw(batch)))(batch)
    assert calibrated.mean().item() == pytest.approx(0, abs=1e-6)
    assert calibrated.std(correction=0).item() == pytest.approx(1)
    with pytest.raises(UserError, match="same reward"):
        calibration(torch.ones(5))


def test_the_noisy_annotator() -> None:
    gap = torch.tensor([1.0, 1.0, -1.0, 0.0, 0.0])
    noise = torch.tensor([0.73, 0.74, 0.26, 0.49, 0.51])
    assert prefer(gap, torch.zeros(5), 1.0, noise).tolist() == [True, False, True, True, False]
    assert prefer(gap, torch.zeros(5), 0.0, noise).tolist() == [True, True, False, True, False]
    many = torch.linspace(0, 1, 10_001)[:-1]
    wins = prefer(torch.full((10_000,), 2.0), torch.zeros(10_000), 2.0, many)
    assert wins.float().mean().item() == pytest.approx(0.7311, abs=1e-3)


def test_accuracy_leaves_ties_out_where_there_is_nothing_to_agree_on() -> None:
    margin, gap = torch.tensor([1.0, -1.0, 1.0]), torch.tensor([2.0, 2.0, 0.0])
    found = accuracy(margin, gap, torch.tensor([True, True, False]), ["a", "b", "c"])
    names = ("accuracy_gold", "accuracy", "label_agreement", "heldout_pairs_differing")
    assert [found[name] for name in names] == pytest.approx([0.5, 1 / 3, 1.0, 2])


def test_pairs_of_one_prompt_count_as_one_piece_of_evidence() -> None:
    right = torch.tensor([True, False] * 100)
    margin, gap = right.double() * 2 - 1, torch.ones(200)
    apart = accuracy(margin, gap, gap > 0, [f"prompt {i}" for i in range(200)])
    together = accuracy(margin, gap, gap > 0, [f"prompt {i % 20}" for i in range(200)])
    assert (apart["heldout_prompts"], together["heldout_prompts"]) == (200, 20)
    assert apart["accuracy"] == together["accuracy"] == 0.5
    width = [one["accuracy_high"] - one["accuracy_low"] for one in (apart, together)]
    assert width[1] > 2.5 * width[0]
    nothing = accuracy(margin, 0 * gap, gap > 0, ["a"] * 200)
    assert [nothing[f"accuracy_gold{end}"] for end in ("", "_low", "_high")] == [0.5, 0.0, 1.0]


@pytest.mark.parametrize(("prompts", "pairs", "heldout"), [(256, 256, 64), (2, 8, 8), (3, 1, 100), (100, 10, 1)])
def test_heldout_pairs_have_prompts_of_their_own(prompts: int, pairs: int, heldout: int) -> None:
    rows = split_prompts(prompts, RewardConfig(learned=LearnedSettings(pairs=pairs, heldout_pairs=heldout))).tolist()
    train, kept = set(rows[:pairs]), set(rows[pairs:])
    assert len(rows) == pairs + heldout
    assert not train & kept
    assert {0} <= train | kept <= set(range(prompts))


SIZES = ModelConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32)


def new_model() -> RewardModel:
    return RewardModel.new(scratch_model(SIZES, 20, 0, 1, 32, seed=0), RewardConfig(), torch.device("cpu"))


def test_a_reward_model_learns_an_order_and_survives_the_disk(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    model = new_model()
    a, b = (torch.randint(2, 20, (256, 8), generator=generator) for _ in range(2))
    better = (a[:, 2:] > 10).sum(1) > (b[:, 2:] > 10).sum(1)
    ones = torch.ones(256, 6, dtype=torch.bool)
    first, second = (Episodes(tokens, ones[:, :2], ones, ones[:, 0]) for tokens in (a, b))
    told: list[int] = []
    train_reward_model(
        model,
        Ranked.of_pairs(first, second, better),
        RewardConfig(learned=LearnedSettings(epochs=12, batch_size=32, lr=3e-3)),
        lambda done, total, loss: told.append(done),
    )
    assert told == list(range(1, 12 * 8 + 1))
    with torch.no_grad():
        agreement = ((model(first) > model(second)) == better).float().mean()
    assert agreement > 0.8
    model.save(tmp_path)
    again = LearnedReward(RewardModel.load(tmp_path, torch.device("cpu")), room=Room("rows", 100))
    batch = Completions(first, [""] * 256, [""] * 256)
    assert torch.allclose(again(batch), model(first).detach(), atol=1e-5)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {".safetensors", ".json"}


def test_every_row_gets_the_score_it_has_alone() -> None:
    """Scores keep the order of the rows, whatever was read together, and are those of one unpadded text."""
    model = new_model()
    generator = torch.Generator().manual_seed(0)
    prompts, lengths = (torch.randint(1, 6, (40,), generator=generator) for _ in range(2))
    tokens = torch.randint(2, 20, (40, 10), generator=generator)
    batch = Episodes(
        tokens, torch.arange(5) >= (5 - prompts)[:, None], response_mask(lengths, 5), torch.ones(40, dtype=torch.bool)
    )
    scores = LearnedReward(model, room=Room("rows", 25))(Completions(batch, [""] * 40, [""] * 40))
    for row, (prompt, length) in enumerate(zip(prompts.tolist(), lengths.tolist(), strict=True)):
        hidden = model.lm.model(tokens[row : row + 1, 5 - prompt : 5 + length]).last_hidden_state[0, -1]
        assert scores[row].item() == pytest.approx(model.head(hidden).item(), abs=1e-5)


def test_the_logit_the_losses_and_a_gradient_by_hand() -> None:
    a, b = torch.tensor([1.0, 2.0, 3.0, 5.0, 7.0]), torch.tensor([0.5, 1.0, -1.0, 2.0, 4.0])
    # 1 - 0.5 + (2 * -1 - 3 * 1) + (5 * 4 - 7 * 2)
    assert PairwiseModel.margin(a, b).item() == pytest.approx(0.5 - 5 + 6)
    assert PairwiseModel.margin(b, a).item() == pytest.approx(-1.5), "both orders add up to a probability of 1"
    assert RewardModel.loss(torch.tensor([2.0]), torch.tensor([0.0])).item() == pytest.approx(0.126928)
    a = torch.tensor([[0.2, 1.0, 0.5]], requires_grad=True)
    b = torch.tensor([[0.1, -1.0, 2.0]], requires_grad=True)
    loss = PairwiseModel.loss(a, b)
    # logit = 0.1 + 1 * 2 - 0.5 * -1 = 2.6; loss = log(1 + exp(-2.6)); its slope -1 / (1 + exp(2.6))
    assert loss.item() == pytest.approx(0.0716442, abs=1e-6)
    loss.backward()
    slope = -0.0691384
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad[0].tolist() == pytest.approx([slope, slope * 2.0, slope * 1.0], abs=1e-6)
    assert b.grad[0].tolist() == pytest.approx([-slope, slope * -0.5, slope * 1.0], abs=1e-6)


def test_the_mean_probability_of_beating_k_opponents() -> None:
    mine = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    theirs = torch.tensor([[[0.0, 5.0, 5.0], [3.0, 1.0, 1.0]], [[0.0, 0.0, 2.0], [0.0, 0.0, -2.0]]])
    expected = [(0.7310586 + 0.1192029) / 2, 0.5]  # σ(1) and σ(-2); σ(2) and σ(-2)
    assert PairwiseModel.against(mine, theirs).tolist() == pytest.approx(expected, abs=1e-6)


STRONG, MILD, ADVICE = "I loved it.", "I liked it.", "You must see it."
FAULTY = "I loved loved it."

FEW = RewardConfig(learned=LearnedSettings(pairs=12, heldout_pairs=4, label_noise=0.0))


def completions_of(*texts: str) -> Completions:
    return completions(*(("We saw it.", text) for text in texts))


def gap(first: str, second: str) -> float:
    return collection.gap(judged(CycleJudge(), completions_of(first), completions_of(second))).item()


def test_sound_texts_go_in_a_circle_and_faults_always_lose() -> None:
    assert [gap(STRONG, MILD), gap(MILD, ADVICE), gap(ADVICE, STRONG)] == [1, 1, 1]
    assert [gap(MILD, STRONG), gap(ADVICE, MILD), gap(STRONG, ADVICE)] == [-1, -1, -1]
    assert gap(STRONG, "The plot was superb.") == 0
    assert all(gap(text, FAULTY) > 0 > gap(FAULTY, text) for text in (STRONG, MILD, ADVICE))


def test_the_scale_of_a_judge() -> None:
    names = ("gold_first", "gold_second", "ending_first", "ending_second")
    points = [torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2.0, 2.0, 2.0])]
    assert spread(dict(zip(names, points, strict=False))) == float(torch.cat(points).std(correction=0))
    # Gaps 1, -1 and 2: the mean square is 2, half of it 1.
    columns = [torch.tensor(column) for column in ([0.0, 0.0, 2.0], [0.0] * 3, [0.0, 1.0, 0.0], [1.0, 0.0, 0.0])]
    assert spread(dict(zip(names, columns, strict=True))) == pytest.approx(1.0)


def test_labels_follow_the_circle() -> None:
    texts = {"first": [STRONG, MILD, ADVICE, STRONG], "second": [MILD, ADVICE, STRONG, FAULTY]}

    def answers(rows: torch.Tensor, label: str, seed: int) -> Completions:
        return completions_of(*[texts[label][row % 4] for row in range(len(rows))])

    pairs = judged_pairs(answers, CycleJudge(), 16, FEW)
    assert pairs.first_wins.all()
    table = pairs.table()
    assert table["ending_first"].tolist()[:4] == [0.0, 1.0, 2.0, 0.0]
    assert table["ending_second"].tolist()[:3] == [1.0, 2.0, 0.0]
    texts = {"first": texts["second"], "second": texts["first"]}
    assert not judged_pairs(answers, CycleJudge(), 16, FEW).first_wins.any()
