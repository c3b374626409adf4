"""Our algorithms without a critic against TRL's GRPO, RLOO and A*-PO trainers, on tensors that `trl_golden.py` saved.

Losses and gradients agree to 1e-9 (the losses' values to 1e-6: our metrics are summed in fp32), advantages and V* to
1e-5: TRL computes them in fp32. Where the two differ by design, a test states by how much.

TRL's loss of A*-PO is the published one, the mean of (beta_2 d - (r - V*))^2 over responses, with d the log-ratio of a
response to the reference. Ours is that over 2 beta_2, without the part that no policy changes. One difference shows in
no tensor here: TRL takes its log-probs at temperature 1, whatever it samples at.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from safetensors import safe_open
from tinytrial import BASE, preset, rows_of
from torch import Tensor

from pipeline.algorithms import base
from pipeline.algorithms.base import estimator_of
from pipeline.algorithms.mathematics.masking import masked_mean
from pipeline.algorithms.mathematics.shaping import non_score_reward, overlong
from pipeline.config.presets import PRESETS
from pipeline.config.trial import TrialConfig
from pipeline.models.policy import response_mask, to_grid
from pipeline.training.experience import summed
from pipeline.training.judging import judge, v_star_of
from pipeline.training.part import parts_of
from pipeline.training.surrogate import surrogate_term

with safe_open(Path(__file__).with_name("trl_golden.safetensors"), "pt") as saved:
    GOLDEN = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
    ABOUT = json.loads(saved.metadata()["about"])
NAMES = ("old", "new", "ref", "entropies", "scores", "lengths", "reference_scores")
OLD, NEW, REF, ENTROPIES, SCORES, LENGTHS, SAMPLED = (GOLDEN[f"inputs/{name}"] for name in NAMES)
MINI_BATCHES = list(enumerate(GOLDEN["inputs/mini_batches"].unbind()))
WIDTH, LONGEST = OLD.shape[1], 9
MASK = response_mask(LENGTHS, WIDTH)
EXACT = {"rtol": 1e-9, "atol": 1e-12}
FP32 = {"rtol": 1e-5, "atol": 1e-6}
Case = tuple[str, dict[str, Any]]
"""A preset of ours, and what is changed beside its name."""
GROUPS: dict[str, Case] = {
    "grpo": ("grpo", {}),
    "grpo_no_kl": ("grpo", {"kl__beta": 0.0}),
    "dr_grpo": ("dr_grpo", {}),
    "lite_ppo": ("lite_ppo", {}),
    "lite_ppo_entropy": ("lite_ppo", {"entropy__coef": 0.2}),
    "gspo": ("gspo", {}),
    "gspo_wide": ("gspo", {"algorithm__clip__epsilon": 0.01, "algorithm__clip__epsilon_high": 0.02}),
    "dapo_own_tokens": ("dapo", {}),
    "rloo": ("rloo", {}),
    "rloo_no_kl": ("rloo", {"kl__beta": 0.0}),
    "rloo_high": ("rloo", {"algorithm__clip__epsilon_high": 3.0}),
}
REGRESSED: dict[str, Case] = {
    "a2po": ("a_star_po", {"kl__beta": 1e-3, "algorithm__v_star__beta": 0.5}),
    "a2po_beta1": ("a_star_po", {"kl__beta": 1e-3, "algorithm__v_star__beta": 1.0}),
    "a2po_beta2": ("a_star_po", {"kl__beta": 0.05, "algorithm__v_star__beta": 0.5}),
    "a2po_betas": ("a_star_po", {"kl__beta": 0.05, "algorithm__v_star__beta": 1.0}),
}
OTHER_NORMALISER: dict[str, Case] = {"dapo": ("dapo", {}), "cispo": ("cispo", {})}
"""The same but for a factor of each mini-batch."""
TWO = {"train__responses_per_prompt": 2}
PAIRS: dict[str, Case] = {"pairs": ("grpo", TWO), "rloo_pairs": ("rloo", TWO)}
"""Advantages alone, with two responses to a prompt."""
CASES = GROUPS | REGRESSED | OTHER_NORMALISER | PAIRS


def settings(name: str, changes: dict[str, Any]) -> TrialConfig:
    """A preset on the rollout that was saved, with a penalty of 0.3."""
    rollout = {"train__batch_size": len(LENGTHS), "train__response_length": LONGEST, "kl__beta": 0.3}
    return trial_config(**BASE | rollout | preset(name) | changes)


def advantages(cfg: TrialConfig) -> Tensor:
    """(B, T) before whitening, by our estimator."""
    penalty = non_score_reward(OLD, REF, MASK, cfg.kl.beta if cfg.kl.place in ("reward", "score") else 0.0)
    judged = judge(SCORES, penalty, None, MASK, cfg)
    if cfg.algorithm.name == "a_star_po":
        sampled = SAMPLED[:, :5] if cfg == settings(*CASES["a2po_betas"]) else SAMPLED
        ones = torch.ones_like(sampled)
        judged = replace(judged, v_star=v_star_of(cfg, sampled, ones.long(), ones.bool()))
    return estimator_of(cfg.algorithm)(judged, cfg.algorithm)[0]


def step(cfg: TrialConfig, rows: Tensor, worth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient by the new log-probs (b, T) and clip fraction of b rows whose advantages are `worth` (B, T)."""
    mask, new = MASK[rows], NEW[rows][MASK[rows]].requires_grad_()
    batch = rows_of(OLD[rows][mask], mask, REF[rows][mask], worth.double()[rows][mask])
    batch.now = new.detach
    tokens, every = mask.sum().double(), slice(None)
    terms = [surrogate_term(batch, tokens, len(rows), cfg)]
    if penalty := parts_of(cfg)["kl"].loss(batch):
        terms.append(penalty)
    (gradient,) = torch.autograd.grad(sum(term.loss(every, new, lambda: new).sum() for term in terms), new)
    sums = {name: total for term in terms for name, total in summed(term.sums(new.detach())).items()}
    bonus = cfg.entropy.coef * batch.weighted(every, ENTROPIES[rows][mask]).sum()
    grid = to_grid(gradient / tokens, mask)
    return (
        (sums["policy/pg_loss"] + sums.get("policy/kl_loss", 0.0) - bonus) / tokens,
        torch.nn.functional.pad(grid, (0, WIDTH - grid.shape[1])),
        sums.get("policy/pg_clipfrac", torch.zeros(())) / tokens,
    )


