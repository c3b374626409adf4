"""Claims as they were written down before the data: an append-only chain of lines in a study's folder.

The first start of a study writes one line, every later start with changed content another. `study.json` has the digest
of all lines, so that an edited or removed line is noticed. Somebody who writes both anew is not noticed, unless the
digest was noted elsewhere (MLflow has it as a tag of the study).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pipeline.config.trial import canonical_json
from pipeline.errors import Damaged, Gone
from pipeline.run.layout import StudyFolder, set_aside, write_atomic
from studies.definition.checks import arm_names
from studies.definition.schema import IMPORTED, Study

REMEDY = "the next start of the study sets it aside and registers the claims again, as exploratory"
_APART = {
    "name", "figures", "arms", "grid", "factors", "interactions", "imported", "hypotheses", "falsifiers", "confirm",
}  # fmt: skip
"""Fields of a study that change no claim, or that `content_of` writes in another form."""


@dataclass(frozen=True)
class Line:
    """The study's claims and design at one start."""

    time: str
    """UTC, ISO 8601, to the microsecond."""
    commit: str
    """Commit of the code that was going to run."""
    ended: int
    """Trials that had left a record by then, whatever became of the records later."""
    content: dict[str, Any]
    digest: str
    """Digest of this line and all before it; the file does not hold it."""


def content_of(study: Study, profile: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content to register: question, hypotheses, claims with their arms, design, seeds, settings.

    Of a search these are the arms that are known beforehand; what it confirms is no change of the study.
    """
    arms = arm_names(study)
    content = {
        **study.model_dump(mode="json", exclude=_APART, exclude_defaults=True),
        "study": study.name,
        "profile": profile,
        "overrides": dict(overrides),
        "objective": study.objective.model_dump(mode="json", exclude=None if study.trainer else {"window", "worst"}),
        "arms": study.arm_overrides(),
        # Without what they leave open: claims have the digest that they had before there were such keys.
        "hypotheses": {
            part.name: part.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
            for part in study.hypotheses
        },
        "falsifiers": {
            claim.name: {
                **claim.model_dump(mode="json", exclude={"name"}, exclude_none=True),
                "speaks_of": [arm for arm in arms if claim.applies_to(arm, study.baseline)],
                **({"baseline": study.baseline} if claim.relative_to else {}),
            }
            for claim in study.falsifiers
        },
    }
    plain: dict[str, Any] = json.loads(canonical_json(content))  # as it will be read: tuples are lists
    return plain


def register(content: Mapping[str, Any], folder: StudyFolder, commit: str, notify: Callable[[str], None]) -> str:
    """Append `content` where it differs from the last line; returns the digest of the last line.

    The caller holds the start of the study, and no trial has begun. A damaged chain is set aside and `notify`
    called; a new one begins, with the number of trials that had ended.
    """
    path = folder.registration_file
    try:
        lines = read_chain(folder)
    except Damaged as error:
        lines, aside = [], f"set aside as {set_aside(path)}; " if path.exists() else ""
        notify(f"{path} is damaged: {error.why}; {aside}claims are registered again, after the data that there are")
    if lines and lines[-1].content == content:
        return lines[-1].digest
    line = {
        "time": datetime.now(UTC).isoformat(timespec="microseconds"),
        "commit": commit,
        "ended": ended(folder, lines),
        "content": dict(content),
    }
    text, before = canonical_json(line), path.read_text("utf-8") if lines else ""
    write_atomic(path, f"{before}{text}\n")
    return _digest(lines, text)


def read_chain(folder: StudyFolder) -> list[Line]:
    """Read all lines, the first first; none where the study was not registered. Raises `Damaged` for a chain that is
    not as written."""
    path, lines = folder.registration_file, list[Line]()
    head = folder.started().get("registered") if folder.study_file.exists() else None  # digest of the last line
    try:
        texts = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        if head:
            raise Gone(path, remedy=REMEDY) from None
        texts = []
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(path, str(error), REMEDY) from None
    for number, text in enumerate(texts, 1):
        try:
            lines.append(Line(**json.loads(text), digest=_digest(lines, text)))
        except (ValueError, TypeError, RecursionError):
            raise Damaged(path, f"line {number} cannot be read", REMEDY) from None
    if head and head not in {line.digest for line in lines}:
        raise Damaged(path, "it is not what was registered, of which study.json has the digest", REMEDY)
    return lines


def ended(folder: StudyFolder, lines: Sequence[Line] = ()) -> int:
    """Trials that have left a record, also where records were removed since the last registration."""
    return max(len(folder.trial_files()), lines[-1].ended if lines else 0)


def is_registered(study: Study) -> bool:
    """Return whether a study is registered: not where its trials had run before, nor a single trial without a file."""
    return study.kind != IMPORTED and bool(study.source)


def _digest(before: Sequence[Line], text: str) -> str:
    """Digest of a line and all lines before it."""
    return hashlib.sha256(f"{before[-1].digest if before else ''}{text}".encode()).hexdigest()
