"""Replayed states: advantages from them by hand and by identities, and what a trial makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from naive import drawn, prefix
from tinytrial import EOS, FLOOR, VOCAB, preset, trainer
from torch import Tensor

from pipeline.algorithms.base import Judged, Replayed
from pipeline.algorithms.gae import by_critic
from pipeline.algorithms.mathematics.advantages import gae, to_go
from pipeline.algorithms.mathematics.replay import held, segment_gae, starts
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.algorithms.replay import targets
from pipeline.config.algorithm import AlgorithmConfig
from pipeline.run.metrics_log import merged
from pipeline.training import replay as replay_module
from pipeline.training.judging import Prompts
from pipeline.training.replay import Replays, chosen_rows, replay, replay_metrics
from pipeline.training.rollout import collect
from pipeline.training.trainer import Trainer

MASK = prefix([[1, 2, 3, 4, 5], [6], [7, 8, 9]])
VINE: dict[str, Any] = {"critic__kind": "none", "algorithm__advantage": "replay", "replay__every": 3}


def test_states_are_replayed_from_the_prompt_on_and_none_behind_the_end() -> None:
    found = starts(torch.tensor([5, 1, 3]), 5, 2)
    assert found.int().tolist() == [[1, 0, 1, 0, 1], [1, 0, 0, 0, 0], [1, 0, 1, 0, 0]]


def test_advantages_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    values, known = torch.tensor([[10.0, 99.0, 20.0, 99.0, 40.0]]), torch.tensor([[True, False, True, False, True]])
    mask = torch.ones(1, 5, dtype=torch.bool)
    assert held(values, known).tolist() == [[10.0, 10.0, 20.0, 20.0, 40.0]]
    # The rewards up to the next known state, and its value; less the value of the newest one.
    one_segment = [[1 + 2 + 20 - 10, 2 + 20 - 10, 3 + 4 + 40 - 20, 4 + 40 - 20, 5 - 40]]
    assert segment_gae(rewards, values, known, mask, 0.0).tolist() == one_segment
    assert segment_gae(rewards, values, known, mask, 1.0).tolist() == [[15 - 10, 14 - 10, 12 - 20, 9 - 20, 5 - 40]]
    half = [[13 + 0.5 * (27 + 0.5 * -35), 12 + 0.5 * (27 + 0.5 * -35), 27 + 0.5 * -35, 24 + 0.5 * -35, -35]]
    assert segment_gae(rewards, values, known, mask, 0.5).tolist() == half


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_with_every_state_known_it_is_gae(lam: float) -> None:
    rewards, values = drawn(*MASK.shape, seed=1), drawn(*MASK.shape, seed=2)
    expected, _ = gae(rewards, values, MASK, 1.0, lam)
    torch.testing.assert_close(segment_gae(rewards, values, MASK, MASK, lam), expected)


def test_with_the_prompt_alone_known_its_value_is_a_constant_baseline() -> None:
    rewards, values = drawn(*MASK.shape, seed=1), drawn(*MASK.shape, seed=2)
    known = starts(MASK.sum(1), MASK.shape[1], MASK.shape[1])
    expected = torch.where(MASK, to_go(rewards, MASK, 1.0) - values[:, :1], 0.0)
    for lam in (0.0, 0.3, 1.0):
        torch.testing.assert_close(segment_gae(rewards, values, known, MASK, lam), expected)


def test_a_critic_is_fitted_to_replayed_values_where_there_are_some() -> None:
    grid, values = drawn(*MASK.shape, seed=1), drawn(*MASK.shape, seed=2)
    known = starts(MASK.sum(1), MASK.shape[1], 2) & torch.tensor([[True], [False], [True]])
    zero = torch.zeros(3)
    found = targets(Judged(zero, grid, None, MASK, zero.long(), replayed=Replayed(values, known)), grid)
    assert torch.equal(found[known], values[known])
    assert torch.equal(found[~known], grid[~known])
    assert targets(Judged(zero, grid, None, MASK, zero.long()), grid) is grid


# --- a critic's own lambda ---------------------------------------------------------------------------------


def test_a_lambda_of_its_own_changes_the_returns_and_no_advantage() -> None:
    judged = Judged(
        drawn(3, seed=1), 0.1 * drawn(*MASK.shape, seed=2), drawn(*MASK.shape, seed=3), MASK, torch.arange(3)
    )
    common, apart = (by_critic(judged, AlgorithmConfig(gae_lambda=0.6, value_lambda=own)) for own in (None, 1.0))
    assert torch.equal(common.advantages, apart.advantages)
    assert apart.returns is not None
    rewards = token_rewards(judged.scores, judged.non_score, MASK)
    torch.testing.assert_close(apart.returns, to_go(rewards, MASK, 1.0))
    assert not torch.allclose(apart.returns, common.returns)


# --- a trial -----------------------------------------------------------------------------------------------


def prompts_of(one: Trainer) -> Prompts:
    one.parts.rollout(0)
    return one._prompts()


@pytest.mark.parametrize(
    "knobs",
    [
        *({"kl__place": place} for place in ("reward", "loss", "score")),
        {"kl__group": "clause", "kl__group_credit": "last"},
        FLOOR,
    ],
)
def test_a_policy_that_can_say_one_thing_is_worth_what_it_got(tmp_path: Path, knobs: dict[str, Any]) -> None:
    """Near temperature 0 a continuation repeats the rollout, so that every value is its own reward to go, and no
    response is better than expected."""
    one = trainer(tmp_path, **VINE, **knobs, kl__beta=0.3, train__temperature=1e-4, replay__continuations=2)
    rollout = collect(replace(one.rollout_context, floor_weight=3.0), prompts_of(one), 0, 0.3)
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
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in one.actor.lm.parameters():
            parameter += parameter.std() * torch.randn(parameter.shape, generator=stream)
    context, prompts = one.rollout_context, prompts_of(one)
    rollout = collect(context, prompts, 0, 2.0)
    found = replay(context, prompts, rollout.episodes, slice(None), 0, 2.0)
    expected = torch.stack([expected_values(one, rollout, row, place) for row in range(4)])
    known = found.states.known[:4]
    error = (found.states.values[:4] - expected)[known] / found.noise[:4][known].sqrt().clamp(min=1e-6)
    assert error.abs().max() < 4
    without = torch.stack([expected_values(one, rollout, row, "loss") for row in range(4)])
    assert ((expected - without)[known].abs().max() > 0.2) == (place != "loss"), "a penalty left out would show"
    assert found.tokens[0] == pytest.approx(100 * expected_tokens(one, rollout), rel=0.15)


def test_the_noise_of_replayed_values_is_no_error_of_the_critic() -> None:
    """Off by 0.5 everywhere, from values whose squared standard error is 0.09: √(0.25 - 0.09)."""
    values, zero = drawn(*MASK.shape, seed=2), torch.zeros(3)
    judged = Judged(zero, torch.zeros_like(values), values + 0.5, MASK, zero.long())
    found = replay_metrics(Replays(Replayed(values, MASK), torch.full_like(values, 0.09), zero.long()), judged, 1.0)
    assert (found["replay/critic_bias"], found["replay/critic_error"]) == pytest.approx((0.5, 0.4))
    assert found["replay/standard_error"] == pytest.approx(0.3)


def test_a_critics_teacher_discounts_as_the_critic_does(tmp_path: Path) -> None:
    """Near temperature 0, where a continuation repeats the rollout."""
    knobs = {"critic__target": "replay", "replay__every": 3, "algorithm__gamma": 0.5, "train__temperature": 1e-4}
    context, prompts, update, _ = _first(trainer(tmp_path, **knobs, replay__continuations=1))
    rollout = collect(context, prompts, update, 0.0)
    mask, score = rollout.episodes.response_mask, torch.where(rollout.episodes.ended, rollout.scores.proxy, -1.0)
    known = starts(rollout.episodes.lengths, mask.shape[1], 3)
    left = rollout.episodes.lengths.unsqueeze(1) - 1 - torch.arange(mask.shape[1])
    assert rollout.returns is not None
    torch.testing.assert_close(rollout.returns[known], (score.unsqueeze(1) * 0.5**left)[known], atol=1e-5, rtol=0)


def test_the_noise_of_a_value_is_that_of_the_mean_of_its_continuations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Returns of 1 and 3 have mean 2, variance 2 by n - 1, and a squared standard error of 1."""
    context, prompts, update, _ = _first(trainer(tmp_path, **VINE))
    episodes = collect(context, prompts, update, 0.0).episodes
    returns = torch.tensor([[1.0, 3.0]])
    monkeypatch.setattr(
        replay_module, "_continued", lambda *args: (returns.expand(len(args[4]), 2), torch.ones(len(args[4]), 2).long())
    )
    found = replay(context, prompts, episodes, slice(None), update, 0.0)
    assert (found.states.values[found.states.known] == 2).all()
    assert (found.noise[found.states.known] == 1).all()


