"""Signs that a trial can still learn: finite numbers and a policy that has not collapsed; and checks on the first
rollout and the first step of every trial, where the right answer is known beforehand.

These catch what tests on other networks cannot: an architecture that ignores position ids, a sampler and a training
forward that disagree, dropout left on, a reference that is not the policy's start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.kl import entropy, expectation
from pipeline.models.heads import chunks, gather, head_logprobs, log_probs
from pipeline.models.policy import ActorCritic, Episodes, positions, response_hidden
from pipeline.models.trunk import trunk

if TYPE_CHECKING:
    from pipeline.training.rollout import Rollout


MIN_ENTROPY = 0.01
"""Nats per token; below it a policy chooses the same token about 999 times in 1,000, and no gradient brings it back."""
MAX_REPETITION = 0.8
"""Share of repeated token pairs; the shipped studies have 0.02 to 0.07."""


class Diverged(Exception):
    """The numbers are no longer finite, or the policy has collapsed; an outcome of the trial, not a fault of the
    program."""


def repetition(responses: Tensor, mask: Tensor) -> float:
    """Mean over responses of 1 - different token pairs / token pairs, in [0, 1); 0 where no response has a pair.

    responses (B, T) int64, mask (B, T). "a a a a" has three pairs, one of them different: 2/3.
    """
    tokens, counts = int(responses.max()) + 1, mask[:, 1:].sum(1)
    rows = counts > 0
    if not bool(rows.any()):
        return 0.0
    pairs = torch.where(mask[:, 1:], responses[:, :-1] * tokens + responses[:, 1:], -1)
    ordered = pairs.sort(dim=1).values
    fresh = torch.ones_like(mask[:, 1:])
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    different = (fresh & (ordered >= 0)).sum(1)
    return float((1 - different[rows] / counts[rows]).mean())


def check_collapse(metrics: dict[str, float]) -> None:
    """Raise `Diverged` for a rollout whose policy hardly chooses any more, or repeats the same text over and over."""
    entropy, repeated = metrics["objective/entropy_per_token"], metrics["objective/repetition"]
    if entropy < MIN_ENTROPY:
        raise Diverged(f"entropy collapsed: {entropy:.3g} nats per token, below {MIN_ENTROPY:g}")
    if repeated > MAX_REPETITION:
        raise Diverged(f"repeated text: {repeated:.1%} of the token pairs, above {MAX_REPETITION:.0%}")


def check_finite(values: Mapping[str, float]) -> None:
    """Raise `Diverged` with the names of those that are not finite."""
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        raise Diverged(f"not finite: {', '.join(bad)}")


# --- around the first step ---------------------------------------------------------------------------------

NOISE = 5.0
"""Standard errors by which a sampled mean may miss its expectation before it is no longer noise."""
PAD_COLUMNS = 3
EPISODES = 2
"""As many go through the network at once."""
SAMPLED = 64
"""Most episodes whose sampling is checked."""
OFF_POLICY = "selfcheck/off_policy"
"""Sum over a mini-batch: tokens whose |log ratio| is beyond the tolerance of the precision. Checked once,
never logged."""
MOST_OFF_POLICY = 1e-3
"""The largest share of such tokens in a sound first mini-batch, so that the tolerance is one on the 99.9 % quantile of
|log ratio|."""


class SelfCheckFailed(RuntimeError):
    """A condition before the first step does not hold: a fault of the program or of the network, not an outcome."""


def check_start(rollout: Rollout, actor: ActorCritic, temperature: float, tolerance: float) -> None:
    """Check before the first step that the policy is its own reference, was sampled from, and ignores padding.

    `tolerance` in nats per token, for the precision at hand. Raises `SelfCheckFailed`.
    """
    drift = rollout.metrics["objective/kl_exact_per_token"]
    if drift > tolerance:
        raise SelfCheckFailed(
            f"before the first step the policy is {drift:.3g} nats per token away from its reference; it must be 0"
        )
    stride = -(-len(rollout.episodes.lengths) // SAMPLED)
    check_sampling(rollout.episodes.take(slice(None, None, stride)), actor, temperature, tolerance)
    check_padding(rollout.episodes.take(slice(0, EPISODES)), actor, temperature, tolerance)


@torch.no_grad()
def check_sampling(episodes: Episodes, actor: ActorCritic, temperature: float, tolerance: float) -> None:
    """Check that sampled tokens are as surprising as the policy's entropy says, but for noise. Raises
    `SelfCheckFailed`.

    The noise is the policy's own, of all tokens that could have been sampled: where it is sure of most tokens, those
    that were sampled hardly vary, rare ones may be missing, and two of them are no fault.
    """
    off, variance, largest, n = 0.0, 0.0, 0.0, int(episodes.lengths.sum())
    for start in range(0, len(episodes.lengths), EPISODES):
        some = episodes.take(slice(start, start + EPISODES))
        hidden, labels = response_hidden(actor.lm, some), some.labels
        for rows in chunks(labels, int(actor.lm.config.vocab_size)):
            log_pi = log_probs(actor.lm, hidden[rows], temperature)
            pi = log_pi.exp()
            expected = entropy(log_pi, pi)
            surprise = -gather(log_pi, labels[rows]) - expected
            off += float(surprise.double().sum())
            variance += float((expectation(pi, log_pi.square()) - expected.square()).double().sum())
            largest = max(largest, float(surprise.max()))
    noise = math.sqrt(max(variance, 0.0))
    if abs(off) > NOISE * noise + 2 * largest + tolerance * n:
        raise SelfCheckFailed(
            f"sampled tokens have {off / n:+.3g} nats per token against the policy's own entropy, noise is"
            f" {noise / n:.2g} (n = {n}): they were sampled from another distribution than the training forward"
            " computes"
        )


@torch.no_grad()
def check_padding(episodes: Episodes, actor: ActorCritic, temperature: float, tolerance: float) -> None:
    """Real tokens as padding left and right, hidden by masks as sampling hides it, change no log-probability. Raises
    `SelfCheckFailed`."""
    filler = episodes.query_responses[:, -1:].expand(-1, PAD_COLUMNS)
    hidden = torch.zeros_like(filler, dtype=torch.bool)
    padded = replace(
        episodes,
        query_responses=torch.cat([filler, episodes.query_responses, filler], dim=1),
        query_mask=torch.cat([hidden, episodes.query_mask], dim=1),
        response_mask=torch.cat([episodes.response_mask, hidden], dim=1),
    )
    lm, mask, start = actor.lm, padded.attention_mask, padded.context_length - 1
    output = trunk(lm)(
        input_ids=padded.query_responses, attention_mask=mask, position_ids=positions(mask), use_cache=False
    )
    behind_masks = output.last_hidden_state[:, start : start + padded.response_mask.shape[1]][padded.response_mask]
    plain, masked = (
        head_logprobs(lm, hidden, episodes.labels, temperature)
        for hidden in (response_hidden(lm, episodes), behind_masks)
    )
    apart = (plain - masked).abs().max()
    if float(apart) > tolerance:
        raise SelfCheckFailed(
            f"{PAD_COLUMNS} columns of padding move a log-probability by {float(apart):.3g} nats: the network ignores"
            " its attention mask or its position ids, so what it samples would depend on the batch around it"
        )


@torch.no_grad()
def check_end(queries: Tensor, mask: Tensor, actor: ActorCritic, temperature: float) -> None:
    """Check the policy after the last step of a trial, which no rollout follows; queries and mask (B, P). Raises
    `Diverged` for log-probs or values that are not finite."""
    some = slice(0, EPISODES)
    queries, mask = queries[some], mask[some]
    # Any token will do as a response.
    episodes = Episodes(torch.cat([queries, queries[:, -1:]], dim=1), mask, mask[:, -1:], mask[:, -1])
    log_pi, values = actor(episodes, temperature)
    if not all(bool(torch.isfinite(grid).all()) for grid in (log_pi, values) if grid is not None):
        raise Diverged("not finite: the policy after its last step")


def check_first_step(metrics: Mapping[str, float], off_policy: float, tolerance: float) -> None:
    """Check that the policy of the first mini-batch is the behaviour policy: every ratio is 1, but for rounding. Raises
    `SelfCheckFailed`.

    `off_policy` is the share of tokens with |log ratio| > `tolerance`, nats. Whether a ratio is clipped is no
    criterion: with a small epsilon the rounding of half precision, or of another kernel for another shape, clips a
    sound one.
    """
    ratio, approxkl = metrics["policy/ratio"], metrics["policy/approxkl"]
    if abs(ratio - 1) > tolerance or approxkl > tolerance or off_policy > MOST_OFF_POLICY:
        raise SelfCheckFailed(
            f"the first mini-batch has ratio {ratio:.6g} and approxkl {approxkl:.3g}, and {off_policy:.2%} of its"
            f" tokens have a log ratio beyond {tolerance:g} nats; before any step these must be 1, 0 and at most"
            f" {MOST_OFF_POLICY:.1%}: rollout and training forward disagree"
        )
