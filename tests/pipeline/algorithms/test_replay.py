from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from naive import drawn, prefix
from tinytrial import DENSE, EOS, FLOOR, VOCAB, moved, trainer
from torch import Tensor

from pipeline.algorithms.base import Judged, Replayed
from pipeline.algorithms.gae import starts
from pipeline.models.policy import Episodes
from pipeline.training.judging import Scores
from pipeline.training.replay import replay, replay_metrics
from pipeline.training.trainer import Trainer

MASK = prefix([[1, 2, 3, 4, 5], [6], [7, 8, 9]])
VINE: dict[str, Any] = {"critic__kind": "none", "algorithm__advantage": "replay", "replay__every": 3}


@pytest.mark.parametrize(
    "knobs",
    [
        *({"kl__place": place} for place in ("reward", "loss", "score")),
        {"kl__group": "clause", "kl__group_credit": "last"},
        {**FLOOR, "floor__weight": 3.0},
        # A baseline that is held over a segment does not know what has been earned in it.
        {**DENSE, "replay__every": 1},
        {**DENSE, "replay__every": 1, "kl__place": "loss", "kl__beta": 0.0},
    ],
)
def test_a_policy_that_can_say_one_thing_is_worth_what_it_got(tmp_path: Path, knobs: dict[str, Any]) -> None:
    """Near temperature 0 a continuation repeats the rollout, so that every value is its own reward to go, and no
    response is better than expected."""
    knobs = {**VINE, "kl__beta": 0.3, **knobs}
    one = trainer(tmp_path, **knobs, train__temperature=1e-4, replay__continuations=2)
    rollout = one._rollout()
    torch.testing.assert_close(rollout.advantages, torch.zeros_like(rollout.advantages), atol=2e-3, rtol=0)
    assert rollout.metrics["replay/standard_error"] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(
    "place", ["reward", *(pytest.param(place, marks=pytest.mark.slow) for place in ("loss", "score"))]
)
def test_values_are_the_expected_rewards_to_go(tmp_path: Path, place: str) -> None:
    """Two tokens a response, of a policy that has left its reference: the value of every state against the sum over all
    continuations."""
    knobs = {**VINE, "replay__every": 1, "replay__continuations": 100, "train__response_length": 2, "kl__beta": 2.0}
    one = trainer(tmp_path, **knobs, kl__place=place, train__missing_eos="none", train__batch_size=4)
    moved(one, 0.3)
    rollout = one._rollout()
    found, tokens = replay(one.rollout_context, one._prompts(), rollout.episodes, slice(None), 0)
    expected = torch.stack([expected_values(one, rollout, row, place) for row in range(4)])
    known = found.known[:4]
    error = (found.values[:4] - expected)[known] / found.noise[:4][known].sqrt().clamp(min=1e-6)
    assert error.abs().max() < 4
    assert error.square().mean() > 0.2, "the noise is that of a mean, not of one continuation"
    without = torch.stack([expected_values(one, rollout, row, "loss") for row in range(4)])
    assert ((expected - without)[known].abs().max() > 0.2) == (place != "loss"), "a penalty left out would show"
    assert tokens[0] == pytest.approx(100 * expected_tokens(one, rollout), rel=0.15)


def test_continuations_are_scored_with_their_own_prompts(tmp_path: Path) -> None:
    """A score that is the number of the prompt."""

    def numbered(episodes: Episodes, rows: Sequence[int]) -> Scores:
        return Scores(torch.tensor(rows).float(), torch.zeros(len(rows)), [""] * len(rows), [""] * len(rows))

    one = trainer(tmp_path, **VINE, replay__continuations=2, kl__beta=0.0, train__missing_eos="none")
    context, prompts = replace(one.rollout_context, score=numbered), one._prompts()
    found, _ = replay(context, prompts, one._rollout().episodes, slice(None), 0)
    assert torch.equal(found.values[:, 0], prompts.float())


