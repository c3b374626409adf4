"""Tags and Markdown descriptions in MLflow, of a study's parent run and of each trial."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipeline.config.trial import flatten
from pipeline.errors import Fault
from pipeline.run.layout import StudyFolder, TrialRecord, read_json
from studies.claims.badges import Standing, standing
from studies.claims.falsifiers import Verdict, overall, tally
from studies.claims.symptoms import Health
from studies.definition.schema import Study
from studies.definition.search import SEARCH, violations

NOTE = "mlflow.note.content"
GIT = "mlflow.source.git.commit"
OWN_TAGS = ("device", "precision")
"""Facts of the environment with a tag of their own; the tag `versions` holds the others."""


def tags_of_study(study: Study, folder: StudyFolder, profile: str) -> dict[str, str]:
    """Tags of the parent run: when each claim was registered, and the report's verdicts on the hypotheses."""
    tags = {"study": study.name, "profile": profile}
    try:
        claims = standing(study, folder, profile, folder.started().get("overrides") or {})
    except Fault as error:
        return {**tags, "registration": str(error), NOTE: _note_of_study(study)}
    tags |= {key_of("badge.", name): str(badge) for name, badge in claims.badges().items()}
    tags |= {"registration": claims.digest or "none", "badge": str(claims.hypothesis)}
    with suppress(Fault, KeyError, TypeError):
        found = read_json(folder.claims_file)
        tags["hypothesis"] = str(found["verdict"])
        for one in found["hypotheses"]:
            tags[key_of("hypothesis.", one["name"])] = f"{one['outcome']}: {one['found'] or one['reason']}"
    return {**tags, NOTE: _note_of_study(study, claims)}


def tags_of_verdicts(study: Study, verdicts: Sequence[Verdict]) -> tuple[dict[str, str], dict[str, float]]:
    """Tags of the parent run: the verdict on the study and on each claim; and the numbers of trials by outcome."""
    if not verdicts:
        return {}, {}
    tags: dict[str, str] = {"verdict": overall(verdicts)}
    for falsifier in study.falsifiers:
        own = [verdict for verdict in verdicts if verdict.name == falsifier.name]
        counts = ", ".join(f"{n} {outcome}" for outcome, n in tally(own).items())
        tags[key_of("falsifier.", falsifier.name)] = f"{overall(own)}: {counts or 'no trial'}"
    return tags, {f"falsifier/{outcome.lower().replace(' ', '_')}": float(n) for outcome, n in tally(verdicts).items()}


def tags_of_trial(
    study: Study, arm: str, seed: int, config: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, str]:
    """Tags of a trial from its start on."""
    note = f"**Trial.** Arm `{arm}`, seed {seed}. {_difference(study, arm, config)}"
    return {"arm": arm, "seed": str(seed), "study": study.name, NOTE: note, **tags_of_environment(environment)}


def tags_of_record(
    study: Study, folder: StudyFolder, record: TrialRecord, verdicts: Sequence[Verdict], health: Health
) -> dict[str, str]:
    """Tags of a trial that has ended; its status is a tag of every run."""
    tags = tags_of_trial(study, record.arm, record.seed, record.config, record.environment)
    tags |= {f"stage.{name}": stage.key for name, stage in record.stages.items()}
    tags |= {key_of("falsifier.", one.name): f"{one.outcome}: {one.reason}" for one in verdicts}
    tags |= {"verdict": overall(verdicts)} if verdicts else {}
    tags |= {"reason": record.reason} if record.reason else {}
    if study.search is not None and record.arm.startswith(SEARCH):
        broken = max(violations(study, record.status, record.summary).values())
        tags |= {"phase": "search", "feasible": "no" if broken > 0 else "yes"}
    elif study.search is not None:
        tags["phase"] = "confirmation"
    return {**tags, "health": health.words, NOTE: tags[NOTE] + _note_of_end(folder, record, verdicts, health)}


def tags_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Tags of a run's hardware and software."""
    tags = {name: environment[name] for name in OWN_TAGS if name in environment}
    tags["versions"] = ", ".join(f"{name} {text}" for name, text in sorted(environment.items()) if name not in OWN_TAGS)
    commit = environment.get("git_commit", "unknown").split(" ")[0]
    return {**tags, GIT: commit} if commit != "unknown" else tags


def key_of(prefix: str, name: str) -> str:
    """A claim's name as MLflow takes it."""
    return prefix + re.sub(r"[^\w.\- ]", "_", name)


def _note_of_study(study: Study, claimed: Standing | None = None) -> str:
    """Describe a study: its question, its claims and when they were made, and how to read the answer."""
    parts = [f"- **{part.name}**: {part.claim}. Expected: `{part.condition}`." for part in study.hypotheses]
    claims = [f"- **{claim.name}**: {claim.claim}. Refuted by `{claim.condition}`." for claim in study.falsifiers]
    if claimed:
        parts = [f"{line} *{badge}*" for line, badge in zip(parts, claimed.hypotheses.values(), strict=True)]
        claims = [f"{line} *{badge}*" for line, badge in zip(claims, claimed.falsifiers.values(), strict=True)]
    sections = {
        "Question.": study.question,
        "Confirms.": study.confirms,
        "Hypothesis.": study.hypothesis,
        "Refuted if.": study.refuted_if,
        "Written down.": str(claimed.hypothesis) if claimed else "",
        "Hypotheses": "\n" + "\n".join(parts) if parts else "",
        "Falsifiers": "\n" + ("\n".join(claims) or "- none"),
    }
    head = "\n\n".join(f"**{title}** {text}" for title, text in sections.items() if text)
    return (
        f"{head}\n\n**How to read it.** Group the runs by the tag `arm` (baseline `{study.baseline}`). Steps are"
        f" planned gradient steps. Tables and figures: `ablate report {study.name}`."
    )


def _note_of_end(folder: StudyFolder, record: TrialRecord, verdicts: Sequence[Verdict], health: Health) -> str:
    """Describe a trial's end: its status, health and verdicts, and the place of its samples and the report."""
    claims = "\n".join(f"- **{verdict.name}**: {verdict.outcome}; {verdict.reason}" for verdict in verdicts) or "- none"
    samples = [f"`{stage}/samples.csv`" for stage in ("evaluate", "train") if stage in record.stages]
    report = folder.report.relative_to(folder.root) / "index.html"
    symptoms = "".join(f"\n- {one.sentence}" for one in health.symptoms)
    return (
        f"\n\n**End.** {record.status} after {record.steps:,} gradient steps"
        f"{f': {record.reason}' if record.reason else ''}.\n\n"
        + (f"**Health**\n{symptoms}" if symptoms else f"**Health.** {health.words}.")
        + f"\n\n**Verdicts**\n\n{claims}\n\n"
        + (f"**Samples.** {' and '.join(samples)} under Artifacts. " if samples else "")
        + f"**Report.** `{report.as_posix()}` under the output root."
    )


def _difference(study: Study, arm: str, config: Mapping[str, Any]) -> str:
    if arm == study.baseline:
        return "It is the baseline."
    arms, values = study.arm_overrides(), dict(flatten(config))
    base = arms[study.baseline]
    own = arms.get(arm) or {key: values.get(key) for key in (study.search.space if study.search else {})}
    changes = [
        f"`{key}` = {own.get(key, values.get(key))}" + (f" (baseline: {base[key]})" if key in base else "")
        for key in {**own, **base}
    ]
    return f"It differs from the baseline `{study.baseline}` in {', '.join(changes)}."
