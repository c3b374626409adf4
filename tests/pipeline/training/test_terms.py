"""Where the mathematics is put together: a token's terms of the loss, their metrics, and the metrics of a rollout."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from helpers import trial_config
from hypothesis import given
from hypothesis import strategies as st
from naive import drawn, prefix
from torch import Tensor

from pipeline.algorithms.mathematics.masking import masked_var, masked_whiten
from pipeline.algorithms.surrogates import clipped
from pipeline.algorithms.terms import Tokens, kl_penalty, step_metrics
from pipeline.config.trial import TrialConfig
from pipeline.models import lm_head as head_module
from pipeline.models.policy import Episodes, to_grid
from pipeline.training.experience import tokens_of
from pipeline.training.judging import Measured, Scores, final_scores
from pipeline.training.rollout import Rollout, drift_metrics, reward_metrics, text_metrics
from pipeline.training.surrogate_loss import of_tokens
from pipeline.training.token_stats import exact_kls, token_stats

LOG2 = math.log(2)


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def tokens(new: list[float], old: list[float], ref: list[float], advantages: list[float]) -> tuple[Tokens, Tensor]:
    empty = torch.zeros(len(new), dtype=torch.float64)
    return Tokens(f64(*old), f64(*ref), f64(*advantages), empty, empty), f64(*new)


def policy_terms(batch: Tokens, new: Tensor, kl_coef: float, cfg: TrialConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of the tokens as an update adds them up, and every metric of a token."""
    loss, metrics = clipped(batch.behaviour(), new, cfg.algorithm)
    metrics |= {"policy/pg_loss": loss, **step_metrics(batch, new)}
    penalty = kl_penalty(batch, slice(None), new, kl_coef, cfg.kl)
    return (loss, metrics) if penalty is None else (loss + penalty, {**metrics, "policy/kl_loss": penalty})


# --- the terms of one mini-batch ---------------------------------------------------------------------------


def test_terms_by_hand() -> None:
    """Ratios 2 and 1/2, advantages 1 and -1; the reference agrees with the old policy on the first token, with the new
    on the second."""
    batch, new = tokens([-1.0, -1.0 - LOG2], [-1.0 - LOG2, -1.0], [-1.0 - LOG2, -1.0 - LOG2], [1.0, -1.0])
    loss, metrics = policy_terms(batch, new, 0.3, trial_config())
    assert loss.tolist() == pytest.approx([-1.2, 0.8])
    assert metrics["policy/pg_loss"].tolist() == loss.tolist()
    assert metrics["policy/pg_clipfrac"].tolist() == [True, True]
    assert metrics["policy/ratio"].tolist() == pytest.approx([2.0, 0.5])
    assert metrics["policy/approxkl"].tolist() == pytest.approx([LOG2**2 / 2] * 2)
    # k3 of old against new, whose samples these are: d = -log 2 and log 2, so 2 - 1 - log 2 and 1/2 - 1 + log 2.
    assert metrics["policy/approxkl_k3"].tolist() == pytest.approx([1 - LOG2, LOG2 - 0.5])
    # Reference KL of the new policy, weighted by its ratio: 2 log 2 and 0.
    assert metrics["policy/kl_ref_per_token"].tolist() == pytest.approx([2 * LOG2, 0.0])
    assert metrics.keys().isdisjoint({"policy/kl_loss", "policy/dual_clipfrac"})


def test_the_penalty_in_the_loss_by_hand() -> None:
    # d = log 2 and 0, beta 0.3: 0.3 x log^2 2 / 2 is added to the first token; the surrogate's own metric does not have
    # it.
    batch, new = tokens([-1.0, -1.0 - LOG2], [-1.0 - LOG2, -1.0], [-1.0 - LOG2, -1.0 - LOG2], [1.0, -1.0])
    loss, metrics = policy_terms(batch, new, 0.3, trial_config(kl__place="loss"))
    assert metrics["policy/kl_loss"].tolist() == pytest.approx([0.15 * LOG2**2, 0.0])
    assert loss.tolist() == pytest.approx([-1.2 + 0.15 * LOG2**2, 0.8])
    assert metrics["policy/pg_loss"].tolist() == pytest.approx([-1.2, 0.8])
    _, metrics = policy_terms(batch, new, 0.3, trial_config(kl__place="loss", kl__loss_estimator="k3"))
    assert metrics["policy/kl_loss"].tolist() == pytest.approx([0.3 * (LOG2 - 0.5), 0.0])


def test_the_second_clip_by_hand() -> None:
    # Ratio 4 at advantage -1: bounded at 3. At advantage 1 the usual clip holds.
    batch, new = tokens([0.0, 0.0], [-2 * LOG2] * 2, [0.0, 0.0], [-1.0, 1.0])
    loss, metrics = policy_terms(batch, new, 0.3, trial_config(algorithm__dual_clip=3.0))
    assert loss.tolist() == pytest.approx([3.0, -1.2])
    assert metrics["policy/dual_clipfrac"].tolist() == [True, False]
    assert policy_terms(batch, new, 0.3, trial_config())[0].tolist() == pytest.approx([4.0, -1.2])


