from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import tinynets
import torch
from helpers import Recorder, smoke
from torch import Tensor

from pipeline.algorithms.mathematics.kl import exact_kl
from pipeline.models.out_of_memory import Room
from pipeline.run.layout import Layout
from pipeline.stages.evaluate import drift
from pipeline.stages.kl_gradients import kl_cosine, weights
from pipeline.trial import run_trial

V, T = 3, 2


def tables(seed: int) -> list[Tensor]:
    """Log-probs of a law on responses of two tokens: of the first, and of the second after each first."""
    logits = torch.randn(1 + V, V, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    return [logits[:1], logits[1:]]


def mean_gradient(name: str, steps: int = T) -> tuple[Tensor, Tensor]:
    """By enumeration: the mean of an estimator's gradient, and the gradient of the KL of whole responses."""
    parameters = [table.requires_grad_() for table in tables(0)[:steps]]
    pi, ref = ([one.log_softmax(-1) for one in law] for law in (parameters, tables(1)))
    responses = list(product(range(V), repeat=steps))
    places = [[(t, response[t - 1] if t else 0, response[t]) for t in range(steps)] for response in responses]
    logprobs, others = (torch.stack([torch.stack([law[t][i, v] for t, i, v in row]) for row in places])
                        for law in (pi, ref))  # fmt: skip
    own = torch.stack([torch.stack([exact_kl(pi[t][i], ref[t][i]) for t, i, _ in row]) for row in places])
    p, d = logprobs.sum(1).exp().detach(), logprobs - others
    c = weights(name, d.detach(), own.detach(), torch.ones(d.shape, dtype=torch.bool))
    loss = (p[:, None] * (c * logprobs + (own if name == "exact" else 0))).sum()
    whole = (logprobs.sum(1).exp() * d.sum(1)).sum()
    found, exact = (torch.autograd.grad(one, parameters, retain_graph=True) for one in (loss, whole))
    return torch.cat([one.flatten() for one in found]), torch.cat([one.flatten() for one in exact])


@pytest.mark.parametrize("name", ["exact", "k1_reward", "k1_score"])
def test_the_mean_gradient_is_that_of_the_kl(name: str) -> None:
    found, exact = mean_gradient(name)
    assert torch.allclose(found, exact)


def test_in_the_loss_a_token_pays_for_itself_alone() -> None:
    found, exact = mean_gradient("k2_loss", steps=1)
    assert torch.allclose(found, exact)
    assert not torch.allclose(*mean_gradient("k2_loss"))
    assert torch.allclose(mean_gradient("k1_loss")[0], torch.zeros(V + V * V, dtype=torch.double), atol=1e-12)
    (policy, *_), (reference, *_) = tables(0), tables(1)
    policy.requires_grad_()
    forward = exact_kl(reference.log_softmax(-1), policy.log_softmax(-1)).sum()
    (of_forward,) = torch.autograd.grad(forward, policy)
    assert torch.allclose(mean_gradient("k3_loss", steps=1)[0], of_forward.flatten())


POLICY, REFERENCE = (tinynets.network("qwen2", seed=seed) for seed in (0, 1))
RAGGED = tinynets.episodes([3, 5, 4, 2, 6, 3], [6, 2, 4, 1, 5, 3])
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1_loss": lambda d: d,
    "k2_loss": lambda d: d**2 / 2,
    "k3_loss": lambda d: (-d).exp() - 1 + d,
}


def naive(name: str, numbers: list[int]) -> Tensor:
    """The gradient of an estimator on some responses, one token after the other."""
    log_pi, log_ref = (net(RAGGED.query_responses, attention_mask=RAGGED.attention_mask).logits.log_softmax(-1)
                       for net in (POLICY, REFERENCE))  # fmt: skip
    first, tokens = RAGGED.context_length, RAGGED.query_responses
    lengths = {b: int(RAGGED.lengths[b]) for b in numbers}
    here = {(b, t): (log_pi[b, first + t - 1], log_ref[b, first + t - 1].detach(), int(tokens[b, first + t]))
            for b in numbers for t in range(lengths[b])}  # fmt: skip
    own = {place: pi[v] for place, (pi, _, v) in here.items()}
    d = {place: pi[v] - ref[v] for place, (pi, ref, v) in here.items()}
    kl = {place: (pi.exp() * (pi - ref)).sum() for place, (pi, ref, _) in here.items()}
    if name in LOSSES:
        loss = torch.stack([LOSSES[name](one) for one in d.values()]).sum()
    else:
        begin, terms = {"k1_reward": (0, d), "k1_score": (None, d), "exact": (1, kl)}[name]
        weight = {(b, t): sum(float(terms[b, s].detach()) for s in range(0 if begin is None else t + begin, lengths[b]))
                  for b, t in here}  # fmt: skip
        mean = {t: np.mean([weight[b, s] for b, s in here if s == t]) for _, t in here}
        loss = torch.stack([(weight[b, t] - mean[t]) * own[b, t] for b, t in here]).sum()
        loss = loss + (torch.stack([*kl.values()]).sum() if name == "exact" else 0)
    found = torch.autograd.grad(loss, [*POLICY.parameters()])
    return torch.cat([one.flatten() for one in found]).double()


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("name", ["exact", "k1_reward", "k1_score", *LOSSES])
def test_the_cosine_is_that_of_gradients_taken_token_by_token(name: str, size: int) -> None:
    kl, _, _, d = drift(POLICY, REFERENCE, RAGGED, 1.0, Room("rows", 6))
    found = kl_cosine(name, POLICY, REFERENCE, RAGGED, d, kl, Room("rows", 6), size)
    expected = torch.cosine_similarity(naive(name, [0, 2, 4]), naive("exact", [1, 3, 5]), dim=0)
    assert found == pytest.approx(float(expected), abs=1e-4)


def test_a_trial_reports_it(smoke_layout: Layout) -> None:
    plain, exact, nothing = (
        run_trial(smoke(evaluate__kl_gradient=name), smoke_layout, Recorder()) for name in (None, "exact", "k1_loss")
    )
    assert exact.artifacts["train"].key == plain.artifacts["train"].key
    assert "eval/kl_cosine" not in plain.summary
    assert abs(nothing.summary["eval/kl_cosine"]) < exact.summary["eval/kl_cosine"] <= 1
