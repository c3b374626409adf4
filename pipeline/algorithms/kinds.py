"""Kinds of advantages, trust regions and parts of training, an entry of ``kinds.yaml`` each.

Settings, schema, messages and code are found by these entries. Code is imported when a trial needs it, settings need no
torch, and an entry whose code is not chosen is part of no key. A new kind is a file with its code, its settings beside
it where it has some, and an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Advantage:
    """A value of ``algorithm.advantage``."""

    words: str
    code: str | None
    """``module:name`` of its `pipeline.algorithms.base.Estimator`; None where the policy is not trained at all."""
    settings: str | None = None
    """``module:class``; they stand in the section of `algorithm` that has its name."""
    critics: Sequence[str] = ("none",)
    """Values of ``critic.kind`` that it works with."""
    least_responses: int = 1
    """Smallest ``train.responses_per_prompt``."""
    most_responses: int | None = None
    """Largest ``train.responses_per_prompt``; None: any number."""
    varies: bool = False
    """True where the tokens of a response have different advantages, wherever the KL penalty is."""
    greedy: bool = False
    """True where a rollout also samples the greedy response to each of its prompts."""
    replay: bool = False
    """True where states of the rollout are sampled onwards."""
    values: bool = False
    """True where scored samples of the reference are needed for every prompt: the stage `values`."""


@dataclass(frozen=True)
class TrustRegion:
    """A value of ``algorithm.trust_region``."""

    words: str
    code: str
    """``module:name`` of its `pipeline.algorithms.base.Surrogate`; for a loss of pairs, of its
    `pipeline.algorithms.mathematics.preference.PairLoss`."""
    settings: str | None = None
    """``module:class``; they stand in the section of `algorithm` that has its name."""
    learner: str = "pipeline.training.update:Learner"
    """``module:class`` of what takes the steps of an update."""
    pairwise: bool = False
    """True for a loss of pairs of responses."""


@dataclass(frozen=True)
class PartKind:
    """A part of training, which acts on a trial beside the gradient of surrogate and critic."""

    code: str
    """``module:class`` of its `pipeline.training.part.Part`."""
    settings: str | None = None
    """``module:class`` of its `pipeline.config.base.PartSettings`, which stand in the section that has its name."""
    section: str = ""
    """Key of the section that a part without its own reads."""


_TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
ADVANTAGES = {name: Advantage(**kind) for name, kind in _TABLES["advantages"].items()}
TRUST_REGIONS = {name: TrustRegion(**kind) for name, kind in _TABLES["trust_regions"].items()}
PARTS = {name: PartKind(**kind) for name, kind in _TABLES["parts"].items()}
"""Parts of training, in the order of their factors on the learning rate and of their terms in the loss."""
