"""The best of several answers by the training reward: what is chosen, its KL, what it costs, and a trial that learns
nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke
from torch import Tensor

from pipeline.evaluation.best_of import choose, kl_bound, kl_of_chosen
from pipeline.models.policy import Episodes, response_mask
from pipeline.rewards.base import Completions
from pipeline.run.layout import Layout
from pipeline.run.progress import TrialOutcome
from pipeline.trial import run_trial

SCORES = torch.tensor([[0.0, 2.0, 1.0], [1.0, 2.0, 0.5], [1.0, -1.0, 3.0], [0.5, 5.0, 3.0]])
"""Scores of four draws (rows) of three prompts; draws 1 and 2 of the first and draws 2 and 3 of the last are equal."""


def drawn(number: int) -> Completions:
    """Every token of draw k is k, and its responses have k + 1 tokens."""
    mask = response_mask(torch.full((3,), number + 1), 4)
    tokens = torch.cat([torch.zeros(3, 2), torch.full((3, 4), float(number))], dim=1).long()
    ended = torch.full((3,), number % 2 == 0)
    episodes = Episodes(tokens, torch.ones(3, 2, dtype=torch.bool), mask, ended)
    return Completions(episodes, ["a", "b", "c"], [f"{prompt}{number}" for prompt in "abc"])


def scored(completions: Completions) -> tuple[Tensor, dict[str, Tensor]]:
    scores = SCORES[int(completions.texts[0][1])]
    return scores, {"half": scores / 2}


@pytest.mark.parametrize(("count", "winners"), [(1, [0, 0, 0]), (3, [1, 0, 2]), (4, [1, 3, 2])], ids=str)
def test_the_best_of_each_prompt_is_taken_the_first_of_equal_ones(count: int, winners: list[int]) -> None:
    found = choose(count, drawn, scored)
    assert found.answers.texts == [f"{prompt}{winner}" for prompt, winner in zip("abc", winners, strict=True)]
    assert list(found.answers.prompts) == ["a", "b", "c"]
    assert found.proxy.tolist() == [SCORES[winner, place].item() for place, winner in enumerate(winners)]
    assert found.parts["half"].tolist() == (found.proxy / 2).tolist()
    assert found.answers.episodes.lengths.tolist() == [winner + 1 for winner in winners]
    assert found.answers.episodes.responses[:, 0].tolist() == winners
    assert found.answers.episodes.response_mask.dtype == torch.bool
    assert found.answers.episodes.ended.tolist() == [winner % 2 == 0 for winner in winners]
    assert found.sampled_tokens == 3 * sum(number + 1 for number in range(count)), "all draws are paid for"


def best_of_n(p: np.ndarray, ranks: np.ndarray, n: int) -> np.ndarray:
    """The law of the best of n draws of a law on finitely many answers, by enumeration: (F(r) ** n - F(r-) ** n) shared
    among the answers of rank r in proportion to p."""
    law = np.zeros_like(p)
    for rank in set(ranks.tolist()):
        here, below = ranks == rank, p[ranks < rank].sum()
        law[here] = p[here] / p[here].sum() * ((below + p[here].sum()) ** n - below**n)
    return law


def kl(p: np.ndarray, q: np.ndarray) -> float:
    kept = p > 0
    return float((p[kept] * np.log(p[kept] / q[kept])).sum())


@pytest.mark.parametrize("n", [2, 16])
def test_the_bound_is_the_kl_where_nothing_is_tied_and_above_it_where_much_is(n: int) -> None:
    answers = 2_000
    uniform = np.full(answers, 1 / answers)
    assert kl(best_of_n(uniform, np.arange(answers), n), uniform) == pytest.approx(kl_bound(n), abs=0.01)
    few, ranks = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 1, 1, 2])
    assert 0 < kl(best_of_n(few, ranks, n), few) < kl_bound(n)


def test_the_kl_of_a_trained_policys_choice_adds_the_log_ratios_of_the_chosen() -> None:
    """KL(best || ref) = KL(best || policy) + E_best[log policy - log ref], with the bound in place of the first."""
    rng = np.random.default_rng(0)
    reference = rng.dirichlet(np.ones(2_000))
    policy = reference * np.exp(rng.normal(0, 0.5, 2_000))
    policy /= policy.sum()
    law = best_of_n(policy, np.arange(2_000), 4)
    assert kl(law, reference) == pytest.approx(kl(law, policy) + float(law @ np.log(policy / reference)))
    ratios = torch.from_numpy(np.log(policy / reference))[:, None] * torch.tensor([[0.25, 0.75]])
    mean = float(torch.from_numpy(law) @ kl_of_chosen(4, ratios))
    assert kl(law, reference) <= mean == pytest.approx(kl(law, reference), abs=0.01)
    assert kl_of_chosen(1, ratios).tolist() == pytest.approx(ratios.sum(1).tolist())


def rows(outcome: TrialOutcome) -> pd.DataFrame:
    return pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")


@pytest.fixture(scope="module")
def run(smoke_layout: Layout) -> Callable[..., TrialOutcome]:
    return lambda **changes: run_trial(smoke(**changes), smoke_layout, Recorder())


def test_an_untrained_policy_is_the_reference_and_chooses_the_better_the_more_it_draws(
    run: Callable[..., TrialOutcome],
) -> None:
    untrained = {n: run(algorithm="best_of_n", evaluate__best_of=n) for n in (1, 3, 8)}
    outcome = untrained[8]
    assert (outcome.status, outcome.steps, outcome.reason) == ("complete", 0, None)
    train, sft = (outcome.artifacts[name].path for name in ("train", "sft"))
    weights = [folder / "model.safetensors" for folder in (train / "policy", sft / "model")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert (train / "metrics.jsonl").read_bytes() == b""
    one, three, eight = (rows(untrained[n]) for n in (1, 3, 8))
    for few, many in ((one, three), (three, eight)):  # samples of a small n are the first of a larger one
        same = few["policy_proxy"] == many["policy_proxy"]
        assert (few["policy_proxy"] <= many["policy_proxy"]).all()
        assert 0 < same.mean() < 1
        assert (few["policy_completion"] == many["policy_completion"])[same].all()
    assert not (eight["policy_gold"] >= one["policy_gold"]).all(), "the judge does not choose"
    for n, found in untrained.items():
        table, bound = rows(found), math.log(n) - (n - 1) / n
        assert table["kl"].tolist() == [pytest.approx(bound)] * len(table)
        assert found.summary["eval/kl_per_sequence"] == pytest.approx(bound)
        assert found.summary["eval/kl_per_token"] == pytest.approx(bound * len(table) / table["policy_length"].sum())


def test_a_trained_policy_chooses_as_well(run: Callable[..., TrialOutcome]) -> None:
    plain, chosen = run(), run(evaluate__best_of=2)
    assert chosen.artifacts["train"].key == plain.artifacts["train"].key
    first, better = rows(plain), rows(chosen)
    assert (better["policy_proxy"] >= first["policy_proxy"]).all()
    assert {key: value for key, value in chosen.cost.items() if not key.startswith("evaluate_")} == plain.cost
    assert chosen.cost["evaluate_generated_tokens"] > first["policy_length"].sum()
    assert better["kl"].std() > 0.1, "the log-ratios of single answers"
    assert chosen.summary["eval/kl_per_sequence"] > kl_bound(2)
