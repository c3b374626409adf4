from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tinytrial
import torch
from naive import drawn
from tinytrial import preset, trainer
from torch import Tensor

from pipeline.algorithms.mathematics.kl import exact_kl
from pipeline.algorithms.mathematics.natural_gradient import conjugate_gradient, fisher_of_logits, line_search
from pipeline.models.fisher import fisher_product, flat, trained
from pipeline.models.heads import log_probs
from pipeline.models.loading import scratch_model
from pipeline.models.policy import response_hidden
from pipeline.training import natural_step
from pipeline.training.natural_step import NaturalLearner
from pipeline.training.rollout import Rollout
from pipeline.training.trainer import Trainer


@pytest.mark.parametrize("size", [1, 3, 20])
def test_conjugate_gradients_solve_what_linear_algebra_solves(size: int) -> None:
    root, target = drawn(size, size, seed=1), drawn(size, seed=2)
    matrix = root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)
    kept = target.clone()
    found = conjugate_gradient(lambda vector: matrix @ vector, target, 4 * size)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, target), rtol=1e-4, atol=1e-4)
    assert torch.equal(target, kept)


def test_two_different_eigenvalues_take_two_iterations_and_one_takes_one() -> None:
    target, products = drawn(6, seed=3), []
    eigenvalues = torch.tensor([2.0, 2, 2, 5, 5, 5], dtype=torch.float64)

    def product(vector: torch.Tensor) -> torch.Tensor:
        products.append(vector)
        return eigenvalues * vector

    torch.testing.assert_close(conjugate_gradient(product, target, 50), target / eigenvalues)
    assert len(products) == 2
    assert conjugate_gradient(lambda vector: 4 * vector, target, 1).tolist() == pytest.approx((target / 4).tolist())


def test_the_fisher_matrix_of_logits_is_the_hessian_of_the_kl() -> None:
    logits, vector = drawn(1, 5, seed=4), drawn(1, 5, seed=5)
    log_old = torch.log_softmax(logits, -1)
    hessian = torch.autograd.functional.hessian(lambda z: exact_kl(log_old, torch.log_softmax(z, -1)).sum(), logits)
    expected = (hessian.view(5, 5) @ vector[0]).view(1, 5)
    torch.testing.assert_close(fisher_of_logits(log_old.exp(), vector), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("gain", "kl", "accepted", "tried"),
    [
        (1.0, 0.01, True, 1),  # exactly delta is within the bound
        (1.0, 0.0100001, True, 2),
        (0.0, 0.001, False, 4),  # no gain
        (math.nan, 0.001, False, 4),
        (math.inf, 0.001, False, 4),
        (1.0, math.nan, False, 4),
        (1.0, 1.0, False, 4),
    ],
)
def test_the_line_search_takes_the_first_point_with_a_gain_within_the_bound(
    gain: float, kl: float, accepted: bool, tried: int
) -> None:
    shares = []

    def evaluate(share: float) -> tuple[float, float]:
        shares.append(share)
        return gain * share, kl * share

    found = line_search(evaluate, 0.01, 4)
    assert (found.accepted, found.tried) == (accepted, tried)
    assert shares == pytest.approx([1, 0.8, 0.64, 0.512][:tried])
    if not accepted:
        assert (found.gain, found.kl) == (0.0, 0.0)


TRPO = preset("trpo")
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "far": {"algorithm__trpo__delta": 0.2},
    "penalty and bonus": {"kl__place": "loss", "kl__beta": 0.3, "entropy__coef": 0.05},
    "temperature": {"train__temperature": 0.7},
    "means of responses": {"algorithm__aggregation": "seq_mean_token_mean"},
    "lora": {"adapter__kind": "lora"},
}


def ready(folder: Path, **knobs: Any) -> tuple[Trainer, Rollout, dict[str, float]]:
    """A trial before its first step: its rollout, the gradient of the whole in the parameters, and metrics."""
    one = trainer(folder, **{**TRPO, **knobs})
    rollout = one._rollout()
    return one, rollout, one.learner.accumulate(rollout, torch.arange(8))


def learner_of(one: Trainer) -> NaturalLearner:
    assert isinstance(one.learner, NaturalLearner)
    return one.learner


def log_table(one: Trainer, rollout: Rollout) -> Tensor:
    with torch.no_grad():
        return log_probs(one.actor.lm, response_hidden(one.actor.lm, rollout.episodes), one.cfg.train.temperature)


