"""What became of a study's hypotheses, in sentences, and as the file that other pages and the terminal read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import Fault
from pipeline.run.layout import Layout, StudyFolder, read_json
from reports.findings.hypotheses import Judgement, Step, overall
from reports.records.load import StudyRecords
from reports.text.words import counted, listed, p_value, signed
from studies.claims.badges import Badge
from studies.definition.hypotheses import expression
from studies.definition.schema import Study

_VERDICTS = {"SUPPORTED": "supported", "REFUTED": "refuted", "UNDECIDED": "undecided", "NOT TESTED": "not tested"}


def verdict_sentence(study: Study, judgements: Sequence[Judgement], badges: Mapping[str, Badge]) -> str:
    """What became of the hypothesis, which part decided it, and which parts were not there before the data."""
    if not study.hypothesis and not judgements:
        return "No hypothesis was written down, so all findings of this study are exploratory."
    if not judgements:
        return "The hypothesis is not machine-checked: the study lists no parts of it under `hypotheses`."
    outcome = overall(judgements)
    groups = {
        word: [one.hypothesis.name for one in judgements if one.outcome == key] for key, word in _VERDICTS.items()
    }
    first = _VERDICTS[outcome]
    order = [first, *(word for word in groups if word != first)]
    parts = [
        f"{listed(groups[word])} {'is' if len(groups[word]) == 1 else 'are'} {word}" for word in order if groups[word]
    ]
    late = [name for name, badge in badges.items() if badge.state in ("late", "amended", "exploratory")]
    beware = f" Not registered in this form before the data: {listed(late)}." if late else ""
    if outcome == "SUPPORTED":
        # Not the hypothesis: a claim about single trials, which is no part of it here, may have fallen.
        which = (
            "only part of the hypothesis is"
            if len(judgements) == 1
            else f"{len(judgements)} parts of the hypothesis are"
        )
        return f"The {which} supported: {listed(groups[first])}.{beware}"
    return f"The hypothesis is {first}: {'; '.join(parts)}.{beware}"


def _found(judgement: Judgement) -> str:
    """The estimate that decides, ``+0.4 [+0.1, +0.7] (5 seeds × 512 prompts, p 0.012, Holm 0.048)``; empty without
    one."""
    step = judgement.deciding
    if step.estimate is None:
        return ""
    effect = step.estimate
    size = counted(effect.seeds, "seed") + (f" × {effect.prompts} prompts" if effect.prompts else "")
    which = f"{expression(step.weights)} is " if len(judgement.steps) > 1 else ""
    p = f"p {p_value(step.p)}" + (f", Holm {p_value(judgement.p_holm)}" if judgement.p_holm is not None else "")
    return f"{which}{signed(effect, judgement.hypothesis.metric)} ({size}, {p})"


def confirmed_sentence(study: Study, folder: StudyFolder) -> str:
    """Of the confirmation of a study: what it confirms, and what the report of that says; empty of any other study."""
    if not study.confirms:
        return ""
    head = f"This study repeats {study.confirms} on fresh seeds, to confirm what was found there."
    try:
        found = read_json(Layout(folder.root).study(study.confirms, folder.path.name).claims_file)
        return f"{head} Found there: {found['answer']} {found['verdict']} {' '.join(found['claims'])}".strip()
    except (Fault, KeyError, TypeError):
        return f"{head} {study.confirms} has no report here."


def summary(records: StudyRecords, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The verdict on a study's hypothesis and on each of its parts, as plain values."""
    badges = records.standing.hypotheses
    return {
        "verdict": verdict_sentence(records.study, judgements, badges),
        "hypotheses": [_judged(one, str(badges[one.hypothesis.name])) for one in judgements],
    }


def _judged(judgement: Judgement, badge: str) -> dict[str, Any]:
    """A judgement as plain values."""
    return {
        "name": judgement.hypothesis.name,
        "claim": judgement.hypothesis.claim,
        "condition": judgement.hypothesis.condition,
        "badge": badge,
        "outcome": judgement.outcome,
        "p": judgement.p,
        "p_holm": judgement.p_holm,
        "reason": judgement.reason,
        "found": _found(judgement),
        "steps": [_step(step) for step in judgement.steps],
    }


def _step(step: Step) -> dict[str, Any]:
    effect = step.estimate
    numbers = {key: getattr(effect, key, None) for key in ("value", "low", "high", "seeds", "prompts")}
    return {"contrast": expression(step.weights), **numbers, "p": step.p, "as_expected": step.holds}
