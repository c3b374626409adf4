"""The page of imported trials: it says where training ended and what is not there, and shows no more than was
logged."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import trl_logs

from pipeline.run.layout import Layout, StudyFolder
from reports.figures import style
from reports.findings.findings import analyse
from reports.pages.report import render_report
from reports.records.load import find_study, load_records
from reports.text.answer import answer
from studies.definition.schema import Study
from studies.importing.run import import_folder

BETAS = {"beta_0.01": 0.01, "beta_0.05": 0.05, "beta_0.2": 0.2}


def clip_in_percent(made: trl_logs.Rows) -> trl_logs.Rows:
    return [{**row, "policy/clipfrac_avg": 7.5} for row in made]


def diverges(made: trl_logs.Rows) -> trl_logs.Rows:
    made[8]["objective/kl"] = math.nan
    return made


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, Study]:
    root = tmp_path_factory.mktemp("imported")
    odd = {"beta_0.05__1": clip_in_percent, "beta_0.01__2": diverges}
    logs = trl_logs.folder(root / "logs", BETAS, (0, 1, 2), **odd)
    import_folder(logs, str(root / "trl.yaml"), Layout.at(root / "out"), "trl-ppo", 16)
    file = root / "trl.yaml"
    claim = (
        "falsifiers: [{name: near, claim: it stays near, metric: objective/kl, op: '>', threshold: 10, before_step:"
        " 150}]\n"
    )
    file.write_text(file.read_text() + claim)
    return find_study(Layout.at(root / "out"), str(file))


def test_arms_are_compared_by_where_their_training_ended(imported: tuple[StudyFolder, Study]) -> None:
    records = load_records(*imported)
    findings = analyse(records)
    assert records.counts() == {"complete": 8, "diverged": 1}
    assert records.evaluated("beta_0.01") == [0, 1], "a diverged trial is counted, not averaged"
    last = [trl_logs.rows(0.2, seed)[-1]["objective/scores"] for seed in (0, 1, 2)]
    estimate = findings.arm("beta_0.2").estimates["objective/scores"]
    assert estimate.value == pytest.approx(sum(last) / 3)
    assert (estimate.seeds, estimate.prompts, estimate.method) == (3, 0, "student")
    assert not any(key.startswith("eval/") for result in findings.arms for key in result.estimates)
    (effect,) = [one for one in findings.effects_on("objective/scores") if one.arm == "beta_0.2"]
    assert set(effect.per_seed) == {0, 1}
    assert {
        verdict.outcome for claim in findings.claims for verdict in claim.verdicts if verdict.arm == "beta_0.2"
    } == {"SURVIVED"}


def test_the_page_says_what_is_not_there(imported: tuple[StudyFolder, Study], monkeypatch: pytest.MonkeyPatch) -> None:
    def svg_only(figure: object, stem: Path, *_: object) -> None:
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})  # type: ignore[attr-defined]

    monkeypatch.setattr(style, "save", svg_only)
    folder = render_report(*imported).parent
    page = (folder / "index.html").read_text()
    for text in (
        "how their KL was estimated, is not known here", "Where training ended",
        "beta_0.05/seed_1.jsonl, line 1: policy/clipfrac_avg (policy/pg_clipfrac) = 7.5: ",
        "beta_0.01/seed_2.jsonl, line 9: objective/kl = NaN: not finite",
    ):  # fmt: skip
        assert text in page
    drawn = pd.read_csv(folder / "figures" / "training.csv")
    clip = drawn[drawn["metric"] == "policy/pg_clipfrac"]
    assert clip["mean"].max() <= 1.0
    assert set(clip[clip["arm"] == "beta_0.05"]["seeds"]) == {2}, "the series in percent is not drawn"
    assert "nats per sequence" in (folder / "report.md").read_text(), "the KL, as no length was stated"
    assert not (folder / "tables" / "completions.csv").exists()
    study = imported[1]
    asked = study.model_copy(update={"objective": study.objective.model_copy(update={"metric": "eval/win_rate"})})
    records = load_records(imported[0], asked)
    assert "hold no win rate" in answer(records, analyse(records)).sentence


def test_final_measurements_that_were_imported_are_compared(tmp_path: Path) -> None:
    def judged(made: trl_logs.Rows) -> trl_logs.Rows:
        return [*made, {"step": 12, "eval/win_rate": 0.6 + made[-1]["objective/kl"] / 100}]

    logs = trl_logs.folder(
        tmp_path / "logs", BETAS, (0, 1), **{f"{arm}__{seed}": judged for arm in BETAS for seed in (0, 1)}
    )
    import_folder(logs, str(tmp_path / "trl.yaml"), Layout.at(tmp_path / "out"), "trl-ppo", 16)
    records = load_records(*find_study(Layout.at(tmp_path / "out"), str(tmp_path / "trl.yaml")))
    assert records.study.objective.metric == "eval/win_rate"
    assert not any("no win rate" in note for note in records.notes)
    estimate = analyse(records).arm("beta_0.2").estimates["eval/win_rate"]
    assert estimate.value == pytest.approx(
        0.6 + sum(trl_logs.rows(0.2, seed)[-1]["objective/kl"] for seed in (0, 1)) / 200
    )
