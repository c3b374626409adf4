"""The report of a study: one self-contained page, Markdown, tables and figures, equal to the byte for equal records."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.config.trial import TrialConfig, flatten
from pipeline.run.layout import StudyFolder
from pipeline.run.metrics import METRICS
from reports.figures.registry import Words, draw
from reports.figures.second_process import Helper
from reports.findings.findings import Findings, analyse
from reports.pages.inline import inline_svg
from reports.pages.page import environment, replace_folder, write_text
from reports.records.load import StudyRecords, load_records
from reports.tables.results import all_tables
from reports.tables.table import Table, markdown, write
from reports.text.answer import Answer, answer, claim_sentence
from reports.text.hypotheses import confirmed_sentence, summary, verdict_sentence
from reports.text.methods import methods
from studies.definition.design import Cell
from studies.definition.schema import Study

OPEN_SAMPLES = 3


@dataclass(frozen=True)
class Shown:
    """A figure as the page shows it; `svg` is empty where there was nothing to draw."""

    name: str
    title: str
    caption: str
    alt: str
    wide: bool
    svg: Markup


@dataclass(frozen=True)
class Completion:
    """One answer to a sample prompt."""

    who: str
    text: str
    gold: str
    proxy: str
    result: str


@dataclass(frozen=True)
class Sample:
    """One held-out prompt with what the reference and every arm made of it."""

    prompt: str
    completions: tuple[Completion, ...]


def render_report(
    folder: StudyFolder,
    study: Study,
    intact: Collection[str] = (),
    beside: Helper | None = None,
    *,
    without_missing: bool = False,
) -> Path:
    """Write the report of a study from its records and return the page's path.

    `intact`: files of the report that stands, by their path in it, which are known to be drawn from the same; its
    figures are taken over. `beside`: a second process that draws some of the figures. `without_missing`: see
    `reports.records.load.load_records`.

    Everything is made in a folder beside, which then takes the old one's place: a render that is interrupted
    leaves the old report whole. Raises `UserError` when the study was never run or the folder cannot be written,
    `Damaged` for a file that is not what was written, and `Lost` where results are no longer on disk.
    """
    records = load_records(folder, study, without_missing=without_missing)
    findings = analyse(records)
    earlier = {Path(name).name: folder.report / name for name in intact if name.startswith("figures/")}
    replace_folder(folder.report, lambda new: build(records, findings, new, earlier, beside))
    return folder.report / "index.html"


def build(
    records: StudyRecords,
    findings: Findings,
    folder: Path,
    earlier: Mapping[str, Path] | None = None,
    beside: Helper | None = None,
) -> None:
    """Write every file of the report into an empty or absent `folder`; figures in `earlier` are taken over as they
    are."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = all_tables(records, findings)
    write(tables, folder / "tables")
    samples = records.samples.sort_values(["prompt_id", "arm", "seed"], kind="stable")
    samples.to_csv(folder / "tables" / "samples.csv", index=False, lineterminator="\n")
    drawn = list(draw(records, findings, folder / "figures", earlier, beside))
    figures = [_shown(name, figure, folder / "figures") for name, figure in drawn]
    reply = answer(records, findings)
    page = environment().get_template("report.html.j2").render(**_context(records, findings, reply, tables, figures))
    write_text(folder / "index.html", page)
    found = {
        "answer": reply.sentence,
        "crossing": reply.crossing,
        **summary(records, findings.hypotheses),
        "claims": reply.claims,
    }
    write_text(folder / records.folder.claims_file.name, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    write_text(folder / "report.md", _markdown_report(records, findings, reply, tables, figures))


def _context(
    records: StudyRecords, findings: Findings, reply: Answer, tables: list[Table], figures: list[Shown]
) -> dict[str, Any]:
    sample_seed, samples = _samples(records)
    return {
        "records": records,
        "study": records.study,
        "findings": findings,
        "answer": reply,
        "tables": {table.name: table for table in tables},
        "figures": figures,
        "samples": samples,
        "sample_seed": sample_seed,
        "open_samples": OPEN_SAMPLES,
        "verdict": verdict_sentence(records.study, findings.hypotheses, records.standing.hypotheses),
        "confirmed": confirmed_sentence(records.study, records.folder),
        "claims": [(claim, claim_sentence(claim)) for claim in findings.claims],
        "arms": records.study.arm_overrides(),
        "config": _baseline_config(records),
        "environments": _environments(records),
        "metrics": list(METRICS.values()),
        "finished": max((str(day) for day in records.trials["finished"].dropna()), default=""),
        "methods": methods(records, findings),
    }


def _shown(name: str, drawn: Words | None, folder: Path) -> Shown:
    if drawn is None:
        title = name.replace("_", " ").capitalize()
        return Shown(
            name,
            title,
            "The study asks for this figure, but its records hold nothing to draw in it.",
            "",
            False,
            Markup(),
        )
    svg = Markup(inline_svg(folder / f"{name}.svg", name))  # ours: matplotlib escapes every text in it
    return Shown(name, drawn.title, drawn.caption, drawn.alt, drawn.wide, svg)


def _samples(records: StudyRecords) -> tuple[int | None, list[Sample]]:
    """The fixed prompts as answered in the first of the seeds that most arms were evaluated with."""
    frame = records.samples
    if frame.empty:
        return None, []
    arms_of = frame.groupby("seed")["arm"].nunique()
    numbers = records.numbers
    seed = min(numbers, key=lambda candidate: (-int(arms_of.get(candidate, 0)), numbers.index(candidate)))
    chosen = frame[frame["seed"] == seed]
    order = {arm: index for index, arm in enumerate(records.arms)}
    result = []
    for _, rows in chosen.groupby("prompt_id", sort=True):
        ordered = rows.to_dict("records")
        ordered.sort(key=lambda row: order[str(row["arm"])])
        result.append(Sample(str(ordered[0]["prompt"]), tuple(_completions(ordered))))
    return seed, result


def _completions(rows: list[dict[Any, Any]]) -> Iterator[Completion]:
    first = rows[0]
    scores = _score(first["reference_completion_gold"]), _score(first["reference_completion_proxy"])
    yield Completion("reference", str(first["reference_completion"]), *scores, "")
    for row in rows:
        scores = _score(row["policy_gold"]), _score(row["policy_proxy"])
        yield Completion(
            str(row["arm"]), str(row["policy_completion"]), *scores, f"wins {100 * float(row['win']):.0f} %"
        )


def _score(value: Any) -> str:
    return f"{float(value):.2f}".replace("-", "−")


def _baseline_config(records: StudyRecords) -> list[tuple[str, str, str]]:
    """Key, value in the baseline, and the arms' values where they differ, an algorithm's own settings included."""
    cell = next(cell for cell in records.plan if cell.arm == records.study.baseline)
    if not isinstance(cell, Cell):
        own = {arm: dict(flatten(overrides)) for arm, overrides in records.study.arm_overrides().items()}
        return _stated(records, own)
    same_seed = [other for other in records.plan if isinstance(other, Cell) and other.seed == cell.seed]
    values = {other.arm: _values(other) for other in same_seed}
    rows = []
    for key, value in _values(cell).items():
        others = [f"{arm}: {given[key]}" for arm, given in values.items() if key in given and given[key] != value]
        rows.append((key, str(value), ", ".join(others) + _description(key) * (not others)))
    return rows


def _values(cell: Cell) -> dict[str, Any]:
    """Every setting of a trial but its seed."""
    content = cell.config.model_dump(mode="json", exclude={"profile": True, "train": {"seed"}})
    return dict(flatten(content))


def _stated(records: StudyRecords, own: dict[str, dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The same for trials whose configuration is not ours: what the study's file says of the arms, and how their logs
    were read."""
    rows = []
    for key in dict.fromkeys(key for said in own.values() for key in said):
        others = [f"{arm}: {said[key]}" for arm, said in own.items() if key in said and arm != records.study.baseline]
        rows.append((key, str(own[records.study.baseline].get(key, "–")), ", ".join(others)))
    read = dict(pair for record in records.records.values() for pair in flatten(record.config.get("mapping", {})))
    return rows + [(f"mapping.{key}", str(value), "how the logs were read") for key, value in read.items()]


def _description(key: str) -> str:
    section, _, name = key.partition(".")
    info = TrialConfig.model_fields[section].annotation
    field = info.model_fields.get(name) if info is not None and hasattr(info, "model_fields") else None
    return (field.description or "") if field is not None else ""


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


def _markdown_report(
    records: StudyRecords, findings: Findings, reply: Answer, tables: list[Table], figures: list[Shown]
) -> str:
    study = records.study
    lines = [
        f"# {study.question}",
        "",
        f"Study {study.name}, profile {records.profile}, design {records.digest}.",
        "",
        f"**{reply.use or reply.sentence}**",
        "",
        *([reply.crossing, ""] if reply.crossing else []),
    ]
    verdict = verdict_sentence(study, findings.hypotheses, records.standing.hypotheses)
    confirmed = confirmed_sentence(study, records.folder)
    first = filter(None, [reply.sentence * bool(reply.use), confirmed, verdict, reply.drift])
    lines += [f"- {sentence}" for sentence in (*first, *reply.claims, *reply.caveats)] + [""]
    lines += [f"Hypothesis, {records.standing.hypothesis}: {study.hypothesis}", ""] if study.hypothesis else []
    lines += [f"Refuted if: {study.refuted_if}", ""] if study.refuted_if else []
    for table in tables:
        if table.rows:
            lines += [f"## {table.title}", "", markdown(table), table.note, ""]
    for figure in figures:
        lines += [f"## {figure.title}", ""]
        lines += [f"![{figure.alt}](figures/{figure.name}.png)", ""] if figure.svg else []
        lines += [figure.caption, ""]
    return "\n".join(lines)
