"""The judges and rewards of a trial: those that are ready by the lines of `KINDS`, the others from what its stages
stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from pipeline.models.out_of_memory import Room
from pipeline.rewards.base import Calibrated, Reward
from pipeline.rewards.composite import Combination, Ensemble, Proxy
from pipeline.rewards.kinds import GUARDED, KINDS, TRAINED, is_own
from pipeline.rewards.learned import LearnedReward, compared, family_of
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
    if judge is None:
        raise ValueError(f"judge.kind {GUARDED} needs the artifact of the stage judge")
    fitted: Reward = resolve_name(KINDS[cfg.kind].code)(judge.path)
    return fitted


def further_judges(judge: JudgeConfig, device: torch.device, room: Room) -> dict[str, Reward]:
    """The judges whose scores are recorded beside the gold judge's, by name."""
    return {name: ready(f"judge.also.{name}", also, device, room) for name, also in judge.also.items()}


def part_folder(reward: Path, name: str, composite: bool) -> Path:
    """Where the reward stage keeps what it trained for a part."""
    return reward / "parts" / name if composite else reward


def member_folders(part: Path, count: int) -> list[Path]:
    """Where the members of an ensemble are, below the folder of its part; of a single model that folder."""
    return [part / "members" / str(member) for member in range(count)] if count > 1 else [part]


def ensemble_note(raw: Reward) -> dict[str, Any]:
    """What `learned_reward` needs to know of an ensemble beside its models; nothing of another reward."""
    if not isinstance(raw, Ensemble):
        return {}
    return {"members": [[member.mean, member.std] for member in raw.members], "rule": asdict(raw.rule)}


def learned_reward(part: Path, kind: str, made: Mapping[str, Any], device: torch.device, room: Room) -> Reward:
    """The model or the ensemble in the folder of a part; `made`: what the reward stage noted of it."""
    scales = made.get("members", [])
    folders = member_folders(part, max(len(scales), 1))
    models = [LearnedReward(family_of(kind).model.load(folder, device), room) for folder in folders]
    if not scales:
        return models[0]
    return Ensemble(
        [Calibrated(model, *scale) for model, scale in zip(models, scales, strict=True)], Combination(**made["rule"])
    )


def reward_of(reward: Artifact, device: torch.device, room: Room) -> Proxy:
    """The calibrated training reward that the reward stage made, with its opponents where it has any."""
    meta, parts = reward.meta, {}
    tables = read_opponents(reward.path) if meta.get("against", "none") != "none" else {}
    composite = meta["kind"] == "composite"
    for name, made in meta["parts"].items():
        spec = PartConfig.model_validate(made["spec"])
        raw: Reward
        if spec.kind in TRAINED:
            raw = learned_reward(part_folder(reward.path, name, composite), spec.kind, made, device, room)
        else:
            raw = ready(part_key(name, composite), spec, device, room)
        if tables:
            raw = Against(raw, compared(spec.kind), tables[name])
        parts[name] = Calibrated(raw, made["mean"], made["std"])
    return Proxy(
        parts, {name: made["spec"]["weight"] for name, made in meta["parts"].items()}, meta["mean"], meta["std"]
    )
