"""Conjugate gradients, the Fisher matrix of logits, and the line search: by hand and against linear algebra."""

from __future__ import annotations

import math

import pytest
import torch
from naive import drawn

from pipeline.algorithms.mathematics.kl import exact_kl
from pipeline.algorithms.mathematics.natural_gradient import (
    conjugate_gradient,
    fisher_of_logits,
    line_search,
)


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
