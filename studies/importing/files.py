"""From a folder of logs to trials: which file holds which arm and seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UserError
from pipeline.run.layout import safe

SUFFIXES = (".jsonl", ".json", ".csv")
STATE = "trainer_state.json"
RULE = "ARM/seed_N, ARM-seedN, seed_N/ARM or ARM/N, with .jsonl, .json or .csv (or a trainer's folder of such a name)"
_FORMS = (
    r"(?:(?P<arm>.+)[-_./])?seed[-_=]?(?P<seed>\d{1,18})",
    r"seed[-_=]?(?P<seed>\d{1,18})[-_/](?P<arm>.+)",
    r"(?P<arm>.+)/(?P<seed>\d{1,18})",
)
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class Source:
    """The log of one trial."""

    arm: str
    seed: int
    path: Path
    name: str
    """Relative to the folder that is imported: how messages call it."""


def find_sources(folder: Path, pattern: str | None = None) -> list[Source]:
    """The logs below `folder`, by arm and seed.

    Arm and seed stand in a file's path without its suffix (`RULE`); `pattern`, with the words ``{arm}`` and
    ``{seed}``, replaces that rule. A trainer's output folder is one trial, of its newest ``trainer_state.json``.
    Raises `UserError` for a name that tells no arm or seed, two files of one trial, and links out of the folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one that holds a log per arm and seed: {RULE}")
    forms = [re.compile(_template(pattern))] if pattern else [re.compile(form, re.IGNORECASE) for form in _FORMS]
    found: dict[tuple[str, int], Source] = {}
    for trial, path in _trials(folder):
        name = path.relative_to(folder).as_posix()
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{folder}: '{name}' is a link that leaves the folder; put the file itself there")
        source = _source(forms, trial, path, name, folder, pattern)
        twin = found.setdefault((source.arm.lower(), source.seed), source)
        if twin is not source:
            raise UserError(
                f"{folder}: '{twin.name}' and '{name}' are both arm '{source.arm}' seed {source.seed}; keep one of them"
            )
    if not found:
        raise UserError(f"{folder}: no {', '.join(SUFFIXES)} file in it; expected a log per arm and seed: {RULE}")
    _same_case([source.arm for source in found.values()], folder)
    return sorted(found.values(), key=lambda source: (natural(source.arm), source.seed))


def natural(text: str) -> list[tuple[float, str]]:
    """A sorting key that knows numbers: arm-2 before arm-10, beta_0.05 before beta_0.2."""
    return [(float(part), part) if part[:1].isdigit() else (-1.0, part) for part in re.split(r"(\d+(?:\.\d+)?)", text)]


def _trials(folder: Path) -> Iterator[tuple[str, Path]]:
    """(trial's path as text, file): suffixes gone, a trainer's folder in place of its state file."""
    visible = [
        path
        for path in sorted(folder.rglob("*"))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    newest: dict[Path, tuple[int, Path]] = {}
    for path in visible:
        if path.name == STATE:
            checkpoint = _CHECKPOINT.fullmatch(path.parent.name)
            run = path.parent.parent if checkpoint and path.parent != folder else path.parent
            age = int(checkpoint[1]) if checkpoint else -1
            newest[run] = max(newest.get(run, (-2, path)), (age if checkpoint else 2**63, path))
    for run, (_, path) in newest.items():
        yield run.relative_to(folder).as_posix(), path
    for path in visible:
        if path.suffix in SUFFIXES and path.is_file() and not any(run in path.parents for run in newest):
            yield path.relative_to(folder).with_suffix("").as_posix(), path


def _source(
    forms: list[re.Pattern[str]], trial: str, path: Path, name: str, folder: Path, pattern: str | None
) -> Source:
    found = next((match for form in forms if (match := form.fullmatch(trial))), None)
    if found is None:
        raise UserError(
            f"{folder}: '{name}' tells no arm and seed; "
            + (
                f"it does not fit the mapping's pattern '{pattern}'"
                if pattern
                else f"name it {RULE}, or give `files` in the mapping"
            )
        )
    arm = (found["arm"] or folder.resolve().name).replace("/", "-")
    try:
        return Source(safe(arm), int(found["seed"]), path, name)
    except UserError as error:
        raise UserError(f"{folder}: '{name}': arm: {error}") from None


def _template(pattern: str) -> str:
    words = re.split(r"(\{arm\}|\{seed\})", pattern)
    if words.count("{arm}") != 1 or words.count("{seed}") != 1:
        raise UserError(
            f"mapping: files: '{pattern}' must hold {{arm}} and {{seed}} once each, for example run_{{seed}}/{{arm}}"
        )
    parts = {"{arm}": r"(?P<arm>.+)", "{seed}": r"(?P<seed>\d{1,18})"}
    return "".join(parts.get(word, re.escape(word)) for word in words)


def _same_case(arms: list[str], folder: Path) -> None:
    folded: dict[str, str] = {}
    for arm in arms:
        twin = folded.setdefault(arm.lower(), arm)
        if twin != arm:
            raise UserError(
                f"{folder}: the arms '{twin}' and '{arm}' differ only in case; some file systems cannot tell them apart"
            )
