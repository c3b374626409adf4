"""The work of sampling: prompts that are read once, and the steps of the static sampler against its own meter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tinynets import network

from pipeline.config.loading import load_config
from pipeline.forecast.shapes import measured
from pipeline.forecast.subject import ForecastSubject, subject_of
from pipeline.forecast.work import sampling
from pipeline.models.fp32_heads import fp32_logits
from pipeline.models.precision import Precision
from pipeline.models.seeding import uniforms
from pipeline.models.static_sampler import StaticSampler
from pipeline.resources.out_of_memory import Room
from pipeline.resources.roofline import BYTES_READ_HALF


@pytest.mark.parametrize(
    ("together", "each", "prompts"), [(8, 1, 8), (4, 1, 8), (8, 4, 2), (4, 4, 2), (3, 4, 4), (3, 2, 5)]
)
def test_a_prompt_is_read_once_in_every_batch_that_has_responses_to_it(together: int, each: int, prompts: int) -> None:
    """8 responses, `together` at a time: what each weight is multiplied by is 2 a position of a prompt or response."""
    trial = subject_of(load_config("smoke", {"runtime.rollout_batch_size": together}))
    assert trial is not None
    one, none = (sampling(trial, 8, maps, BYTES_READ_HALF, each).flops for maps in (1, 0))
    assert one - none == pytest.approx(2 * (prompts * trial.mean_prompt + 8 * (16 - 1)), rel=1e-6)


def test_the_work_of_static_steps_is_what_is_counted() -> None:
    """Full-length responses to prompts of one length."""
    lm: Any = fp32_logits(network("gpt2", vocab_size=64))
    spent = [0.0, 0.0]

    def tally(flops: float, bytes_: float) -> None:
        spent[:] = spent[0] + flops, spent[1] + bytes_

    precision = Precision(torch.device("cpu"), "no")
    sampler = StaticSampler(
        lm, 1.0, Room("rows", 8), eos_id=-1, pad_id=0, precision=precision, tally=tally, warn=pytest.fail
    )
    sampler.sample(torch.arange(2, 42).view(8, 5), torch.ones(8, 5, dtype=torch.bool), uniforms(8, 40, "forecast"))
    prompts = {"data.prompt_unit": "tokens", "data.prompt_length": [5, 5]}
    sizes = {"train.batch_size": 8, "train.num_mini_batches": 1, "train.response_length": 40}
    shape = measured(lm.config.to_json_string())
    assert shape is not None
    trial = ForecastSubject(load_config("smoke", {**prompts, **sizes}), shape, on_card=True)
    work = sampling(trial, 8, shape.maps, BYTES_READ_HALF, static=True)
    assert (work.flops, work.bytes) == pytest.approx(spent, rel=0.01)
