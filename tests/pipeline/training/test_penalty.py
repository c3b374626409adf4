"""The KL penalty on groups of tokens: in the loss by two passes, and in the rewards of a rollout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from naive import drawn, prefix
from tinytrial import CLOSES, preset, run, trainer
from torch import Tensor

from pipeline.algorithms.mathematics.token_groups import group_numbers
from pipeline.algorithms.terms import Tokens
from pipeline.config.kl import KlConfig
from pipeline.models.policy import to_grid
from pipeline.training.grouping import groups_of
from pipeline.training.penalty import penalty_of
from pipeline.training.replay import replay
from pipeline.training.rollout import Rollout, collect
from pipeline.training.trainer import Trainer
from pipeline.training.update import accumulate

MASK = prefix([[1, 2, 3, 4, 5], [6], [7, 8, 9], [10, 11]])
N, BETA = int(MASK.sum()), 0.3
CLOSED = torch.tensor([[0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
MEMBERS = [[0, 1], [2, 3, 4], [5], [6], [7, 8], [9, 10]]
"""Of each group, by the numbers of the valid tokens."""
REF, NEW = -drawn(N, seed=1).abs(), -drawn(N, seed=2).abs()


def kl_of(**knobs: Any) -> KlConfig:
    return trial_config(kl__place="loss", **{f"kl__{name}": value for name, value in knobs.items()}).kl


def slopes(kl: KlConfig, groups: Tensor | None, mask: Tensor = MASK) -> tuple[Tensor, Tensor]:
    """Gradient by the log-probs, chunk by chunk, and values; (N,) each."""
    penalty = penalty_of(Tokens(NEW, REF, NEW, None, None), mask, NEW, BETA, kl, groups)
    assert penalty is not None
    leaf = NEW.clone().requires_grad_()
    total = penalty.loss(slice(0, 4), leaf[:4]).sum() + penalty.loss(slice(4, N), leaf[4:]).sum()
    (gradient,) = torch.autograd.grad(total, leaf)
    return gradient, penalty.value(NEW)


def plain(estimator: str, credit: str) -> tuple[Tensor, list[Tensor]]:
    """The same by autograd on β k(D) of every group; the penalties of the groups."""
    leaf, penalties = NEW.clone().requires_grad_(), []
    for members in MEMBERS:
        d = leaf[members] - REF[members]
        whole = d[-1] + d[:-1].sum().detach() if credit == "last" else d.sum()
        penalties.append(BETA * (whole**2 / 2 if estimator == "k2" else (-whole).exp() - 1 + whole))
    (gradient,) = torch.autograd.grad(torch.stack(penalties).sum(), leaf)
    return gradient, penalties


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("credit", ["shared", "last"])
def test_two_passes_have_the_gradient_of_the_plain_penalty(estimator: str, credit: str) -> None:
    kl = kl_of(group="clause", loss_estimator=estimator, group_credit=credit)
    gradient, values = slopes(kl, group_numbers(CLOSED))
    wanted, penalties = plain(estimator, credit)
    torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-12)
    for members, penalty in zip(MEMBERS, penalties, strict=True):
        torch.testing.assert_close(values[members], (penalty / len(members)).detach().expand(len(members)))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("credit", ["shared", "last"])
def test_groups_of_one_token_are_the_penalty_on_tokens(estimator: str, credit: str) -> None:
    grouped = kl_of(group="clause", loss_estimator=estimator, group_credit=credit)
    ours = slopes(grouped, group_numbers(torch.ones_like(MASK)))
    theirs = slopes(kl_of(loss_estimator=estimator), None)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_whole_response_by_hand() -> None:
    """β d² / 2 of a response, with slope β d on each of its log-probs."""
    gradient, values = slopes(kl_of(group="sequence"), torch.zeros(MASK.shape, dtype=torch.long))
    d = to_grid(NEW - REF, MASK).sum(1)
    lengths = MASK.sum(1)
    torch.testing.assert_close(gradient, (BETA * d).repeat_interleave(lengths), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values, (BETA * d**2 / 2 / lengths).repeat_interleave(lengths), rtol=1e-12, atol=1e-12)


def test_padding_moves_no_slope() -> None:
    wide = torch.nn.functional.pad(MASK, (0, 4))
    closes = torch.nn.functional.pad(CLOSED, (0, 4), value=True)
    for credit in ("shared", "last"):
        kl = kl_of(group="clause", group_credit=credit)
        tight, loose = slopes(kl, group_numbers(CLOSED)), slopes(kl, group_numbers(closes), wide)
        assert all(torch.equal(one, other) for one, other in zip(tight, loose, strict=True))


# --- in a trial --------------------------------------------------------------------------------------------


def moved(folder: Path, **knobs: Any) -> Trainer:
    """A trial whose policy has left its reference."""
    one = trainer(folder, **{"kl__beta": BETA, **knobs})
    with torch.no_grad():
        for seed, parameter in enumerate(one.actor.lm.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return one


def rolled(one: Trainer) -> Rollout:
    return collect(one.rollout_context, one._prompts(), 0, BETA)


def test_groups_end_where_the_table_says_so(tmp_path: Path) -> None:
    one = moved(tmp_path)
    episodes = rolled(one).episodes
    found = {name: groups_of(episodes, kl_of(group=name), CLOSES[name]) for name in ("clause", "sentence")}
    for name, groups in found.items():
        assert groups is not None
        for row, tokens in enumerate(episodes.responses.tolist()):
            wanted = [sum(bool(CLOSES[name][token]) for token in tokens[:place]) for place in range(len(tokens))]
            assert groups[row].tolist() == wanted
    assert found["clause"].max() > found["sentence"].max() > 0  # type: ignore[union-attr]
    assert groups_of(episodes, kl_of(), None) is None
    whole = groups_of(episodes, kl_of(group="sequence"), None)
    assert whole is not None
    assert not whole.any()
    with pytest.raises(ValueError, match=r"kl\.group 'clause' needs the tokens that end one"):
        groups_of(episodes, kl_of(group="clause"), None)


def test_k1_in_the_reward_costs_a_response_the_same_whoever_pays(tmp_path: Path) -> None:
    """Only the advantages of the tokens differ."""
    token = rolled(moved(tmp_path / "token"))
    assert abs(token.metrics["objective/non_score_reward"]) > 0.01
    for group in ("clause", "sentence", "sequence"):
        for credit in ("shared", "last"):
            knobs = {"kl__group": group, "kl__group_credit": credit}
            found = rolled(moved(tmp_path / f"{group} {credit}", **knobs))
            for key in ("objective/non_score_reward", "objective/rlhf_reward"):
                assert found.metrics[key] == pytest.approx(token.metrics[key], rel=1e-5)
            assert not torch.allclose(found.advantages, token.advantages, atol=1e-3)


def test_a_response_paid_for_by_its_last_token_has_the_advantages_of_a_penalty_in_the_score(tmp_path: Path) -> None:
    last = rolled(moved(tmp_path / "last", kl__group="sequence", kl__group_credit="last"))
    score = rolled(moved(tmp_path / "score", kl__place="score"))
    torch.testing.assert_close(last.advantages, score.advantages, rtol=1e-4, atol=1e-5)


def test_the_state_after_a_token_owes_what_its_group_has_not_paid(tmp_path: Path) -> None:
    """With the response paid for by its last token, a replayed state is worth the drift before it less."""
    worth, rollout = {}, None
    for credit in (None, "last"):
        knobs = {} if credit is None else {"kl__group": "sequence", "kl__group_credit": credit}
        replayed = {"critic__kind": "none", "algorithm__advantage": "replay", "replay__every": 3}
        one = moved(tmp_path / str(credit), **replayed, **knobs)
        rollout = rolled(one)
        worth[credit] = replay(one.rollout_context, one._prompts(), rollout.episodes, slice(None), 0, BETA).states
    assert rollout is not None
    d = rollout.measured.logprobs - rollout.measured.ref_logprobs
    known = worth["last"].known
    before = (BETA * (d.cumsum(1) - d))[known]
    assert before.abs().max() > 0.05
    torch.testing.assert_close(worth["last"].values[known], worth[None].values[known] - before, rtol=1e-3, atol=1e-4)


def test_the_greedy_response_pays_by_groups_too(tmp_path: Path) -> None:
    """k1 of a response does not depend on its groups, k3 does."""
    for estimator in ("k1", "k3"):
        knobs = {**preset("remax"), "kl__reward_estimator": estimator}
        plain, whole = (
            rolled(moved(tmp_path / f"{estimator} {group}", **knobs, kl__group=group)).metrics
            for group in ("token", "clause")
        )
        same = whole["objective/greedy_reward"] == pytest.approx(plain["objective/greedy_reward"], rel=1e-5)
        assert same == (estimator == "k1")


GROUPED: dict[str, dict[str, Any]] = {
    "reward, clauses": {"kl__group": "clause"},
    "reward, last of a sentence by k3": {
        "kl__group": "sentence",
        "kl__group_credit": "last",
        "kl__reward_estimator": "k3",
    },
    "loss, clauses": {"kl__place": "loss", "kl__group": "clause"},
    "loss, last of a sentence by k3": {
        "kl__place": "loss",
        "kl__group": "sentence",
        "kl__group_credit": "last",
        "kl__loss_estimator": "k3",
    },
}

SOME = list(GROUPED)[::3]
"""The other ones are slow tests."""


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("runtime", [{"micro_batch_size": 1}, {"micro_batch_size": 3, "rollout_batch_size": 3}])
def test_how_many_are_in_memory_at_once_moves_nothing(tmp_path: Path, name: str, runtime: dict[str, int]) -> None:
    whole, cut = (moved(tmp_path / str(which), runtime=which, **GROUPED[name]) for which in ({}, runtime))
    rollouts = [rolled(one) for one in (whole, cut)]
    torch.testing.assert_close(rollouts[1].advantages, rollouts[0].advantages, rtol=1e-4, atol=1e-5)
    for one in (whole, cut):
        accumulate(rollouts[0], torch.tensor([6, 1, 3, 4]), one.learner)
    for ours, theirs in zip(cut.actor.parameters(), whole.actor.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SOME else pytest.mark.slow) for name in GROUPED]
)
def test_a_penalty_on_groups_holds_the_policy_back(tmp_path: Path, name: str) -> None:
    ends = []
    for beta in (0.0, 3.0):
        _, rows, _ = run(tmp_path / str(beta), kl__beta=beta, train__steps=80, **GROUPED[name])
        ends.append([row["objective/kl_exact_per_token"] for row in rows.values() if "objective/kl" in row][-1])
    assert ends[1] < ends[0] / 2


def test_the_series_of_the_penalty_is_the_sum_over_groups_per_token(tmp_path: Path) -> None:
    one = moved(tmp_path, **GROUPED["loss, clauses"])
    rollout = rolled(one)
    found = accumulate(rollout, torch.arange(8), one.learner)["policy/kl_loss"]
    episodes, total = rollout.episodes, 0.0
    d = rollout.measured.logprobs - rollout.measured.ref_logprobs
    for row in range(8):
        n, whole = int(episodes.lengths[row]), 0.0
        for place in range(n):
            whole += float(d[row, place])
            if CLOSES["clause"][episodes.responses[row, place]] or place == n - 1:
                total, whole = total + BETA * whole**2 / 2, 0.0
    assert found == pytest.approx(total / int(episodes.lengths.sum()), rel=1e-4)


def test_a_trial_on_clauses_without_its_table_says_so(tmp_path: Path) -> None:
    one = trainer(tmp_path, kl__group="clause")
    one.rollout_context = replace(one.rollout_context, closes=None)
    with pytest.raises(ValueError, match=r"kl\.group 'clause' needs the tokens that end one"):
        rolled(one)
