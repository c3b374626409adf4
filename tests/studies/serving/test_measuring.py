"""What is said of an answer, against the mathematics row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_service import Tiny, by_text, network
from torch import Tensor

from pipeline.models.policy import log_probs, padded_episodes, response_hidden
from studies.serving.networks import REFERENCE


def said_by(seed: int, query: Any, tokens: Any) -> Tensor:
    """Log-probs (T, V) of one row by itself."""
    episodes, lm = padded_episodes([query], [tokens], torch.zeros(1, dtype=torch.bool), 0), network(seed)
    with torch.no_grad():
        return log_probs(lm, response_hidden(lm, episodes), 1.0)


def test_each_row_of_a_request_is_measured_by_itself() -> None:
    tiny = Tiny()
    measurer = tiny.service.worker._measurer
    assert measurer is not None
    measurer.gold = lambda completions: completions.episodes.ended.float()  # type: ignore[assignment]
    job = tiny.job(prompt=["The film moves and charms", "It"], n=12, max_tokens=24, measure=True)
    tiny.service.worker.answer([job])
    assert job.measured
    lengths = [len(row.tokens) for row in job.rows]
    assert lengths != sorted(lengths), "rows are measured in the order of their lengths, and answered in their own"
    eos = tiny.service.worker._tokenizer.eos_token_id
    ended = [row.tokens[-1] == eos for row in job.rows]
    assert [found["gold"] for found in job.measured] == [float(one) for one in ended]
    assert len(set(ended)) == 2
    for row, found in zip(job.rows, job.measured, strict=True):
        policy, reference = (said_by(seed, row.query, row.tokens) for seed in (1, 0))
        drawn = torch.tensor(row.tokens)[:, None]
        kl = (policy.exp() * (policy - reference)).sum(1)
        expected = {
            "policy_logprobs": policy.gather(1, drawn)[:, 0],
            "reference_logprobs": reference.gather(1, drawn)[:, 0],
        }
        for name, values in (expected | {"kl": kl}).items():
            torch.testing.assert_close(torch.tensor(found[name]), values, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_policy_is_said_to_be_broken_of_answers_of_the_reference_too(stream: bool) -> None:
    """The reference answers, and the policy has no log-probs of it: these would be no JSON."""
    tiny, heard = Tiny(), list[Any]()
    with torch.no_grad():
        tiny.service.holder.now.policy.get_input_embeddings().weight.fill_(torch.nan)
    tiny.service.worker.answer([tiny.job(heard.append, model=REFERENCE, measure=True, stream=stream)])
    assert (heard[-1].status, heard[-1].message) == (
        503, "the logits of kkkkkkkk@1 are not finite: the policy is broken",
    )  # fmt: skip


def test_a_score_that_is_no_number_is_none() -> None:
    tiny = Tiny()
    measurer = tiny.service.worker._measurer
    assert measurer is not None
    measurer.gold = by_text(lambda text: float("nan"))
    job = tiny.job(measure=True)
    tiny.service.worker.answer([job])
    assert job.measured
    assert job.measured[0]["gold"] is None
