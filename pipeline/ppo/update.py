"""Step 6 of an update: epochs x mini-batches over one rollout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipeline.config import PpoConfig
from pipeline.models.policy import ActorCritic, gather
from pipeline.models.seeding import permutation
from pipeline.ppo.controllers import LrGuard, schedule
from pipeline.ppo.kl import entropy, k2, k3
from pipeline.ppo.losses import policy_loss, value_loss
from pipeline.ppo.rollout import Diverged, Rollout

STEP_METRICS = (
    "policy/pg_loss",
    "policy/pg_clipfrac",
    "policy/approxkl",
    "policy/approxkl_k3",
    "policy/ratio",
    "policy/entropy",
    "policy/kl_ref_per_token",
    "value/vf_loss",
    "value/vf_clipfrac",
)


def train_on(
    rollout: Rollout,
    actor: ActorCritic,
    optimiser: torch.optim.Optimizer,
    accelerator: Any,
    cfg: PpoConfig,
    update: int,
    guard: LrGuard,
    micro_batch: int,
    on_step: Callable[[int, dict[str, float]], None],
) -> None:
    """Take ``num_ppo_epochs x num_mini_batches`` gradient steps; `on_step` gets each step's number and metrics.

    Raises `Diverged` before a step that is not finite would be taken.
    """
    step = update * cfg.steps_per_update
    for epoch in range(cfg.num_ppo_epochs):
        order = permutation(cfg.batch_size, cfg.seed, "epoch", update, epoch).to(rollout.logprobs.device)
        for rows in torch.split(order, cfg.mini_batch_size):
            factor = schedule(cfg, step) * guard.factor
            for group in optimiser.param_groups:
                group["lr"] = group["base_lr"] * factor
            values = gradient_step(rollout, rows, actor, optimiser, accelerator, cfg, micro_batch)
            step += 1
            on_step(step, {**values, "policy/lr": cfg.lr * factor, "policy/lr_factor": guard.factor})
            guard.step()


def gradient_step(
    rollout: Rollout, rows: Tensor, actor: ActorCritic, optimiser: torch.optim.Optimizer, accelerator: Any, cfg: PpoConfig, micro_batch: int
) -> dict[str, float]:
    """One optimiser step on the mini-batch `rows`, in micro-batches that change no result."""
    optimiser.zero_grad(set_to_none=True)
    tokens = rollout.episodes.response_mask[rows].sum()
    sums = torch.zeros(len(STEP_METRICS), device=tokens.device)
    for part in torch.split(rows, micro_batch):
        loss, part_sums = losses(rollout, part, actor, cfg)
        accelerator.backward(loss / tokens)
        sums += part_sums
    norm = accelerator.clip_grad_norm_(actor.parameters(), cfg.max_grad_norm)
    means = dict(zip(STEP_METRICS, (sums / tokens).tolist(), strict=True))
    _check(means, float(norm), scaled=accelerator.scaler is not None)
    optimiser.step()
    # An fp16 gradient that overflowed has no norm, and the loss scaler has skipped its step.
    return {**means, "policy/grad_norm": float(norm)} if math.isfinite(float(norm)) else means


def losses(rollout: Rollout, rows: Tensor, actor: ActorCritic, cfg: PpoConfig) -> tuple[Tensor, Tensor]:
    """Summed loss over the valid tokens of `rows`, and the sums of `STEP_METRICS` (9,), detached."""
    episodes = rollout.episodes.take(rows)
    mask = episodes.response_mask

    def flat(grid: Tensor) -> Tensor:
        return grid[rows][:, : mask.shape[1]][mask]

    logprobs, values = flat(rollout.logprobs), flat(rollout.values)
    log_pi, vpred = actor(episodes, cfg.temperature)
    new_logprobs = gather(log_pi, episodes.labels)
    pg, pg_clipped = policy_loss(new_logprobs, logprobs, flat(rollout.advantages), cfg.cliprange)
    vf, vf_clipped = value_loss(vpred, values, flat(rollout.returns), cfg.cliprange_value)
    loss = pg.sum() + cfg.vf_coef * vf.sum()
    if cfg.ent_coef:
        loss = loss - cfg.ent_coef * entropy(log_pi).sum()
    with torch.no_grad():
        log_ratio = new_logprobs - logprobs
        to_reference = log_ratio.exp() * (new_logprobs - flat(rollout.ref_logprobs))
        per_token = (pg, pg_clipped, k2(log_ratio), k3(-log_ratio), log_ratio.exp(), entropy(log_pi), to_reference, vf, vf_clipped)
        sums = torch.stack([one.float().sum() for one in per_token])
    return loss, sums


def _check(means: dict[str, float], norm: float, scaled: bool) -> None:
    bad = [name for name, value in means.items() if not math.isfinite(value)]
    # A gradient that overflows fp16 is the loss scaler's business: it skips the step and lowers the scale.
    if not math.isfinite(norm) and not scaled:
        bad.append("policy/grad_norm")
    if bad:
        raise Diverged(f"not finite: {', '.join(bad)}")