def test_one_continuation_has_no_noise_that_could_be_known(tmp_path: Path) -> None:
    rollout = collect(*_first(trainer(tmp_path, **VINE, replay__continuations=1)))
    assert "replay/standard_error" not in rollout.metrics
    assert "replay/explained_variance" in rollout.metrics


def test_states_without_a_critic_to_teach_are_not_replayed(tmp_path: Path) -> None:
    """A target for a critic that an arm does not have can come from a setting common to all arms."""
    rollout = collect(*_first(trainer(tmp_path, **preset("rloo"), critic__target="replay")))
    assert rollout.tokens_beside == 0


def test_replayed_tokens_are_charged_and_the_series_are_there(tmp_path: Path) -> None:
    one = trainer(tmp_path, **VINE)
    outcome = one.run()
    series = merged(tmp_path / "metrics.jsonl")
    replayed = [values["replay/tokens"] for values in series.values() if "replay/tokens" in values]
    lengths = [values["objective/length"] * 8 for values in series.values() if "objective/length" in values]
    assert len(replayed) == outcome.updates
    assert outcome.tokens == pytest.approx(sum(replayed) + sum(lengths))
    assert not any(name.startswith("value/") or name.startswith("replay/critic") for v in series.values() for name in v)


def test_a_share_of_the_episodes_teaches_the_critic_the_others_keep_their_returns(tmp_path: Path) -> None:
    knobs = {"critic__target": "replay", "replay__share": 0.25, "replay__every": 3}
    rollout = collect(*_first(trainer(tmp_path / "replay", **knobs)))
    usual = collect(*_first(trainer(tmp_path / "usual")))
    assert torch.equal(rollout.advantages, usual.advantages), "the advantages stay those of the critic"
    assert rollout.returns is not None
    assert usual.returns is not None
    chosen = chosen_rows(8, 0.25, 0, 0)
    assert chosen.sum() == 2
    changed = (rollout.returns != usual.returns).any(1)
    assert torch.equal(changed, chosen)
    assert "replay/critic_bias" in rollout.metrics


def test_how_many_are_sampled_at_once_changes_nothing(tmp_path: Path) -> None:
    ones = [trainer(tmp_path / str(size), **VINE, runtime={"rollout_batch_size": size}) for size in (3, 64)]
    few, many = (collect(*_first(one)) for one in ones)
    torch.testing.assert_close(few.advantages, many.advantages, atol=1e-5, rtol=1e-5)
    assert few.tokens_beside == many.tokens_beside > 0


def _first(one: Trainer) -> tuple[Any, Prompts, int, float]:
    return one.rollout_context, prompts_of(one), 0, one.parts.rollout(0).kl_coef


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
    """What `tinytrial.score` gives a response."""
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
