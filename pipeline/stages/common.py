"""What several stages need: prompts as tokens, the judge, the trained reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipeline.config.rewards import GUARDED, JudgeConfig, PartConfig, part_key
from pipeline.config.runtime import RuntimeConfig
from pipeline.errors import UserError
from pipeline.models import cpu
from pipeline.models.loading import device_of
from pipeline.models.pretrained_tokenizer import load_tokenizer
from pipeline.models.sampling import tokenize_prompts
from pipeline.resources.machine import grow_segments
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.against import Against
from pipeline.rewards.base import Calibrated, Reward
from pipeline.rewards.composite import Proxy
from pipeline.rewards.ensemble import Ensemble, Rule
from pipeline.rewards.families import FAMILIES, compared
from pipeline.rewards.fluency import Guard
from pipeline.rewards.fluent_lexicon import FluentLexicon
from pipeline.rewards.learned import LearnedReward
from pipeline.rewards.registry import judge as judge_by_kind
from pipeline.rewards.registry import ready
from pipeline.run.store import Artifact
from pipeline.stages.opponent_table import read_opponents


@dataclass(frozen=True)
class PromptSet:
    """Prompts as text and as left-padded tokens on the CPU."""

    tokenizer: Any
    texts: list[str]
    ids: Tensor
    mask: Tensor

    @classmethod
    def load(cls, prompts: Artifact, name: str, first: int = 0, n: int | None = None) -> PromptSet:
        """`n` prompts of ``<name>.parquet`` from row `first` on; all of them by default."""
        tokenizer = load_tokenizer(prompts.path / "tokenizer")
        texts = pd.read_parquet(prompts.path / f"{name}.parquet")["prompt"].tolist()[
            first : None if n is None else first + n
        ]
        return cls(tokenizer, texts, *tokenize_prompts(tokenizer, texts))

    @property
    def token_ids(self) -> dict[str, int]:
        """What sampling needs to know."""
        return {"eos_id": self.tokenizer.eos_token_id, "pad_id": self.tokenizer.pad_token_id}


def judge_of(cfg: JudgeConfig, device: torch.device, room: Room, judge: Artifact | None = None) -> Reward:
    """The gold judge; never part of training. `judge` is what the stage of that name made, where the trial has it."""
    if cfg.kind != GUARDED:
        return judge_by_kind("judge", cfg.kind, cfg, device, room)
    if judge is None:
        raise ValueError(f"judge.kind {GUARDED} needs the artifact of the stage judge")
    return FluentLexicon(Guard.load(judge.path, load_tokenizer(judge.path / "tokenizer")))


def further_judges(judge: JudgeConfig, device: torch.device, room: Room) -> dict[str, Reward]:
    """The judges whose scores are recorded beside the gold judge's, by name."""
    return {name: ready(f"judge.also.{name}", also.kind, also, device, room) for name, also in judge.also.items()}


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
    models = [LearnedReward(FAMILIES[kind].model.load(folder, device), room) for folder in folders]
    if not scales:
        return models[0]
    return Ensemble(
        [Calibrated(model, *scale) for model, scale in zip(models, scales, strict=True)], Rule(**made["rule"])
    )


def reward_of(reward: Artifact, device: torch.device, room: Room) -> Proxy:
    """The calibrated training reward that the reward stage made, with its opponents where it has any."""
    meta, parts = reward.meta, {}
    tables = read_opponents(reward.path) if meta.get("against", "none") != "none" else {}
    composite = meta["kind"] == "composite"
    for name, made in meta["parts"].items():
        spec = PartConfig.model_validate(made["spec"])
        raw: Reward
        if spec.kind in FAMILIES:
            raw = learned_reward(part_folder(reward.path, name, composite), spec.kind, made, device, room)
        else:
            raw = ready(part_key(name, composite), spec.kind, spec, device, room)
        if tables:
            raw = Against(raw, compared(spec.kind), tables[name])
        parts[name] = Calibrated(raw, made["mean"], made["std"])
    return Proxy(
        parts, {name: made["spec"]["weight"] for name, made in meta["parts"].items()}, meta["mean"], meta["std"]
    )


def rollout_room(runtime: RuntimeConfig, warn: Callable[[str], None]) -> Room:
    """How many rows are sampled, measured or scored at once."""
    return Room("runtime.rollout_batch_size", runtime.rollout_batch_size, warn)


def check_devices(runtime: RuntimeConfig) -> torch.device:
    """The device of a trial. Raises `UserError` where CUDA has no GPU, or fewer than `runtime.processes`, and where
    networks are to leave a card that is not there."""
    device = device_of(runtime.device)
    if device.type == "cpu" and runtime.offload_reference:
        raise UserError(
            "runtime.offload_reference = true: the trial runs on a CPU, and there is no card for the networks to leave;"
            " use false, or a CUDA device"
        )
    if device.type == "cuda" and runtime.processes > torch.cuda.device_count():
        raise UserError(
            f"runtime.processes = {runtime.processes}: each process needs a GPU of its own, {torch.cuda.device_count()}"
            f" visible; at most {torch.cuda.device_count()}"
        )
    return device


def settle(runtime: RuntimeConfig) -> None:
    """Settings of the process that a trial relies on; harmless to repeat."""
    grow_segments()
    if device_of(runtime.device).type == "cpu":
        cpu.keep_freed_memory()
    torch.set_num_threads(runtime.threads)
    quiet_libraries()


def quiet_libraries() -> None:
    """Keep transformers from writing to the terminal."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
