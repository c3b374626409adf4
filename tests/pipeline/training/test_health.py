"""Collapse, and the checks before the first step: each must warn when something is wrong, and only
then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from tinytrial import actor, trainer

from pipeline.models.policy import Episodes, positions, response_mask
from pipeline.models.sampling import EagerSampler
from pipeline.training import health
from pipeline.training.health import (
    Diverged,
    SelfCheckFailed,
    check_collapse,
    check_first_step,
    check_padding,
    check_start,
    repetition,
)


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
    cfg = trial_config()
    check_collapse({"objective/repetition": 0.79, "objective/entropy_per_token": 0.02}, cfg)
    with pytest.raises(Diverged, match=r"0.009 nats per token, below train.min_entropy = 0.01"):
        check_collapse({"objective/repetition": 0.0, "objective/entropy_per_token": 0.009}, cfg)
    with pytest.raises(Diverged, match=r"81.0% of the token pairs, above train.max_repetition = 0.8"):
        check_collapse({"objective/repetition": 0.81, "objective/entropy_per_token": 1.0}, cfg)


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
