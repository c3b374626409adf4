"""A study as it is published: a short page, and data by which anyone draws it and judges its claims again.

The data are two tables, which `ablate import` reads like the logs of any program, and a study file with the same arms,
hypotheses and claims. They do not depend on the settings and code that the trials were run with.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from pipeline.config.yaml_files import PlainDumper
from pipeline.errors import UserError
from pipeline.run.layout import StudyFolder
from pipeline.run.metrics import per_prompt
from reports.figures.frontier import frontier
from reports.figures.style import house_style
from reports.findings.findings import ENDS, Findings, analyse
from reports.findings.hypotheses import Judgement
from reports.pages.findings import AGAIN, CLAIMS, published_claims, repeated, write_index
from reports.pages.page import rendered, replace_folder, write_text
from reports.records.load import StudyRecords, load_records
from reports.tables.claims import claims_table
from reports.tables.results import arm_table
from reports.tables.table import DASH, Head, Table, TableCell, columns, declared, toned, words
from reports.text.answer import answer, machine
from studies.definition.schema import Study

SERIES = (*ENDS, "objective/kl_exact_per_token")
"""Series that are published, besides those that claims name."""
KEYS = ("eval/win_rate", "eval/gold", "eval/proxy", "eval/kl_per_token")
"""Columns of the table of arms, besides the objective."""
HEAD = "# Data of `ablate publish`. Draw it again: make published STUDY={name}\n"
_NOT_IMPORTED = {
    "name", "source", "profile", "arms", "grid", "factors", "interactions", "search", "vary", "confirm", "confirms",
    "figures",
}  # fmt: skip
"""Keys of a study about how trials are run."""


def publish(folder: StudyFolder, study: Study, root: Path) -> Path:
    """Write page and data of a study into a folder of its name below `root`, and the list of all findings there.

    Raises `UserError` for a study that has no trial of its own, and what `load_records` and `replace_folder` do.
    """
    records = load_records(folder, study)
    if study.foreign or not records.records:
        raise UserError(f"{study.name} cannot be published: no trial of it has run here")
    findings = analyse(records)
    name = study.confirms or study.name
    name += f"-{records.profile}" * (records.profile != study.profile) + AGAIN * bool(study.confirms)
    replace_folder(root / name, lambda new: _write(records, findings, name, new))
    write_index(root)
    return root / name / "README.md"


def _found(records: StudyRecords, findings: Findings, claims: Table) -> Iterator[dict[str, Any]]:
    """Yield a row per hypothesis and falsifier: its verdict as shown, and the numbers behind it."""
    wall = records.trials.get("cost/wall_s", pd.Series(dtype=float))
    of = {
        "study": records.study.name,
        "profile": records.profile,
        "trials": len(records.trials),
        "hours": float(wall.sum()) / 3600 if wall.notna().any() else None,
    }
    judged = (*findings.hypotheses, *findings.claims)
    for cells, one in zip(claims.rows, judged, strict=True):
        name, claim, verdict, effect, _, n, registered = cells
        yield {
            **of,
            "name": name.text,
            "claim": claim.text,
            "verdict": verdict.text,
            "effect": f"{effect.text} {effect.inline}".strip() if effect.detail else verdict.detail,
            "n": n.text,
            "registered": registered.text,
            **(_numbers(one) if isinstance(one, Judgement) else {}),
        }


def _numbers(one: Judgement) -> dict[str, Any]:
    hypothesis = one.hypothesis
    expected = {key: getattr(hypothesis, key) for key in ("metric", "at_equal_kl", "expect", "margin")}
    return {**expected, **columns("estimate", one.deciding.estimate)}


def _again(found: pd.DataFrame, first: Path) -> Table:
    """Show a row per claim: its verdict in the `first` run, a folder that may be absent, beside that on other seeds."""
    before = {row["name"]: row for row in published_claims(first)}
    rows = [{**row, "first": before.get(str(row["name"]))} for row in found.to_dict("records")]
    runs = [(row["first"]["verdict"], row["verdict"]) for row in rows if row["first"]]

    def verdict(row: Any) -> TableCell:
        return toned(row["verdict"], row["effect"] or "") if row else DASH

    shape = (
        (words("claim"), itemgetter("claim")),
        (words("first run"), lambda row: verdict(row["first"])),
        (words("on other seeds"), verdict),
        (Head("n on other seeds", "seeds × prompts"), itemgetter("n")),
    )
    values = {"first": first.name, "runs": repeated(runs), "written": sorted({row["registered"] for row in rows})}
    return declared("again", "Verdicts on other seeds", rows, shape, found, None, **values)


def _write(records: StudyRecords, findings: Findings, name: str, folder: Path) -> None:
    study = records.study
    named = [one.metric for one in study.falsifiers] + [one.metric for one in study.hypotheses]
    series = [key for key in dict.fromkeys((*SERIES, *named)) if key in records.curves.columns]
    recorded = records.curves[["arm", "seed", "step", *series]].dropna(subset=series or ["step"], how="all")
    ended = records.trials.rename(columns={"steps": "step"})
    once = [
        key for key in map(str, ended) if key.startswith("eval/") and per_prompt(key) is None and "win_rate" not in key
    ]
    diverged = ended[ended["status"] == "diverged"][["arm", "seed", "step"]]
    measured = ended[["arm", "seed", "step", *once]].dropna(subset=once or ["step"], how="all")
    steps = pd.concat([recorded, measured, diverged.assign(step=diverged["step"] + 1, **{SERIES[0]: math.inf})])
    for file, table in {"steps": steps, "prompts": records.prompts.dropna(axis=1, how="all")}.items():
        table.to_parquet(folder / f"{file}.parquet", index=False, compression="zstd", compression_level=19)
    content = study.model_dump(mode="json", exclude=_NOT_IMPORTED, exclude_defaults=True)
    content["imported"] = study.arm_overrides()
    for claim, own in zip(content.get("falsifiers", ()), study.falsifiers, strict=False):
        claim["metric"] = own.metric
        claim.pop("stop", None)
    text = HEAD.format(name=name)
    text += yaml.dump(content, Dumper=PlainDumper, sort_keys=False, width=110, allow_unicode=True)
    write_text(folder / f"published_{name}.yaml", text)
    shutil.copyfile(records.folder.registration_file, folder / records.folder.registration_file.name)
    claims = claims_table(records, findings)
    found = pd.DataFrame(_found(records, findings, claims))
    found.to_csv(folder / CLAIMS, sep="\t", index=False, lineterminator="\n")
    environments = sorted({machine(one.environment) for one in records.records.values()})
    finished = max(one.finished for one in records.records.values())
    shown = {"records": records, "study": study, "name": name, "environments": environments, "finished": finished}
    if study.confirms:
        again = _again(found, folder.with_name(name.removesuffix(AGAIN)))
        write_text(folder / "README.md", rendered("published.md.j2", shown | {"again": again}))
        return
    with house_style():
        drawn = frontier(records, findings)
        if drawn is not None:
            drawn.figure.savefig(folder / "frontier.png", dpi=120, metadata={"Software": None})
    arms = arm_table(records, findings, KEYS)
    shown |= {"again": None, "answer": answer(records, findings), "figure": drawn, "claims": claims, "arms": arms}
    write_text(folder / "README.md", rendered("published.md.j2", shown))
