"""Value pre-training, for trials that ask for it: a critic learns what the reference's responses were worth, before
the policy moves (VC-PPO: Yuan 2025, arXiv 2503.01491).

Writes ``critic.safetensors`` and ``summary.json``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pipeline.algorithms.mathematics.advantages import explained_variance, to_go
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.config.trial import TrialConfig
from pipeline.data.prompt_set import PromptSet
from pipeline.models.meter import meter
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import ActorCritic, Episodes, response_mask, save_critic
from pipeline.models.process import bench
from pipeline.run.layout import write_json
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.stages.values import SAMPLES, read_scores
from pipeline.training.experience import in_turn
from pipeline.training.judging import final_scores
from pipeline.training.new_actor import load_reference, with_critic
from pipeline.training.supervised import ShareOfLoss, Supervised

LEARNING_RATE = 1e-3
"""Learning rate of value pre-training, which fits a head from zero."""
HELD_OUT = 16
"""One sample in so many is held out to measure the critic; it is not trained on."""


def critic(
    cfg: TrialConfig,
    out: Path,
    reporter: Reporter,
    *,
    prompts: Artifact,
    sft: Artifact,
    reward: Artifact,
    values: Artifact,
) -> dict[str, Any]:
    """Fit the critic of `cfg` to the samples of the stage `values`."""
    with bench(cfg.runtime, out, reporter.warn) as at:
        # At the start the policy is the reference, with an adapter or without.
        actor = with_critic(load_reference(sft, cfg.adapter.quantize, at.device), cfg, 0, sft, reward, at.device)
        steps = cfg.critic.pretraining_steps
        actor.lm.requires_grad_(False)  # before the meter looks at what is trained
        meter(actor.networks, at.ledger.work)
        data = PromptSet.load(prompts, "train")
        samples, targets = _samples(cfg, values, data)
        room = Room("runtime.micro_batch_size", cfg.runtime.micro_batch_size, reporter.warn)
        with at.ledger.timed("train"):
            explained = pretrain(
                actor, samples, targets, steps, cfg.train.batch_size, LEARNING_RATE, room,
                lambda done: reporter.progress("critic", done, steps, "value pre-training"),
            )  # fmt: skip
        save_critic(actor, out / "critic.safetensors")
    # Rewards that are all equal have no variance, and files hold no NaN.
    known = {"explained_variance": explained} if math.isfinite(explained) else {}
    summary = {"steps": steps, "samples": len(targets), **known}
    write_json(out / "summary.json", summary)
    share = f"explains {100 * explained:.0f} % of the variance of" if known else "equal are all"
    return {"note": f"{share} held-out samples' rewards to go", **summary}


def _samples(cfg: TrialConfig, values: Artifact, data: PromptSet) -> tuple[Episodes, Tensor]:
    # At the reference no KL penalty is due.
    grids = {name: torch.tensor(grid) for name, grid in read_scores(values).items()}
    drawn = pd.read_parquet(values.path / SAMPLES, columns=["tokens"])["tokens"]
    padded = np.zeros((len(drawn), cfg.train.response_length), dtype=np.int64)
    for row, response in enumerate(drawn):
        padded[row, : len(response)] = response
    each = grids["proxy"].shape[1]
    lengths, ended = grids["length"].flatten().long(), grids["eos"].flatten()
    scores = final_scores(grids["proxy"].flatten().float(), lengths, ended, cfg.train)
    mask = response_mask(lengths, cfg.train.response_length)
    targets = to_go(token_rewards(scores, torch.zeros(mask.shape), mask), mask, cfg.algorithm.gamma)
    tokens = torch.cat([data.ids.repeat_interleave(each, 0), torch.from_numpy(padded)], 1)
    return Episodes(tokens, data.mask.repeat_interleave(each, 0), mask, ended), targets


def pretrain(
    actor: ActorCritic,
    samples: Episodes,
    targets: Tensor,
    steps: int,
    batch: int,
    lr: float,
    room: Room,
    progress: Callable[[int], None],
) -> float:
    """Fit the critic to the rewards to go of M samples, `targets` (M, T), both on the CPU: `batch` samples a step, by
    half the mean squared error over their tokens; the policy stays as it is.

    Returns the share of the variance of held-out samples' rewards to go that it explains in the end. Raises
    `MemoryFull`.
    """
    actor.lm.requires_grad_(False)
    critic = nn.ModuleList([part for part in (actor.value_head, actor.critic_trunk) if part is not None])
    device = next(critic.parameters()).device

    def take(rows: Tensor) -> tuple[Episodes, Tensor]:
        return samples.each(lambda column: column[rows].to(device)), targets[rows].to(device)

    order = torch.arange(len(targets))
    heldout, mine = order[::HELD_OUT], order[order % HELD_OUT != 0]
    fitted = Supervised(critic, actor.networks[1:], 0.0, room, False)
    for step in range(steps):
        rows = mine[in_turn(len(mine), batch, step, 0, "value pretraining")]
        fitted.step(lr, batch, _loss(actor, *take(rows)))
        progress(step + 1)
    fitted.close()
    with torch.no_grad():
        episodes, returns = take(heldout)
        (values,) = episodes.grids(1, room, lambda chunk: [actor.values(chunk)])
        return explained_variance(values, returns, episodes.response_mask)


def _loss(actor: ActorCritic, episodes: Episodes, targets: Tensor) -> ShareOfLoss:
    tokens = episodes.response_mask.sum()

    def share(part: slice) -> Tensor:
        mine = episodes.take(part)
        mask = mine.response_mask
        return 0.5 * (actor.values(mine) - targets[part, : mask.shape[1]][mask]).square().sum() / tokens

    return share
