from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from naive import f64, prefix
from tinytrial import actor, moved, rows_of, trainer

from pipeline.models import heads as head_module
from pipeline.models.policy import ActorCritic, Episodes, positions, response_mask, to_grid
from pipeline.models.sampling import EagerSampler
from pipeline.training import health
from pipeline.training.experience import Experience, Measured
from pipeline.training.health import (
    Diverged,
    SelfCheckFailed,
    check_collapse,
    check_first_step,
    check_padding,
    check_sampling,
    check_start,
    repetition,
)
from pipeline.training.judging import Scores
from pipeline.training.rollout import drift_metrics, reward_metrics, sampling_metrics
from pipeline.training.surrogate import surrogate_term
from pipeline.training.update import step_metrics


def test_repetition_by_hand() -> None:
    """aaaa: 3 pairs, 1 different; abab: 3 pairs, 2 different; a: no pair, left out; abcd: all different."""
    responses = torch.tensor([[5, 5, 5, 5], [5, 6, 5, 6], [5, 9, 9, 9], [5, 6, 7, 8]])
    mask = response_mask(torch.tensor([4, 4, 1, 4]), 4)
    assert repetition(responses, mask) == pytest.approx((2 / 3 + 1 / 3 + 0) / 3)
    assert repetition(responses[2:3], mask[2:3]) == 0.0
    # 0 2, 2 1 and 1 0 are told apart by 3 a + b alone.
    assert repetition(torch.tensor([[0, 2, 1, 0]]), torch.ones(1, 4, dtype=torch.bool)) == 0.0
    wide = torch.cat([responses, torch.full((4, 3), 5)], dim=1)
    assert repetition(wide, torch.cat([mask, torch.zeros(4, 3, dtype=torch.bool)], dim=1)) == repetition(
        responses, mask
    )


def test_only_a_collapse_is_called_one() -> None:
    check_collapse({"objective/repetition": 0.79, "objective/entropy_per_token": 0.02})
    with pytest.raises(Diverged, match=r"0.009 nats per token, below 0.01"):
        check_collapse({"objective/repetition": 0.0, "objective/entropy_per_token": 0.009})
    with pytest.raises(Diverged, match=r"81.0% of the token pairs, above 80%"):
        check_collapse({"objective/repetition": 0.81, "objective/entropy_per_token": 1.0})


def test_a_trial_with_truncated_sampling_is_stopped_at_its_first_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling at half the temperature is what top-k does: the tokens are more likely than under the policy."""
    honest = EagerSampler.some

    def sharper(self: EagerSampler, *args: Any) -> Any:
        return honest(replace(self, temperature=self.temperature / 2), *args)

    monkeypatch.setattr(EagerSampler, "some", sharper)
    with pytest.raises(SelfCheckFailed, match="another distribution"):
        trainer(tmp_path, train__batch_size=32, train__num_mini_batches=2).run()


def test_a_policy_that_is_not_its_reference_is_found(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    rollout = one._rollout()
    check_start(rollout, one.actor, 1.0, 1e-3)
    seen = replace(rollout, metrics={**rollout.metrics, "objective/kl_exact_per_token": 0.01})
    with pytest.raises(SelfCheckFailed, match=r"0.01 nats per token away"):
        check_start(seen, one.actor, 1.0, 1e-3)


def test_a_rare_token_that_is_missing_is_noise_until_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that takes one token in 99 of 100 cases, and was sampled without the others: after 90 tokens that has a
    probability of 0.4, after 4,500 of 1e-20. Two rare tokens of 9 are no fault."""
    network = actor({})
    log_pi = torch.full((int(network.lm.config.vocab_size),), math.log(0.01 / (network.lm.config.vocab_size - 1)))
    log_pi[5] = math.log(0.99)
    monkeypatch.setattr(health, "log_probs", lambda lm, hidden, temperature: log_pi.repeat(len(hidden), 1))

    def sampled(rows: int, rare: int) -> Episodes:
        tokens = torch.full((rows, 1 + 9), 5)
        tokens[:rare, -1] = 6
        return Episodes(tokens, tokens[:, :1] > 0, tokens[:, 1:] > 0, torch.ones(rows).bool())

    for rows, rare in ((10, 0), (1, 1), (2, 2), (10, 3), (500, 45)):
        check_sampling(sampled(rows, rare), network, 1.0, 1e-3)
    for rows, rare in ((500, 0), (10, 9), (500, 100)):
        with pytest.raises(SelfCheckFailed, match="another distribution"):
            check_sampling(sampled(rows, rare), network, 1.0, 1e-3)


@pytest.mark.parametrize("fault", ["positions", "mask"])
def test_a_network_that_sees_padding_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    rollout = trainer(tmp_path)._rollout()
    if fault == "positions":
        # Rotary positions are relative: a shift of all is no fault, so stretch them with the place of the first token.
        stretched = lambda mask: positions(mask) * (1 + mask.long().argmax(1, keepdim=True))  # noqa: E731
        monkeypatch.setattr(health, "positions", stretched)
    else:
        everything = property(lambda self: torch.ones_like(self.query_responses))
        monkeypatch.setattr(Episodes, "attention_mask", everything)
    with pytest.raises(SelfCheckFailed, match="columns of padding"):
        check_padding(rollout.episodes.take(slice(0, 2)), actor({}), 1.0, 1e-3)


