"""What rollouts and steps record: by hand, and blind to padding."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import trial_config
from naive import drawn, prefix
from tinytrial import rows_of
from torch import Tensor

from pipeline.models import lm_head as head_module
from pipeline.models.lm_head import token_stats
from pipeline.models.policy import Episodes, to_grid
from pipeline.training.experience import Experience, Measured
from pipeline.training.judging import Scores
from pipeline.training.rollout import drift_metrics, reward_metrics, sampling_metrics
from pipeline.training.surrogate import surrogate_term
from pipeline.training.update import step_metrics

LOG2 = math.log(2)


def f64(*xs: float) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def test_step_metrics_by_hand() -> None:
    """Ratios 2 and 1/2; the reference agrees with the old policy on the first token, with the new on the second."""
    old, ref, new = f64(-1.0 - LOG2, -1.0), f64(-1.0 - LOG2, -1.0 - LOG2), f64(-1.0, -1.0 - LOG2)
    rows = rows_of(old, prefix([[1, 2]]), ref, f64(1.0, -1.0))
    metrics = step_metrics(rows, new)
    assert metrics["policy/ratio"].tolist() == pytest.approx([2.0, 0.5])
    assert metrics["policy/approxkl"].tolist() == pytest.approx([LOG2**2 / 2] * 2)
    # k3 of old against new, whose samples these are: d = -log 2 and log 2, so 2 - 1 - log 2 and 1/2 - 1 + log 2.
    assert metrics["policy/approxkl_k3"].tolist() == pytest.approx([1 - LOG2, LOG2 - 0.5])
    # Reference KL of the new policy, weighted by its ratio: 2 log 2 and 0.
    assert metrics["policy/kl_ref_per_token"].tolist() == pytest.approx([2 * LOG2, 0.0])
    sums = surrogate_term(rows, torch.tensor(2), 1, trial_config()).sums(new)
    assert sums["policy/pg_loss"].tolist() == pytest.approx([-1.2, 0.8])
    assert sums["policy/pg_clipfrac"].tolist() == [True, True]


# --- a rollout ---------------------------------------------------------------------------------------------


def experience(pad: int = 0) -> Experience:
    """Responses of 2 and 1 tokens; grids are 0 on padding, tokens there are arbitrary."""
    mask = prefix([[1, 2], [3]], pad)
    flat = ([-1.0, -2.0, -3.0], [-2.0, -1.5, -3.0], [0.5, 0.25, 0.0], [1.0, 2.0, 3.0])
    grids = [to_grid(f64(*column), mask) for column in flat]
    responses = torch.where(mask, torch.tensor([[7], [8]]), 5)
    episodes = Episodes(
        torch.cat([torch.tensor([[4], [4]]), responses], 1), torch.ones(2, 1).bool(), mask, torch.tensor([True, False])
    )
    return Experience(episodes, Measured(*grids, grids[3]), grids[3], grids[2], 0.1)


def metrics_of(one: Experience) -> dict[str, float]:
    scores = Scores(f64(2.0, 4.0), f64(1.0, 0.0), ["p"] * 2, ["t"] * 2, {"a": f64(1.0, 2.0)}, {"b": f64(0.0, 1.0)})
    non_score = -0.1 * (one.measured.logprobs - one.measured.ref_logprobs)
    return {
        **drift_metrics(one.measured, one.episodes.response_mask),
        **reward_metrics(scores, f64(2.0, -1.0), non_score),
        **sampling_metrics(one.episodes, one.measured.ref_logprobs, one.measured),
    }


def test_rollout_metrics_by_hand() -> None:
    # d = (1, -0.5) and (0): sums 0.5 and 0. Per token (1 - 0.5 + 0) / 3; k3 = (e^-1, e^0.5 - 1.5, 0) / 3.
    expected = {
        "objective/kl": 0.25,
        "objective/kl_per_token": 0.5 / 3,
        "objective/kl_k3_per_token": (math.exp(-1) + math.exp(0.5) - 1.5) / 3,
        "objective/kl_exact_per_token": 0.25,
        "objective/entropy": 3.0,  # sampled: (1 + 2) and 3, a sum per sequence
        "objective/entropy_per_token": 2.0,  # exact: 1, 2 and 3, a mean per token
        "objective/scores": 3.0,
        "objective/scores_std": 1.0,  # biased
        "objective/gold": 0.5,
        "objective/non_score_reward": -0.025,  # -0.1 x 0.5 and 0
        "objective/rlhf_reward": 0.475,  # final scores 2 and -1 (the second was cut), and the penalty
        "objective/length": 1.5,
        "objective/eos_rate": 0.5,
        "objective/repetition": 0.0,
        "objective/sampler_gap": 0.5,
        "objective/sampler_ratio": (math.e + math.exp(-0.5) + 1) / 3,
        "reward/a": 1.5,
        "objective/gold/b": 0.5,
    }
    found = metrics_of(experience())
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected)


def test_pad_columns_move_no_metric_of_a_rollout() -> None:
    assert metrics_of(experience(5)) == pytest.approx(metrics_of(experience()), rel=1e-12)


# --- over the vocabulary -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_exact_statistics_by_chunks_equal_those_of_the_whole(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Against the definitions in float64 on the whole (tokens, vocabulary) table, at a temperature."""
    monkeypatch.setattr(head_module, "chunk_tokens", lambda *_: chunk)
    n, width, vocab = 7, 4, 9

    class Network(torch.nn.Module):
        config = type("Config", (), {"vocab_size": vocab})

        def __init__(self, seed: int) -> None:
            super().__init__()
            self.head = torch.nn.Linear(width, vocab)
            self.head.weight.data = drawn(vocab, width, seed=seed, dtype=torch.float32)

        def get_output_embeddings(self) -> torch.nn.Linear:
            return self.head

    nets = [Network(seed) for seed in range(2)]
    hiddens, labels = [drawn(n, width, seed=seed, dtype=torch.float32) for seed in (5, 6)], torch.arange(n)
    stats = token_stats(nets[0], hiddens[0], nets[1], hiddens[1], labels, 0.7)
    with torch.no_grad():
        pi, ref = (
            torch.softmax((h.double() @ net.head.weight.double().T + net.head.bias.double()) / 0.7, -1)
            for h, net in zip(hiddens, nets, strict=True)
        )
    close = {"rtol": 1e-5, "atol": 1e-6}  # fp32: a few units of 1.2e-7 on numbers up to about 10
    torch.testing.assert_close(stats.logprobs.double(), pi[range(n), labels].log(), **close)
    torch.testing.assert_close(stats.ref_logprobs.double(), ref[range(n), labels].log(), **close)
    torch.testing.assert_close(stats.kl.double(), (pi * (pi / ref).log()).sum(-1), **close)
    torch.testing.assert_close(stats.entropy.double(), -(pi * pi.log()).sum(-1), **close)
