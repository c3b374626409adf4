"""Gradients of estimators of the KL: their means by enumeration, and their cosine with the exact one."""

from __future__ import annotations

from itertools import product

import pytest
import tinynets
import torch
from helpers import Recorder, smoke
from torch import Tensor

from pipeline.algorithms.mathematics.kl import exact_kl
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes
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


def test_the_cosine_is_1_where_both_halves_are_the_same() -> None:
    policy, reference = tinynets.network("qwen2"), tinynets.network("qwen2", seed=1)
    one = tinynets.episodes([3, 5, 4], [6, 2, 4])
    twice = Episodes(*(grid.repeat_interleave(2, dim=0) for grid in vars(one).values()))
    kl, _, _, d = drift(policy, reference, twice, 1.0, Room("rows", 6))
    sizes = {name: [kl_cosine(name, policy, reference, twice, d, kl, Room("rows", 6), size) for size in (1, 6)]
             for name in ("exact", "k1_score", "k1_loss", "k3_loss")}  # fmt: skip
    assert sizes["exact"] == pytest.approx([1.0, 1.0])
    assert all(few == pytest.approx(many, abs=1e-4) for few, many in sizes.values())
    assert max(few for name, (few, _) in sizes.items() if name != "exact") < 0.999


def test_a_trial_reports_it(smoke_layout: Layout) -> None:
    plain, exact, nothing = (
        run_trial(smoke(evaluate__kl_gradient=name), smoke_layout, Recorder()) for name in ("none", "exact", "k1_loss")
    )
    assert exact.artifacts["train"].key == plain.artifacts["train"].key
    assert "eval/kl_cosine" not in plain.summary
    assert abs(nothing.summary["eval/kl_cosine"]) < exact.summary["eval/kl_cosine"] <= 1
