"""What a trial depends on outside its store: files (by digest), models and data on the hub, and the precision of the device."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pipeline.config import TrialConfig
from pipeline.config_rewards import PREFERENCES, PartConfig
from pipeline.data.corpus import fingerprint
from pipeline.data.files import digests, split_files
from pipeline.data.hubdata import check_reachable
from pipeline.errors import UserError
from pipeline.hub import check_model
from pipeline.models.loading import base_fingerprint, device_of
from pipeline.models.precision import mixed_precision
from pipeline.rewards.classifier import check_classifier, classifier_digests
from pipeline.stages.common import part_key


def texts_and_base(config: TrialConfig) -> dict[str, str]:
    """Digests of the files of the data source and of the base model."""
    return {**fingerprint(config.data), **base_fingerprint(config.model)}


def base(config: TrialConfig) -> dict[str, str]:
    """Digests of the files of the base model."""
    return base_fingerprint(config.model)


def scorers(config: TrialConfig) -> dict[str, str]:
    """Digests of the files of every classifier that rewards or judges."""
    return classifier_digests([config.gold.model, *(part.model for part in config.reward.scorers().values())])


def scorers_and_pairs(config: TrialConfig) -> dict[str, str]:
    """The same, and of the preference files."""
    found = scorers(config)
    for key, path in _preference_files(config).items():
        found |= {f"{key}/{name}": digest for name, digest in digests(Path(path), key).items()}
    return found


def precision(config: TrialConfig) -> str:
    """``fp32``, ``fp16`` or ``bf16``: what networks compute in on the configured device.

    ``unknown (no GPU here)`` where the device is ``cuda`` and none is visible: a plan can still be made, but no stage runs.
    """
    try:
        name = mixed_precision(device_of(config.runtime.device))
    except UserError:
        return "unknown (no GPU here)"
    return "fp32" if name == "no" else name


def check_sources(config: TrialConfig, stages: Collection[str]) -> None:
    """Refuse what the named stages would look for in vain: files, and repositories of the hub. Starts and downloads nothing.

    Raises `UserError` with the key, what was searched, and what to do instead.
    """
    if "prompts" in stages:
        check_reachable(config.data)
    if config.model.base is not None and {"prompts", "sft"} & set(stages):
        check_model("model.base", config.model.base, config.model.revision, pinned=False)
    if {"reward", "ppo", "evaluate"} & set(stages):
        for key, part in {"judge": config.gold, **_parts(config)}.items():
            if part.model is not None:
                check_model(f"{key}.model", part.model, part.revision, pinned=True)
                check_classifier(f"{key}.model", part.model, part.label)
    if "reward" in stages:
        for key, path in _preference_files(config).items():
            split_files(Path(path), key)


def _parts(config: TrialConfig) -> dict[str, PartConfig]:
    return {part_key(name, config.reward.kind == "composite"): part for name, part in config.reward.scorers().items()}


def _preference_files(config: TrialConfig) -> dict[str, str]:
    return {f"{key}.preferences": part.preferences for key, part in _parts(config).items() if part.preferences not in PREFERENCES}