def worth_of(case: str) -> Tensor:
    """TRL's advantages as a grid; of A*-PO, r - V*."""
    each = SCORES - GOLDEN[f"{case}/v_star"] if case in REGRESSED else GOLDEN[f"{case}/advantages"]
    return each.unsqueeze(1) * MASK


def gradient_of(case: str, rows: Tensor) -> Tensor:
    """TRL's of some responses, (b, T) by the new log-probs; of A*-PO over 2 beta_2."""
    factor = 2 * ABOUT["settings"][case]["beta2"] if case in REGRESSED else 1.0
    return GOLDEN[f"{case}/gradient"][rows] / factor


# --- what agrees -------------------------------------------------------------------------------------------


def test_every_preset_that_trl_has_is_compared_and_every_setting_shows() -> None:
    """Losses of pairs and PPO in `test_trl.py`; the entropy bonus shows in the loss alone."""
    alone = {"ppo", "ppo_penalty", "trpo", "reinforce", "remax", "reinforce_pp", "vine_ppo", "best_of_n"}
    assert set(PRESETS) - {name for name, _ in CASES.values()} == alone | {"dpo", "ipo", "online_dpo"}
    assert ABOUT["trl"].startswith("1.16.")
    assert set(ABOUT["settings"]) == {name.split("/")[0] for name in GOLDEN} - {"inputs", "overlong"}
    rows, cases = torch.arange(len(SCORES)), [name for name in CASES if name not in PAIRS and "entropy" not in name]
    for place, one in enumerate(cases):
        for other in cases[:place]:
            assert (gradient_of(one, rows) - gradient_of(other, rows)).abs().max() > 1e-4, (one, other)


@pytest.mark.parametrize("case", CASES)
def test_advantages(case: str) -> None:
    """Standard deviations divide by n - 1 and 1e-4 is added to them, in a group as in the batch. RLOO's KL is k1 of the
    policy that sampled, summed over the response and subtracted before the baseline."""
    ours, theirs = advantages(settings(*CASES[case])), worth_of(case)
    torch.testing.assert_close(ours.to(theirs.dtype), theirs, **FP32)
    assert ours.any()


