"""What the training of a trial is given, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pipeline.algorithms.mathematics.groups import v_star
from pipeline.algorithms.settings import VStarSettings
from pipeline.config.effects import value_at
from pipeline.config.trial import TrialConfig
from pipeline.models.loading import CausalLM
from pipeline.models.policy import ActorCritic
from pipeline.training.judging import final_scores
from pipeline.training.pairs import StoredPairs


@dataclass
class Outcome:
    """How a trial ended."""

    status: str
    reason: str | None
    steps: int
    updates: int
    episodes: int
    tokens: int
    cap: dict[str, Any] | None
    """Of a trial that a cap has ended: which one, how much was spent of it, and the step of the newest checkpoint."""
    samples: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Networks:
    """What is trained, and what it is compared with."""

    actor: ActorCritic
    reference: CausalLM


@dataclass(frozen=True)
class ReferenceScores:
    """N scored samples of the reference on each of n training prompts, by the number of the prompt; each (n, N), on the
    CPU. V* is computed from them, whatever its knobs."""

    proxy: Tensor
    """Calibrated training reward, before EOS handling."""
    lengths: Tensor
    """int64, valid tokens."""
    ended: Tensor
    """bool, True where the response ended by EOS."""

    def v_star(self, cfg: TrialConfig) -> Tensor:
        """V* of every prompt, (n,) float64: of as many samples as `algorithm.v_star.samples` says, scored as those of a
        rollout are."""
        knobs: VStarSettings = value_at(cfg, "algorithm.v_star")
        used = slice(knobs.samples)
        final = final_scores(self.proxy[:, used], self.lengths[:, used], self.ended[:, used], cfg.train)
        return v_star(final, knobs.beta)


@dataclass(frozen=True)
class TrainingData:
    """All training prompts, left-padded, on the CPU; n of them."""

    queries: Tensor
    """(n, P) int64."""
    query_mask: Tensor
    """(n, P) bool."""
    token_ids: dict[str, int]
    """``eos_id`` and ``pad_id``."""
    samples: ReferenceScores | None = None
    """Of the reference for the same prompts, where the advantage needs them."""
    pairs: StoredPairs | None = None
    """To learn from instead of rollouts."""
    closes: Tensor | None = None
    """(V,) bool: the tokens that end a group, where the KL penalty is one on clauses or sentences."""
