"""Win rates are those of the bounds at a given KL: policy and reference are sampled with independent noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke

from pipeline.algorithms.mathematics.kl import entropy, exact_kl
from pipeline.data.prompt_set import PromptSet
from pipeline.evaluation.heldout import answers, heldout_prompts, shares
from pipeline.intervals import grouped
from pipeline.models.loading import load_snapshot
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes, log_probs, response_hidden, to_grid
from pipeline.models.sampling import EagerSampler, inverse_cdf
from pipeline.run.layout import Layout
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
    win, _ = shares(policy, reference)
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
    """Against all log-probabilities."""
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
