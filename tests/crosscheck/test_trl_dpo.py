"""Our losses of pairs against TRL's `DPOTrainer` on the same network and the same pairs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tinytrial import moved, preset, trainer
from trl import DPOTrainer

from pipeline.models.policy import flush_left
from pipeline.training.experience import Experience
from pipeline.training.trainer import Trainer

BETA, ROWS = 0.3, [6, 7, 0, 1, 4, 5]
LOSSES = {
    "dpo": ("sigmoid", preset("dpo")),
    "ipo": ("ipo", preset("ipo")),
    "dpo on means": ("sigmoid_norm", {**preset("dpo"), "algorithm__ratio": "sequence_mean"}),
}
SCALE = {"dpo": 1 / BETA, "ipo": BETA}
"""Scale of our gradient: the slope at margin 0 is the same for every beta."""


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def theirs(one: Trainer, experience: Experience, loss_type: str) -> tuple[float, dict[str, Any], list[torch.Tensor]]:
    """TRL's loss, what it logs and its gradient: its method on a stand-in that has what the method reads."""
    chosen_first = torch.tensor([*ROWS[::2], *ROWS[1::2]])
    episodes = experience.episodes.take(chosen_first)
    tokens, starts = flush_left(episodes)
    columns, ends = torch.arange(tokens.shape[1]), (starts + episodes.lengths).unsqueeze(1)
    references = experience.measured.ref_logprobs[chosen_first].sum(1)
    inputs = {
        "input_ids": tokens,
        "attention_mask": (columns < ends).long(),
        "completion_mask": ((columns >= starts.unsqueeze(1)) & (columns < ends)).long(),
        "ref_chosen_logps": references[:3],
        "ref_rejected_logps": references[3:],
    }
    logged = {"train": defaultdict(list)}
    its = SimpleNamespace(
        model=SimpleNamespace(training=True), aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=True,
        accelerator=SimpleNamespace(device=tokens.device, gather=same, gather_for_metrics=same),
        f_divergence_type="reverse_kl", loss_types=[loss_type], loss_weights=[1.0], beta=BETA, use_weighting=False,
        _metrics=logged, _total_train_tokens=0,
    )  # fmt: skip
    loss = DPOTrainer._compute_loss(its, one.actor.lm, inputs, False)
    gradient = torch.autograd.grad(loss, list(one.actor.lm.parameters()))
    return loss.item(), logged["train"], list(gradient)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_agree(tmp_path: Path, name: str) -> None:
    loss_type, knobs = LOSSES[name]
    one = trainer(tmp_path, runtime={"micro_batch_size": 4}, kl__beta=BETA, **knobs)
    experience = one._experience(one._rollout())
    moved(one, 0.05)
    expected, logged, gradient = theirs(one, experience, loss_type)
    ours = one.learner.accumulate(experience, torch.tensor(ROWS))
    assert ours["policy/pg_loss"] == pytest.approx(expected, rel=1e-5)
    assert ours["pairs/chosen_logprobs"] == pytest.approx(logged["logps/chosen"][0], rel=1e-5)
    assert ours["pairs/rejected_logprobs"] == pytest.approx(logged["logps/rejected"][0], rel=1e-5)
    scale = SCALE[one.cfg.algorithm.trust_region]
    for parameter, one_gradient in zip(one.actor.lm.parameters(), gradient, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, scale * one_gradient, rtol=1e-3, atol=1e-6)
    if name != "dpo on means":  # TRL's rewards are of sums, and its accuracy is that of their margin
        margin = ours["pairs/chosen_log_ratio"] - ours["pairs/rejected_log_ratio"]
        assert logged["rewards/margins"][0] == pytest.approx(BETA * margin, rel=1e-4)
    if name == "dpo":
        assert ours["pairs/accuracy"] == pytest.approx(logged["rewards/accuracies"][0])
