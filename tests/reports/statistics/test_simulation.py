"""The simulation of `make coverage` applies the functions of the reports, and its committed tables are its own."""

from __future__ import annotations

from dataclasses import asdict, astuple

import numpy as np
import pandas as pd
import pytest
from simulation import equal_drift, families, intervals
from simulation.intervals import Scenario, tables, truth

from reports.statistics import two_level
from reports.statistics.coverage import RARE, REPLICATES, RESULTS, coverage_with, largest, published
from reports.statistics.matched_kl import WIDEST

FAILS = {RARE: 0.70, "sd 1": 0.91}
"""Coverages of a mean below 93 %: seeds that agree do not show the one that drops, and rates near 1
are skewed where seeds differ by a standard deviation over prompts."""
ERROR = (0.05 * 0.95 / REPLICATES) ** 0.5


@pytest.mark.parametrize(
    ("kind", "spread"), [("rate 0.95", "sd 0.2"), ("ratio", "sd 0.2"), ("score", "heavy tails"), ("rate 0.5", RARE)]
)
def test_the_truth_is_the_mean_of_many_tables(kind: str, spread: str) -> None:
    design = Scenario(kind, spread, 200, 20)
    means = two_level.linear(*tables(np.random.default_rng(0), design, 40)).mean((-1, -2)).mean(1)
    assert means.mean() == pytest.approx(truth(design), abs=4 * means.std() / 40**0.5)


def committed(name: str, design: Scenario) -> pd.DataFrame:
    rows = pd.read_csv(RESULTS.with_name(name)).to_dict("records")
    return pd.DataFrame([row for row in rows if asdict(design).items() <= row.items()])


def test_the_committed_intervals_are_those_of_the_present_code() -> None:
    design = Scenario("rate 0.95", "sd 0.05", 1, 128)
    found = pd.DataFrame([intervals.simulate(design)])
    pd.testing.assert_frame_equal(found, committed("coverage.csv", design), rtol=0.01, atol=0.0011)


@pytest.mark.slow
def test_the_committed_families_are_those_of_the_present_code() -> None:
    design = Scenario("score", "sd 0.05", 3, 512)
    found = pd.DataFrame(families.simulate(design, REPLICATES))
    pd.testing.assert_frame_equal(found, committed("families.csv", design), rtol=0, atol=0.0021)


def test_every_design_is_committed_and_is_right_as_often_as_stated() -> None:
    assert [cell[1:5] for cell in published().itertuples()] == [astuple(design) for design in intervals.designs()]
    for cell in published().itertuples():
        if cell.seeds >= 2:
            assert cell.family_wise_error <= 0.05 + 3 * ERROR, cell
        if cell.seeds >= 3:
            assert cell.difference_coverage >= 0.93 - 2 * ERROR, cell
            assert cell.mean_coverage >= FAILS.get(cell.spread, 0.93 - 2 * ERROR), cell
    for family, (before, after) in largest().items():
        kinds = 2 if family == "2 arms at 0, 2 at the margin" else 1
        assert after <= kinds * 0.05 + 3.5 * ERROR, family
        assert before > 0.1, family


def test_a_number_of_seeds_has_the_range_of_the_next_lower_one() -> None:
    assert [coverage_with(seeds).seeds for seeds in (1, 2, 4, 5, 9, 64)] == [1, 2, 3, 5, 5, 10]
    own = [cell for cell in published().itertuples() if cell.seeds == 3 and cell.spread != RARE]
    usual = [share for cell in own for share in (cell.mean_coverage, cell.difference_coverage)]
    assert (coverage_with(3).lowest, coverage_with(3).highest) == (min(usual), max(usual))


def bias_bound(arms: int) -> float:
    """Half a point of win rate, or of two arms around a maximum the part of its rise that the curve cuts off."""
    cut = ((WIDEST**0.5 - 1) / (WIDEST**0.5 + 1)) ** 2
    return 0.005 if arms > 2 else cut * (equal_drift.LAWS["peaks"](np.sqrt(5.74)).item() - 0.5)


def test_comparisons_at_equal_drift_are_unbiased_and_cover() -> None:
    """Read at the mean KL, the curve of the law that peaks is 2.1 points too high at this scatter (n = 958 studies)."""
    found = equal_drift.simulate((5, "peaks", 0.6, 3), 100)
    assert abs(found["bias"]) < 0.005 + 4 * found["bias_error"]
    assert 4 * found["bias_error"] < 0.012
    rows = pd.read_csv(RESULTS.with_name("equal_drift.csv"))
    assert list(rows[["arms", "law", "scatter", "seeds"]].itertuples(index=False, name=None)) == equal_drift.designs()
    assert (rows["bias"].abs() < rows["arms"].map(bias_bound)).all()
    assert rows["coverage"].min() > 0.93
