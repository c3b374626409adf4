"""Samples of the reference on the training prompts, scored before training: the section `values`."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.base import Positive, Section
from pipeline.config.effects import Config, When


class ValuesConfig(Section):
    """Samples of the reference on the training prompts, which the stage `values` draws for algorithms that need
    them."""

    samples: Positive = Field(
        16, description="responses of the reference to each training prompt, scored once for all trials that share them"
    )


SAMPLES_USED = When(
    "algorithm.advantage: v_star or critic.pretraining_steps above 0",
    lambda config: config.needs_samples,
    "critic.pretraining_steps",
)


def check_samples(config: Config) -> None:
    """Raise `ValueError` where more samples are to be used than are drawn."""
    used, drawn = config.algorithm.v_star.samples, config.values.samples
    if used is not None and used > drawn:
        raise ValueError(
            f"algorithm.v_star.samples {used} is more than values.samples {drawn}; raise the latter to at least {used}"
        )
