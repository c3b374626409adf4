"""The report of a study: one self-contained page, Markdown, tables and figures, equal to the byte for equal records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pipeline.config.effects import content_of, fields_along
from pipeline.config.trial import TrialConfig, flatten
from pipeline.run.layout import StudyFolder
from pipeline.run.metrics import METRICS, scores_as_logged
from reports.figures.registry import draw
from reports.findings.findings import Findings, analyse
from reports.pages.page import inline_svg, rendered, replace_folder, write_text
from reports.records.load import StudyRecords, load_records
from reports.tables.results import all_tables
from reports.tables.table import Table, write
from reports.text.answer import answer
from reports.text.hypotheses import confirmed_sentence, summary, verdict_sentence
from reports.text.methods import methods
from reports.text.words import interval
from studies.claims.symptoms import BANDS
from studies.definition.schema import Study

if TYPE_CHECKING:
    from reports.figures.style import Plot


def render_report(folder: StudyFolder, study: Study) -> Path:
    """Write the report of a study from its records and return the page's path.

    Everything is made in a new folder, which then takes the place of the old one: a render that is interrupted
    leaves the old report whole. Raises `UserError` when the study was never run or the folder cannot be written,
    `Damaged` for a file that is not what was written, and `Gone` where results are no longer on disk.
    """
    records = load_records(folder, study)
    findings = analyse(records)
    with scores_as_logged(study.foreign):
        replace_folder(folder.report, lambda new: build(records, findings, new))
    return folder.report / "index.html"


def build(records: StudyRecords, findings: Findings, folder: Path) -> None:
    """Write every file of the report into an empty or absent `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = all_tables(records, findings)
    write(tables, folder / "tables")
    samples = records.samples.sort_values(["prompt_id", "arm", "seed"], kind="stable")
    samples.to_csv(folder / "tables" / "samples.csv", index=False, lineterminator="\n")
    drawn = list(draw(records, findings, folder / "figures"))
    figures = [_shown(name, figure, folder / "figures") for name, figure in drawn]
    shown = _context(records, findings, tables, figures)
    write_text(folder / "index.html", rendered("report.html.j2", shown))
    write_text(folder / "report.md", rendered("report.md.j2", shown))
    reply, judged = shown["answer"], summary(records, findings.hypotheses)
    arms = {one.arm: {key: interval(value, key) for key, value in one.estimates.items()} for one in findings.arms}
    found = {"answer": reply.sentence, "crossing": reply.crossing, **judged, "claims": reply.claims, "arms": arms}
    write_text(folder / records.folder.claims_file.name, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _context(
    records: StudyRecords, findings: Findings, tables: Sequence[Table], figures: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Every value that the templates of the page use."""
    sample_seed, samples = _samples(records)
    return {
        "records": records,
        "study": records.study,
        "answer": answer(records, findings),
        "tables": {table.name: table for table in tables},
        "figures": figures,
        "samples": samples,
        "sample_seed": sample_seed,
        "verdict": verdict_sentence(records.study, findings.hypotheses, records.standing.hypotheses),
        "confirmed": confirmed_sentence(records.study, records.folder),
        "claims": findings.claims,
        "arms": len(records.arms),
        "config": _baseline_config(records),
        "environments": _environments(records),
        "metrics": list(METRICS.values()),
        "bands": BANDS,
        "finished": max((str(day) for day in records.trials["finished"].dropna()), default=""),
        "methods": methods(records, findings),
    }


def _shown(name: str, drawn: Plot | None, folder: Path) -> dict[str, Any]:
    """A figure as the page shows it; `svg` is empty where there was nothing to draw."""
    if drawn is None:
        nothing = "The study asks for this figure, but its records hold nothing to draw in it."
        return {"name": name, "title": name.replace("_", " ").capitalize(), "caption": nothing, "svg": ""}
    shown = {key: getattr(drawn, key) for key in ("title", "caption", "alt", "wide")}
    svg = Markup(inline_svg(folder / f"{name}.svg", name))  # ours: matplotlib escapes every text in it
    return {"name": name, **shown, "svg": svg}


def _samples(records: StudyRecords) -> tuple[int | None, list[dict[str, Any]]]:
    """The first of the seeds that most arms were evaluated with, and the answers of reference and arms to each of the
    fixed prompts with that seed."""
    frame = records.samples
    if frame.empty:
        return None, []
    arms_of = frame.groupby("seed")["arm"].nunique()
    seed = max(records.seeds, key=lambda candidate: int(arms_of.get(candidate, 0)))  # the first of equal ones
    groups = (rows.to_dict("records") for _, rows in frame[frame["seed"] == seed].groupby("prompt_id"))
    return seed, [{"prompt": str(rows[0]["prompt"]), "completions": _completions(rows)} for rows in groups]


def _completions(rows: list[dict[Any, Any]]) -> list[dict[str, str]]:
    answers = [("reference", rows[0], "reference_completion", "")]
    answers += [(str(row["arm"]), row, "policy", f"wins {100 * float(row['win']):.0f} %") for row in rows]
    return [
        {
            "who": who,
            "text": str(row["policy_completion" if source == "policy" else source]),
            "gold": _score(row[f"{source}_gold"]),
            "proxy": _score(row[f"{source}_proxy"]),
            "result": result,
        }
        for who, row, source, result in answers
    ]


def _score(value: Any) -> str:
    return f"{float(value):.2f}".replace("-", "−")


def _baseline_config(records: StudyRecords) -> list[tuple[str, str, str]]:
    """Key, value in the baseline, and the arms' values where they differ, an algorithm's own settings included."""
    values = {arm: _values(config) for arm, config in records.configs.items()}
    rows = []
    for key, value in values.get(records.study.baseline, {}).items():
        others = [f"{arm}: {given[key]}" for arm, given in values.items() if key in given and given[key] != value]
        field = fields_along(TrialConfig, key)[-1]
        rows.append((key, str(value), ", ".join(others) or (field.description if field else "") or ""))
    return rows


def _values(config: TrialConfig) -> dict[str, Any]:
    """The settings of a trial that act, but for its seed."""
    acting = dict(flatten(content_of(config, config)))
    return {key: value for key, value in acting.items() if key not in ("profile", "train.seed", "runtime.code")}


def _environments(records: StudyRecords) -> list[tuple[str, list[tuple[str, str]]]]:
    """Distinct environments of the trials with the trials that ran in them; the driver's where nothing has run."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for (arm, seed), record in sorted(records.records.items()):
        groups.setdefault(tuple(sorted(record.environment.items())), []).append(f"{arm} seed {seed}")
    if not groups:
        started = records.started["environment"]
        groups = {tuple(sorted((str(k), str(v)) for k, v in started.items())): []}
    total = sum(map(len, groups.values()))
    return [
        ("all trials" if len(trials) == total else ", ".join(trials), list(items)) for items, trials in groups.items()
    ]
