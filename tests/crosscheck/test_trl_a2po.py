"""Our A*-PO against TRL's (`trl.experimental.a2po`), on the tensors that `trl_golden.py` saved.

TRL's loss is the published one, the mean of (beta_2 d - (r - V*))^2 over responses, with d the log-ratio of a response
to the reference. Ours is that over 2 beta_2, without the part that no policy changes. TRL computes scores, V* and their
difference in fp32, and the rest in the precision of the log-probs, here float64. So V* agrees to 1e-6 and, on TRL's V*,
the gradient to 1e-9.

One difference shows in no tensor here: TRL takes log-probs at temperature 1, whatever it samples at. Ours are those of
the policy that is sampled from.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from crosscheck.saved import (
    ABOUT,
    EXACT,
    FP32,
    GOLDEN,
    MASK,
    MINI_BATCHES,
    NEW,
    REF,
    SCORES,
    advantages,
    padded,
    settings,
    step,
)
from torch import Tensor

from pipeline.config.trial import TrialConfig
from pipeline.training.reference_scores import ReferenceScores

SAMPLED = GOLDEN["inputs/reference_scores"]
D, REF_LOGPROBS = ((NEW - REF) * MASK).sum(1), (REF * MASK).sum(1)
"""Of whole responses, (B,); they have 1 to 7 tokens."""
SAME: dict[str, dict[str, Any]] = {
    "a2po": {"kl__beta": 1e-3, "algorithm__v_star_beta": 0.5},
    "a2po_beta1": {"kl__beta": 1e-3, "algorithm__v_star_beta": 1.0},
    "a2po_beta2": {"kl__beta": 0.05, "algorithm__v_star_beta": 0.5},
    "a2po_betas": {"kl__beta": 0.05, "algorithm__v_star_beta": 1.0, "algorithm__v_star_samples": 5},
}
"""A case of TRL, and what is changed beside the name of our preset. All 8 samples are used where no number is given."""


def a_star_po(case: str) -> TrialConfig:
    return settings("a_star_po", SAME[case])


def soft_values(cfg: TrialConfig) -> Tensor:
    """Our V* of every prompt, (B,) float64."""
    return ReferenceScores(SAMPLED, torch.ones_like(SAMPLED).long(), torch.ones_like(SAMPLED).bool()).v_star(cfg)


def target(case: str) -> Tensor:
    """TRL's r - V*, (B,) fp32."""
    return SCORES - GOLDEN[f"{case}/v_star"]


def gradient(case: str, rows: Tensor) -> Tensor:
    """TRL's of some responses, (b, T) by the new log-probs, over 2 beta_2."""
    return GOLDEN[f"{case}/gradient"][rows] / (2 * ABOUT["settings"][case]["beta2"])


# --- what agrees -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SAME)
def test_v_star(case: str) -> None:
    """TRL's is fp32."""
    ours = soft_values(a_star_po(case))
    torch.testing.assert_close(ours, GOLDEN[f"{case}/v_star"].double(), rtol=1e-6, atol=1e-6)
    assert ours.abs().max() > 1


def test_every_setting_shows() -> None:
    for place, one in enumerate(SAME):
        for other in list(SAME)[:place]:
            apart = gradient(one, torch.arange(len(SCORES))) - gradient(other, torch.arange(len(SCORES)))
            assert apart.abs().max() > 1e-3, (one, other)
    assert (GOLDEN["a2po/v_star"] - GOLDEN["a2po_beta1/v_star"]).abs().max() > 0.1
    assert (GOLDEN["a2po_beta1/v_star"] - GOLDEN["a2po_betas/v_star"]).abs().max() > 0.1


@pytest.mark.parametrize("case", SAME)
def test_the_gradient_of_trl_is_ours_times_2_beta_2(case: str) -> None:
    """On TRL's V*, with both mini-batches; at its default beta_2 of 1e-3 the factor is 1 / 500."""
    cfg = a_star_po(case)
    for rows in MINI_BATCHES:
        ours = step(cfg, rows, target(case).unsqueeze(1) * MASK)
        torch.testing.assert_close(padded(ours.gradient), gradient(case, rows), **EXACT)


@pytest.mark.parametrize("case", SAME)
def test_the_loss_of_trl_is_ours_times_2_beta_2_and_a_constant(case: str) -> None:
    """(b d - A)^2 = 2 b (b d^2 / 2 - A d) + A^2, and our surrogate is -A log pi where this has -A d."""
    cfg = a_star_po(case)
    for number, rows in enumerate(MINI_BATCHES):
        worth = target(case).double()
        ours = float(step(cfg, rows, worth.unsqueeze(1) * MASK).loss + (worth * REF_LOGPROBS)[rows].mean())
        loss = 2 * cfg.kl.beta * ours + float(worth[rows].square().mean())
        assert loss == pytest.approx(float(GOLDEN[f"{case}/loss"][number]), rel=1e-6)
        assert float((cfg.kl.beta * D - worth)[rows].square().mean()) == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("case", SAME)
def test_from_scores_to_gradients(case: str) -> None:
    cfg = a_star_po(case)
    worth = advantages(cfg, soft_values(cfg))
    for rows in MINI_BATCHES:
        torch.testing.assert_close(padded(step(cfg, rows, worth).gradient), gradient(case, rows), **FP32)


# --- what differs by design --------------------------------------------------------------------------------


def test_trl_keys_v_star_by_the_text_of_a_prompt_and_we_by_its_number() -> None:
    """Of two prompts with one text, the first and the last, TRL gives both what it found last. The
    pipeline's own prompts are distinct, and there the two agree."""
    ours, keyed = soft_values(a_star_po("a2po")), GOLDEN["a2po_same_text/v_star"].double()
    assert float(keyed[0]) == float(keyed[-1]) == pytest.approx(float(ours[-1]), rel=1e-6)
    assert abs(float(keyed[0] - ours[0])) > 1
    torch.testing.assert_close(keyed[1:], ours[1:], rtol=1e-6, atol=1e-6)


def test_trl_leaves_out_prompts_whose_samples_sum_to_0_and_we_train_on_all() -> None:
    """Its filter `filter_all_incorrect` is meant for scores of 0 and 1, where such a prompt has no right answer. Among
    real scores it also meets those that cancel out. The saved gradients hold these prompts too."""
    rows = torch.arange(len(SCORES))
    for case in SAME:
        kept, count = GOLDEN[f"{case}/kept"], ABOUT["settings"][case]["num_value_samples"]
        assert ABOUT["settings"][case]["filter_all_incorrect"]
        assert torch.equal(kept, rows[SAMPLED[:, :count].sum(1) != 0])
        incorrect, cancelling = sorted(set(rows.tolist()) - set(kept.tolist()))
        assert not SAMPLED[incorrect].any()
        cfg = a_star_po(case)
        values = soft_values(cfg)
        assert values[incorrect] == 0
        assert values[cancelling] > 0.5
        ours = step(cfg, rows, advantages(cfg, values)).gradient
        assert (ours[MASK].abs() > 1e-4).all()
    assert torch.equal(GOLDEN["a2po_same_text/kept"], rows)
