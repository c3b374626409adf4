"""Rewards and judges of the user's own (`pipeline.rewards.own`), as a study file names them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.base import replaced
from pipeline.config.messages import ConfigFault
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.rewards.kinds import is_own
from studies.definition.schema import Study


def with_code(config: TrialConfig, study: Study) -> TrialConfig:
    """The configuration that finds its classes in the folder of the study's file; unchanged where it names none."""
    if not study.source or config.runtime.code or not _own(config):
        return config
    folder = str(Path(study.source).parent)
    return replaced(config, {"runtime.code": folder})


def check_own(study: Study, configs: Mapping[str, TrialConfig]) -> None:
    """Import the classes that the arms name and check their settings.

    Raises `UserError` with one line per fault: the file, the line, the key, the value and what is allowed.
    """
    faults = [
        ConfigFault(_place(study, arm, key), f"{study.kind}.{arm}: {text}")
        for arm, config in configs.items()
        for key, text in _faults(config)
    ]
    if faults:
        from studies.definition.checks import fault_lines

        raise UserError(fault_lines(study.source or study.name, faults))


def own_digests(configs: Iterable[TrialConfig]) -> dict[str, str]:
    """Digests of the files of all classes that are named, by the name of the class."""
    found: dict[str, str] = {}
    for config in configs:
        if kinds := _own(config):
            from pipeline.rewards.own import file_of
            from pipeline.run.store import file_digest

            files = {kind: file_of(kind, config.runtime.code) for kind in kinds.values()}
            found |= {kind: file_digest(file) for kind, file in files.items() if file is not None}
    return found


def _own(config: TrialConfig) -> dict[str, str]:
    return {key: scorer.kind for key, scorer in config.scorers.items() if is_own(scorer.kind)}


def _faults(config: TrialConfig) -> Iterator[tuple[str, str]]:
    for section in _own(config):
        from pipeline.rewards.own import faults

        yield from faults(section, config.scorers[section], config.runtime.code)


def _place(study: Study, arm: str, key: str) -> tuple[str | int, ...]:
    """The way to the entry of an arm that sets a key, or the mapping that it is in."""
    own: Mapping[str, Any] = study.arm_overrides().get(arm, {})
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in own:
            return (study.kind, arm, ".".join(parts[:length]), *parts[length:])
    return (study.kind, arm)
