"""The penalty that holds the policy near its reference: the section `kl`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.algorithms.settings import ADAM_MOVES_THE_POLICY
from pipeline.config.base import NonNegative, StrictlyPositive
from pipeline.config.effects import Chosen, When, setting
from pipeline.schedule_settings import AdaptiveSettings, Control, Scheduled

PENALTY = When(
    "a KL penalty: kl.beta above 0, or a schedule that goes above 0", lambda config: config.kl.acts, "kl.beta"
)
GROUPED = setting("kl.place", "reward", "loss")


class KlTarget(AdaptiveSettings):
    """The KL that beta is steered to."""

    target: StrictlyPositive = Field(6.0, description="nats per sequence")


class KlConfig(Scheduled):
    """The penalty on the KL to the reference, and how its weight beta moves."""

    beta: NonNegative = Field(0.05, description="weight of the penalty; the starting value when control is not fixed")
    place: Annotated[Literal["reward", "score", "loss", "margin"], PENALTY] = Field(
        "reward",
        description=(
            "where the penalty acts: on every token's reward; on the response's score, before a baseline is subtracted;"
            " or in the loss. Whitening divides a beta in reward or score by the standard deviation of the advantages."
            " margin: no penalty; beta scales the margin in a loss of pairs"
        ),
    )
    loss_estimator: Annotated[Literal["k2", "k3"], setting("kl.place", "loss"), PENALTY] = Field(
        "k2", description="estimator of the penalty in the loss; k1 is not offered, since its mean gradient is 0"
    )
    group: Annotated[Literal["token", "clause", "sentence", "sequence"], GROUPED, PENALTY] = Field(
        "token",
        description=(
            "tokens whose log-ratios are summed before the estimator is taken. A clause ends in , ; : . ! ? or a new"
            " line, a sentence in . ! ? or a new line, by the text of single tokens; the end of a response ends both;"
            " sequence: the whole response"
        ),
    )
    group_credit: Annotated[
        Literal["shared", "last"], setting("kl.group", "clause", "sentence", "sequence"), GROUPED, PENALTY
    ] = Field(
        "shared",
        description=(
            "where the penalty of a group acts. In the reward, shared: evenly on its tokens; last: on its last token."
            " In the loss, shared: its gradient goes through all its tokens; last: through its last token alone"
        ),
    )
    control: Annotated[Control, PENALTY] = Field(
        "fixed",
        description="how beta moves. adaptive: to bring the KL near adaptive.target; linear, cosine: from beta to end",
    )
    adaptive: Annotated[KlTarget, Chosen("control"), PENALTY] = KlTarget()
    hinge: Annotated[StrictlyPositive | None, ADAM_MOVES_THE_POLICY] = Field(
        None,
        description=(
            "nats per token: while a mini-batch's KL to the reference is above it, the step of the policy, and of a"
            " critic on its trunk, shrinks to hinge / KL"
        ),
    )

    def grouped_in(self, place: Literal["reward", "loss"]) -> bool:
        """Return whether the penalty is at `place`, and on groups of tokens."""
        return self.place == place and self.group != "token"

    @property
    def by_sequence(self) -> bool:
        """Return whether the loss is the square of a whole response's log-ratio, which is minimised on any samples."""
        whole = self.grouped_in("loss") and self.group == "sequence" and self.group_credit == "shared"
        return whole and self.loss_estimator == "k2"

    @property
    def squares_throughout(self) -> bool:
        """Return whether that square has a weight above 0 from the first update to the last."""
        return self.by_sequence and all(self.extremes)

    @property
    def start(self) -> float:
        return self.beta
