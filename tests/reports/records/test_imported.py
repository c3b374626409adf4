"""The page of imported trials: it shows where training ended and what is not there, and shows no more than was
logged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import trl_logs

from pipeline.run.layout import Layout, StudyFolder
from reports.findings.findings import analyse
from reports.pages.report import render_report
from reports.records.load import find_study, load_records
from studies.definition.schema import Study
from studies.importing.run import import_folder

BETAS = {"beta_0.01": 0.01, "beta_0.05": 0.05, "beta_0.2": 0.2}
CLAIM = "falsifiers: [{name: near, claim: it is, metric: objective/kl, op: '>', threshold: 10, before_step: 150}]\n"
Imported = tuple[StudyFolder, Study]


def imported_at(root: Path, seeds: tuple[int, ...], more: str = "", **changes: Any) -> Imported:
    logs, file = trl_logs.folder(root / "logs", BETAS, seeds, **changes), root / "trl.yaml"
    import_folder(logs, str(file), Layout.at(root / "out"), "trl-ppo", 16)
    file.write_text(file.read_text() + more)
    return find_study(Layout.at(root / "out"), str(file))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    def clip_in_percent(made: trl_logs.Rows) -> trl_logs.Rows:
        return [{**row, "policy/clipfrac_avg": 7.5} for row in made]

    def diverges(made: trl_logs.Rows) -> trl_logs.Rows:
        made[8]["objective/kl"] = math.nan
        return made

    odd = {"beta_0.05__1": clip_in_percent, "beta_0.01__2": diverges}
    return imported_at(tmp_path_factory.mktemp("imported"), (0, 1, 2), CLAIM, **odd)


def test_arms_are_compared_by_where_their_training_ended(imported: Imported) -> None:
    records = load_records(*imported)
    findings = analyse(records)
    assert records.counts() == {"complete": 8, "diverged": 1}
    assert records.evaluated("beta_0.01") == [0, 1], "a diverged trial is counted, not averaged"
    last = [trl_logs.rows(0.2, seed)[-1]["objective/scores"] for seed in (0, 1, 2)]
    estimate = findings.arm("beta_0.2").estimates["objective/scores"]
    assert (estimate.value, estimate.seeds, estimate.prompts) == (pytest.approx(sum(last) / 3), 3, 0)
    assert not any(key.startswith("eval/") for result in findings.arms for key in result.estimates)
    (effect,) = [one for one in findings.effects_on("objective/scores") if one.arm == "beta_0.2"]
    assert set(effect.per_seed) == {0, 1}
    assert {one.outcome for claim in findings.claims for one in claim.verdicts if one.arm == "beta_0.2"} == {"SURVIVED"}


@pytest.mark.usefixtures("quick")
def test_the_page_says_what_is_not_there(imported: Imported) -> None:
    folder = render_report(*imported).parent
    page = (folder / "index.html").read_text()
    for text in (
        "beta_0.05/seed_1.jsonl, line 1: policy/clipfrac_avg (policy/pg_clipfrac) = 7.5: ",
        "beta_0.01/seed_2.jsonl, line 9: objective/kl = NaN: not finite",
    ):
        assert text in page
    drawn = pd.read_csv(folder / "figures" / "training.csv")
    clip = drawn[drawn["metric"] == "policy/pg_clipfrac"]
    assert clip["mean"].max() <= 1.0
    assert set(clip[clip["arm"] == "beta_0.05"]["seeds"]) == {2}, "the series in percent is not drawn"
    assert "nats per sequence" in (folder / "report.md").read_text(), "the KL, as no length was stated"
    assert not (folder / "tables" / "completions.csv").exists()


def test_final_measurements_that_were_imported_are_compared(tmp_path: Path) -> None:
    def judged(made: trl_logs.Rows) -> trl_logs.Rows:
        return [*made, {"step": 12, "eval/win_rate": 0.6 + made[-1]["objective/kl"] / 100}]

    changes = {f"{arm}__{seed}": judged for arm in BETAS for seed in (0, 1)}
    records = load_records(*imported_at(tmp_path, (0, 1), **changes))
    assert records.study.objective.metric == "eval/win_rate"
    kls = [trl_logs.rows(0.2, seed)[-1]["objective/kl"] for seed in (0, 1)]
    assert analyse(records).arm("beta_0.2").estimates["eval/win_rate"].value == pytest.approx(0.6 + sum(kls) / 200)
