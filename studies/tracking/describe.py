"""Tags and Markdown descriptions in MLflow, of a study's parent run and of each trial."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipeline.config.trial import flatten
from pipeline.errors import Fault
from pipeline.run.layout import StudyFolder, TrialRecord, read_json
from studies.claims.badges import standing
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
    parts = {
        "Question.": study.question,
        "Confirms.": study.confirms,
        "Hypothesis.": study.hypothesis,
        "Refuted if.": study.refuted_if,
        "Tables and figures.": f"`ablate report {study.name}`",
    }
    note = "\n\n".join(f"**{title}** {text}" for title, text in parts.items() if text)
    tags = {"study": study.name, "profile": profile, NOTE: note}
    try:
        claims = standing(study, folder, profile, folder.started().get("overrides") or {})
    except Fault as error:
        return {**tags, "registration": str(error)}
    tags |= {key_of("badge.", name): str(badge) for name, badge in claims.badges().items()}
    tags |= {"registration": claims.digest or "none", "badge": str(claims.hypothesis)}
    with suppress(Fault, KeyError, TypeError):
        found = read_json(folder.claims_file)
        tags["hypothesis"] = str(found["verdict"])
        for one in found["hypotheses"]:
            tags[key_of("hypothesis.", one["name"])] = f"{one['outcome']}: {one['found'] or one['reason']}"
    return tags


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
    """Tags of a trial from its start on; its description lists what sets its arm apart."""
    own = study.arm_overrides().get(arm) or dict.fromkeys(study.search.space if study.search else ())
    values = dict(flatten(config))
    note = "; ".join(f"`{key}` = {values.get(key, value)}" for key, value in own.items()) or "as the profile"
    return {"arm": arm, "seed": str(seed), "study": study.name, NOTE: note, **tags_of_environment(environment)}


def tags_of_record(study: Study, record: TrialRecord, verdicts: Sequence[Verdict], health: Health) -> dict[str, str]:
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
    return {**tags, "health": health.words}


def tags_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Tags of a run's hardware and software."""
    tags = {name: environment[name] for name in OWN_TAGS if name in environment}
    tags["versions"] = ", ".join(f"{name} {text}" for name, text in sorted(environment.items()) if name not in OWN_TAGS)
    commit = environment.get("git_commit", "unknown").split(" ")[0]
    return {**tags, GIT: commit} if commit != "unknown" else tags


def key_of(prefix: str, name: str) -> str:
    """A claim's name as MLflow takes it."""
    return prefix + re.sub(r"[^\w.\- ]", "_", name)