@pytest.mark.parametrize(
    "knobs",
    [{}, {"kl__place": "loss"}, {"kl__place": "loss", "kl__loss_estimator": "k3"}, {"algorithm__dual_clip": 1.5}],
)
def test_the_losses_of_chunks_add_up_and_metrics_carry_no_gradient(knobs: dict[str, Any]) -> None:
    cfg, columns = trial_config(**knobs), [drawn(12, seed=seed) for seed in range(6)]
    batch, new = Tokens(*columns[:5]), columns[5].requires_grad_()
    objective = of_tokens(clipped, batch, None, cfg.algorithm)
    loss, metrics = clipped(batch.behaviour(), new, cfg.algorithm)
    parts = [objective.loss(rows, new[rows]) for rows in (slice(0, 1), slice(1, 7), slice(7, 12))]
    assert torch.equal(torch.cat(parts), loss)
    assert loss.requires_grad
    sums = objective.sums(new)
    assert sums.keys() == metrics.keys() | {"policy/pg_loss"}
    assert not any(column.requires_grad for column in sums.values())
    assert sums["policy/pg_loss"].item() == pytest.approx(loss.sum().item(), rel=1e-6)


logits = st.integers(2, 5).flatmap(
    lambda size: st.tuples(*[st.lists(st.floats(-2, 2), min_size=size, max_size=size)] * 3)
)


@given(triple=logits)
def test_step_metrics_are_unbiased_by_enumeration(triple: tuple[list[float], ...]) -> None:
    """Each token of a small vocabulary once, weighted by the probability with which the behaviour policy samples it."""
    new, old, ref = (torch.log_softmax(f64(*one), -1) for one in triple)
    zero = torch.zeros_like(new)
    _, metrics = policy_terms(Tokens(old, ref, zero, zero, zero), new, 0.0, trial_config())
    mean = {name: float((old.exp() * column).sum()) for name, column in metrics.items()}
    kl = [float((p.exp() * (p - q)).sum()) for p, q in ((new, ref), (old, new))]
    assert mean["policy/ratio"] == pytest.approx(1.0)
    assert mean["policy/kl_ref_per_token"] == pytest.approx(kl[0], abs=1e-12)
    assert mean["policy/approxkl_k3"] == pytest.approx(kl[1], abs=1e-12)


def test_a_beta_in_the_reward_is_divided_by_the_std_of_the_advantages_and_one_in_the_loss_is_not() -> None:
    """gamma 0 and no critic: an advantage is score - beta d, whitened. In the gradient, d then weighs beta / std."""
    beta, mask = 0.05, torch.ones(6, dtype=torch.bool)
    score, d = f64(0.3, -0.2, 0.1, 0.0, 0.2, -0.1), f64(1.0, -0.5, 2.0, 0.25, -1.0, 0.5)
    plain = score - beta * d
    std = float(masked_var(plain, mask).sqrt())
    old, empty = -torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)

    def gradient(advantages: Tensor, kl_coef: float, kl_in: Literal["reward", "loss"]) -> Tensor:
        new = old.clone().requires_grad_(True)
        batch = Tokens(old, old - d, advantages, empty, empty)
        policy_terms(batch, new, kl_coef, trial_config(kl__place=kl_in))[0].sum().backward()
        assert new.grad is not None
        return new.grad

    in_reward = gradient(masked_whiten(plain, mask), beta, "reward")
    scores_alone = (score - plain.mean()) / std
    torch.testing.assert_close(gradient(scores_alone, beta / std, "loss"), in_reward, rtol=1e-5, atol=1e-6)
    assert 0.1 < std < 0.3
    assert not torch.allclose(gradient(scores_alone, beta, "loss"), in_reward, rtol=0.1)


# --- the rollout's metrics ---------------------------------------------------------------------------------


def rollout(pad: int = 0) -> Rollout:
    """Responses of 2 and 1 tokens; grids are 0 on padding, tokens there are arbitrary."""
    mask = prefix([[1, 2], [3]], pad)
    grids = [
        to_grid(f64(*flat), mask)
        for flat in ([-1.0, -2.0, -3.0], [-2.0, -1.5, -3.0], [0.5, 0.25, 0.0], [1.0, 2.0, 3.0])
    ]
    responses = torch.where(mask, torch.tensor([[7], [8]]), 5)
    episodes = Episodes(
        torch.cat([torch.tensor([[4], [4]]), responses], 1), torch.ones(2, 1).bool(), mask, torch.tensor([True, False])
    )
    measured = Measured(grids[0], grids[1], grids[2], grids[3], grids[3])
    scores = Scores(f64(2.0, 4.0), f64(1.0, 0.0), ["p"] * 2, ["t"] * 2)
    return Rollout(episodes, measured, grids[3], grids[2], 0.1, scores, {})


