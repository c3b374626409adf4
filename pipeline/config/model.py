"""The policy's network and the supervised fine-tuning that makes the reference: the sections `model` and `sft`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from pipeline.config.base import Layers, Positive, Section, Seed, StrictlyPositive, Tokens, Width
from pipeline.config.effects import When, absent, given

SCRATCH = absent("model.base")
SFT = When("sft.steps above 0", lambda config: config.sft.steps > 0, "sft.steps")
TRAINED_OR_SCRATCH = When(
    "sft.steps above 0 or no model.base", lambda config: config.sft.steps > 0 or config.model.base is None, "sft.steps"
)


class ModelConfig(Section):
    """The policy's network: a pretrained base, or a Qwen2-architecture model from scratch."""

    base: str | None = Field(None, description="hub id or local folder; none builds a scratch Qwen2 of the sizes below")
    revision: Annotated[str | None, given("model.base")] = Field(None, description="pinned commit of the base")
    hidden_size: Annotated[Width, SCRATCH] = Field(96, description="width of a scratch model")
    layers: Annotated[Layers, SCRATCH] = Field(2, description="layers of a scratch model")
    heads: Annotated[Layers, SCRATCH] = Field(4, description="attention heads of a scratch model")
    intermediate_size: Annotated[Width, SCRATCH] = Field(256, description="width of its gated MLP")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ValueError(f"hidden_size {self.hidden_size} must be an even multiple of heads {self.heads}")
        return self


class SftConfig(Section):
    """Supervised fine-tuning that makes the reference snapshot."""

    steps: Annotated[int, Field(ge=0)] = Field(400, description="gradient steps; 0 leaves the base as it is")
    batch_size: Annotated[Positive, SFT] = Field(64, description="texts in one step")
    max_tokens: Annotated[Tokens, Field(ge=2)] = Field(64, description="texts are cut to this many tokens")
    lr: Annotated[StrictlyPositive, SFT] = Field(
        3e-3,
        description="peak learning rate of AdamW: linear warm-up over 5 % of the steps, then cosine decay to a tenth",
    )
    seed: Annotated[Seed, TRAINED_OR_SCRATCH] = Field(
        0, description="seed of the initialisation and of the order of texts"
    )
