"""Our pure functions against those of TRL on the same tensors; where the two differ by design, by exactly how much."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from trl.experimental.ppo import ppo_trainer as trl_ppo
from trl.experimental.utils import first_true_indices
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from pipeline.algorithms.mathematics.kl import entropy
from pipeline.algorithms.mathematics.masking import masked_mean, masked_var, masked_whiten
from pipeline.models.policy import gather, response_mask

LENGTHS = torch.tensor([7, 1, 4, 7, 2])
MASK = response_mask(LENGTHS, 7)
DTYPES = (torch.float32, torch.float64)


def numbers(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(MASK.shape, generator=torch.Generator().manual_seed(0), dtype=dtype) * 3 + 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_mean_and_biased_variance_agree(dtype: torch.dtype) -> None:
    x = numbers(dtype)
    torch.testing.assert_close(masked_mean(x, MASK), trl_ppo.masked_mean(x, MASK))
    torch.testing.assert_close(masked_var(x, MASK), trl_ppo.masked_var(x, MASK, unbiased=False))


@pytest.mark.parametrize("shift_mean", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_whitening_agrees_with_the_biased_variance(
    dtype: torch.dtype, shift_mean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl_ppo, "masked_var", partial(trl_ppo.masked_var, unbiased=False))
    x = numbers(dtype)
    theirs = trl_ppo.masked_whiten(x, MASK, shift_mean=shift_mean)
    torch.testing.assert_close(masked_whiten(x, MASK, shift_mean=shift_mean)[MASK], theirs[MASK])


def test_trl_whitens_by_the_unbiased_variance_and_we_by_the_biased_one() -> None:
    n, x = int(MASK.sum()), numbers()
    biased = float(trl_ppo.masked_var(x, MASK)) * (n - 1) / n
    assert float(masked_var(x, MASK)) == pytest.approx(biased, rel=1e-6)  # its correction is fp32
    ours, theirs = masked_whiten(x, MASK), trl_ppo.masked_whiten(x, MASK)
    torch.testing.assert_close(ours[MASK], theirs[MASK] * math.sqrt(n / (n - 1)), rtol=1e-6, atol=0)
    assert ours[MASK].pow(2).mean() == pytest.approx(1, rel=1e-8)


def test_trl_leaves_numbers_on_padding_where_we_leave_zero() -> None:
    ours, theirs = masked_whiten(numbers(), MASK), trl_ppo.masked_whiten(numbers(), MASK)
    assert not ours[~MASK].any()
    assert theirs[~MASK].all()


def test_trl_multiplies_padding_by_zero_so_that_nan_there_spreads() -> None:
    x = numbers().masked_fill(~MASK, math.nan)
    assert math.isfinite(masked_mean(x, MASK))
    assert math.isnan(trl_ppo.masked_mean(x, MASK))


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_probs_and_entropy_agree(dtype: torch.dtype) -> None:
    logits = torch.randn(5, 7, 50, generator=torch.Generator().manual_seed(1), dtype=dtype) * 4
    labels = torch.randint(50, (5, 7), generator=torch.Generator().manual_seed(2))
    log_pi = logits.log_softmax(-1)
    theirs = selective_log_softmax(logits, labels)
    torch.testing.assert_close(gather(log_pi.flatten(0, 1), labels.flatten()).view(5, 7), theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy(log_pi), entropy_from_logits(logits), rtol=1e-5, atol=1e-6)


def test_masks_agree_unless_the_pad_token_is_sampled() -> None:
    pad, eos = 9, 8
    responses = torch.full(MASK.shape, 5).masked_fill(~MASK, pad)
    responses[1, 0] = eos
    last = first_true_indices(responses == pad) - 1
    torch.testing.assert_close(response_mask(last + 1, 7), MASK)
    torch.testing.assert_close(trl_ppo.truncate_response(eos, pad, responses), responses)
    # TRL finds the end of a response by its first pad token, so one that was sampled in the middle ends it.
    responses[0, 3] = pad
    assert first_true_indices(responses == pad)[0] == 3
    assert response_mask(LENGTHS, 7)[0].sum() == 7