def weights(one: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in one.actor.lm.state_dict().items()}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_exact_kl_after_an_accepted_step_is_within_delta(tmp_path: Path, setting: str) -> None:
    """Measured here once more, over the whole table of log-probabilities at once."""
    one, rollout, metrics = ready(tmp_path, **SETTINGS[setting])
    before, held = log_table(one, rollout), weights(one)
    metrics |= learner_of(one).move_policy(rollout)
    after = log_table(one, rollout)
    kl = exact_kl(before, after).mean().item()
    assert metrics["policy/step_accepted"] == 1
    assert metrics["policy/old_kl_exact"] == pytest.approx(kl, rel=1e-3, abs=1e-7)
    delta = one.cfg.algorithm.trpo.delta
    assert 0.2 * delta < kl <= delta * (1 + 1e-5)
    frozen = {name for name, parameter in one.actor.lm.named_parameters() if not parameter.requires_grad}
    assert all(torch.equal(one.actor.lm.state_dict()[name], held[name]) for name in frozen)
    assert all(parameter.grad is None for parameter in one.actor.lm.parameters())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("setting", ["plain", "penalty and bonus", "means of responses"])
def test_the_gain_is_that_of_the_loss_of_the_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, seed: int
) -> None:
    """The central difference of the gain along the step is the gradient times the step: within 0.06 % over ten seeds,
    some of which sample the padding token."""
    monkeypatch.setattr(tinytrial, "scratch_model", lambda *args, **_: scratch_model(*args, seed=seed))
    knobs = {**SETTINGS[setting], "algorithm__trpo__delta": 1e-6}
    one, rollout, metrics = ready(tmp_path, **knobs, train__seed=seed)
    parameters = trained(one.actor.lm)
    before = [parameter.detach().clone() for parameter in parameters]
    metrics |= learner_of(one).move_policy(rollout)
    opposite = [2 * old - new.detach() for old, new in zip(before, parameters, strict=True)]
    for parameter, old in zip(parameters, before, strict=True):
        parameter.data.copy_(old)
    (rows,) = rollout.micro_batches(8, torch.arange(8))
    backwards = learner_of(one).gain_and_kl(rows, opposite)["gain"] / rollout.episodes.response_mask.sum()
    shrunk = 0.8 ** (metrics["policy/line_search"] - 1)
    slope = (metrics["policy/surrogate_gain"] - backwards.item()) / 2
    assert slope == pytest.approx(metrics["policy/expected_gain"] * shrunk, rel=2e-3)


@pytest.mark.slow
def test_a_refused_step_leaves_the_weights_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    better = NaturalLearner.gain_and_kl

    def worse(*args: Any) -> dict[str, Tensor]:
        found = better(*args)
        return {**found, "gain": -found["gain"]}

    one, rollout, metrics = ready(tmp_path)
    held = weights(one)
    monkeypatch.setattr(NaturalLearner, "gain_and_kl", worse)
    metrics |= learner_of(one).move_policy(rollout)
    assert (metrics["policy/step_accepted"], metrics["policy/line_search"]) == (0, 10)
    assert (metrics["policy/old_kl_exact"], metrics["policy/surrogate_gain"]) == (0, 0)
    assert all(torch.equal(tensor, held[name]) for name, tensor in one.actor.lm.state_dict().items())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_direction_is_the_inverse_fisher_matrix_times_the_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """However small delta is: (F + damping) step is parallel to the gradient, and ½ step'F step = delta. Damped so much
    that 60 conjugate-gradient iterations converge in fp32 here; of the networks of five seeds they do in three."""
    monkeypatch.setattr(natural_step, "CG_ITERATIONS", 60)
    monkeypatch.setattr(natural_step, "DAMPING", 1.0)
    one, rollout, _ = ready(tmp_path, algorithm__trpo__delta=1e-6, train__temperature=temperature)
    lm = one.actor.lm
    parameters = trained(lm)
    uphill = -flat([parameter.grad for parameter in parameters], parameters)
    step = learner_of(one).natural_step(rollout, uphill)
    curved = fisher_product(lm, rollout.episodes, step, temperature) / rollout.episodes.response_mask.sum()
    assert 0.5 * step.dot(curved).item() == pytest.approx(1e-6, rel=1e-3)
    back = curved + 1.0 * step
    assert torch.cosine_similarity(back, uphill, dim=0).item() == pytest.approx(1, abs=1e-4)
    assert torch.cosine_similarity(step, uphill, dim=0).item() < 0.99
