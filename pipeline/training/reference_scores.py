"""Samples of the reference on the training prompts, with their scores: what V* is computed from, whatever its knobs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.algorithms.mathematics.soft_values import v_star
from pipeline.config.trial import TrialConfig
from pipeline.training.judging import final_scores


@dataclass(frozen=True)
class ReferenceScores:
    """N samples of each of n training prompts, by the number of the prompt; each (n, N), on the CPU."""

    proxy: Tensor
    """Calibrated training reward, before EOS handling."""
    lengths: Tensor
    """int64, valid tokens."""
    ended: Tensor
    """bool, True where the response ended by EOS."""

    def v_star(self, cfg: TrialConfig) -> Tensor:
        """V* of every prompt, (n,) float64: of as many samples as `algorithm.v_star_samples` says, scored as those of a
        rollout are."""
        used = slice(cfg.algorithm.v_star_samples)
        final = final_scores(self.proxy[:, used], self.lengths[:, used], self.ended[:, used], cfg.train)
        return v_star(final, cfg.algorithm.v_star_beta)


def v_star_of(samples: ReferenceScores | None, cfg: TrialConfig, prompts: int) -> Tensor | None:
    """V* of every training prompt, (n,) float64; None where the advantage needs none. Raises `ValueError` for samples
    that are not those of the prompts."""
    if not cfg.algorithm.needs_values:
        return None
    found = 0 if samples is None else len(samples.proxy)
    if samples is None or found != prompts:
        raise ValueError(f"advantage '{cfg.algorithm.advantage}': scored samples of {found} of {prompts} prompts")
    return samples.v_star(cfg)
