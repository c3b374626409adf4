"""The tensors that `trl_golden.py` saved, and what our functions make of the same rollout, for several tests."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from helpers import trial_config
from safetensors import safe_open
from tinytrial import BASE, preset
from torch import Tensor

from pipeline.algorithms.aggregation import response_weights
from pipeline.algorithms.mathematics.shaping import beta_in_reward, non_score_reward
from pipeline.algorithms.registry import ESTIMATORS, SURROGATES
from pipeline.algorithms.terms import Tokens
from pipeline.config.trial import TrialConfig
from pipeline.models.policy import response_mask, to_grid
from pipeline.training.judging import Measured, judge
from pipeline.training.penalty import penalty_of
from pipeline.training.surrogate_loss import of_sequences, of_tokens

with safe_open(Path(__file__).with_name("trl_golden.safetensors"), "pt") as saved:
    GOLDEN = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
    ABOUT = json.loads(saved.metadata()["about"])

OLD, NEW, REF, ENTROPIES, SCORES, LENGTHS = (
    GOLDEN[f"inputs/{name}"] for name in ("old", "new", "ref", "entropies", "scores", "lengths")
)
MINI_BATCHES = GOLDEN["inputs/mini_batches"].unbind()
WIDTH, LONGEST = OLD.shape[1], 9
MASK = response_mask(LENGTHS, WIDTH)
EXACT = {"rtol": 1e-9, "atol": 1e-12}
FP32 = {"rtol": 1e-5, "atol": 1e-6}


def settings(name: str, changes: dict[str, Any]) -> TrialConfig:
    """A preset on the rollout that was saved, with a penalty of 0.3."""
    rollout = {"train__batch_size": len(LENGTHS), "train__response_length": LONGEST, "kl__beta": 0.3}
    return trial_config(**BASE | rollout | preset(name) | changes)


def advantages(cfg: TrialConfig, v_star: Tensor | None = None) -> Tensor:
    """(B, T) before whitening, by our estimator; `v_star` (B,) where it needs that."""
    penalty = non_score_reward(OLD, REF, MASK, beta_in_reward(cfg.kl.beta, cfg.kl.place), cfg.kl.reward_estimator)
    nothing = torch.zeros_like(OLD)
    judged = judge(SCORES, penalty, Measured(OLD, REF, nothing, nothing, None), MASK, cfg)
    return ESTIMATORS[cfg.algorithm.advantage](replace(judged, v_star=v_star), cfg.algorithm).advantages


@dataclass(frozen=True)
class Step:
    """Our side of one mini-batch of b responses."""

    loss: Tensor
    gradient: Tensor
    """(b, T) by the new log-probs."""
    clipped: Tensor
    """0 where no ratio is."""


def step(cfg: TrialConfig, rows: Tensor, worth: Tensor) -> Step:
    """Loss, gradient and clip fraction of some rows whose advantages are `worth` (B, T)."""
    mask, lengths, surrogate = MASK[rows], LENGTHS[rows], SURROGATES[cfg.algorithm.trust_region]
    tokens, every = mask.sum().double(), slice(None)
    new = NEW[rows][mask].requires_grad_()
    batch = Tokens(OLD[rows][mask], REF[rows][mask], worth.double()[rows][mask], None, None)
    weights = response_weights(lengths, tokens, len(rows), cfg.train.response_length, cfg.algorithm)
    if cfg.algorithm.by_sequence:
        each = tokens / len(rows)
        objective = of_sequences(surrogate, batch, mask, new.detach(), weights, each, cfg.algorithm)
    else:
        each = (weights / lengths).unsqueeze(1).expand(mask.shape)[mask]
        objective = of_tokens(surrogate, batch, each, cfg.algorithm)
    whole = torch.zeros(mask.shape, dtype=torch.long)
    penalty = penalty_of(batch, mask, new.detach(), cfg.kl.beta, cfg.kl, whole)
    loss, beside = objective.loss(every, new), -cfg.entropy.coef * ENTROPIES[rows][mask]
    if penalty is not None:
        loss = loss + objective.weighted(every, penalty.loss(every, new))
        beside = beside + penalty.value(new.detach())
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    sums = objective.sums(new.detach())
    return Step(
        (sums["policy/pg_loss"] + objective.weighted(every, beside).sum()) / tokens,
        to_grid(gradient / tokens, mask),
        sums.get("policy/pg_clipfrac", torch.zeros(())) / tokens,
    )


def theirs(case: str) -> Tensor:
    """TRL's advantages as a grid."""
    return GOLDEN[f"{case}/advantages"].unsqueeze(1) * MASK


def padded(gradient: Tensor) -> Tensor:
    """(b, T) with as many columns as TRL's; the longest response of a mini-batch may be a shorter one."""
    return torch.nn.functional.pad(gradient, (0, WIDTH - gradient.shape[1]))
