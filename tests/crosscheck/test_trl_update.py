"""What TRL's own `train` computes on given responses, against our functions on the same tensors; differences by design
are named."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from crosscheck.trial import BATCH, FULL, RAGGED, WIDTH, Case, run_trl, settings
from torch import Tensor

from pipeline.algorithms.mathematics.advantages import gae
from pipeline.algorithms.mathematics.kl import k1, k2, k3
from pipeline.algorithms.mathematics.losses import policy_loss, value_loss
from pipeline.algorithms.mathematics.masking import masked_mean, masked_whiten
from pipeline.algorithms.mathematics.shaping import non_score_reward, token_rewards

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Every response has the full length and no EOS: here the two conventions coincide."""
    return run_trl(FULL, tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Responses of every length, most of them ended by EOS."""
    return run_trl(RAGGED, tmp_path_factory.mktemp("ragged"))


@pytest.fixture(params=["full", "ragged"])
def either(request: pytest.FixtureRequest) -> Case:
    case: Case = request.getfixturevalue(request.param)
    return case


def mini_batches(case: Case) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
    """Each of TRL's steps with its masks: valid tokens, and one slot more."""
    for step in case.seen.steps:
        rows = step["mb_query_responses"]
        at = [int((case.seen.update["query_responses"] == row).all(1).nonzero()[0, 0]) for row in rows]
        yield step, case.mask[at], case.one_more[at]


def unwhitened(case: Case) -> Tensor:
    """TRL's advantages before whitening, from what it still holds when it logs."""
    return case.seen.update["returns"] - case.seen.update["values"]


def test_masks(either: Case) -> None:
    torch.testing.assert_close(~either.seen.update["padding_mask"], either.mask)
    torch.testing.assert_close(~either.seen.update["padding_mask_p1"], either.one_more)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl(estimator: str, tmp_path: Path) -> None:
    case = run_trl(RAGGED, tmp_path, kl_estimator=estimator)
    seen, mask = case.seen.update, case.mask
    d = torch.where(mask, seen["logprobs"] - seen["ref_logprobs"], torch.zeros(()))
    assert d.abs().max() > 0.01
    torch.testing.assert_close({"k1": k1, "k3": k3}[estimator](d), seen["kl"], **CLOSE)
    if estimator == "k1":
        ours = non_score_reward(seen["logprobs"], seen["ref_logprobs"], mask, case.cfg.kl.beta)
        torch.testing.assert_close(ours, seen["non_score_reward"], **CLOSE)
        assert float(d.sum(1).mean()) == pytest.approx(seen["metrics"]["objective/kl"], rel=1e-4)


def test_token_rewards_of_full_responses(full: Case) -> None:
    torch.testing.assert_close(
        token_rewards(full.scores, full.seen.update["non_score_reward"], full.mask), full.seen.update["rewards"]
    )


def test_the_score_stands_on_eos_here_and_on_the_slot_after_it_there(ragged: Case) -> None:
    seen, lengths = ragged.seen.update, ragged.episodes.lengths
    ours = token_rewards(ragged.scores, seen["non_score_reward"], ragged.mask)
    moved = seen["rewards"] - ours
    for row, length in enumerate(lengths.tolist()):
        expected = torch.zeros(WIDTH)
        if length < WIDTH:
            expected[length - 1], expected[length] = -ragged.scores[row], ragged.scores[row]
        torch.testing.assert_close(moved[row], expected, atol=1e-6, rtol=0)
    # Their mask with one slot more, given to our function, is their placing.
    torch.testing.assert_close(token_rewards(ragged.scores, seen["non_score_reward"], ragged.one_more), seen["rewards"])


def test_gae_of_full_responses(full: Case) -> None:
    seen = full.seen.update
    advantages, returns = gae(
        seen["rewards"], seen["values"], full.mask, full.cfg.algorithm.gamma, full.cfg.algorithm.gae_lambda
    )
    torch.testing.assert_close(returns, seen["returns"], **CLOSE)
    torch.testing.assert_close(advantages, unwhitened(full), **CLOSE)


def test_gae_over_the_slot_after_eos_is_trls(ragged: Case) -> None:
    seen, mask = ragged.seen.update, ragged.one_more
    advantages, returns = gae(
        seen["rewards"], seen["values"], mask, ragged.cfg.algorithm.gamma, ragged.cfg.algorithm.gae_lambda
    )
    torch.testing.assert_close(returns[mask], seen["returns"][mask], **CLOSE)
    torch.testing.assert_close(advantages[mask], unwhitened(ragged)[mask], **CLOSE)


def test_the_value_after_eos_is_zero_here_and_the_critics_there(ragged: Case) -> None:
    """The advantage of EOS: `score - V` here; there the critic's opinion of what follows the end comes between."""
    seen, cfg = ragged.seen.update, ragged.cfg
    rewards = token_rewards(ragged.scores, seen["non_score_reward"], ragged.mask)
    ours, _ = gae(rewards, seen["values"], ragged.mask, cfg.algorithm.gamma, cfg.algorithm.gae_lambda)
    theirs, values, penalty = unwhitened(ragged), seen["values"], seen["non_score_reward"]
    for row, length in enumerate(ragged.episodes.lengths.tolist()):
        if length < WIDTH:
            score, last, after = ragged.scores[row], length - 1, values[row, length]
            assert abs(after) > 1e-3
            here = score + penalty[row, last] - values[row, last]
            there = (
                penalty[row, last]
                + cfg.algorithm.gamma * after
                - values[row, last]
                + cfg.algorithm.gamma * cfg.algorithm.gae_lambda * (score - after)
            )
            assert ours[row, last] == pytest.approx(float(here), rel=1e-4, abs=1e-6)
            assert theirs[row, last] == pytest.approx(float(there), rel=1e-4, abs=1e-6)


def test_whitened_advantages(either: Case) -> None:
    n = int(either.mask.sum())
    ours = masked_whiten(unwhitened(either), either.mask)
    torch.testing.assert_close(ours * math.sqrt((n - 1) / n), either.seen.update["advantages"], **CLOSE)


def test_policy_loss_and_clip_fraction_of_every_mini_batch(either: Case) -> None:
    fractions = []
    for step, mask, _ in mini_batches(either):
        new, old, advantages = (step[name][mask] for name in ("new_logprobs", "mb_logprobs", "mb_advantage"))
        loss, clipped = policy_loss(new, old, advantages, either.cfg.algorithm.cliprange)[:2]
        assert float(loss.mean()) == pytest.approx(float(step["pg_loss"]), rel=1e-5, abs=1e-7)
        fractions.append(float(clipped.float().mean()))
    assert len(fractions) == either.cfg.train.steps
    assert fractions[0] == 0 < max(fractions)
    assert sum(fractions) / len(fractions) == pytest.approx(
        either.seen.update["metrics"]["policy/clipfrac_avg"], rel=1e-5
    )


def test_value_loss_and_clip_fraction_of_every_mini_batch(either: Case) -> None:
    fractions = []
    for step, _, mask in mini_batches(either):
        vpred, values, returns = (step[name][mask] for name in ("vpred", "mb_values", "mb_return"))
        loss, clipped = value_loss(vpred, values, returns, either.cfg.critic.cliprange)
        assert float(loss.mean()) == pytest.approx(float(step["vf_loss"]), rel=1e-5)
        fractions.append(float(clipped.float().mean()))
    assert max(fractions) > 0
    assert sum(fractions) / len(fractions) == pytest.approx(either.seen.update["metrics"]["val/clipfrac_avg"], rel=1e-5)


def test_trl_trains_the_value_of_the_slot_after_eos_as_well(ragged: Case) -> None:
    for step, mask, one_more in mini_batches(ragged):
        squares, _ = value_loss(step["vpred"], step["mb_values"], step["mb_return"], ragged.cfg.critic.cliprange)
        after = one_more & ~mask
        assert after.any()
        ours = masked_mean(squares, mask)
        theirs = (ours * mask.sum() + squares[after].sum()) / one_more.sum()
        assert float(theirs) == pytest.approx(float(step["vf_loss"]), rel=1e-5)
        assert float(ours) != pytest.approx(float(step["vf_loss"]), rel=1e-2)


def test_trl_averages_approxkl_and_ratio_over_padding_too(ragged: Case) -> None:
    """Padding has log-ratio 0 there, so approxkl shrinks by the fraction of valid tokens, and the ratio goes to 1."""
    approxkl, ratio, masked = [], [], []
    for step, mask, _ in mini_batches(ragged):
        log_ratio = step["new_logprobs"] - step["mb_logprobs"]
        valid = float(mask.float().mean())
        masked.append(float(masked_mean(k2(log_ratio), mask)))
        approxkl.append(masked[-1] * valid)
        ratio.append(float(masked_mean(log_ratio.exp(), mask)) * valid + (1 - valid))
    metrics = ragged.seen.update["metrics"]
    assert sum(approxkl) / len(approxkl) == pytest.approx(metrics["policy/approxkl_avg"], rel=1e-4)
    assert sum(ratio) / len(ratio) == pytest.approx(metrics["val/ratio"], rel=1e-5)
    assert sum(masked) / len(masked) > 1.5 * metrics["policy/approxkl_avg"]


def test_micro_batches_of_trl_are_a_mean_of_means(tmp_path: Path) -> None:
    """Four micro-batches in one mini-batch: TRL weighs each alike, however few tokens it has; we weigh tokens."""
    cfg = settings(train__num_mini_batches=1, train__steps=2)
    case = run_trl(RAGGED, tmp_path, cfg, per_device_train_batch_size=4, gradient_accumulation_steps=4)
    parts = [float(step["pg_loss"]) for step in case.seen.steps[:4]]
    tokens = [int(mask.sum()) for _, mask, _ in mini_batches(case)][:4]
    assert case.optimiser_steps == 2
    assert len(set(tokens)) > 1
    whole = run_trl(RAGGED, tmp_path, cfg).seen.steps[0]["pg_loss"]
    weighted = sum(part * count for part, count in zip(parts, tokens, strict=True)) / sum(tokens)
    assert weighted == pytest.approx(float(whole), rel=1e-4, abs=1e-6)
    assert abs(sum(parts) / 4 - weighted) > 1e-3


def test_micro_batches_of_trl_cost_optimiser_steps(tmp_path: Path) -> None:
    """Accumulation there counts micro-batches of the whole batch, so 2 mini-batches of 2 micro-batches are one step,
    not two."""
    assert run_trl(FULL, tmp_path).optimiser_steps == settings().train.steps == 4
    assert run_trl(FULL, tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=4).optimiser_steps == 2


def test_trl_ignores_max_grad_norm(tmp_path: Path) -> None:
    tight, loose = (run_trl(FULL, tmp_path, settings(optimiser__max_grad_norm=norm)) for norm in (1e-6, 1e9))
    assert all(bool((tight.trained[name] == loose.trained[name]).all()) for name in tight.trained)


def test_the_batch_is_what_we_think(ragged: Case) -> None:
    assert len(ragged.seen.steps) == ragged.cfg.train.steps
    assert len(ragged.seen.steps[0]["mb_responses"]) == BATCH // ragged.cfg.train.num_mini_batches
