"""The policy's network and the supervised fine-tuning that makes the reference: the sections `model` and `sft`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from pipeline.config.base import Fraction, Layers, NonNegative, Positive, Section, Seed, StrictlyPositive, Tokens, Width


class ModelConfig(Section):
    """The policy's network: a pretrained base, or a Qwen2-architecture model from scratch."""

    base: str | None = Field(None, description="hub id or local folder; none builds a scratch Qwen2 of the sizes below")
    revision: str | None = Field(None, description="pinned commit of the base")
    hidden_size: Width = Field(96, description="width of a scratch model")
    layers: Layers = Field(2, description="layers of a scratch model")
    heads: Layers = Field(4, description="attention heads of a scratch model")
    intermediate_size: Width = Field(256, description="width of its gated MLP")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ValueError(f"hidden_size {self.hidden_size} must be an even multiple of heads {self.heads}")
        return self


class SftConfig(Section):
    """Supervised fine-tuning that makes the reference snapshot."""

    steps: Annotated[int, Field(ge=0)] = Field(400, description="gradient steps; 0 leaves the base as it is")
    batch_size: Positive = Field(64, description="texts in one step")
    max_tokens: Annotated[Tokens, Field(ge=2)] = Field(64, description="texts are cut to this many tokens")
    lr: StrictlyPositive = Field(3e-3, description="peak learning rate")
    warmup: Fraction = Field(0.05, description="fraction of the steps with rising learning rate; cosine to 10 % after")
    weight_decay: NonNegative = Field(0.01, description="of AdamW")
    seed: Seed = Field(0, description="of initialisation and of the order of texts")
