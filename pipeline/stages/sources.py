"""Dependencies of a trial outside its store: files (by digest), models and data on the hub, and device precision."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from pipeline.config.trial import TrialConfig
from pipeline.data.files import PAIR_COLUMNS, check_reachable, digests, read_splits
from pipeline.named_files import below, is_file, is_folder
from pipeline.resources.machine import PRECISION, check_extra, gpu_visible
from pipeline.rewards import own
from pipeline.rewards.kinds import is_own
from pipeline.rewards.settings import is_judged
from pipeline.run.hub import check_model
from pipeline.run.store import file_digest


def texts_and_base(config: TrialConfig) -> dict[str, str]:
    """Digests of the files of the data source and of the base model."""
    data = config.data  # a hub data set is pinned by its revision instead
    texts = digests(Path(data.local.path or ""), "data.local.path") if data.source == "local" else {}
    return {**texts, **base(config)}


def base(config: TrialConfig) -> dict[str, str]:
    """Digests of the files of a base model that is a folder; a hub id is pinned by its revision instead."""
    return _folder_digests("base", Path(config.model.base)) if config.model.base else {}


def scorers(config: TrialConfig) -> dict[str, str]:
    """Digests of the files of every classifier that rewards or judges and is a folder, and of the module of every class
    of the user's own; hub ids are pinned by their revisions instead."""
    found: dict[str, str] = {}
    for part in config.scorers.values():
        if part.kind == "classifier":
            found |= _folder_digests(part.chosen.model, Path(part.chosen.model))
        elif is_own(part.kind) and (file := own.file_of(part.kind, config.runtime.code)):
            found[part.kind] = file_digest(file)
    return found


def scorers_and_pairs(config: TrialConfig) -> dict[str, str]:
    """The same, and of the preference files."""
    all_digests = scorers(config)
    for key, path in _preference_files(config).items():
        all_digests |= {f"{key}/{name}": digest for name, digest in digests(Path(path), key).items()}
    return all_digests


def precision(config: TrialConfig) -> str:
    """``fp32``, ``fp16`` or ``bf16``: what networks compute in on the configured device. ``unknown (no GPU here)`` if
    none is visible: no stage runs, but a plan can be made."""
    device = config.runtime.device
    gpu = device != "cpu" and gpu_visible()
    if device == "cuda" and not gpu:
        return "unknown (no GPU here)"
    if not gpu and PRECISION not in os.environ:
        return "fp32"
    from pipeline.models.loading import device_of
    from pipeline.models.precision import mixed_precision

    return mixed_precision(device_of(device))


def rollout_precision(config: TrialConfig) -> str:
    """The same, with the sampler of the rollouts where it is the static one, whose texts differ by rounding."""
    name, on_card = precision(config), config.runtime.device != "cpu" and gpu_visible()
    return f"{name}, static sampler" if config.runtime.static_sampler(on_card) else name


def check_sources(config: TrialConfig, stages: Collection[str]) -> None:
    """Raise `UserError` for files, repositories of the hub and packages that the named stages would look for in vain,
    with the key, what was searched, and what to do instead. Starts and downloads nothing."""
    if "prompts" in stages:
        check_reachable(config.data)
    if config.model.base is not None and {"prompts", "sft"} & set(stages):
        check_model("model.base", config.model.base, config.model.revision, pinned=False)
    if {"reward", "reference", "values", "train", "evaluate"} & set(stages):
        for key, part in config.scorers.items():
            if part.kind == "classifier":
                check_model(f"{key}.classifier.model", part.chosen.model, part.chosen.revision, pinned=True)
            elif part.kind == "ocr":
                check_extra(f"{key}.kind = 'ocr'", "ocr")
            elif is_own(part.kind):
                own.check_file(f"{key}.kind", part.kind, config.runtime.code)
    for key, how, users in (
        ("adapter", config.adapter.quantize, {"reference", "values", "critic", "train", "evaluate"}),
        ("critic", config.critic.held, {"critic", "train"}),
    ):
        if how != "none" and users & set(stages):
            check_extra(f"{key}.quantize = '{how}'", "quantize")
    if "reward" in stages:
        for key, path in _preference_files(config).items():
            read_splits(Path(path), key, PAIR_COLUMNS, head=True)


def _preference_files(config: TrialConfig) -> dict[str, str]:
    return {
        f"{config.reward.key(name)}.preferences": part.preferences
        for name, part in config.reward.trained().items()
        if not is_judged(part.preferences)
    }


def _folder_digests(name: str, folder: Path) -> dict[str, str]:
    if not is_folder(folder):
        return {}
    return {
        f"{name}/{file.relative_to(folder).as_posix()}": file_digest(file)
        for file in below(folder, f"'{name}'")
        if is_file(file)
    }
