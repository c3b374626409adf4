"""The judges and rewards of a trial: those that are ready by the entries of `KINDS`, the others from what its stages
stored; and the opponents of a reward: answers of the reference with which an answer to the same prompt is compared.

``opponents.parquet`` has a row for each of them (prompt, draw, completion, and ``numbers/<part>``: of each part of the
reward the score or the embedding, a list), so that a trial neither samples nor scores them again. They are found by the
text of the prompt, never by its row, and a text that occurs twice among the prompts has one set of opponents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.out_of_memory import Room
from pipeline.rewards.base import Calibrated, Completions, Proxy, Reward
from pipeline.rewards.kinds import GUARDED, KINDS, TRAINED, is_own
from pipeline.rewards.learned import LearnedReward, RewardModel, model_of
from pipeline.rewards.own import OwnReward
from pipeline.rewards.settings import JudgeConfig, PartConfig, ScorerConfig, part_key
from pipeline.run.store import Artifact

OPPONENTS_FILE = "opponents.parquet"
Compare = Callable[[Tensor, Tensor], Tensor]
"""Numbers of answers, (B,) or (B, d), and of their k opponents, (B, k) or (B, k, d): rewards (B,)."""
Table = Mapping[str, Tensor]
"""Numbers of the k opponents of each prompt, (k,) or (k, d)."""


def ready(section: str, scorer: ScorerConfig, device: torch.device, room: Room) -> Reward:
    """The scorer of the section with this key. Raises `UserError` where a class, a model or a package is missing."""
    if is_own(scorer.kind):
        return OwnReward(section, scorer)
    kind = KINDS[scorer.kind]
    code = resolve_name(kind.code)
    return cast(Reward, code(section, scorer.chosen, device, room) if kind.settings else code())


def judge_of(cfg: JudgeConfig, device: torch.device, room: Room, judge: Artifact | None = None) -> Reward:
    """The gold judge; never part of training. `judge` is what the stage of that name made, where the trial has it."""
    if cfg.kind != GUARDED:
        return ready("judge", cfg, device, room)
    assert judge is not None, "the graph gives a guarded trial the stage judge"
    return cast(Reward, resolve_name(KINDS[cfg.kind].code)(judge.path))


def further_judges(judge: JudgeConfig, device: torch.device, room: Room) -> dict[str, Reward]:
    """The judges whose scores are recorded beside the gold judge's, by name."""
    return {name: ready(f"judge.also.{name}", also, device, room) for name, also in judge.also.items()}


def part_folder(reward: Path, name: str, composite: bool) -> Path:
    """Return the folder in which the reward stage keeps the model that it trained for a part."""
    return reward / "parts" / name if composite else reward


def reward_of(reward: Artifact, device: torch.device, room: Room) -> Proxy:
    """The calibrated training reward that the reward stage made, with its opponents where it has any."""
    meta, parts = reward.meta, {}
    tables = read_opponents(reward.path) if meta.get("against", "none") != "none" else {}
    composite = meta["kind"] == "composite"
    for name, made in meta["parts"].items():
        spec = PartConfig.model_validate(made["spec"])
        raw: Reward
        if spec.kind in TRAINED:
            folder = part_folder(reward.path, name, composite)
            raw = LearnedReward(model_of(spec.kind).load(folder, device), room)
        else:
            raw = ready(part_key(name, composite), spec, device, room)
        if tables:
            raw = Against(raw, compared(spec.kind), tables[name])
        parts[name] = Calibrated(raw, made["mean"], made["std"])
    weights = {name: made["spec"]["weight"] for name, made in meta["parts"].items()}
    return Proxy(parts, weights, meta["mean"], meta["std"], meta.get("combine", "sum"), meta.get("caution", 0.0))


def compared(kind: str) -> Compare:
    """Return the comparison of an answer with its opponents: a score less their mean, unless its model has another."""
    return (model_of(kind) if kind in TRAINED else RewardModel).against


class Against:
    """A `Reward` that compares an answer with the opponents of its prompt. Raises `UserError` where it has none."""

    def __init__(self, numbers: Any, compare: Compare, table: Table) -> None:
        self._numbers, self._compare, self._table = numbers, compare, table
        self.networks: Sequence[Any] = numbers.networks

    def __call__(self, completions: Completions) -> Tensor:
        mine: Tensor = self._numbers(completions)
        return self._compare(mine, torch.stack([self._opponents(prompt) for prompt in completions.prompts]))

    def _opponents(self, prompt: str) -> Tensor:
        if prompt not in self._table:
            raise UserError(
                f"reward.against: there are no opponents for the prompt {prompt!r}; answers to compare with are drawn"
                " for the training and the held-out prompts of the trial alone"
            )
        return self._table[prompt]


def save_opponents(folder: Path, drawn: list[Completions], numbers: Mapping[str, Tensor]) -> None:
    """Write ``opponents.parquet``; the opponents of one prompt stand next to each other."""
    prompts, k = drawn[0].prompts, len(drawn)
    columns = {
        "prompt": [prompt for prompt in prompts for _ in range(k)],
        "draw": list(range(k)) * len(prompts),
        "completion": [one.texts[row] for row in range(len(prompts)) for one in drawn],
    }
    lists = {f"numbers/{name}": list(grid.reshape(len(prompts) * k, -1).numpy()) for name, grid in numbers.items()}
    pd.DataFrame(columns | lists).to_parquet(folder / OPPONENTS_FILE, index=False)


def read_opponents(folder: Path) -> dict[str, Table]:
    """The opponents' numbers of each part by prompt."""
    frame = pd.read_parquet(folder / OPPONENTS_FILE)
    count = int(frame["draw"].max()) + 1
    prompts = frame["prompt"].tolist()[::count]
    tables = dict[str, Table]()
    for column in frame.columns:
        if column.startswith("numbers/"):
            grid = torch.from_numpy(np.stack(frame[column].to_list())).view(len(prompts), count, -1)
            numbers = grid.squeeze(2) if grid.shape[2] == 1 else grid
            tables[column.removeprefix("numbers/")] = dict(zip(prompts, numbers, strict=True))
    return tables
