"""Our algorithms without a critic against TRL's GRPO and RLOO trainers, on the tensors that `trl_golden.py` saved.

Losses and gradients agree to 1e-9 (the losses' values to 1e-6: our metrics are summed in fp32), advantages to 1e-5:
TRL computes them in fp32. Where the two differ by design, a test states by how much.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from crosscheck.saved import (
    ABOUT,
    ENTROPIES,
    EXACT,
    FP32,
    GOLDEN,
    MASK,
    MINI_BATCHES,
    NEW,
    OLD,
    REF,
    advantages,
    padded,
    settings,
    step,
    theirs,
)
from torch import Tensor

from pipeline.algorithms.mathematics.kl import k3
from pipeline.algorithms.mathematics.masking import masked_mean, masked_whiten
from pipeline.algorithms.mathematics.shaping import overlong
from pipeline.config.presets import PRESETS

SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo_ratio_k3": ("grpo", {"kl__loss_estimator": "ratio_k3"}),
    "grpo_no_kl": ("grpo", {"kl__beta": 0.0}),
    "grpo_two_sided": ("grpo", {"algorithm__dual_clip": 1.3}),
    "dr_grpo": ("dr_grpo", {}),
    "lite_ppo": ("lite_ppo", {}),
    "lite_ppo_entropy": ("lite_ppo", {"entropy__coef": 0.2}),
    "gspo": ("gspo", {}),
    "gspo_wide": ("gspo", {"algorithm__cliprange": 0.01, "algorithm__cliprange_high": 0.02}),
    "dapo_own_tokens": ("dapo", {}),
    "rloo": ("rloo", {}),
    "rloo_no_kl": ("rloo", {"kl__beta": 0.0}),
    "rloo_high": ("rloo", {"algorithm__cliprange_high": 3.0}),
}
"""A case of TRL, and the preset of ours that equals it, with what is changed beside its name."""
OTHER_NORMALISER: dict[str, tuple[str, dict[str, Any]]] = {
    "dapo": ("dapo", {}),
    "cispo": ("cispo", {"algorithm__ratio_cap": 2.0}),
}
"""The same but for a factor of each mini-batch."""
PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "pairs": ("grpo", {"train__responses_per_prompt": 2}),
    "rloo_pairs": ("rloo", {"train__responses_per_prompt": 2}),
}
"""Advantages alone, with two responses to a prompt."""


# --- what agrees -------------------------------------------------------------------------------------------


def test_every_preset_that_trl_has_is_compared() -> None:
    """A*-PO in `test_trl_a2po.py`, losses of pairs in `test_trl_dpo.py`; the tests of PPO run TRL itself."""
    elsewhere = {"a_star_po", "dpo", "ipo", "online_dpo"}
    compared = {name for name, _ in [*SAME.values(), *OTHER_NORMALISER.values()]} | elsewhere
    alone = {"ppo", "ppo_penalty", "trpo", "reinforce", "remax", "reinforce_pp", "vine_ppo", "best_of_n"}
    assert set(PRESETS) - compared == alone
    assert ABOUT["trl"].startswith("1.16.")
    assert set(ABOUT["settings"]) == {name.split("/")[0] for name in GOLDEN} - {"inputs", "overlong"}


def test_every_setting_shows_in_the_gradients() -> None:
    """But for the entropy bonus, which only the loss holds here."""
    cases = [name for name in [*SAME, *OTHER_NORMALISER] if "entropy" not in name]
    for place, one in enumerate(cases):
        for other in cases[:place]:
            apart = (GOLDEN[f"{one}/gradient"] - GOLDEN[f"{other}/gradient"]).abs().max()
            assert apart > 1e-4, (one, other)


@pytest.mark.parametrize("case", [*SAME, *OTHER_NORMALISER, *PAIRS])
def test_advantages(case: str) -> None:
    """Standard deviations divide by n - 1 and 1e-4 is added to them, in a group as in the batch. RLOO's KL is k1 of the
    policy that sampled, summed over the response and subtracted before the baseline."""
    ours = advantages(settings(*(SAME | OTHER_NORMALISER | PAIRS)[case])).to(GOLDEN[f"{case}/advantages"].dtype)
    torch.testing.assert_close(ours, theirs(case), **FP32)
    assert ours.any()


@pytest.mark.parametrize("case", SAME)
def test_losses_gradients_and_clip_fractions(case: str) -> None:
    """On the same advantages, with both mini-batches."""
    cfg = settings(*SAME[case])
    for number, rows in enumerate(MINI_BATCHES):
        ours = step(cfg, rows, theirs(case))
        torch.testing.assert_close(padded(ours.gradient), GOLDEN[f"{case}/gradient"][rows], **EXACT)
        assert float(ours.loss) == pytest.approx(float(GOLDEN[f"{case}/loss"][number]), rel=1e-6, abs=1e-7)
        assert float(ours.clipped) == pytest.approx(float(GOLDEN[f"{case}/clipped"][number]), abs=1e-6)
        assert 0 < ours.clipped < 1


@pytest.mark.parametrize("case", SAME)
def test_from_scores_to_gradients(case: str) -> None:
    cfg = settings(*SAME[case])
    for rows in MINI_BATCHES:
        ours = step(cfg, rows, advantages(cfg))
        torch.testing.assert_close(padded(ours.gradient), GOLDEN[f"{case}/gradient"][rows], **FP32)


def test_the_penalty_on_overlong_responses() -> None:
    theirs = GOLDEN["overlong"]
    lengths = torch.arange(1, len(theirs) + 1)
    ended = torch.ones(len(lengths), dtype=torch.bool)
    ours = overlong(torch.zeros_like(theirs), lengths, ended, len(theirs), 4 / len(theirs), 1.0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert theirs[-1] == -1


# --- what differs by design --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", OTHER_NORMALISER)
def test_trl_divides_dapo_and_cispo_by_the_mean_mini_batch_and_we_by_the_mini_batch_itself(case: str) -> None:
    """Its loss_type bnpo divides as we do: the case `dapo_own_tokens`."""
    cfg, everywhere = settings(*OTHER_NORMALISER[case]), MASK.sum() / len(MINI_BATCHES)
    for number, rows in enumerate(MINI_BATCHES):
        ours, own = step(cfg, rows, theirs(case)), MASK[rows].sum()
        factor = (own.double() / everywhere.double()).item()
        torch.testing.assert_close(factor * padded(ours.gradient), GOLDEN[f"{case}/gradient"][rows], **EXACT)
        assert factor * float(ours.loss) == pytest.approx(float(GOLDEN[f"{case}/loss"][number]), rel=1e-6)
        assert factor != 1


def test_trl_counts_a_capped_ratio_where_the_advantage_is_positive_and_we_count_all() -> None:
    cfg = settings(*OTHER_NORMALISER["cispo"])
    for number, rows in enumerate(MINI_BATCHES):
        mask, worth = MASK[rows], theirs("cispo")[rows]
        capped = (NEW - OLD)[rows].exp() > 2.0
        assert float(GOLDEN["cispo/clipped"][number]) == pytest.approx(masked_mean((capped & (worth > 0)) * 1.0, mask))
        assert float(step(cfg, rows, theirs("cispo")).clipped) == pytest.approx(masked_mean(capped * 1.0, mask))


def test_trl_weighs_k3_by_the_ratio_by_default_and_our_presets_do_not() -> None:
    """`use_bias_correction_kl`, True unless it is given."""
    weighs = {name: one.get("use_bias_correction_kl") for name, one in ABOUT["settings"].items()}
    assert (weighs["grpo"], weighs["grpo_ratio_k3"]) == (False, True)
    assert all(settings(name, {}).kl.loss_estimator == "k3" for name in ("grpo", "dr_grpo", "gspo", "cispo", "dapo"))
    assert (GOLDEN["grpo/gradient"] - GOLDEN["grpo_ratio_k3/gradient"]).abs().max() > 1e-3


def test_trl_weighs_k3_of_a_token_by_the_ratio_of_its_response_in_gspo_and_we_by_its_own() -> None:
    """Ours estimates the KL of the new policy on the tokens of an older one; theirs mixes the two levels."""
    wide = {"algorithm__cliprange": 0.01, "algorithm__cliprange_high": None}
    surrogate = settings("gspo", wide | {"kl__beta": 0.0})
    ours = settings("gspo", wide | {"kl__loss_estimator": "ratio_k3"})
    worth = theirs("gspo_ratio_k3")
    for number, rows in enumerate(MINI_BATCHES):
        mask, log_ratio, d = MASK[rows], (NEW - OLD)[rows], (NEW - REF)[rows]

        def mean_of_means(grid: Tensor, mask: Tensor = mask) -> float:
            return float(((grid * mask).sum(1) / mask.sum(1)).mean())

        whole = ((log_ratio * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)).exp()
        bare, loss = float(step(surrogate, rows, worth).loss), float(GOLDEN["gspo_ratio_k3/loss"][number])
        assert loss == pytest.approx(bare + 0.3 * mean_of_means(whole * k3(d)), rel=1e-6)
        beside = float(step(ours, rows, worth).loss)
        assert beside == pytest.approx(bare + 0.3 * mean_of_means(log_ratio.exp() * k3(d)), rel=1e-6)
        assert abs(beside - loss) > 1e-4


def test_trl_averages_the_entropy_over_tokens_whatever_the_loss_and_we_weigh_it_as_the_loss_does() -> None:
    """The two agree where the loss is a mean over tokens: the case `lite_ppo_entropy`."""
    ours, bare = (settings("grpo", {"entropy__coef": coef}) for coef in (0.2, 0.0))
    for number, rows in enumerate(MINI_BATCHES):
        mask, entropies = MASK[rows], ENTROPIES[rows]
        theirs_moves = GOLDEN["grpo_entropy/loss"][number] - GOLDEN["grpo/loss"][number]
        assert float(theirs_moves) == pytest.approx(-0.2 * float(masked_mean(entropies, mask)), rel=1e-6)
        ours_moves = step(ours, rows, theirs("grpo")).loss - step(bare, rows, theirs("grpo")).loss
        each = (entropies * mask).sum(1) / mask.sum(1)
        assert float(ours_moves) == pytest.approx(-0.2 * float(each.mean()), rel=1e-5)
        assert abs(float(ours_moves - theirs_moves)) > 1e-3


def test_micro_batches_of_trl_are_a_mean_of_means() -> None:
    """Ours weigh tokens, and change nothing."""
    cfg = settings("lite_ppo", {"kl__beta": 0.0, "algorithm__advantage": "group_norm"})
    for number, rows in enumerate(MINI_BATCHES):
        halves = [float(step(cfg, part, theirs("micro_batches")).loss) for part in rows.chunk(2)]
        loss, whole = float(GOLDEN["micro_batches/loss"][number]), float(step(cfg, rows, theirs("micro_batches")).loss)
        assert loss == pytest.approx(sum(halves) / 2, rel=1e-6)
        assert abs(loss - whole) > 1e-4


def test_trl_whitens_by_the_unbiased_deviation_plus_1e_4_and_we_by_the_biased_variance_plus_1e_8() -> None:
    whole = advantages(settings("rloo", {}))[:, :1]
    ours, distances = masked_whiten(whole, MASK[:, :1]), whole - whole.mean()
    torch.testing.assert_close(ours * (whole.var(correction=0) + 1e-8).sqrt(), distances)
    torch.testing.assert_close(GOLDEN["rloo_whitened/advantages"].unsqueeze(1) * (whole.std() + 1e-4), distances)
