"""What is known of an answer beside its text: log-probs under policy and reference, proxy and gold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.models.policy import Episodes, padded_episodes, response_hidden, to_grid
from pipeline.models.precision import Precision
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.base import Completions, Reward
from pipeline.rewards.composite import Proxy
from pipeline.run.store import Artifact
from pipeline.stages.common import judge_of, reward_of
from pipeline.training.token_stats import token_stats
from studies.serving.limits import Limits
from studies.serving.networks import REFERENCE, Networks


class NotFinite(Exception):
    """A network whose logits are no numbers."""


@dataclass(frozen=True)
class Answer:
    """The tokens of one answer."""

    prompt: str
    query: Sequence[int]
    tokens: Sequence[int]
    ended: bool
    """By EOS."""


@dataclass
class Measurer:
    """Measures answers as training does."""

    tokenizer: Any
    device: torch.device
    proxy: Proxy
    gold: Reward
    room: Room

    @classmethod
    def of(cls, config: TrialConfig, made: Mapping[str, Artifact], tokenizer: Any, device: torch.device) -> Measurer:
        """The calibrated training reward of a trial, and its judge."""
        room = Room("completions at once", Limits().completions)
        gold = judge_of(config.gold, device, room, made.get("judge"))
        return cls(tokenizer, device, reward_of(made["reward"], device, room), gold, room)

    def measure(self, networks: Networks, answers: Sequence[Answer]) -> list[dict[str, Any]]:
        """Of each answer the log-probs of its tokens under both networks (nats, of softmax(logits) at temperature 1),
        the exact KL at each of them, and what proxy and gold say; a score is None where there is none, with the reason.

        By the forward of training, so an answer is measured alike whatever has drawn it. Raises `NotFinite`.
        """
        ended = torch.tensor([answer.ended for answer in answers])
        rows = [answer.query for answer in answers], [answer.tokens for answer in answers]
        episodes = padded_episodes(*rows, ended, int(self.tokenizer.pad_token_id)).each(
            lambda column: column.to(self.device)
        )
        with Precision.of(self.device).autocast(), torch.inference_mode():
            columns = self._token_columns(networks, episodes)
            scores = self._scores(Completions.of(self.tokenizer, episodes, [answer.prompt for answer in answers]))
        return [
            {name: grid[row, : len(answer.tokens)].tolist() for name, grid in columns.items()} | scores[row]
            for row, answer in enumerate(answers)
        ]

    def _token_columns(self, networks: Networks, episodes: Episodes) -> dict[str, Tensor]:
        """Each (B, T) on the CPU."""
        names = ("policy_logprobs", "reference_logprobs", "kl")
        grids = {name: torch.zeros(episodes.response_mask.shape) for name in names}
        policy, reference = networks.policy, networks.named(REFERENCE)

        def fill(rows: Tensor, part: Episodes) -> None:
            hidden, other = response_hidden(policy, part), response_hidden(reference, part)
            stats = token_stats(policy, hidden, reference, other, part.labels, 1.0)
            for grid, flat in zip(grids.values(), (stats.logprobs, stats.ref_logprobs, stats.kl), strict=True):
                grid[rows.cpu(), : part.response_mask.shape[1]] = to_grid(flat, part.response_mask).cpu()

        episodes.by_length(self.room, fill)
        if not all(bool(grid.isfinite().all()) for grid in grids.values()):
            raise NotFinite
        return grids

    def _scores(self, completions: Completions) -> list[dict[str, Any]]:
        gold = [_number(score) for score in self.gold(completions).tolist()]
        try:
            total, parts = self.proxy.explained(completions)
        except UserError as error:  # one with opponents knows the prompts of its trial alone
            return [{"proxy": None, "proxy_why": str(error), "gold": score} for score in gold]
        named = {name: values.tolist() for name, values in parts.items()}
        return [
            {"proxy": _number(score), "gold": gold[row]}
            | ({"proxy_parts": {name: _number(values[row]) for name, values in named.items()}} if named else {})
            for row, score in enumerate(total.tolist())
        ]


def _number(score: float) -> float | None:
    return score if math.isfinite(score) else None
