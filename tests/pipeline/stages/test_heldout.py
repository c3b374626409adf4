from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke
from torch import Tensor

from pipeline.algorithms.mathematics.kl import entropy, exact_kl
from pipeline.data.prompt_set import PromptSet
from pipeline.intervals import grouped
from pipeline.models.heads import log_probs
from pipeline.models.loading import load_snapshot
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes, response_hidden, response_mask, to_grid
from pipeline.models.sampling import EagerSampler, inverse_cdf
from pipeline.rewards.base import Completions
from pipeline.run.layout import Layout
from pipeline.run.progress import TrialOutcome
from pipeline.stages.evaluate import choose, kl_of_best, summarise
from pipeline.stages.heldout import TIE, answers, heldout_prompts, preferences
from pipeline.training.new_actor import load_reference
from pipeline.trial import run_trial
from reports.findings.bound import best_win_rate

WORDS, PROMPTS, DRAWS = 3_000, 2_000, 4
CPU = torch.device("cpu")


class Numbers:
    """A tokenizer whose words are the numbers of its tokens."""

    eos_token_id, pad_token_id = -1, -2

    def batch_decode(self, rows: list[list[int]], **_: Any) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]


def sample_one(sampler: Any, ids: torch.Tensor, mask: torch.Tensor, noise: torch.Tensor) -> Episodes:
    """A response is one token of the distribution ``lm[0]``, which holds log-probabilities."""
    token = inverse_cdf((sampler.lm[0] / sampler.temperature).expand(len(ids), -1), noise[:, 0]).unsqueeze(1)
    ones = torch.ones_like(token, dtype=torch.bool)
    return Episodes(torch.cat([ids, token], 1), mask, ones, ones[:, 0])


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Scores of sampled answers, `model` being a distribution over words and a word's score its number; each
    (prompts,)."""
    monkeypatch.setattr(EagerSampler, "sample", sample_one)
    ids, cfg = torch.zeros(PROMPTS, 1, dtype=torch.long), smoke()
    data = PromptSet(Numbers(), ["0"] * PROMPTS, ids, ids == 0)

    def found(model: torch.Tensor, *stream: object) -> np.ndarray:
        drawn = answers(cfg, torch.nn.ParameterList([model]), data, Room("rows", PROMPTS), *stream)
        return np.array([float(text) for text in drawn.texts])

    return found


def win_rate(policy: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    win = preferences(policy, reference, policy, reference)["win"]
    return grouped(win * reference.shape[1], np.full(len(win), reference.shape[1]))


def test_the_reference_against_itself_wins_half(scores: Any) -> None:
    uniform = torch.zeros(1, WORDS)
    reference = np.stack([scores(uniform, "reference", draw) for draw in range(DRAWS)], 1)
    _, low, high = win_rate(scores(uniform, "policy"), reference)
    assert low < 0.5 < high
    assert high - low < 0.04
    assert (scores(uniform, "policy") == scores(uniform, "policy")).all(), "all arms meet the same noise"
    every = [scores(uniform, "policy"), *reference.T]
    assert np.abs(np.corrcoef(every)[np.triu_indices(DRAWS + 1, 1)]).max() < 4 / PROMPTS**0.5


def test_common_noise_breaks_the_bound_that_independent_noise_keeps(scores: Any) -> None:
    """A policy that shifts every answer up by a little: 0.008 nats from the reference, where no policy wins more than
    53.7 %."""
    rank = torch.linspace(0, 1, WORDS)
    uniform, tilted = torch.zeros(1, WORDS), (0.444 * rank).unsqueeze(0)
    p = torch.softmax(tilted.double(), 1)
    kl = float((p * (p.log() + np.log(WORDS))).sum())
    grid, bound = best_win_rate(1.0)
    most = float(np.interp(kl, grid, bound))
    assert (kl, most) == pytest.approx((0.0082, 0.537), abs=5e-4)
    reference = np.stack([scores(uniform, "reference", draw) for draw in range(DRAWS)], 1)
    _, low, high = win_rate(scores(tilted, "policy"), reference)
    assert low <= most <= high  # the policy is the tilt itself, so its win rate is the bound
    assert high < 0.56
    assert win_rate(scores(tilted, "reference", 0), reference[:, :1])[0] > 0.99


def test_drift_is_that_of_the_whole_table(smoke_layout: Layout) -> None:
    cfg = smoke()
    done = run_trial(cfg, smoke_layout, Recorder()).artifacts
    policy, reference = load_snapshot(done["train"].path / "policy", CPU), load_reference(done["sft"], "none", CPU)
    data = heldout_prompts(cfg, done["prompts"])
    with torch.no_grad():
        drawn = answers(cfg, policy, data, Room("rows", 64), "policy").episodes
        log_pi, log_ref = (log_probs(lm, response_hidden(lm, drawn), 1.0) for lm in (policy, reference))
        columns = {
            "kl": exact_kl(log_pi, log_ref),
            "entropy": entropy(log_pi),
            "reference_nats": -log_ref.gather(1, drawn.labels.unsqueeze(1)).squeeze(1),
        }
    table = pd.read_parquet(done["evaluate"].path / "prompts.parquet")
    for name, expected in columns.items():
        summed = to_grid(expected, drawn.response_mask).sum(1)
        assert table[name].tolist() == pytest.approx(summed.tolist(), rel=1e-3, abs=1e-4), name


@pytest.mark.parametrize(("draws", "rate", "alike"), [(1, 0.5, 0.5), (4, 0.95, 0.3), (8, 0.8, 2.0)])
def test_the_interval_of_a_win_rate_covers_it(draws: int, rate: float, alike: float) -> None:
    """Prompts differ in how often the policy wins: Beta(rate x alike, (1 - rate) x alike); 256 prompts."""
    rng = np.random.default_rng([draws, round(100 * rate)])
    inside, width = [], []
    for _ in range(600):
        own = rng.beta(rate * alike, (1 - rate) * alike, 256)
        _, low, high = grouped(rng.binomial(draws, own), np.full(256, draws))
        inside.append(low <= rate <= high)
        width.append(high - low)
    assert 0.92 <= np.mean(inside) <= 0.985
    assert np.mean(width) <= 1.1 * 2 * 1.96 * (rate * (1 - rate) / 256) ** 0.5 + 0.01


GOLD, PROXY = np.array([2.0, 0.0, 5.0]), np.array([0.5, -1.0, 0.0])
GOLD_DRAWS = np.array([[1.0, 3.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [9.0, 9.0, 1.0, 5.0]])
PROXY_DRAWS = np.array([[0.0, 0.0, 9.0, 0.5], [0.0, -2.0, -1.0, -1.0], [1.0, -1.0, 1.0, 0.0]])
"""First prompt: right, wrong, undecided by the judge, equal by the proxy. Second: none decided. Third: right, wrong,
wrong, undecided."""


COLUMNS = preferences(GOLD, GOLD_DRAWS, PROXY, PROXY_DRAWS)


def test_preferences_by_hand() -> None:
    assert {key: values.tolist() for key, values in COLUMNS.items()} == {
        "win": [0.625, 0.5, 0.375],
        "tie": [0.25, 1.0, 0.25],
        "win_proxy": [0.625, 0.5, 0.375],
        "agree": [1.5, 0.0, 1.0],
        "decided": [3.0, 0.0, 3.0],
    }
    # A proxy that is the judge, its opposite, and a constant.
    for sign, agreed in ((1, [3.0, 0.0, 3.0]), (-1, [0.0, 0.0, 0.0]), (0, [1.5, 0.0, 1.5])):
        assert preferences(GOLD, GOLD_DRAWS, sign * GOLD, sign * GOLD_DRAWS)["agree"].tolist() == agreed


@pytest.mark.parametrize(("scores", "found"), [([-TIE / 2, -TIE / 3], (0.5, 1.0)), ([2 * TIE, 3 * TIE], (0.0, 2.0))])
def test_scores_apart_by_rounding_are_equal(scores: list[float], found: tuple[float, float]) -> None:
    """The score of one text varies with the batch that it is scored in; a comparison must not."""
    compared = preferences(np.zeros(1), np.ones((1, 2)), np.zeros(1), np.array([scores]))
    assert (compared["win_proxy"].item(), compared["agree"].item()) == found


def table(found: dict[str, np.ndarray]) -> pd.DataFrame:
    rest = ("policy_gold", "reference_gold", "policy_proxy", "reference_proxy", "kl", "entropy", "reference_nats")
    ones = dict.fromkeys((*rest, "policy_length", "policy_eos"), 1.0)
    return pd.DataFrame({**found, **ones, "policy_completion": "a b"})


def test_the_summary_is_a_ratio_of_sums_and_has_the_interval_of_both_win_rates() -> None:
    found = summarise(table(COLUMNS | {"win_proxy": np.array([1.0, 0.75, 0.5])}), 4)
    assert found["eval/preference_accuracy"] == pytest.approx(2.5 / 6)
    assert (found["eval/win_rate"], found["eval/win_rate_proxy"]) == (0.5, 0.75)
    for key in ("eval/win_rate", "eval/win_rate_proxy"):
        assert 0 < found[f"{key}_low"] < found[key] < found[f"{key}_high"] < 1
    stated = [found[f"eval/win_rate_proxy{end}"] for end in ("", "_low", "_high")]
    assert stated == pytest.approx(grouped([4, 3, 2], [4, 4, 4])), "four comparisons at each prompt"
    undecided = summarise(table(COLUMNS | {"agree": np.zeros(3), "decided": np.zeros(3)}), 4)
    assert "eval/preference_accuracy" not in undecided
    assert np.isfinite(list(undecided.values())).all()


SCORES = torch.tensor([[0.0, 2.0, 1.0], [1.0, 2.0, 0.5], [1.0, -1.0, 3.0], [0.5, 5.0, 3.0 - TIE / 2]])
"""Scores of four draws (rows) of three prompts; draws 1 and 2 of the first and draws 2 and 3 of the last are equal, the
latter but for rounding."""


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
    tied = {1: [0, 0, 0], 3: [2, 2, 0], 4: [2, 0, 2]}[count]
    assert (found.equal * count).tolist() == pytest.approx(tied)
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
@pytest.mark.parametrize("top", [1e-9, 0.05, 0.6])
def test_the_kl_of_the_best_is_that_of_its_law_where_only_the_highest_scores_tie(n: int, top: float) -> None:
    """`top`: the probability of the highest score, which two answers share."""
    rest = 4_000
    law = np.array([*[(1 - top) / rest] * rest, 0.3 * top, 0.7 * top])
    ranks = np.array([*range(rest), rest, rest])
    found = float(kl_of_best(n, torch.tensor(top)))
    assert kl(best_of_n(law, ranks, n), law) == pytest.approx(found, abs=0.01)
    bound = math.log(n) - (n - 1) / n
    assert found == pytest.approx(bound) if top < 1e-6 else 0 < found < bound


def test_the_kl_is_estimated_from_the_draws_that_tie() -> None:
    """Of right and wrong answers: near the exact KL and far below the bound."""
    n, right = 16, 0.3
    scores = (torch.rand(n, 4_000, generator=torch.Generator().manual_seed(0)) < right).float()
    few = drawn(0)
    many = Completions(Episodes(*(grid[:1].expand(4_000, *grid.shape[1:]) for grid in vars(few.episodes).values())),
                       ["a"] * 4_000, [""] * 4_000)  # fmt: skip
    numbers = iter(range(n))
    found = float(kl_of_best(n, choose(n, lambda _: many, lambda _: (scores[next(numbers)], {})).equal).mean())
    law = np.array([1 - right, right])
    exact = kl(best_of_n(law, np.array([0, 1]), n), law)
    assert found == pytest.approx(exact, abs=0.04)
    assert exact < math.log(n) - (n - 1) / n - 0.6


def test_the_kl_of_a_trained_policys_choice_adds_the_log_ratios_of_the_chosen() -> None:
    """KL(best || ref) = KL(best || policy) + E_best[log policy - log ref]."""
    rng = np.random.default_rng(0)
    reference = rng.dirichlet(np.ones(2_000))
    policy = reference * np.exp(rng.normal(0, 0.5, 2_000))
    policy /= policy.sum()
    law = best_of_n(policy, np.arange(2_000), 4)
    ratios = float(law @ np.log(policy / reference))
    assert kl(law, reference) == pytest.approx(kl(law, policy) + ratios)
    assert kl(law, reference) == pytest.approx(float(kl_of_best(4, torch.tensor(0.0))) + ratios, abs=0.01)
    assert float(kl_of_best(1, torch.tensor(0.4))) == pytest.approx(0, abs=1e-9)


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
    policy, model = train / "policy" / "model.safetensors", sft / "model" / "model.safetensors"
    assert policy.read_bytes() == model.read_bytes()
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
        least = 0.0 if n == 1 else -1e-6
        assert ((table["kl"] >= -1e-6) & (table["kl"] <= bound - least)).all()
        assert found.summary["eval/kl_per_sequence"] == pytest.approx(bound, abs=0.1), "few samples tie"
        if n > 1:
            assert (table["kl"] + table["kl_below_bound"]).tolist() == [pytest.approx(bound, abs=1e-5)] * len(table)


def test_answers_that_are_likely_or_tie_have_a_smaller_kl(smoke_layout: Layout) -> None:
    """A reward of few values, and short answers: both the share of ties and the probability of a text count."""
    few = {"data__source": "chains", "reward__kind": "verifier", "data__chains__lengths": [2, 3]}
    outcome = run_trial(smoke(algorithm="best_of_n", evaluate__best_of=4, **few), smoke_layout, Recorder())
    table, bound = rows(outcome), math.log(4) - 3 / 4
    below = table["kl_below_bound"].to_numpy()
    assert (table["kl"].to_numpy() + below).tolist() == pytest.approx([bound] * len(table), abs=1e-4)
    least = bound - kl_of_best(4, torch.from_numpy(np.exp(-table["reference_nats"].to_numpy()))).numpy()
    assert (below >= least - 1e-4).all(), "at least by the probability of the text, which the reference drew"
    steps = [bound - float(kl_of_best(4, torch.tensor(k / 4))) for k in (2, 3, 4)]
    by_ties = np.abs(below[:, None] - steps).min(1) < 1e-4
    assert by_ties.mean() > 0.5, "wrong answers all tie"
    assert (by_ties | (np.abs(below - least) < 1e-4)).all()


def test_a_trained_policy_chooses_as_well(run: Callable[..., TrialOutcome]) -> None:
    plain, chosen = run(), run(evaluate__best_of=2)
    assert chosen.artifacts["train"].key == plain.artifacts["train"].key
    first, better = rows(plain), rows(chosen)
    assert (better["policy_proxy"] >= first["policy_proxy"]).all()
    assert {key: value for key, value in chosen.cost.items() if not key.startswith("evaluate_")} == plain.cost
    assert chosen.cost["evaluate_generated_tokens"] > first["policy_length"].sum()
    assert better["kl"].std() > 0.1, "the log-ratios of single answers"
    assert chosen.summary["eval/kl_per_sequence"] > math.log(2) - 1 / 2
