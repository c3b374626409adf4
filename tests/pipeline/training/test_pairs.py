from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tinytrial import ROUNDING, model, moved, preset, run, stored_pairs, trainer

from pipeline.algorithms.mathematics.preference import dpo_loss, ipo_loss
from pipeline.models.policy import ActorCritic
from pipeline.training.experience import Experience, in_turn
from pipeline.training.trainer import Trainer

DPO, IPO, ONLINE = preset("dpo"), preset("ipo"), preset("online_dpo")
BETA = 0.3
SETTINGS: dict[str, dict[str, Any]] = {
    "dpo": DPO,
    "ipo": IPO,
    "ipo on sums": {**IPO, "algorithm__ratio": "sequence_sum"},
    "dpo on means": {**DPO, "algorithm__ratio": "sequence_mean"},
    "online dpo": ONLINE,
    "entropy": {**DPO, "entropy__coef": 0.05},
    "temperature": {**DPO, "train__temperature": 0.7},
    "temperature, online": {**ONLINE, "train__temperature": 0.7},
}


def ready(folder: Path, micro: int = 3, **knobs: Any) -> tuple[Trainer, Experience]:
    """A trainer whose policy has moved since its first experience."""
    one = trainer(folder, runtime__micro_batch_size=micro, kl__beta=BETA, optimiser__max_grad_norm=1e9, **knobs)
    experience = one._experience(one._rollout())
    return moved(one, 0.02), experience


def plain_loss(one: Trainer, experience: Experience, pairs: list[tuple[int, int]]) -> torch.Tensor:
    """The published loss over beta (DPO) or times beta (IPO), one response at a time, in float64."""
    cfg, losses, bonus = one.cfg, [], torch.zeros(()).double()
    for pair in pairs:
        gained = []
        for row in pair:
            n = int(experience.episodes.lengths[row])
            alone = experience.episodes.take(torch.tensor([row]))
            log_pi, _ = one.actor(alone, cfg.train.temperature)
            said, reference = (
                one_of[range(n), experience.episodes.responses[row, :n]].double()
                for one_of in (log_pi, ActorCritic(model())(alone, cfg.train.temperature)[0].detach())
            )
            d = said - reference
            gained.append(d.mean() if cfg.algorithm.ratio == "sequence_mean" else d.sum())
            bonus = bonus - (log_pi.exp() * log_pi).sum() / n / (2 * len(pairs))
        sign = float(experience.advantages[pair[0], 0])
        if sign:
            margin, ipo = sign * (gained[0] - gained[1]), cfg.algorithm.trust_region == "ipo"
            losses.append(ipo_loss(margin, BETA) * BETA if ipo else dpo_loss(margin, BETA) / BETA)
    return torch.stack(losses).mean() - cfg.entropy.coef * bonus


@pytest.mark.parametrize("name", SETTINGS)
def test_the_gradient_is_that_of_the_plain_loss(tmp_path: Path, name: str) -> None:
    """Through the network, with the two responses of a pair in different micro-batches."""
    one, experience = ready(tmp_path, **SETTINGS[name])
    expected = plain_loss(one, experience, [(6, 7), (0, 1), (4, 5)])
    gradients = torch.autograd.grad(expected, list(one.actor.lm.parameters()))
    step = one.learner.accumulate(experience, torch.tensor([6, 7, 0, 1, 4, 5]))
    one.learner.clip()
    if name != "entropy":
        scale = BETA if one.cfg.algorithm.trust_region == "ipo" else 1 / BETA
        assert step["policy/pg_loss"] * scale == pytest.approx(expected.item(), rel=1e-5)
    for parameter, gradient in zip(one.actor.lm.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=ROUNDING)


def test_beta_in_force_weighs_the_margin(tmp_path: Path) -> None:
    """The beta is not that of the start: a schedule acts on pairs too."""
    one, experience = ready(tmp_path, **DPO)
    other = Experience(experience.episodes, experience.measured, experience.advantages, None, 2 * BETA)
    losses = [
        one.learner.accumulate(experience, torch.arange(4))["policy/pg_loss"] for experience in (experience, other)
    ]
    assert abs(losses[0] - losses[1]) > 1e-4
    scheduled = trainer(tmp_path / "linear", kl__beta=BETA, kl__control="linear", kl__end=1.0, **DPO)
    scheduled.state.update = 3
    assert scheduled._experience(scheduled._rollout()).kl_coef > BETA


def test_pairs_with_equal_scores_are_left_out(tmp_path: Path) -> None:
    """They are not in the mean, and have no gradient of their own; a mini-batch of them alone has none at all."""
    one, experience = ready(tmp_path, **DPO)
    advantages = experience.advantages.clone()
    advantages[2:4] = 0
    tied = Experience(experience.episodes, experience.measured, advantages, None, experience.kl_coef)

    def gradient(of: Experience, rows: list[int]) -> list[torch.Tensor]:
        one.learner.steps.clear()
        one.learner.accumulate(of, torch.tensor(rows))
        scale = one.learner.steps.scale(torch.ones(()))
        return [parameter.grad / scale for parameter in one.actor.lm.parameters() if parameter.grad is not None]

    for with_tie, without in zip(gradient(tied, [0, 1, 2, 3]), gradient(experience, [0, 1]), strict=True):
        torch.testing.assert_close(with_tie, without, rtol=1e-4, atol=ROUNDING)
    assert all(not gradient.any() for gradient in gradient(tied, [2, 3]))


def test_the_two_of_a_pair_are_in_one_mini_batch(tmp_path: Path) -> None:
    one = trainer(tmp_path, **ONLINE)
    for _, rows in one.learner.mini_batches(0):
        assert [int(row) % 2 for row in rows] == [0, 1, 0, 1]
        assert all(rows[place] + 1 == rows[place + 1] for place in (0, 2)), rows


def test_a_batch_holds_the_stored_tokens_with_the_preferred_response_first(tmp_path: Path) -> None:
    one = trainer(tmp_path, **DPO)
    experience, stored = one._experience(one._rollout()), stored_pairs()
    pairs = in_turn(10, 4, 0, 0, "stored pairs").tolist()
    for place, pair in enumerate(pairs):
        for side in (0, 1):
            row, kept = 2 * place + side, 2 * pair + side
            assert experience.advantages[row, 0] == (1, -1)[side]
            found = experience.episodes.responses[row][experience.episodes.response_mask[row]]
            assert torch.equal(found, stored.responses[kept][stored.response_mask[kept]])
    one, experience = ready(tmp_path / "moved", **DPO)
    experience = one._experience(one._rollout())
    log_pi, _ = ActorCritic(model())(experience.episodes, 1.0)
    mask = experience.episodes.response_mask
    expected = log_pi.gather(1, experience.episodes.labels.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(experience.measured.ref_logprobs[mask], expected, rtol=1e-5, atol=1e-5)


def test_rollouts_of_a_trial_on_stored_pairs_are_watched_and_not_charged(tmp_path: Path) -> None:
    one = trainer(tmp_path, **DPO)
    outcome = one.run()
    assert (outcome.status, outcome.tokens) == ("complete", 0)
    cost = one.ledger.cost()
    assert "watch_s" in cost
    assert not cost.keys() & {"generate_s", "generate_tflop", "watch_tflop"}
    online, _, _ = run(tmp_path / "online", **ONLINE)
    assert online.tokens > 0
