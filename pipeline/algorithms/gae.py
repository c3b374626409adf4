"""Generalised advantage estimation by the values of a critic, or of replayed states; and targets of the critic. A state
is replayed when it is sampled onwards several times by the policy that made the rollout.

B responses, T columns. A state is the prompt with the first t tokens of its response, and its value the expected
rewards from token t on. Values are known at some states of a response, the first of them at t = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.algorithms.base import Estimate, Judged
from pipeline.algorithms.mathematics.advantages import gae
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.config.algorithm import AlgorithmConfig


def starts(lengths: Tensor, width: int, every: int) -> Tensor:
    """(B, T) True at the states that are replayed: each `every`-th from the first on, within a response of lengths
    (B,)."""
    place = torch.arange(width, device=lengths.device)
    return (place % every == 0) & (place < lengths.unsqueeze(1))


def held(values: Tensor, known: Tensor) -> Tensor:
    """(B, T) the value of the newest known state at each place; values and known (B, T), known at 0.

    Between two known states it is not drawn to the next one, as by a line between them: that value depends on
    the tokens in between, and a baseline that depends on them takes away some of the gradient.
    """
    place = torch.arange(values.shape[1], device=values.device).expand_as(values)
    newest = torch.where(known, place, 0).cummax(dim=1).values
    return values.gather(1, newest)


def segment_gae(rewards: Tensor, values: Tensor, known: Tensor, mask: Tensor, lam: float) -> Tensor:
    """Advantages (B, T) by GAE whose steps are the segments between known states; 0 on invalid tokens, no discount.

        G_t = r_t + V_(t+1) + λ (G_(t+1) - V_(t+1))   before a known state,   r_t + G_(t+1)   before any other
        A_t = G_t - V of the newest known state

    rewards, values (B, T) in score units; known, mask (B, T) bool, known at the first token of every response. λ = 0
    compares the next known state with the newest one, VinePPO (Kazemnejad 2024, arXiv 2410.01679); λ = 1 compares the
    rewards of the response with it. With every state known it is GAE (`advantages.gae`).
    """
    zero = torch.zeros((), dtype=values.dtype, device=values.device)
    rewards, values = torch.where(mask, rewards, zero), torch.where(known, values, zero)
    gains = torch.zeros_like(values)
    carry = values.new_zeros(values.shape[0])  # what a token leads to beside its own reward
    for t in reversed(range(values.shape[1])):
        gain = rewards[:, t] + carry
        gains[:, t] = gain
        carry = torch.where(known[:, t], values[:, t] + lam * (gain - values[:, t]), gain)
        carry = torch.where(mask[:, t], carry, zero)
    return torch.where(mask, gains - held(values, known), zero)


def by_critic(judged: Judged, cfg: AlgorithmConfig) -> Estimate:
    """Advantages and returns by GAE, the returns with a lambda of their own where there is one: 1 makes them Monte
    Carlo, whatever bias the advantages may have (VC-PPO: Yuan 2025, arXiv 2503.01491).

    Raises `ValueError` without a critic.
    """
    if judged.values is None:
        raise ValueError("GAE needs a critic")
    rewards = token_rewards(judged.scores, judged.non_score, judged.mask)
    advantages, returns = gae(rewards, judged.values, judged.mask, cfg.gamma, cfg.gae_lambda)
    if cfg.value_lambda is not None:
        returns = gae(rewards, judged.values, judged.mask, cfg.gamma, cfg.value_lambda)[1]
    return advantages, returns


def by_replay(judged: Judged, cfg: AlgorithmConfig) -> Estimate:
    """GAE from state to state that was replayed, without a critic. Raises `ValueError` without replayed states."""
    if judged.replayed is None:
        raise ValueError("advantage 'replay' needs replayed states")
    rewards = token_rewards(judged.scores, judged.non_score, judged.mask)
    replayed = judged.replayed
    return segment_gae(rewards, replayed.values, replayed.known, judged.mask, cfg.gae_lambda), None


def targets(judged: Judged, returns: Tensor) -> Tensor:
    """(B, T) what a critic is fitted to: the replayed value where a state has one, elsewhere the return by GAE."""
    if judged.replayed is None:
        return returns
    return torch.where(judged.replayed.known, judged.replayed.values, returns)
