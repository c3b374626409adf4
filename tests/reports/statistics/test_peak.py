from __future__ import annotations

import numpy as np
import pytest

from reports.statistics.peak import BLOCKS, Peak, peak

STEPS = np.arange(128) * 16.0
KL = np.linspace(0, 8, 128) ** 2


def true_curve(root_kl: np.ndarray) -> np.ndarray:
    return root_kl * (2.0 - 0.25 * root_kl)


def test_a_clean_curve_gives_its_own_peak() -> None:
    found = peak(STEPS, KL, true_curve(np.sqrt(KL)))
    assert found is not None
    assert found.root_kl == pytest.approx(4.0, abs=0.3)
    assert found.value == pytest.approx(4.0, abs=0.05)
    last = true_curve(np.sqrt(KL))[-8:].mean()
    assert found.fall == pytest.approx(found.value - last, abs=0.02)
    assert found.step == pytest.approx(1024, abs=130)


def test_noise_does_not_raise_a_flat_curve() -> None:
    """The maximum of sixteen noisy blocks would lie 0.6 above 0 here, and so would its fall."""
    rng = np.random.default_rng(0)
    found = [peak(STEPS, KL, rng.normal(size=128)) for _ in range(2000)]
    heights, falls = (np.array([getattr(one, key) for one in found]) for key in ("value", "fall"))
    assert abs(heights.mean()) < 4 * heights.std() / np.sqrt(2000)
    assert abs(falls.mean()) < 4 * falls.std() / np.sqrt(2000)
    assert heights.std() < 0.5


def test_what_rises_to_the_end_does_not_fall() -> None:
    found = peak(STEPS, KL, STEPS)
    assert found is not None
    assert found.fall == 0.0
    assert found.step > STEPS[-9]


def test_by_hand_on_three_blocks() -> None:
    values = np.array([0.0, 1.0, 0.0, 1.0, 5.0, 3.0, 5.0, 3.0, 4.0, 2.0, 4.0, 2.0])
    kl = np.repeat([1.0, 4.0, 9.0], 4)
    found = peak(np.arange(12.0), kl, values)
    # Both halves choose the second block; the halves measure 3 and 5 there, and 2 and 4 at the end.
    assert found == Peak(2.0, 4.0, 1.0, 5.5)


def test_each_half_measures_what_the_other_chose() -> None:
    values = np.array([9.0, 0.0, 9.0, 0.0, 1.0, 4.0, 1.0, 4.0, 2.0, 2.0, 2.0, 2.0])
    found = peak(np.arange(12.0), np.repeat([1.0, 4.0, 9.0], 4), values)
    # The even records choose the first block, where the odd ones say 0; these choose the second, where the even say 1.
    assert found is not None
    assert (found.root_kl, found.value, found.fall) == (1.5, 0.5, -1.5)


def test_order_and_gaps_do_not_matter_and_too_few_records_give_none() -> None:
    values = true_curve(np.sqrt(KL))
    order = np.random.default_rng(1).permutation(128)
    assert peak(STEPS[order], KL[order], values[order]) == peak(STEPS, KL, values)
    gap = np.append(values, np.nan)
    assert peak(np.append(STEPS, 8000.0), np.append(KL, 9.0), gap) == peak(STEPS, KL, values)
    assert peak(STEPS[:11], KL[:11], values[:11]) is None
    assert peak(STEPS[:12], KL[:12], values[:12]) is not None
    assert BLOCKS == 16