@pytest.mark.parametrize("case", GROUPS | REGRESSED)
def test_gradients_losses_and_clip_fractions(case: str) -> None:
    """Compare on the same advantages, and from scores on. (b d - A)^2 = 2 b (b d^2 / 2 - A d) + A^2, and our surrogate
    of A*-PO is -A log pi where this has -A d."""
    cfg, worth = settings(*CASES[case]), worth_of(case)
    for number, rows in MINI_BATCHES:
        ours, gradient, clipped = step(cfg, rows, worth)
        loss = float(GOLDEN[f"{case}/loss"][number])
        torch.testing.assert_close(gradient, gradient_of(case, rows), **EXACT)
        torch.testing.assert_close(step(cfg, rows, advantages(cfg))[1], gradient_of(case, rows), **FP32)
        if case in REGRESSED:
            a, reference = (one.double()[rows] for one in (worth[:, 0], (REF * MASK).sum(1)))
            of_ratios = float(ours + (a * reference).mean())
            assert 2 * cfg.kl.beta * of_ratios + float(a.square().mean()) == pytest.approx(loss, rel=1e-6)
        else:
            assert float(ours) == pytest.approx(loss, rel=1e-6, abs=1e-7)
            assert float(clipped) == pytest.approx(float(GOLDEN[f"{case}/clipped"][number]), abs=1e-6)
            assert 0 < clipped < 1


def test_the_penalty_on_overlong_responses() -> None:
    theirs = GOLDEN["overlong"]
    lengths = torch.arange(1, len(theirs) + 1)
    ended = torch.ones(len(lengths), dtype=torch.bool)
    ours = overlong(torch.zeros_like(theirs), lengths, ended, len(theirs), 4 / len(theirs), 1.0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert theirs[-1] == -1


# --- what differs by design --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", OTHER_NORMALISER)
def test_trl_divides_dapo_and_cispo_by_the_mean_mini_batch_and_we_by_the_mini_batch_itself(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss_type bnpo divides as we do: the case `dapo_own_tokens`. Of cispo it counts a capped ratio where the
    advantage is positive; we count all."""
    monkeypatch.setattr(base, "CISPO_CAP", 2.0)
    cfg, everywhere, worth = settings(*CASES[case]), MASK.sum() / len(MINI_BATCHES), worth_of(case)
    for number, rows in MINI_BATCHES:
        (ours, gradient, clipped), mask = step(cfg, rows, worth), MASK[rows]
        factor = float(mask.sum() / everywhere.double())
        torch.testing.assert_close(factor * gradient, gradient_of(case, rows), **EXACT)
        assert factor * float(ours) == pytest.approx(float(GOLDEN[f"{case}/loss"][number]), rel=1e-6)
        assert factor != 1
        if case == "cispo":
            capped, theirs = (NEW - OLD)[rows].exp() > 2.0, float(GOLDEN["cispo/clipped"][number])
            assert theirs == pytest.approx(masked_mean((capped & (worth[rows] > 0)) * 1.0, mask))
            assert float(clipped) == pytest.approx(masked_mean(capped * 1.0, mask))


def test_trl_averages_the_entropy_over_tokens_whatever_the_loss_and_we_weigh_it_as_the_loss_does() -> None:
    """The two agree where the loss is a mean over tokens: the case `lite_ppo_entropy`."""
    ours, bare = (settings("grpo", {"entropy__coef": coef}) for coef in (0.2, 0.0))
    for number, rows in MINI_BATCHES:
        mask, entropies = MASK[rows], ENTROPIES[rows]
        theirs_moves = GOLDEN["grpo_entropy/loss"][number] - GOLDEN["grpo/loss"][number]
        assert float(theirs_moves) == pytest.approx(-0.2 * float(masked_mean(entropies, mask)), rel=1e-6)
        ours_moves = step(ours, rows, worth_of("grpo"))[0] - step(bare, rows, worth_of("grpo"))[0]
        each = (entropies * mask).sum(1) / mask.sum(1)
        assert float(ours_moves) == pytest.approx(-0.2 * float(each.mean()), rel=1e-5)
        assert abs(float(ours_moves - theirs_moves)) > 1e-3
