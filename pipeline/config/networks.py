"""What is trained beside and inside the policy: the sections `critic` and `adapter`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import NonNegative, Positive, Section, StrictlyPositive


class CriticConfig(Section):
    """The learned value function, where the algorithm has one."""

    kind: Literal["shared", "separate", "none"] = Field(
        "shared",
        description="shared: value head on the policy's trunk; separate: a trunk of its own; none: no value function",
    )
    init: Literal["reference", "reward"] = Field("reference", description="what a separate critic starts as")
    vf_coef: NonNegative = Field(
        0.1,
        description=(
            "c1, the weight of half the squared error; if a recipe's c1 weighs the squared error itself, set twice its"
            " value"
        ),
    )
    target: Literal["returns", "replay"] = Field(
        "returns",
        description="returns: returns by GAE; replay: where a state was replayed, the mean of its samples",
    )
    cliprange: StrictlyPositive = Field(
        0.2, description="how far a value may move from that of the rollout before its error is clipped"
    )
    lr: NonNegative | None = Field(
        None, description="learning rate of a separate critic's trunk, on the same schedule; none: optimiser.lr"
    )
    pretraining_steps: Annotated[int, Field(ge=0)] = Field(
        0,
        description=(
            "value pre-training: steps on scored samples of the reference (section values), train.batch_size of them"
            " each, before the policy moves; of a shared critic its head alone"
        ),
    )
    pretraining_lr: StrictlyPositive = Field(1e-3, description="learning rate of value pre-training")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        0,
        description=(
            "gradient steps at the beginning that move the critic alone: a separate one, or the head of a shared one;"
            " they count as the others do"
        ),
    )
    head_lr: NonNegative | None = Field(
        None, description="learning rate of the value head, on the same schedule; none: optimiser.lr"
    )
    adapter: Literal["none", "lora"] = Field(
        "none", description="lora: of a separate critic's trunk train a low-rank adapter, and its head"
    )
    adapter_rank: Positive = Field(16, description="width of the critic's adapter")
    adapter_alpha: StrictlyPositive = Field(
        32.0, description="what the critic's adapter adds is multiplied by adapter_alpha / adapter_rank"
    )
    quantize: Literal["none", "8bit", "4bit"] = Field(
        "none",
        description="8bit, 4bit: hold the frozen weights of a separate critic in int8 or NF4; needs adapter: lora",
    )

    @property
    def has_adapter(self) -> bool:
        """Whether the trunk is frozen beside an adapter."""
        return self.kind == "separate" and self.adapter == "lora"

    @property
    def held(self) -> Literal["none", "8bit", "4bit"]:
        """How the frozen weights are held; `none` where no weight is frozen."""
        return self.quantize if self.has_adapter else "none"


class AdapterConfig(Section):
    """Which weights of the policy are trained."""

    kind: Literal["none", "lora"] = Field(
        "none", description="lora: train a low-rank adapter; the network without it is the reference"
    )
    rank: Positive = Field(16, description="width of the adapter")
    alpha: StrictlyPositive = Field(32.0, description="the adapter's output is multiplied by alpha / rank")
    quantize: Literal["none", "4bit"] = Field(
        "none", description="4bit: hold the frozen weights of policy and reference in NF4; needs kind: lora"
    )
    frozen_layers: Annotated[int, Field(ge=0)] = Field(
        0, description="number of lowest blocks that are not trained; from 1 on, the embeddings are not trained either"
    )

    @model_validator(mode="after")
    def _frozen(self) -> Self:
        if self.quantize != "none" and self.kind != "lora":
            raise ValueError(
                "quantize '4bit' holds frozen weights, and without an adapter none is frozen; set adapter.kind: lora"
            )
        if self.kind == "lora" and self.frozen_layers:
            raise ValueError("frozen_layers and kind: lora exclude each other; an adapter freezes every layer already")
        return self
