"""Descriptions that MLflow shows, in Markdown: of a study's parent run, and of each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.trial import flatten
from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.symptoms import Health
from studies.claims.badges import Standing
from studies.claims.falsifiers import Verdict
from studies.definition.schema import Study


def of_study(study: Study, standing: Standing | None = None) -> str:
    """What is asked, what was claimed and when, and how to read the answer."""
    parts = [f"- **{part.name}**: {part.claim}. Expected: `{part.condition}`." for part in study.hypotheses]
    claims = [f"- **{claim.name}**: {claim.claim}. Refuted by `{claim.condition}`." for claim in study.falsifiers]
    if standing:
        parts = [f"{line} *{badge}*" for line, badge in zip(parts, standing.hypotheses.values(), strict=True)]
        claims = [f"{line} *{badge}*" for line, badge in zip(claims, standing.falsifiers.values(), strict=True)]
    sections = {
        "Question.": study.question,
        "Confirms.": study.confirms,
        "Hypothesis.": study.hypothesis,
        "Refuted if.": study.refuted_if,
        "Written down.": str(standing.hypothesis) if standing else "",
        "Hypotheses": "\n" + "\n".join(parts) if parts else "",
        "Falsifiers": "\n" + ("\n".join(claims) or "- none"),
    }
    head = "\n\n".join(f"**{title}** {text}" for title, text in sections.items() if text)
    return (
        f"{head}\n\n**How to read it.** Each nested run is one trial; group"
        f" the runs by the tag `arm` (baseline `{study.baseline}`) and compare `eval/win_rate` at matched"
        " `eval/kl_per_token`. Steps on the x-axis are planned gradient steps. A run whose `status` is diverged is a"
        f" result; budget means that a cap ended it. Verdicts: `ablate falsify {study.name}`; tables and figures:"
        f" `ablate report {study.name}`."
    )


def of_trial(study: Study, arm: str, seed: int, config: Mapping[str, Any]) -> str:
    """What sets a trial apart from the baseline."""
    return f"**Trial.** Arm `{arm}`, seed {seed}. {_difference(study, arm, config)}"


def of_record(
    study: Study, folder: StudyFolder, record: TrialRecord, verdicts: Sequence[Verdict], health: Health | None = None
) -> str:
    """The same of a trial that has ended, with how it ended, its health where given, its verdicts, and where its
    samples and the report are."""
    claims = "\n".join(f"- **{verdict.name}**: {verdict.outcome}; {verdict.reason}" for verdict in verdicts) or "- none"
    well = f"{_health(health)}\n\n" if health else ""
    samples = [f"`{stage}/samples.csv`" for stage in ("evaluate", "train") if stage in record.stages]
    report = folder.report.relative_to(folder.root) / "index.html"
    return (
        f"{of_trial(study, record.arm, record.seed, record.config)}\n\n**End.** {record.status} after {record.steps:,}"
        f" gradient steps{f': {record.reason}' if record.reason else ''}.\n\n{well}**Verdicts**\n\n{claims}\n\n"
        + (f"**Samples.** {' and '.join(samples)} under Artifacts. " if samples else "")
        + f"**Report.** `{report.as_posix()}` under the output root."
    )


def _health(health: Health) -> str:
    symptoms = "".join(f"\n- {one.sentence}" for one in health.symptoms)
    return f"**Health**\n{symptoms}" if symptoms else f"**Health.** {health.words}."


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
