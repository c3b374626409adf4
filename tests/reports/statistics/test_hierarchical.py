"""The posterior against Student, against numerical integration, and against the variances it is made of."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from reports.statistics.hierarchical import LONE, SCALE, Moments, moments, posterior


def test_without_prompts_it_is_student() -> None:
    values = np.array([[0.1], [0.4], [0.35], [0.2]])
    found = posterior(moments(values))
    wanted = stats.ttest_1samp(values[:, 0], 0.0)
    low, high = wanted.confidence_interval(0.95)
    assert found.half_width(0.95) == pytest.approx((high - low) / 2, rel=1e-4)
    assert found.beyond(values.mean()) == pytest.approx(wanted.pvalue, rel=1e-4)


@pytest.mark.parametrize("seeds", [1, 2, 8])
def test_it_is_the_integral_over_the_standard_deviation_between_seeds(seeds: int) -> None:
    between, within, prompts, spread = 0.02 * (seeds > 1), 0.003, 0.002, 1.0

    def weight(tau: float) -> float:
        prior = 1 / (1 + (tau / LONE) ** 2) if seeds == 1 else 1 / (SCALE + tau)
        variance = tau**2 + within
        return float(prior * variance ** (-(seeds - 1) / 2) * np.exp(-(seeds - 1) * between / 2 / variance))

    def tail(tau: float) -> float:
        return float(weight(tau) * 2 * stats.norm.sf(0.3, scale=np.sqrt(tau**2 / seeds + prompts)))

    parts = [(0.0, 0.1), (0.1, 1.0), (1.0, 10.0), (10.0, np.inf)]
    total, far = (sum(integrate.quad(f, *ends, limit=200)[0] for ends in parts) for f in (weight, tail))
    found = posterior(Moments(seeds, *map(np.asarray, (0.0, between, within, prompts, spread))))
    assert found.beyond(0.3) == pytest.approx(far / total, rel=2e-3)


def test_half_width_inverts_the_tail_for_many_tables_at_once() -> None:
    rng = np.random.default_rng(0)
    found = posterior(moments(rng.normal(size=(50, 3, 30)) + rng.normal(0, 1, (50, 3, 1)) * rng.random((50, 1, 1))))
    for level in (0.5, 0.95, 0.9999):
        assert found.beyond(found.half_width(level)) == pytest.approx(1 - level, rel=1e-6)


def test_moments_are_unbiased() -> None:
    rng, shape = np.random.default_rng(1), (4_000, 4, 25)
    of_seeds, of_prompts = rng.normal(0, 0.3, (*shape[:2], 1)), rng.normal(0, 1.0, (shape[0], 1, shape[2]))
    found = moments(of_seeds + of_prompts + rng.normal(0, 0.5, shape))
    noise = 0.5**2 / 25
    assert found.within.mean() == pytest.approx(noise, rel=0.02)
    assert found.between.mean() == pytest.approx(0.3**2 + noise, rel=0.03)
    assert found.prompts.mean() * 22 / 24 == pytest.approx(1.0 / 25 + noise / 4, rel=0.02)
    assert (found.spread**2).mean() == pytest.approx(1.0 + 0.5**2, rel=0.02)
    assert np.var(found.mean) == pytest.approx(0.3**2 / 4 + 1.0 / 25 + noise / 4, rel=0.06)