@pytest.mark.parametrize(
    ("fault", "off"), [({"policy/ratio": 1.01}, 0.0), ({"policy/approxkl": 0.01}, 0.0), ({}, 0.002)]
)
def test_a_first_step_that_is_off_policy_is_found(fault: dict[str, float], off: float) -> None:
    sound = {"policy/ratio": 1.0, "policy/approxkl": 0.0}
    check_first_step(sound, 0.0, 1e-3)
    with pytest.raises(SelfCheckFailed, match="rollout and training forward disagree"):
        check_first_step({**sound, **fault}, off, 1e-3)


LOG2 = math.log(2)


def test_step_metrics_by_hand() -> None:
    """Ratios 2 and 1/2; the reference agrees with the old policy on the first token, with the new on the second."""
    old, ref, new = f64(-1.0 - LOG2, -1.0), f64(-1.0 - LOG2, -1.0 - LOG2), f64(-1.0, -1.0 - LOG2)
    rows = rows_of(old, prefix([[1, 2]]), ref, f64(1.0, -1.0))
    metrics = step_metrics(rows, new)
    assert metrics["policy/ratio"].tolist() == pytest.approx([2.0, 0.5])
    assert metrics["policy/approxkl"].tolist() == pytest.approx([LOG2**2 / 2] * 2)
    # k3 of old against new, whose samples these are: d = -log 2 and log 2, so 2 - 1 - log 2 and 1/2 - 1 + log 2.
    assert metrics["policy/approxkl_k3"].tolist() == pytest.approx([1 - LOG2, LOG2 - 0.5])
    # Reference KL of the new policy, weighted by its ratio: 2 log 2 and 0.
    assert metrics["policy/kl_ref_per_token"].tolist() == pytest.approx([2 * LOG2, 0.0])
    sums = surrogate_term(rows, torch.tensor(2), 1, trial_config()).sums(new)
    assert sums["policy/pg_loss"].tolist() == pytest.approx([-1.2, 0.8])
    assert sums["policy/pg_clipfrac"].tolist() == [True, True]


def experience(pad: int) -> Experience:
    """Responses of 2 and 1 tokens; grids are 0 on padding, tokens there are arbitrary."""
    mask = prefix([[1, 2], [3]], pad)
    flat = ([-1.0, -2.0, -3.0], [-2.0, -1.5, -3.0], [0.5, 0.25, 0.0], [1.0, 2.0, 3.0])
    grids = [to_grid(f64(*column), mask) for column in flat]
    responses = torch.where(mask, torch.tensor([[7], [8]]), 5)
    episodes = Episodes(
        torch.cat([torch.tensor([[4], [4]]), responses], 1), torch.ones(2, 1).bool(), mask, torch.tensor([True, False])
    )
    return Experience(episodes, Measured(*grids, grids[3]), grids[3], grids[2], 0.1)


def metrics_of(one: Experience) -> dict[str, float]:
    scores = Scores(f64(2.0, 4.0), f64(1.0, 0.0), ["p"] * 2, ["t"] * 2, {"a": f64(1.0, 2.0)}, {"b": f64(0.0, 1.0)})
    non_score = -0.1 * (one.measured.logprobs - one.measured.ref_logprobs)
    return {
        **drift_metrics(one.measured, one.episodes.response_mask),
        **reward_metrics(scores, f64(2.0, -1.0), non_score),
        **sampling_metrics(one.episodes),
    }


@pytest.mark.parametrize("pad", [0, 5])
def test_rollout_metrics_by_hand(pad: int) -> None:
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
        "reward/a": 1.5,
        "objective/gold/b": 0.5,
    }
    found = metrics_of(experience(pad))
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_what_is_measured_by_chunks_is_that_of_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Against the definitions on all (tokens, vocabulary), at a temperature, of a policy that has moved."""
    monkeypatch.setattr(head_module, "chunk_tokens", lambda *_: chunk)
    one = moved(trainer(tmp_path, train__temperature=0.7), 0.1)
    rollout, nets = one._rollout(), (one.actor.lm, one.rollout_context.reference)
    measured, labels = rollout.measured, rollout.episodes.labels.unsqueeze(1)
    with torch.no_grad():
        log_pi, log_ref = (ActorCritic(net, has_critic=False)(rollout.episodes, 0.7)[0].double() for net in nets)
    pi = log_pi.exp()
    for found, wanted in (
        (measured.logprobs, log_pi.gather(1, labels).squeeze(1)),
        (measured.ref_logprobs, log_ref.gather(1, labels).squeeze(1)),
        (measured.kl, (pi * (log_pi - log_ref)).sum(-1)),
        (measured.entropy, -(pi * log_pi).sum(-1)),
    ):
        torch.testing.assert_close(found[rollout.episodes.response_mask].double(), wanted, rtol=1e-5, atol=1e-5)