def metrics_of(one: Rollout) -> dict[str, float]:
    mask = one.episodes.response_mask
    non_score = -0.1 * (one.measured.logprobs - one.measured.ref_logprobs)
    return {
        **drift_metrics(one.measured, mask),
        **reward_metrics(one.scores, f64(2.0, -1.0), non_score),
        **text_metrics(one.episodes),
    }


def test_rollout_metrics_by_hand() -> None:
    # d = (1, -0.5) and (0): sums 0.5 and 0. Per token (1 - 0.5 + 0) / 3; k3 = (e^-1, e^0.5 - 1.5, 0) / 3.
    expected = {
        "objective/kl": 0.25,
        "objective/kl_per_token": 0.5 / 3,
        "objective/kl_k3_per_token": (math.exp(-1) + math.exp(0.5) - 1.5) / 3,
        "objective/kl_exact_per_token": 0.25,
        "objective/entropy": 3.0,  # sampled: (1 + 2) and 3, a sum per sequence
        "objective/entropy_per_token": 2.0,  # exact: 1, 2 and 3, a mean per token
        "objective/scores": 3.0,
        "objective/scores_std": 1.0,  # biased
        "objective/gold": 0.5,
        "objective/non_score_reward": -0.025,  # -0.1 x 0.5 and 0
        "objective/rlhf_reward": 0.475,  # final scores 2 and -1 (the second was cut), and the penalty
        "objective/length": 1.5,
        "objective/eos_rate": 0.5,
        "objective/repetition": 0.0,
    }
    found = metrics_of(rollout())
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("pad", [1, 5])
def test_pad_columns_move_no_metric_of_a_rollout(pad: int) -> None:
    assert metrics_of(rollout(pad)) == pytest.approx(metrics_of(rollout()), rel=1e-12)


def test_a_response_is_overlong_by_the_configured_length_and_not_by_the_longest_seen() -> None:
    """The penalty of 2 grows from 10 tokens to 20."""
    train = trial_config(
        train__response_length=20, train__overlong_share=0.5, train__overlong_penalty=2.0, train__missing_eos="none"
    ).train
    lengths = torch.tensor([5, 12, 15])
    found = final_scores(torch.zeros(3), lengths, torch.ones(3, dtype=torch.bool), train)
    assert found.tolist() == pytest.approx([0.0, -0.4, -1.0])


def test_pad_columns_reach_no_loss() -> None:
    """Even where the grids were not 0 on padding: only valid tokens are taken from them."""
    one, rows = rollout(pad=3), torch.tensor([1, 0])
    mask = one.episodes.response_mask

    def spoilt(grid: Tensor) -> Tensor:
        return torch.where(mask, grid, math.nan)

    dirty = replace(
        one,
        measured=one.measured.each(spoilt),
        advantages=spoilt(one.advantages),
        returns=spoilt(one.returns),
    )
    clean = vars(tokens_of(rollout(), rows))
    for name, column in vars(tokens_of(dirty, rows)).items():
        assert torch.equal(column, clean[name]), name
    assert clean["logprobs"].tolist() == [-3.0, -1.0, -2.0]


# --- over the vocabulary -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_exact_statistics_by_chunks_equal_those_of_the_whole(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Against the definitions in float64 on the whole (tokens, vocabulary) table, at a temperature."""
    monkeypatch.setattr(head_module, "chunk_tokens", lambda *_: chunk)
    n, width, vocab = 7, 4, 9
    heads = [torch.nn.Linear(width, vocab) for _ in range(2)]
    for seed, head in enumerate(heads):
        head.weight.data, head.bias.data = (
            drawn(*shape, seed=seed, dtype=torch.float32) for shape in ((vocab, width), (vocab,))
        )
    hidden, ref_hidden, labels = (
        drawn(n, width, seed=5, dtype=torch.float32),
        drawn(n, width, seed=6, dtype=torch.float32),
        torch.arange(n),
    )

    class Network:
        config = type("Config", (), {"vocab_size": vocab})

        def __init__(self, head: torch.nn.Linear) -> None:
            self.head = head

        def get_output_embeddings(self) -> torch.nn.Linear:
            return self.head

    stats = token_stats(Network(heads[0]), hidden, Network(heads[1]), ref_hidden, labels, 0.7)
    with torch.no_grad():
        pi, ref = (
            torch.softmax((h.double() @ head.weight.double().T + head.bias.double()) / 0.7, -1)
            for h, head in ((hidden, heads[0]), (ref_hidden, heads[1]))
        )
    close = {"rtol": 1e-5, "atol": 1e-6}  # fp32: a few units of 1.2e-7 on numbers up to about 10
    torch.testing.assert_close(stats.logprobs.double(), pi[range(n), labels].log(), **close)
    torch.testing.assert_close(stats.ref_logprobs.double(), ref[range(n), labels].log(), **close)
    torch.testing.assert_close(stats.kl.double(), (pi * (pi / ref).log()).sum(-1), **close)
    assert torch.equal(exact_kls(Network(heads[0]), hidden, Network(heads[1]), ref_hidden, 0.7), stats.kl)
    torch.testing.assert_close(stats.entropy.double(), -(pi * pi.log()).sum(-1), **close)
