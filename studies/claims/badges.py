"""Badges: whether a claim was written down before the data, changed after them, or made up from them.

Data are the results of the trials that judge the claim, whichever study ran them: a trial counts from the moment when
its training first ended, as the store states it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.run.layout import StudyFolder, TrialRecord
from studies.claims.registration import Line, content_of, ended, is_registered, read_chain
from studies.definition.checks import CONFIRM
from studies.definition.schema import Study
from studies.definition.search import SEARCH

State = Literal["registered", "late", "amended", "exploratory", "unregistered"]
"""``late``: registered before this study's first trial ended, but another study had already finished the same trial."""
SENTENCE = "hypothesis"
"""The study's hypothesis in words, beside `hypotheses` and `falsifiers`."""
_OF_SENTENCE = ("hypothesis", "refuted_if", "objective", "baseline")
_NO_PART = {
    "question", "hypothesis", "refuted_if", "hypotheses", "falsifiers", "study", "profile", "confirms", "objective",
    "baseline", "arms", "source",
}  # fmt: skip
"""Keys of the content outside every claim; seeds, what they vary and --set belong to each claim."""
_MOST = 60
"""Characters of a value in a difference."""
Content = Mapping[str, Any]


@dataclass(frozen=True)
class Badge:
    """The registration state of one claim; `differences` are ``key: was -> is``."""

    state: State
    text: str
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text}: {'; '.join(self.differences)}" if self.differences else self.text


@dataclass(frozen=True)
class Standing:
    """The badges of a study as its file is now."""

    hypothesis: Badge
    """Badge of the sentences `hypothesis` and `refuted_if`, or of the study where it has none."""
    hypotheses: dict[str, Badge]
    falsifiers: dict[str, Badge]
    withdrawn: tuple[str, ...]
    """Claims that were registered before the data and are no longer in the file, in words."""
    lines: tuple[Line, ...]

    def badges(self) -> dict[str, Badge]:
        """Badges of every hypothesis and falsifier by name; no two have the same name."""
        return {**self.hypotheses, **self.falsifiers}

    @property
    def digest(self) -> str:
        """Digest of the chain's last line; empty without a chain."""
        return self.lines[-1].digest if self.lines else ""


def standing(study: Study, folder: StudyFolder, profile: str, overrides: Mapping[str, Any]) -> Standing:
    """Compare a study's file with its registration before the data. `study`: as read, not the confirmation of a search.
    Raises `Damaged` for a chain that is not as written."""
    lines = read_chain(folder) if is_registered(study) else []
    now, count = content_of(study, profile, overrides), ended(folder, lines)
    trials = [one for one in folder.records() if not one.arm.startswith(SEARCH)] if lines else []
    if is_registered(study):
        claims = _Claims(lines, now, count, trials)
        hypotheses, falsifiers = (
            {name: claims.badge(kind, name) for name in now[kind]} for kind in ("hypotheses", "falsifiers")
        )
        sentence, withdrawn = claims.badge(SENTENCE, ""), tuple(claims.withdrawn())
    else:
        sentence = Badge("exploratory", f"exploratory ({'imported' if study.source else 'a single trial'})")
        hypotheses, falsifiers = (dict.fromkeys(now[kind], sentence) for kind in ("hypotheses", "falsifiers"))
        withdrawn = ()
    if not study.hypothesis and not study.hypotheses:
        sentence = Badge("exploratory", "exploratory (no hypothesis was written down)")
    return Standing(sentence, hypotheses, falsifiers, withdrawn, tuple(lines))


