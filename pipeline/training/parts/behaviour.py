"""A copy of the policy that samples in its place: older than it, or of lower precision."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.kl import k3
from pipeline.algorithms.mathematics.masking import masked_mean
from pipeline.algorithms.mathematics.staleness import corrected, effective_share, ratios
from pipeline.models.loading import CausalLM, freeze
from pipeline.training.part import Part, Terms
from pipeline.training.parts.settings import RolloutConfig


class Behaviour(Part[RolloutConfig]):
    """Samples with weights that are renewed every so many updates, as asynchronous training does, or are rounded, as
    fast inference does; and weighs the advantages by the importance ratio.

    Nothing else is weighed: targets of a critic, a KL in the loss, and means over samples such as `objective/kl` are
    those of the policy that sampled.
    """

    copy: CausalLM | None = None
    kept: Mapping[str, Tensor] | None = None
    update = 0

    def rollout(self, update: int, terms: Terms) -> None:
        self.update = update
        terms.behaviour, terms.weigh = self.network, self.weigh

    def network(self, policy: CausalLM) -> CausalLM:
        """The copy that samples in this update."""
        if self.copy is None:
            self.copy = freeze(deepcopy(policy))
            if self.settings.dtype != "training":
                for weight in self.copy.parameters():  # and no buffers, such as the frequencies of rotary positions
                    weight.data = weight.data.to(getattr(torch, self.settings.dtype))
        if self.update % self.settings.every == 0:
            self.copy.load_state_dict(policy.state_dict())
        elif self.kept is not None:
            self.copy.load_state_dict(self.kept)
        self.kept = None
        return self.copy

    def weigh(self, log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Weights (B, T) by log pi - log mu, and how far the two policies are apart."""
        chosen = self.settings
        ratio = ratios(log_ratio, mask, chosen.level)
        metrics = {
            "rollout/kl_per_token": float(masked_mean(k3(-log_ratio), mask)),
            "rollout/effective_share": float(effective_share(ratio, mask)),
            "rollout/largest_ratio": float(ratio[mask].max()),
        }
        return corrected(ratio, chosen.correction, chosen.most), metrics

    def state(self) -> dict[str, Any]:
        if self.copy is None or self.settings.every == 1:
            return {"kept": self.kept}
        return {"kept": {name: tensor.detach() for name, tensor in self.copy.state_dict().items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        self.kept = state["kept"]
