"""Badges: whether a claim was written down before the data, changed after them, or made up from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.run.layout import StudyFolder
from studies.claims.registration import Line, content_of, ended, is_registered, read_chain
from studies.definition.schema import Study

State = Literal["registered", "amended", "exploratory", "unregistered"]
Kind = Literal["hypotheses", "falsifiers"]
SENTENCE = "hypothesis"
"""The study's hypothesis in words, beside `hypotheses` and `falsifiers`."""
_NO_PART = {
    "question", "hypothesis", "refuted_if", "hypotheses", "falsifiers", "study", "profile", "confirms", "objective",
    "baseline", "arms", "source",
}  # fmt: skip
"""What is no part of every claim; seeds, what they vary and --set are."""
_MOST = 60
"""Characters of a value in a difference."""


@dataclass(frozen=True)
class Badge:
    """What can be said of one claim; `differences` are ``what: was -> is``."""

    state: State
    text: str
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text}: {'; '.join(self.differences)}" if self.differences else self.text


@dataclass(frozen=True)
class Standing:
    """The badges of a study as its file is now."""

    hypothesis: Badge
    """Of the sentences `hypothesis` and `refuted_if`, or of the study where it has none."""
    hypotheses: dict[str, Badge]
    falsifiers: dict[str, Badge]
    withdrawn: tuple[str, ...]
    """Claims that were registered before the data and are no longer in the file, in words."""
    lines: tuple[Line, ...]

    def badges(self) -> dict[str, Badge]:
        """Of every hypothesis and falsifier, by its name; no two have the same."""
        return {**self.hypotheses, **self.falsifiers}

    @property
    def digest(self) -> str:
        """Of the chain's last line; empty without a chain."""
        return self.lines[-1].digest if self.lines else ""


def standing(study: Study, folder: StudyFolder, profile: str, overrides: Mapping[str, Any]) -> Standing:
    """Compare a study's file with what was registered before its data. `study`: as read, not the confirmation of a
    search. Raises `Damaged` for a chain that is not what was written."""
    lines = read_chain(folder) if is_registered(study) else []
    now = content_of(study, profile, overrides)
    count = ended(folder, lines)
    badges = {
        kind: {name: _badge(study, lines, now, count, kind, name) for name in now[kind]}
        for kind in ("hypotheses", "falsifiers")
    }
    sentence = _badge(study, lines, now, count, SENTENCE, "")
    if not study.hypothesis and not study.hypotheses:
        sentence = Badge("exploratory", "exploratory (no hypothesis was written down)")
    return Standing(
        sentence, badges["hypotheses"], badges["falsifiers"], tuple(_withdrawn(lines, now, count)), tuple(lines)
    )


def before_data(lines: list[Line]) -> Line | None:
    """The last line that was written before any trial had ended."""
    return next((line for line in reversed(lines) if line.ended == 0), None)


def _badge(study: Study, lines: list[Line], now: dict[str, Any], count: int, kind: str, name: str) -> Badge:
    if not is_registered(study):
        why = "imported" if study.source else "a single trial"
        return Badge("exploratory", f"exploratory ({why})")
    if not lines:
        if count:
            return Badge("exploratory", "exploratory (run before registration existed)")
        return Badge("unregistered", "not yet registered: the first trial registers it")
    own, first = _claim(now, kind, name), before_data(lines)
    was = _claim(first.content, kind, name) if first else None
    since = _since(lines, own, count, kind, name)
    if first is None:
        return Badge("exploratory", f"exploratory (run before registration existed; registered {since})")
    if was == own:
        return Badge("registered", "registered before the data", _seen(first))
    if was is None:
        return Badge("exploratory", f"exploratory (added {since})")
    if count == 0:
        return Badge("registered", "registered before the data (with the next start)")
    return Badge("amended", f"amended {since}", tuple(_differences(was, own or {})))


def _seen(line: Line) -> tuple[str, ...]:
    """Trials that were running are no data yet, but their curves could be watched."""
    return (f"{line.begun} {'trial' if line.begun == 1 else 'trials'} had begun",) if line.begun else ()


def _since(lines: list[Line], own: dict[str, Any] | None, count: int, kind: str, name: str) -> str:
    """After how many trials a claim became what it is now."""
    for line in reversed(lines):
        if _claim(line.content, kind, name) != own:
            break
        count = line.ended
    return f"after {count} {'trial' if count == 1 else 'trials'}"


def _claim(content: Mapping[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    """All that a claim depends on; None where it is not in the content."""
    shared = {key: value for key, value in content.items() if key not in _NO_PART}
    arms = content["arms"]
    if kind == SENTENCE:
        keys = ("hypothesis", "refuted_if", "objective", "baseline")
        own = {key: content[key] for key in keys if content.get(key) is not None}
        return {**own, "arms": arms, **shared} if own.keys() & {"hypothesis"} else None
    own = content[kind].get(name)
    if own is None:
        return None
    named = own.get("speaks_of") or own.get("order") or list(own.get("contrast") or {})
    named = [*named, *([own["baseline"]] if "baseline" in own else [])]  # of a claim that is relative to it
    return {**own, "settings": {arm: arms[arm] for arm in named if arm in arms}, **shared}


def _withdrawn(lines: list[Line], now: Mapping[str, Any], count: int) -> Iterator[str]:
    first = before_data(lines)
    if first is None or not count:
        return
    for kind in ("hypotheses", "falsifiers"):
        for name, claim in first.content[kind].items():
            if name not in now[kind]:
                yield f"{name} ({claim['claim']}), withdrawn {_since(lines, None, count, kind, name)}"


def _differences(was: Any, now: Any, key: str = "") -> Iterator[str]:
    """``threshold 0.025 -> 0.03`` of every entry that differs."""
    if isinstance(was, dict) and isinstance(now, dict):
        for part in dict.fromkeys([*was, *now]):
            if was.get(part) != now.get(part):
                yield from _differences(was.get(part), now.get(part), f"{key} {part}".strip())
    else:
        yield f"{key} {_word(was)} -> {_word(now)}"


def _word(value: Any) -> str:
    if value is None:
        return "none"
    text = ", ".join(map(_word, value)) if isinstance(value, list) else str(value)
    text = text or "none"
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
