"""Samples of the reference on the training prompts, scored once for all trials whose algorithm needs them.

Writes all of them to ``samples.parquet`` (`pipeline.rewards.scored_samples`), with their scores before EOS handling, so
that knobs of the algorithm and the rules for a missing EOS can change without another sample; and ``summary.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.config.trial import TrialConfig
from pipeline.data.prompt_set import PromptSet
from pipeline.models.loading import CausalLM, device_of, freeze
from pipeline.models.meter import meter
from pipeline.models.out_of_memory import Room
from pipeline.models.precision import Precision
from pipeline.models.process import rollout_room, spending
from pipeline.models.sampling import EagerSampler
from pipeline.models.seeding import uniforms
from pipeline.resources.ledger import Ledger
from pipeline.rewards.base import Completions
from pipeline.rewards.composite import Proxy
from pipeline.rewards.scored_samples import SAMPLES, Grid, sample_table
from pipeline.rewards.scorers import reward_of
from pipeline.run.layout import write_json
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.training.new_actor import load_reference

PROMPTS_AT_ONCE = 2048
"""Between two reports of progress."""


def values(
    cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact, sft: Artifact, reward: Artifact
) -> dict[str, Any]:
    """Draw `values.samples` responses of the reference to every training prompt, and score them with the proxy."""
    device = device_of(cfg.runtime.device)
    ledger = Ledger(device.type == "cuda")
    with spending(out, device, ledger.cost):
        room, count = rollout_room(cfg.runtime, reporter.warn), cfg.values.samples
        data = PromptSet.load(prompts, "train")
        model, proxy = freeze(load_reference(sft, cfg.adapter.quantize, device)), reward_of(reward, device, room)
        meter([model, *proxy.networks], ledger.work)
        source = Source(cfg, model, proxy, data, device, room, ledger)

        def progress(done: int) -> None:
            reporter.progress("values", done, count * len(data.texts), "sampling and scoring")

        draws = [source.draw(number, progress) for number in range(count)]
        proxies, lengths, ended = (
            np.stack([getattr(drawn, name) for drawn in draws], axis=1) for name in ("proxy", "lengths", "ended")
        )
        table = sample_table(proxies, lengths, ended, [drawn.tokens for drawn in draws])
        table.to_parquet(out / SAMPLES, index=False)
        ledger.generated_tokens = int(lengths.sum())
        summary = {
            "prompts": len(data.texts),
            "samples_per_prompt": count,
            "generated_tokens": ledger.generated_tokens,
            "proxy": float(proxies.mean()),
            "proxy_std": float(proxies.std()),
            "proxy_std_within_prompts": float(proxies.std(axis=1).mean()),
            "length": float(lengths.mean()),
            "eos_rate": float(ended.mean()),
        }
        write_json(out / "summary.json", summary)
        note = f"{count} samples of each of {len(data.texts)} training prompts, proxy {summary['proxy']:.3f}"
        return {"note": note, "samples": count, "prompts_digest": prompts.digest, **summary}


@dataclass(frozen=True)
class Draw:
    """One sample of each of n prompts, in their order."""

    proxy: Grid
    """(n,) calibrated reward, before EOS handling."""
    lengths: Grid
    """(n,) tokens."""
    ended: Grid
    """(n,) whether by EOS."""
    tokens: list[Grid]
    """n responses, EOS included."""


@dataclass(frozen=True)
class Source:
    """The reference and the proxy, and what they are asked."""

    cfg: TrialConfig
    model: CausalLM
    proxy: Proxy
    data: PromptSet
    device: torch.device
    room: Room
    ledger: Ledger

    def draw(self, number: int, progress: Callable[[int], None]) -> Draw:
        """One sample of each prompt, by noise of its own: draws do not depend on how many there are.

        `progress` is told how many samples there are so far. Raises `MemoryFull`.
        """
        train, n = self.cfg.train, len(self.data.texts)
        noise = uniforms(n, train.response_length, 0, "values", number)
        parts = []
        for start in range(0, n, PROMPTS_AT_ONCE):
            parts.append(self._part(slice(start, start + PROMPTS_AT_ONCE), noise))
            progress(number * n + min(start + PROMPTS_AT_ONCE, n))
        return Draw(
            np.concatenate([part.proxy for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.ended for part in parts]),
            [response for part in parts for response in part.tokens],
        )

    def _part(self, rows: slice, noise: torch.Tensor) -> Draw:
        data, device = self.data, self.device
        with self.ledger.timed("generate"), Precision.of(device).autocast():
            sampler = EagerSampler(self.model, self.cfg.train.temperature, self.room, **data.token_ids)
            episodes = sampler.sample(data.ids[rows].to(device), data.mask[rows].to(device), noise[rows])
        with self.ledger.timed("score"), torch.no_grad(), Precision.of(device).autocast():
            scores, _ = self.proxy.explained(Completions.of(data.tokenizer, episodes, data.texts[rows]))
        lengths, responses = episodes.lengths.cpu().numpy(), episodes.responses.cpu().numpy().astype(np.int32)
        tokens = [response[:length] for response, length in zip(responses, lengths, strict=True)]
        return Draw(scores.numpy(), lengths, episodes.ended.cpu().numpy(), tokens)
