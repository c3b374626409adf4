"""Healthy bands of series: what a trial that learns well shows, the likely cause where it shows something else, and
the settings to change.

A band is a warning, not a verdict. `Metric.low` and `Metric.high` bound what a correct trial can show; a band bounds
what a healthy one does. Where no source gives a number, it is measured on the shipped studies of the profile `tiny`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SHARE = 0.2
"""Share of its records that a series may have outside a band, unless the band says otherwise. PPO at four times the
learning rate of `tiny`, with which it wins most often, has 12 % of its steps above the band of policy/approxkl."""

Base = Literal["", "start", "median"]


@dataclass(frozen=True)
class Band:
    """The healthy values of a series, `low` to `high`, both allowed."""

    advice: str
    """What to change, as an instruction; the settings of other algorithms and schedules among them."""
    source: str
    low: float = -math.inf
    high: float = math.inf
    below: str = ""
    """Likely cause of values below `low`."""
    above: str = ""
    """Likely cause of values above `high`."""
    base: Base = ""
    """What the bounds are multiples of. start: the median of the trial's first records, as many as a series needs to be
    judged; median: that of all positive records; empty: 1."""
    least_base: float = 0.0
    """The band judges only a series whose base is above this."""
    share: float = SHARE
    """Share of the records that may lie outside, from 0 to 1."""
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Settings, and the values of them with which the band holds; a trial that does not state one has it."""
    unless: str = ""
    """A series that says the same more precisely: where it is recorded, this one is not judged."""

    @property
    def words(self) -> str:
        """What is healthy.

        >>> Band("", "", low=0.9, high=1.1).words, Band("", "", low=0.5, base="start", share=0.01).words
        ('0.9 to 1.1 in at least 80 % of the records', 'at least 0.5 times its start in at least 99 % of the records')
        """
        sides = {"at least": self.low, "at most": self.high}
        finite = {side: bound for side, bound in sides.items() if math.isfinite(bound)}
        bounds = (
            f"{self.low:g} to {self.high:g}" if len(finite) == 2 else " ".join(f"{k} {v:g}" for k, v in finite.items())
        )
        times = {"start": " times its start", "median": " times its median", "": ""}[self.base]
        return f"{bounds}{times} in at least {100 * (1 - self.share):g} % of the records"


_ONLINE = {"train.data": ("rollouts",)}
"""Of stored pairs approxkl and ratio compare with the reference, not with the policy before the update."""
_SPINNING_UP = (
    "Spinning Up (Achiam 2018) ends an update's epochs at 0.015 = 1.5 x target_kl; its KL is the mean log-ratio, this"
    " one is k2, half the mean squared log-ratio, which is about as large for small steps; 0.02 leaves room for noise"
)
_TINY = "measured on the shipped studies of the profile tiny"
_DRIFT = (
    "kl_ablation and critic_free on tiny: the gold reward is highest at 0.25 to 0.4 nats per token and lower from 0.5"
    " on; the effect is that of Gao et al. 2023"
)
_LEFT = "the policy left the region in which the reward was learned, and its score there means little"
_LOWER_RATE = "lower optimiser.lr"
_STEPS = f"{_LOWER_RATE} or train.num_epochs, or algorithm.trpo.delta of TRPO"
_MORE_PENALTY = "raise kl.beta, or lower kl.adaptive.target"

BANDS: dict[str, tuple[Band, ...]] = {
    "objective/kl_exact_per_token": (Band(_MORE_PENALTY, _DRIFT, high=0.5, above=_LEFT),),
    "objective/kl_per_token": (
        Band(_MORE_PENALTY, _DRIFT, high=0.5, above=_LEFT, unless="objective/kl_exact_per_token"),
    ),
    "objective/repetition": (
        Band(
            f"{_MORE_PENALTY}, or {_LOWER_RATE}",
            f"{_TINY}: 0.02 to 0.07; train.max_repetition ends a trial at 0.8",
            high=0.3,
            above="the policy repeats itself",
        ),
    ),
    "objective/eos_rate": (
        Band(
            f"raise train.missing_eos_penalty or train.overlong_penalty, or {_MORE_PENALTY}",
            f"{_TINY}: never below its start by more than 4 %",
            low=0.5,
            base="start",
            least_base=0.2,  # of rarer events in 64 responses, chance alone halves the share
            below="responses no longer end by themselves",
        ),
    ),
    "objective/length": (
        Band(
            _MORE_PENALTY,
            f"{_TINY}: 0.85 to 1.3 times its start",
            low=0.5,
            base="start",
            below="responses get short, which some rewards and judges like",
        ),
    ),
    "policy/approxkl": (
        Band(
            _STEPS,
            f"log-probabilities change by 1 nat; {_TINY}: at most 0.1 % of the steps, 1 % with ten times the rate",
            high=0.5,
            above="updates break the policy",
            share=0.05,
            only=_ONLINE,
        ),
        Band(_STEPS, _SPINNING_UP, high=0.02, above="each update moves the policy too far", only=_ONLINE),
    ),
    "policy/pg_clipfrac": (
        Band(
            _STEPS,
            "0.1 to 0.3 at epsilon 0.1 is a rule of thumb (the measure: Huang et al. 2022, 37 implementation details);"
            " a larger epsilon clips less, and the first step of an update clips nothing, so only high values are a"
            " warning",
            high=0.3,
            above="the clip range stops a large part of each update",
            only={"algorithm.trust_region": ("clip",), "algorithm.ratio": ("token",)},
        ),
    ),
    "policy/ratio": (
        Band(
            _STEPS,
            f"its expectation under the policy before the update is 1; {_TINY}: 0.99 to 1.01 in 90 % of the steps",
            low=0.9,
            high=1.1,
            below="the policy loses the tokens that it sampled",
            above="a few tokens' probabilities explode within an update",
            share=0.1,
            only=_ONLINE,
        ),
    ),
    "policy/entropy": (
        Band(
            f"raise entropy.coef, or {_MORE_PENALTY}",
            f"{_TINY}: 0.7 to 1.1 times its start",
            low=0.1,
            base="start",
            below="the policy almost always picks the same token",
        ),
        Band(
            f"{_LOWER_RATE} or entropy.coef, or {_MORE_PENALTY}",
            f"{_TINY}: 0.7 to 1.1 times its start",
            high=2.0,
            base="start",
            above="the policy answers almost at random",
        ),
    ),
    "policy/grad_norm": (
        Band(
            _LOWER_RATE,
            f"{_TINY}, PPO: at most 14 times the median, 10 times in fewer than 0.1 % of the steps; RLOO that wins as"
            " often: 10 times in up to 1.5 %",
            high=10.0,
            base="median",
            above="the gradient has spikes far above its median",
            share=0.05,
        ),
    ),
    "value/explained_variance": (
        Band(
            "lower critic.head_lr, or raise critic.pretraining_steps",
            "by definition 0 is what a constant explains; an estimate from one rollout scatters by about 0.05",
            low=-0.1,
            below="the critic is worse than a constant",
        ),
    ),
}
"""Series -> its bands, the gravest first: of those that a series leaves on one side, the first is told."""
