"""From a folder to its logs: which files are read, and which arm and seed their names tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.errors import UserError
from pipeline.named_files import below, is_file, leaves, state
from pipeline.run.layout import safe

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
STATE = "trainer_state.json"
RULE = (
    "ARM/seed_N, ARM-seedN, seed_N/ARM or ARM/N, with .jsonl, .json, .csv or .parquet (or a trainer's folder of such a"
    " name)"
)
_FORMS = (
    r"(?:(?P<arm>.+)[-_./])?seed[-_=]?(?P<seed>\d{1,18})",
    r"seed[-_=]?(?P<seed>\d{1,18})[-_/](?P<arm>.+)",
    r"(?P<arm>.+)/(?P<seed>\d{1,18})",
)
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class LogFile:
    """A file that could hold a log."""

    path: Path
    name: str
    """Relative to the folder that is imported: how messages call it."""
    trial: tuple[str, int] | None
    """Arm and seed, where its name tells them."""


def find_files(
    folder: Path, pattern: str | None = None, include: Sequence[str] = ("*",), exclude: Sequence[str] = ()
) -> tuple[list[LogFile], dict[str, str]]:
    """The files below `folder`, or that one file, in the order of their arms and seeds; and why others are left out.

    Arm and seed stand in a file's path without its suffix (`RULE`); `pattern`, with the words ``{arm}`` and
    ``{seed}``, replaces that rule. A trainer's output folder is one trial, of its newest ``trainer_state.json``.
    `include` and `exclude` are patterns over the paths below the folder, as in a shell. Raises `UserError` for an arm
    that cannot be used as a name, and for links out of the folder.
    """
    if state(folder) is None:
        raise UserError(f"{folder}: no such folder or file; give one that holds a log per arm and seed: {RULE}")
    root = folder if folder.is_dir() else folder.parent
    found: list[LogFile] = []
    left: dict[str, str] = {}
    for trial, path in _trials(folder) if folder.is_dir() else [(folder.stem, folder)]:
        name = path.relative_to(root).as_posix()
        if not any(_fits(name, one) for one in include):
            left[name] = f"fits none of the patterns to include ({', '.join(include)})"
        elif any(_fits(name, one) for one in exclude):
            left[name] = "fits a pattern to exclude"
        elif leaves(path, root):
            raise UserError(f"{folder}: '{name}' is a link that leaves the folder; put the file itself there")
        else:
            found.append(LogFile(path, name, trial_of(trial, pattern, name, root)))
    if not found:
        why = "is left with these patterns" if left else "in it"
        raise UserError(f"{folder}: no {', '.join(SUFFIXES)} file {why}; expected a log per arm and seed: {RULE}")
    return sorted(found, key=lambda one: (natural(one.trial[0]), one.trial[1]) if one.trial else ([], 0)), left


def stray(folder: Path, file: LogFile, pattern: str | None) -> str:
    """Why a file is of no trial, in words."""
    return f"'{file.name}' tells no arm and seed; " + (
        f"it does not fit the mapping's pattern '{pattern}'"
        if pattern
        else f"name it {RULE}, or give `files` or `columns` in the mapping"
    )


def natural(text: str) -> list[tuple[float, str]]:
    """A sorting key that knows numbers: arm-2 before arm-10, beta_0.05 before beta_0.2."""
    return [(float(part), part) if part[:1].isdigit() else (-1.0, part) for part in re.split(r"(\d+(?:\.\d+)?)", text)]


def _trials(folder: Path) -> Iterator[tuple[str, Path]]:
    """(trial's path as text, file): suffixes gone, a trainer's folder in place of its state file."""
    visible = [
        path
        for path in below(folder, str(folder))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    newest: dict[Path, tuple[int, Path]] = {}
    for path in visible:
        if path.name == STATE and is_file(path):
            checkpoint = _CHECKPOINT.fullmatch(path.parent.name)
            run = path.parent.parent if checkpoint and path.parent != folder else path.parent
            age = int(checkpoint[1]) if checkpoint else -1
            newest[run] = max(newest.get(run, (-2, path)), (age if checkpoint else 2**63, path))
    for run, (_, path) in newest.items():
        yield run.relative_to(folder).as_posix(), path
    for path in visible:
        if path.suffix in SUFFIXES and is_file(path) and not any(run in path.parents for run in newest):
            yield path.relative_to(folder).with_suffix("").as_posix(), path


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern)


def trial_of(trial: str, pattern: str | None, name: str, root: Path) -> tuple[str, int] | None:
    """Arm and seed in the name of a trial, by `RULE` or by `pattern`; None where it does not tell them."""
    forms = [re.compile(_template(pattern))] if pattern else [re.compile(form, re.IGNORECASE) for form in _FORMS]
    fit = next((match for form in forms if (match := form.fullmatch(trial))), None)
    if fit is None:
        return None
    arm = (fit["arm"] or root.resolve().name).replace("/", "-")
    try:
        return safe(arm), int(fit["seed"])
    except UserError as error:
        raise UserError(f"{root}: '{name}': arm: {error}") from None


def _template(pattern: str) -> str:
    words = re.split(r"(\{arm\}|\{seed\})", pattern)
    if words.count("{arm}") != 1 or words.count("{seed}") != 1:
        raise UserError(
            f"mapping: files: '{pattern}' must hold {{arm}} and {{seed}} once each, for example run_{{seed}}/{{arm}}"
        )
    parts = {"{arm}": r"(?P<arm>.+)", "{seed}": r"(?P<seed>\d{1,18})"}
    return "".join(parts.get(word, re.escape(word)) for word in words)


def refuse_same_case(arms: Sequence[str], folder: Path) -> None:
    """Refuse arms that differ only in case. Raises `UserError`."""
    folded: dict[str, str] = {}
    for arm in arms:
        twin = folded.setdefault(arm.lower(), arm)
        if twin != arm:
            raise UserError(
                f"{folder}: the arms '{twin}' and '{arm}' differ only in case; some file systems cannot tell them apart"
            )
