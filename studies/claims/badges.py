"""Badges: whether a claim was written down before the data, changed after them, or made up from them.

Data are the results of the trials that judge the claim, whichever study ran them: a trial counts from the moment when
its training first ended, as the store states it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.run.layout import StudyFolder, TrialRecord
from studies.claims.registration import Line, content_of, ended, is_registered, read_chain
from studies.definition.checks import CONFIRM
from studies.definition.schema import Study
from studies.definition.search import SEARCH

State = Literal["registered", "late", "amended", "exploratory", "unregistered"]
"""``late``: registered before this study's first trial ended, but another study had already finished the same trial."""
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
    trials = [one for one in folder.records() if not one.arm.startswith(SEARCH)] if lines else []
    badges = {
        kind: {name: _badge(study, lines, now, count, trials, kind, name) for name in now[kind]}
        for kind in ("hypotheses", "falsifiers")
    }
    sentence = _badge(study, lines, now, count, trials, SENTENCE, "")
    if not study.hypothesis and not study.hypotheses:
        sentence = Badge("exploratory", "exploratory (no hypothesis was written down)")
    return Standing(
        sentence, badges["hypotheses"], badges["falsifiers"], tuple(_withdrawn(lines, now, count)), tuple(lines)
    )


def before_data(lines: list[Line]) -> Line | None:
    """The last line that was written before any trial had ended."""
    return next((line for line in reversed(lines) if line.ended == 0), None)


def _badge(
    study: Study,
    lines: list[Line],
    now: dict[str, Any],
    count: int,
    trials: Sequence[TrialRecord],
    kind: str,
    name: str,
) -> Badge:
    if not is_registered(study):
        why = "imported" if study.source else "a single trial"
        return Badge("exploratory", f"exploratory ({why})")
    if not lines:
        if count:
            return Badge("exploratory", "exploratory (run before registration existed)")
        return Badge("unregistered", "not yet registered: the first trial registers it")
    first, since = before_data(lines), _since(lines, now, count, kind, name)
    if first is None:
        return Badge("exploratory", f"exploratory (run before registration existed; registered {since})")
    was, own = _claim(first.content, kind, name), _claim(now, kind, name, first.content["arms"])
    if was == own:
        differences = tuple(_later_differences(lines, first, now, count, kind, name))
        if differences:
            return Badge("amended", f"amended {since}", differences)
        return _of_unchanged(lines, first, now, trials, kind, name)
    if count == 0:
        return Badge("unregistered", "registered with the next start")
    if was is None:
        return Badge("exploratory", f"exploratory (added {since})")
    return Badge("amended", f"amended {since}", tuple(_differences(was, own or {})))


def _later_differences(
    lines: list[Line], first: Line, now: dict[str, Any], count: int, kind: str, name: str
) -> Iterator[str]:
    """The differences of arms that `first` did not know. An arm counts as registered by the last line before another
    trial of the study ended."""
    added: dict[str, int] = {}
    registered: dict[str, Any] = {}
    for number, content in [*((line.ended, line.content) for line in lines), (count, now)]:
        for arm, own in content["arms"].items():
            if added.setdefault(arm, number) == number:
                registered[arm] = own
    for arm in _arms(now, kind, name):
        if not _knows(first, arm):
            yield from _differences(registered[arm], now["arms"][arm], f"settings {arm}")