def test_the_noise_of_replayed_values_is_no_error_of_the_critic() -> None:
    """Off by 0.5 everywhere, from values whose squared standard error is 0.09: √(0.25 - 0.09)."""
    values, zero = drawn(*MASK.shape, seed=2), torch.zeros(3)
    judged = Judged(zero, torch.zeros_like(values), values + 0.5, MASK, zero.long())
    found = replay_metrics(judged, Replayed(values, MASK, torch.full_like(values, 0.09)), zero.long(), 1.0)
    assert (found["replay/critic_bias"], found["replay/critic_error"]) == pytest.approx((0.5, 0.4))
    assert found["replay/standard_error"] == pytest.approx(0.3)


def test_a_critics_teacher_discounts_as_the_critic_does(tmp_path: Path) -> None:
    """Near temperature 0, where a continuation repeats the rollout."""
    knobs = {"critic__target": "replay", "replay__every": 3, "algorithm__gamma": 0.5, "train__temperature": 1e-4}
    rollout = trainer(tmp_path, **knobs, replay__continuations=1)._rollout()
    mask, score = rollout.episodes.response_mask, torch.where(rollout.episodes.ended, rollout.scores.proxy, -1.0)
    known = starts(rollout.episodes.lengths, mask.shape[1], 3)
    left = rollout.episodes.lengths.unsqueeze(1) - 1 - torch.arange(mask.shape[1])
    assert rollout.returns is not None
    torch.testing.assert_close(rollout.returns[known], (score.unsqueeze(1) * 0.5**left)[known], atol=1e-5, rtol=0)


def test_a_share_of_the_episodes_teaches_the_critic_the_others_keep_their_returns(tmp_path: Path) -> None:
    knobs = {"critic__target": "replay", "replay__share": 0.25, "replay__every": 3}
    rollout = trainer(tmp_path / "replay", **knobs)._rollout()
    usual = trainer(tmp_path / "usual")._rollout()
    assert torch.equal(rollout.advantages, usual.advantages), "the advantages stay those of the critic"
    assert rollout.returns is not None
    assert usual.returns is not None
    changed = (rollout.returns != usual.returns).any(1)
    assert changed.sum() == 2
    assert "replay/critic_bias" in rollout.metrics


def said(one: Trainer, rollout: Any, row: int, prefix: list[int]) -> tuple[Tensor, Tensor]:
    """(V,) log-probs of the policy and of the reference for the token after a prefix of the response of a row."""
    mask = rollout.episodes.query_mask[row]
    ids = torch.cat([rollout.episodes.query_responses[row, : len(mask)][mask], torch.tensor(prefix, dtype=torch.long)])
    with torch.no_grad():
        return tuple(
            lm(input_ids=ids.unsqueeze(0)).logits[0, -1].float().log_softmax(-1)
            for lm in (one.actor.lm, one.rollout_context.reference)
        )  # type: ignore[return-value]


def worth(tokens: list[int]) -> float:
    return sum(token < 10 for token in tokens) / len(tokens) * 2 - 0.5


def expected_values(one: Trainer, rollout: Any, row: int, place: str) -> Tensor:
    """(T,) of the states of one response of at most two tokens, by summing over all continuations, with a penalty of
    2 times the log-ratio: on each token, in the score of the whole response, or not in the reward."""
    beta = 0.0 if place == "loss" else 2.0
    first, ref = said(one, rollout, row, [])
    penalty = -beta * (first - ref)
    after = torch.empty(VOCAB)
    for token in range(VOCAB):
        second, second_ref = said(one, rollout, row, [token])
        rewards = torch.tensor([worth([token, last]) for last in range(VOCAB)]) - beta * (second - second_ref)
        after[token] = worth([token]) if token == EOS else (second.exp() * rewards).sum()
    chosen = int(rollout.episodes.responses[row, 0])
    before = penalty[chosen] if place == "score" else torch.zeros(())
    return torch.stack([(first.exp() * (penalty + after)).sum(), after[chosen] + before])


def expected_tokens(one: Trainer, rollout: Any) -> float:
    """Sampled for the states of the first response, for each continuation."""
    first, _ = said(one, rollout, 0, [])
    second_state = float(rollout.episodes.lengths[0] > 1)
    return float(2 - first[EOS].exp()) + second_state
