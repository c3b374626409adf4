"""The verdicts on a study's hypotheses, in sentences, and as the file that other pages and the terminal read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import Fault
from pipeline.run.layout import Layout, StudyFolder, read_json
from reports.findings.hypotheses import Judgement, overall
from reports.records.load import StudyRecords
from reports.text.say import say
from studies.claims.badges import Badge
from studies.definition.hypotheses import expression
from studies.definition.schema import Study


def verdict_sentence(study: Study, judgements: Sequence[Judgement], badges: Mapping[str, Badge]) -> str:
    """The verdict on the hypothesis, the parts that decided it, and the parts that were not registered before the
    data."""
    outcome = overall(judgements)
    order = dict.fromkeys((outcome, "SUPPORTED", "REFUTED", "UNDECIDED", "NOT TESTED"))
    groups = {key: [one.hypothesis.name for one in judgements if one.outcome == key] for key in order}
    late = [name for name, badge in badges.items() if badge.state in ("late", "amended", "exploratory")]
    groups = {key: names for key, names in groups.items() if names}
    return say("hypotheses", "verdict", study.hypothesis, outcome, groups, late)


def confirmed_sentence(study: Study, folder: StudyFolder) -> str:
    """The study that a confirmation repeats, with the findings of its report; empty for any other study."""
    if not study.confirms:
        return ""
    found: dict[str, Any] = {}
    try:
        file = read_json(Layout(folder.root).study(study.confirms, folder.path.name).claims_file)
        found = {key: file[key] for key in ("answer", "verdict", "claims")}
    except (Fault, KeyError, TypeError):
        pass  # that study has no report here
    return say("hypotheses", "confirmed", study.confirms, found)


def summary(records: StudyRecords, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The verdict on a study's hypothesis and on each of its parts, as plain values."""
    badges = records.standing.hypotheses
    return {
        "verdict": verdict_sentence(records.study, judgements, badges),
        "hypotheses": [_judged(one, str(badges[one.hypothesis.name])) for one in judgements],
    }


def _judged(judgement: Judgement, badge: str) -> dict[str, Any]:
    hypothesis, step = judgement.hypothesis, judgement.deciding
    contrast = expression(step.weights) if len(judgement.steps) > 1 else ""
    found = say("hypotheses", "found", step, hypothesis.metric, judgement.p_holm, contrast)
    head = {key: getattr(hypothesis, key) for key in ("name", "claim", "condition")}
    verdict = {key: getattr(judgement, key) for key in ("outcome", "p", "p_holm", "reason")}
    return {**head, "badge": badge, **verdict, "found": found}
