"""The judges and rewards of a trial: those that are ready by the lines of `KINDS`, the others from what its stages
stored."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import torch

from pipeline.models.out_of_memory import Room
from pipeline.rewards.base import Calibrated, Proxy, Reward
from pipeline.rewards.kinds import GUARDED, KINDS, TRAINED, is_own
from pipeline.rewards.learned import LearnedReward, compared, model_of
from pipeline.rewards.opponents import Against, read_opponents
from pipeline.rewards.own import OwnReward
from pipeline.rewards.settings import JudgeConfig, PartConfig, ScorerConfig, part_key
from pipeline.run.store import Artifact


def ready(section: str, scorer: ScorerConfig, device: torch.device, room: Room) -> Reward:
    """The scorer that a section of the configuration describes. `section` is its key, for messages.

    Raises `UserError` where the user's own class, a model or a package cannot be had.
    """
    if is_own(scorer.kind):
        return OwnReward(section, scorer)
    kind = KINDS[scorer.kind]
    code = resolve_name(kind.code)
    reward: Reward = code(section, scorer.chosen, device, room) if kind.settings else code()
    return reward


def judge_of(cfg: JudgeConfig, device: torch.device, room: Room, judge: Artifact | None = None) -> Reward:
    """The gold judge; never part of training. `judge` is what the stage of that name made, where the trial has it."""
    if cfg.kind != GUARDED:
        return ready("judge", cfg, device, room)
    assert judge is not None, "the graph gives a guarded trial the stage judge"
    fitted: Reward = resolve_name(KINDS[cfg.kind].code)(judge.path)
    return fitted


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
    return Proxy(
        parts, {name: made["spec"]["weight"] for name, made in meta["parts"].items()}, meta["mean"], meta["std"]
    )
