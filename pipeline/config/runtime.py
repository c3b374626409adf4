"""Device, memory and caps of a trial: the sections `runtime` and `caps`, which change no result."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.base import Positive, Section, StrictlyPositive


class RuntimeConfig(Section):
    """Execution of a trial: changes no result and is part of no stage's identity.

    The exception is the numeric precision, which follows from the device and is part of the identity by itself
    (`pipeline.run.dag`). The sampler of rollouts counts as part of it: its rounding decides which texts are drawn.
    """

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU where there is one")
    threads: Positive = Field(1, description="CPU threads of one process of a trial")
    processes: Positive = Field(
        1, description="processes that share the training of one trial, each with its own GPU where there are any"
    )
    micro_batch_size: Positive = Field(64, description="episodes in memory at once during training")
    rollout_batch_size: Positive = Field(512, description="episodes in memory at once during generation and scoring")
    checkpoint_updates: Positive = Field(16, description="least number of updates between two checkpoints")
    checkpoint_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        0.02,
        description=(
            "largest share of a trial's time that checkpoints may take, so that they are rarer on a slow disk; none:"
            " checkpoint_updates alone decides"
        ),
    )
    gradient_checkpointing: bool = Field(False, description="compute activations twice instead of keeping them")
    sampler: Literal["auto", "eager", "static"] = Field(
        "auto",
        description=(
            "how rollouts are sampled. static: transformers' generate with a static cache, and on a GPU compiled decode"
            " steps; eager: one forward per token; auto: static on a GPU"
        ),
    )
    code: str | None = Field(
        None,
        description=(
            "folder in which classes of your own (kind: package.module:Class) are looked for before PYTHONPATH; a study"
            " sets it to the folder of its file"
        ),
    )

    def static_sampler(self, on_card: bool) -> bool:
        """Return whether rollouts are sampled by the static sampler, where the network allows it."""
        return self.sampler == "static" or (self.sampler == "auto" and on_card)


class CapsConfig(Section):
    """Limits of what a trial may spend; at a cap it ends as `budget`. Part of no stage's identity: a larger cap
    continues it."""

    wall_clock_h: StrictlyPositive = Field(2.5, description="most hours of training")
    generated_tokens: Positive = Field(50_000_000, description="largest number of tokens sampled in rollouts")
    memory_gib: StrictlyPositive = Field(
        14.6, description="peak memory: RSS on a CPU, allocator on a GPU, which enforces it"
    )