def _of_unchanged(
    lines: list[Line], first: Line, now: dict[str, Any], trials: Sequence[TrialRecord], kind: str, name: str
) -> Badge:
    """Of a claim that is what it was in the last line before a trial of the study ended: the trials whose results were
    known, here or to another study, before the line that registered the claim on their arm. Results that the line
    lists were, whatever their times say; the times decide on results that were copied into the store later."""
    same = [_same(line, now, kind, name) for line in lines]
    start = lines.index(first)
    while start and same[start - 1]:
        start -= 1
    held = [line for line, kept in zip(lines[start:], same[start:], strict=True) if kept]
    arms = _arms(now, kind, name)
    own = [one for one in trials if one.arm in arms or (kind == SENTENCE and one.arm.startswith(CONFIRM))]
    by = {arm: line for line in reversed(held) for arm in (*arms, *(one.arm for one in own)) if _knows(line, arm)}
    late = {name for arm, line in by.items() for name in line.in_store if name.rpartition("/")[0] == arm}
    late |= {f"{one.arm}/{one.seed}" for one in own if _is_late(one, by.get(one.arm))}
    if late:
        count = len(late | {f"{one.arm}/{one.seed}" for one in own})
        when = "part of the data" if len(late) < count else "the data"
        had = f"{len(late)} of {count} {'trial' if count == 1 else 'trials'} had finished"
        return Badge("late", f"registered after {when} ({had})")
    begun = held[0].begun
    notes = [f"{begun} {'trial' if begun == 1 else 'trials'} had begun"] if begun else []
    added = [arm for arm in arms if not _knows(first, arm)]
    notes += [f"{'arms' if len(added) > 1 else 'arm'} {', '.join(added)} added later"] if added else []
    return Badge("registered", "registered before the data", tuple(notes))


def _is_late(trial: TrialRecord, line: Line | None) -> bool:
    """Whether a trial's own stages had finished by the time a line was written. The training of a trial without a
    gradient step is no result."""
    ends = [trial.stages[stage].finished for stage in ("train", "evaluate") if stage in trial.stages]
    known = [end or trial.finished for end in (ends if trial.steps else ends[-1:])]
    return bool(known) and (line is None or min(known) <= line.time)


def _knows(line: Line, arm: str) -> bool:
    """Whether an arm was part of the study, or of a search's confirmation, which a search names beforehand."""
    return arm in line.content["arms"] or arm.startswith(CONFIRM)


def _since(lines: list[Line], now: Mapping[str, Any], count: int, kind: str, name: str) -> str:
    """After how many trials a claim became what it is now."""
    for line in reversed(lines):
        if not _same(line, now, kind, name):
            break
        count = line.ended
    return f"after {count} {'trial' if count == 1 else 'trials'}"


def _same(line: Line, now: Mapping[str, Any], kind: str, name: str) -> bool:
    """Whether a claim was then what it is now on the arms that the study had; arms that came later change no claim."""
    return _claim(line.content, kind, name) == _claim(now, kind, name, line.content["arms"])


def _arms(content: Mapping[str, Any], kind: str, name: str) -> list[str]:
    """The arms whose trials judge a claim."""
    if kind == SENTENCE:
        return list(content["arms"])
    own = content[kind][name]
    named = own.get("speaks_of") or own.get("order") or list(own.get("contrast") or {})
    return [*named, *([own["baseline"]] if "baseline" in own else [])]  # of a claim that is relative to it


def _claim(
    content: Mapping[str, Any], kind: str, name: str, known: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """All that a claim depends on, without arms that are not in `known`; None where it is not in the content."""
    shared = {key: value for key, value in content.items() if key not in _NO_PART}
    arms = {arm: own for arm, own in content["arms"].items() if known is None or arm in known}
    if kind == SENTENCE:
        keys = ("hypothesis", "refuted_if", "objective", "baseline")
        own = {key: content[key] for key in keys if content.get(key) is not None}
        return {**own, "arms": arms, **shared} if own.keys() & {"hypothesis"} else None
    own = content[kind].get(name)
    if own is None:
        return None
    if "speaks_of" in own:
        own = {**own, "speaks_of": [arm for arm in own["speaks_of"] if arm in arms or arm.startswith(CONFIRM)]}
    return {**own, "settings": {arm: arms[arm] for arm in _arms(content, kind, name) if arm in arms}, **shared}


def _withdrawn(lines: list[Line], now: Mapping[str, Any], count: int) -> Iterator[str]:
    first = before_data(lines)
    if first is None or not count:
        return
    for kind in ("hypotheses", "falsifiers"):
        for name, claim in first.content[kind].items():
            if name not in now[kind]:
                yield f"{name} ({claim['claim']}), withdrawn {_since(lines, now, count, kind, name)}"


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