@dataclass(frozen=True)
class _Claims:
    """The data that badges are made from: the chain, the file now, how many trials have ended, and their records."""

    lines: Sequence[Line]
    now: Content
    count: int
    trials: Sequence[TrialRecord]

    @property
    def first(self) -> Line | None:
        """The last line that was written before any trial of the study had ended."""
        return next((line for line in reversed(self.lines) if line.ended == 0), None)

    def badge(self, kind: str, name: str) -> Badge:
        if not self.lines and self.count:
            return Badge("exploratory", "exploratory (run before registration existed)")
        if not self.lines:
            return Badge("unregistered", "not yet registered: the first trial registers it")
        since = self._since(kind, name)
        if self.first is None:
            return Badge("exploratory", f"exploratory (run before registration existed; registered {since})")
        own = _own(self.first.content, kind, name)
        arms = dict.fromkeys([*_arms(self.first.content, kind, name), *_arms(self.now, kind, name)])
        was = {**own, "settings": _some({**self._registered_arms(), **self.first.content["arms"]}, arms)}
        differences = tuple(
            _differences(was, {**_own(self.now, kind, name), "settings": _some(self.now["arms"], arms)})
        )
        if own and not differences:
            return self._of_unchanged(self.first, kind, name)
        if self.count == 0:
            return Badge("unregistered", "registered with the next start")
        if not own:
            return Badge("exploratory", f"exploratory (added {since})")
        return Badge("amended", f"amended {since}", differences)

    def withdrawn(self) -> Iterator[str]:
        """Claims that were registered before the data and have gone, in words."""
        for kind in ("hypotheses", "falsifiers") if self.first and self.count else ():
            for name, claim in self.first.content[kind].items() if self.first else ():
                if name not in self.now[kind]:
                    yield f"{name} ({claim['claim']}), withdrawn {self._since(kind, name)}"

    def _registered_arms(self) -> dict[str, Any]:
        """Each arm as it was in the last line before another trial of the study ended."""
        added: dict[str, int] = {}
        found: dict[str, Any] = {}
        for number, content in [*((line.ended, line.content) for line in self.lines), (self.count, self.now)]:
            found |= {arm: own for arm, own in content["arms"].items() if added.setdefault(arm, number) == number}
        return found

    def _same(self, line: Line, kind: str, name: str) -> bool:
        """Return whether a claim was then as it is now on the arms that the study had; later arms change no claim."""
        concerned = {*_arms(line.content, kind, name), *_arms(self.now, kind, name)}
        arms = [arm for arm in line.content["arms"] if arm in concerned]
        then = _own(line.content, kind, name), _some(line.content["arms"], arms)
        return then == (_own(self.now, kind, name), _some(self.now["arms"], arms))

    def _since(self, kind: str, name: str) -> str:
        """Return after how many trials a claim took its present form."""
        count = self.count
        for line in reversed(self.lines):
            if not self._same(line, kind, name):
                break
            count = line.ended
        return f"after {count} {'trial' if count == 1 else 'trials'}"

    def _of_unchanged(self, first: Line, kind: str, name: str) -> Badge:
        """Return the badge of a claim unchanged since before a trial of the study ended: late are the trials that had
        ended, here or in another study, before the line that registered the claim on their arm."""
        same = [self._same(line, kind, name) for line in self.lines]
        start = self.lines.index(first)
        while start and same[start - 1]:  # what was changed meanwhile is registered from when it was changed back
            start -= 1
        held = [line for line, kept in zip(self.lines[start:], same[start:], strict=True) if kept]
        arms = _arms(self.now, kind, name)
        own = [one for one in self.trials if one.arm in arms or (kind == SENTENCE and one.arm.startswith(CONFIRM))]
        late = sum(_is_late(one, next((line for line in held if _has_arm(line, one.arm)), None)) for one in own)
        if late:
            when = "part of the data" if late < len(own) else "the data"
            had = f"{late} of {len(own)} {'trial' if len(own) == 1 else 'trials'} had finished"
            return Badge("late", f"registered after {when} ({had})")
        added = [arm for arm in arms if not _has_arm(first, arm)]
        notes = [f"{'arms' if len(added) > 1 else 'arm'} {', '.join(added)} added later"] if added else []
        return Badge("registered", "registered before the data", tuple(notes))


def _is_late(trial: TrialRecord, line: Line | None) -> bool:
    """Return whether a trial's own stages had finished by the time a line was written. The training of a trial without
    a gradient step is no result."""
    ends = [trial.stages[stage].finished for stage in ("train", "evaluate") if stage in trial.stages]
    known = [end or trial.finished for end in (ends if trial.steps else ends[-1:])]
    return bool(known) and (line is None or min(known) <= line.time)


def _has_arm(line: Line, arm: str) -> bool:
    """Return whether an arm was part of the study, or of a search's confirmation, which a search names beforehand."""
    return arm in line.content["arms"] or arm.startswith(CONFIRM)


def _arms(content: Content, kind: str, name: str) -> list[str]:
    """The arms whose trials judge a claim; none where the claim is not in the content."""
    if kind == SENTENCE:
        return list(content["arms"])
    own = content[kind].get(name, {})
    named = own.get("speaks_of") or own.get("order") or list(own.get("contrast") or {})
    return [*named, *([own["baseline"]] if "baseline" in own else [])]  # of a claim that is relative to it


def _own(content: Content, kind: str, name: str) -> dict[str, Any]:
    """Everything that a claim depends on, without the settings of arms; empty where the claim is not in the content."""
    if kind == SENTENCE:
        own = {key: content[key] for key in _OF_SENTENCE if content.get(key) is not None}
        own = own if "hypothesis" in own else {}
    else:
        own = {key: value for key, value in content[kind].get(name, {}).items() if key != "speaks_of"}
    return own and {**own, **{key: value for key, value in content.items() if key not in _NO_PART}}


def _some(settings: Content, arms: Iterable[str]) -> dict[str, Any]:
    return {arm: settings.get(arm) for arm in arms}


def _differences(was: Any, now: Any, key: str = "") -> Iterator[str]:
    """``threshold 0.025 -> 0.03`` of every entry that differs."""
    if isinstance(was, dict) and isinstance(now, dict):
        for part in dict.fromkeys([*was, *now]):
            if was.get(part) != now.get(part):
                yield from _differences(was.get(part), now.get(part), f"{key} {part}".strip())
    else:
        yield f"{key} {_word(was)} -> {_word(now)}"


def _word(value: Any) -> str:
    text = ", ".join(map(_word, value)) if isinstance(value, list) else str(value)
    text = "none" if value is None else text or "none"
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
