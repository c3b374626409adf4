"""Samples of the reference on the training prompts, scored before training: the section `values`."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.base import Positive, Section, Seed


class ValuesConfig(Section):
    """Samples of the reference on the training prompts, which the stage `values` draws for algorithms that need
    them."""

    samples: Positive = Field(
        16, description="responses of the reference to each training prompt, scored once for all trials that share them"
    )
    seed: Seed = Field(0, description="of the sampling noise, which no seed of a study changes")

    def check_enough(self, used: int | None) -> None:
        """Raise `ValueError` where more samples are to be used than are drawn."""
        if used is not None and used > self.samples:
            raise ValueError(
                f"algorithm.v_star_samples {used} is more than values.samples {self.samples}; raise the latter to at"
                f" least {used}"
            )
