"""The networks, and the fine-tuning that makes the reference: the sections `model`, `sft`, `critic` and `adapter`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.algorithms.settings import ADAM_MOVES_THE_POLICY
from pipeline.config.base import Layers, NonNegative, Positive, Section, Seed, StrictlyPositive, Tokens, Width
from pipeline.config.effects import Always, When, above, absent, given, setting

SCRATCH = absent("model.base")
SFT = When("sft.steps above 0", lambda config: config.sft.steps > 0, "sft.steps")
TRAINED_OR_SCRATCH = When(
    "sft.steps above 0 or no model.base", lambda config: config.sft.steps > 0 or config.model.base is None, "sft.steps"
)
CRITIC = setting("critic.kind", "shared", "separate")
SEPARATE = setting("critic.kind", "separate")
TRAINED = above("critic.vf_coef")
FITTED_CRITIC = (CRITIC, TRAINED)
KIND_MATTERS = When(
    "critic.vf_coef above 0 or critic.init: reward (any other critic stays at 0)",
    lambda config: config.critic.vf_coef > 0 or config.critic.kind == "none" or config.critic.starts_as_reward,
    "critic.vf_coef",
)
ADAPTERS = When(
    "adapter.kind: lora",
    lambda config: config.adapter.kind == "lora" or config.critic.has_adapter,
    "adapter.kind",
)


class ModelConfig(Section):
    """The policy's network: a pretrained base, or a Qwen2-architecture model from scratch."""

    base: str | None = Field(None, description="hub id or local folder; none builds a scratch Qwen2 of the sizes below")
    revision: Annotated[str | None, given("model.base")] = Field(None, description="pinned commit of the base")
    hidden_size: Annotated[Width, SCRATCH] = Field(96, description="width of a scratch model")
    layers: Annotated[Layers, SCRATCH] = Field(2, description="layers of a scratch model")
    heads: Annotated[Layers, SCRATCH] = Field(4, description="attention heads of a scratch model")
    intermediate_size: Annotated[Width, SCRATCH] = Field(256, description="width of its gated MLP")
    init_std: Annotated[StrictlyPositive, SCRATCH] = Field(
        0.02, description="standard deviation of a scratch model's random weights; a small width needs larger ones"
    )

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


class CriticConfig(Section):
    """The learned value function, where the algorithm has one."""

    kind: Annotated[Literal["shared", "separate", "none"], KIND_MATTERS] = Field(
        "shared",
        description="shared: value head on the policy's trunk; separate: a trunk of its own; none: no value function",
    )
    init: Annotated[Literal["reference", "reward"], SEPARATE] = Field(
        "reference", description="initial weights of a separate critic"
    )
    vf_coef: Annotated[NonNegative, CRITIC] = Field(
        0.1,
        description=(
            "c1, the weight of half the squared error; if a recipe's c1 weighs the squared error itself, set twice its"
            " value"
        ),
    )
    target: Annotated[Literal["returns", "replay"], CRITIC, TRAINED] = Field(
        "returns",
        description="returns: returns by GAE; replay: where a state was replayed, the mean of its samples",
    )
    cliprange: Annotated[StrictlyPositive, CRITIC, TRAINED] = Field(
        0.2, description="largest change of a value since the rollout; beyond it the error is clipped"
    )
    lr: Annotated[NonNegative | None, SEPARATE, TRAINED] = Field(
        None, description="learning rate of a separate critic's trunk, on the same schedule; none: optimiser.lr"
    )
    pretraining_steps: Annotated[int, Field(ge=0), CRITIC] = Field(
        0,
        description=(
            "value pre-training: steps on scored samples of the reference (section values), train.batch_size of them"
            " each, before the policy moves; of a shared critic its head alone"
        ),
    )
    warmup_steps: Annotated[int, Field(ge=0), CRITIC, TRAINED, ADAM_MOVES_THE_POLICY] = Field(
        0,
        description=(
            "gradient steps at the beginning that move the critic alone: a separate one, or the head of a shared one;"
            " they count as the others do"
        ),
    )
    head_lr: Annotated[NonNegative | None, CRITIC, TRAINED] = Field(
        None, description="learning rate of the value head, on the same schedule; none: optimiser.lr"
    )
    adapter: Annotated[Literal["none", "lora"], SEPARATE] = Field(
        "none", description="lora: of a separate critic's trunk train a low-rank adapter, and its head"
    )
    quantize: Annotated[Literal["none", "8bit", "4bit"], SEPARATE, setting("critic.adapter", "lora")] = Field(
        "none",
        description="8bit, 4bit: hold the frozen weights of a separate critic in int8 or NF4; needs adapter: lora",
    )

    @property
    def starts_as_reward(self) -> bool:
        return self.kind == "separate" and self.init == "reward"

    @property
    def has_adapter(self) -> bool:
        """Return whether the trunk is frozen beside an adapter."""
        return self.kind == "separate" and self.adapter == "lora"

    @property
    def held(self) -> Literal["none", "8bit", "4bit"]:
        """Return how the frozen weights are held; `none` where no weight is frozen."""
        return self.quantize if self.has_adapter else "none"


class AdapterConfig(Section):
    """Selection of the policy's weights that are trained."""

    kind: Annotated[Literal["none", "lora"], Always()] = Field(
        "none", description="lora: train a low-rank adapter; the network without it is the reference"
    )
    rank: Annotated[Positive, ADAPTERS] = Field(16, description="width of the adapter, of policy and critic")
    alpha: Annotated[StrictlyPositive, ADAPTERS] = Field(
        32.0, description="the adapter's output is multiplied by alpha / rank"
    )
    quantize: Annotated[Literal["none", "4bit"], Always()] = Field(
        "none", description="4bit: hold the frozen weights of policy and reference in NF4; needs kind: lora"
    )

    @model_validator(mode="after")
    def _frozen(self) -> Self:
        if self.quantize != "none" and self.kind != "lora":
            raise ValueError(
                "quantize '4bit' holds frozen weights, and without an adapter none is frozen; set adapter.kind: lora"
            )
        return self
