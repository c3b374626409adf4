"""Claims of every form on the page: relative to the baseline, on the evaluation, on an end of its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reports.figures.curves import kl, training
from reports.figures.style import house_style
from reports.findings.findings import Findings, analyse
from reports.pages.report import render_report
from reports.records.load import StudyRecords, load_records
from reports.tables.results import verdict_table
from reports.text.methods import methods

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

FORMS = """
  - {name: further, claim: no arm drifts further than the baseline, metric: objective/kl_per_token, op: ">",
     threshold: 0.1, before_step: 64, aggregation: mean, relative_to: baseline}
  - {name: share, claim: its gold is above half of the baseline's, metric: objective/gold, op: "<", threshold: 0.5,
     before_step: 64, relative_to: baseline, relative: ratio}
  - {name: wins, claim: it wins, metric: eval/win_rate, op: "<", threshold: 0.3, bound: low}
  - {name: better, claim: it is better than the baseline, metric: eval/gold, op: "<=", threshold: 0, bound: low,
     relative_to: baseline}
"""
ARMS = {"beta_0": 0.0, "beta_0.05": 0.05}


@pytest.fixture(scope="module")
def built(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> Built:
    shape = {"seeds": (0, 1), "steps": 64, "prompts": 30, "diverged": (), "budget": (), "missing": ()}
    return build(tmp_path_factory.mktemp("forms"), arms=ARMS, extra=FORMS, **shape)


@pytest.fixture(scope="module")
def found(built: Built) -> tuple[StudyRecords, Findings]:
    records = load_records(built.folder, built.study)
    return records, analyse(records)


def test_the_page_tells_every_form(built: Built) -> None:
    page = render_report(built.folder, built.study).read_text()
    for condition in (claim.condition for claim in built.study.falsifiers):
        assert condition.replace("'", "&#39;").replace(">", "&gt;").replace("<", "&lt;") in page
    assert "Verdict by arm and seed; below it what was compared with the threshold" in page
    assert "compare each trial with the baseline" in page


def test_the_table_of_verdicts_holds_both_values_and_the_interval(found: tuple[StudyRecords, Findings]) -> None:
    frame = verdict_table(found[1]).frame.set_index(["name", "arm", "seed"]).sort_index()
    assert {arm for name, arm, _ in frame.index if name in ("further", "share", "better")} == {"beta_0"}
    relative = frame.loc["further"]
    assert relative["value"].to_numpy() == pytest.approx(
        (relative["arm_value"] - relative["baseline_value"]).to_numpy()
    )
    assert set(frame.loc["share", "unit"]) == {"1"}
    wins = frame.loc["wins"]
    assert list(wins["value"]) == list(wins["interval_low"])
    assert (wins["interval_low"] < wins["interval_high"]).all()
    assert wins["arm_value"].isna().all()


def test_the_methods_say_what_is_compared(found: tuple[StudyRecords, Findings]) -> None:
    text = next(part.text for part in methods(*found) if part.title == "Claims")
    assert "further, share and better compare each trial with the baseline's trial of the same seed" in text
    assert "wins and better speak of an end of the 95 % interval over the prompts of one trial" in text


def test_figures_draw_no_threshold_of_a_difference(found: tuple[StudyRecords, Findings]) -> None:
    with house_style():
        drawn, small = kl(*found), training(*found)
    assert drawn is not None
    assert small is not None
    assert "claim “the policy stays" in drawn.caption
    assert "no arm drifts further" not in drawn.caption
