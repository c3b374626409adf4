"""Figures: what they draw, that arms can be told apart, and that a figure is the same file twice."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from reports.figures.curves import arm_curves, kl
from reports.figures.emphasis import emphasis
from reports.figures.overoptimisation import _panels as panels
from reports.figures.registry import FIGURES, draw, figure, provenance
from reports.figures.style import INK, arm_styles, house_style, save
from reports.figures.style import _round as round_tick
from reports.figures.style import _spread as spread
from reports.findings.findings import ArmResult, Findings, analyse
from reports.findings.trajectories import ArmAlarm
from reports.pages.inline import inline_svg
from reports.records.load import StudyRecords, load_records
from reports.statistics.two_level import Estimate
from reports.tables.runs import cost_table
from studies.definition.schema import FIGURES as FIGURE_NAMES

if TYPE_CHECKING:
    from tests.reports.conftest import Builder


def test_arms_differ_in_more_than_colour(build: Builder, tmp_path: Path) -> None:
    arms = {f"a{i}": i / 100 for i in range(12)}
    study = build(
        tmp_path, seeds=(0,), arms=arms, baseline="a3", missing=tuple((arm, 0) for arm in arms), diverged=(), budget=()
    ).study
    styles = arm_styles(study)
    assert styles["a3"].color == INK
    assert len({(style.color, str(style.dashes), style.marker) for style in styles.values()}) == 12
    first = [styles[f"a{i}"] for i in range(6)]
    assert (
        len({style.color for style in first})
        == len({str(style.dashes) for style in first})
        == len({style.marker for style in first})
        == 6
    )


def test_curve_is_the_mean_and_range_over_seeds(records: StudyRecords) -> None:
    curve = next(curve for curve in arm_curves(records, "objective/kl_per_token") if curve.arm == "beta_0.05")
    frame = records.curves[records.curves["arm"] == "beta_0.05"].dropna(subset=["objective/kl_per_token"])
    wide = frame.pivot(index="step", columns="seed", values="objective/kl_per_token")
    np.testing.assert_allclose(curve.mean["mean"], wide.mean(axis=1))
    np.testing.assert_allclose(curve.mean["low"], wide.min(axis=1))
    assert curve.seeds == 3
    assert not curve.tails
    assert not curve.ends


def test_mean_stops_where_a_seed_stops(records: StudyRecords) -> None:
    curve = next(curve for curve in arm_curves(records, "objective/kl_per_token") if curve.arm == "beta_0")
    assert curve.mean["step"].max() == 672
    assert {int(tail["seed"].iloc[0]) for tail in curve.tails} == {0, 1}
    assert curve.ends[0][0] == 672
    assert curve.ends[0][2] == "diverged"


def test_long_series_are_binned(records: StudyRecords) -> None:
    curve = next(curve for curve in arm_curves(records, "policy/entropy") if curve.arm == "beta_0.05")
    assert len(curve.mean) <= 257
    frame = records.curves[(records.curves["arm"] == "beta_0.05") & (records.curves["step"].between(17, 32))]
    assert curve.mean["mean"].iloc[1] == pytest.approx(frame["policy/entropy"].mean())


OF_OTHER_DESIGNS = {"interactions", "pareto", "matched_kl", "price", "tradeoff"}


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in OF_OTHER_DESIGNS])
def test_caption_says_n_and_alt_is_there(records: StudyRecords, findings: Findings, name: str) -> None:
    with house_style():
        drawn = figure(name)(records, findings)
    assert drawn is not None
    assert re.search(r"\bn = \d+|seeds:|seeds × prompts|Small marks: seeds|small marks: seeds", drawn.caption)
    assert len(drawn.alt) > 40
    assert len(drawn.data)


def test_threshold_of_the_falsifier_is_drawn_and_explained(records: StudyRecords, findings: Findings) -> None:
    with house_style():
        drawn = figure("kl")(records, findings)
    assert drawn is not None
    assert any(
        np.allclose(line.get_ydata(), 0.025) for line in drawn.figure.axes[0].lines if len(line.get_ydata()) == 2
    )
    assert "before step 2000" in drawn.caption


def test_same_records_same_bytes(records: StudyRecords, findings: Findings, tmp_path: Path) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        with house_style():
            drawn = figure("win_rate")(records, findings)
            assert drawn is not None
            save(drawn.figure, tmp_path / run / "f", "Title", provenance(records))
    for suffix in (".svg", ".png", ".pdf"):
        assert (tmp_path / "a" / f"f{suffix}").read_bytes() == (tmp_path / "b" / f"f{suffix}").read_bytes()
    svg = (tmp_path / "a" / "f.svg").read_text()
    assert "date" not in svg[: svg.index("</metadata>")]
    png, pdf = ((tmp_path / "a" / f"f{suffix}").read_bytes().decode("latin-1") for suffix in (".png", ".pdf"))
    for text in (svg, png, pdf):
        assert records.digest in text
        assert "0123abc" in text
        assert f"beta_0.05 seed 2: {records.records['beta_0.05', 2].stages['train'].key}" in text
    text = inline_svg(tmp_path / "a" / "f.svg", "win")
    assert text.startswith("<svg ")
    assert 'id="win-' in text
    assert "url(#win-" in text
    assert "<metadata" not in text
    assert "beta_0.05" in text


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in OF_OTHER_DESIGNS])
def test_drawn_twice_is_equal_to_the_byte(records: StudyRecords, findings: Findings, name: str) -> None:
    svgs = []
    for _ in range(2):
        with house_style():
            drawn = figure(name)(records, findings)
            assert drawn is not None
            svg = BytesIO()
            drawn.figure.savefig(svg, format="svg", metadata={"Date": None})
            svgs.append((svg.getvalue(), drawn.caption, drawn.alt, drawn.data.to_csv()))
    assert svgs[0] == svgs[1]


def test_forest_shows_every_evaluated_arm(records: StudyRecords, findings: Findings) -> None:
    with house_style():
        drawn = figure("win_rate")(records, findings)
    assert drawn is not None
    means = drawn.data[drawn.data["seed"].isna()].set_index("arm")["value"]
    assert means["beta_0.05"] == findings.arm("beta_0.05").estimates["eval/win_rate"].value
    assert len(means) == 4
    assert int(drawn.data["seed"].notna().sum()) == 10


def test_a_study_can_list_every_figure_and_no_other() -> None:
    assert tuple(FIGURES) == FIGURE_NAMES


def test_labels_are_moved_apart_and_stay_inside() -> None:
    placed = spread([10.0, 11.0, 12.0, 95.0, 96.0], 10.0, 0.0, 100.0)
    assert all(later - earlier >= 10.0 for earlier, later in pairwise(placed))
    assert placed[-1] <= 100.0


@pytest.mark.parametrize(("value", "wanted"), [(0.037, 0.03), (7.2, 5.0), (216.0, 200.0), (0.5, 0.5)])
def test_ticks_are_round(value: float, wanted: float) -> None:
    assert round_tick(value) == pytest.approx(wanted)


def test_empty_study_has_nothing_to_draw(build: Builder, tmp_path: Path) -> None:
    arms = ("beta_0", "beta_0.01", "beta_0.05", "beta_0.2")
    built = build(tmp_path, seeds=(0,), missing=tuple((arm, 0) for arm in arms), diverged=(), budget=())
    empty = load_records(built.folder, built.study)
    found = analyse(empty)
    assert [figure(name)(empty, found) for name in FIGURES] == [None] * len(FIGURES)
    assert isinstance(empty.curves, pd.DataFrame)


def test_only_figures_that_apply_are_drawn_unless_asked_for_by_name(
    build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.figures.style.save", lambda *_: None)
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64)
    whole = load_records(built.folder, built.study)
    found = analyse(whole)
    drawn = dict(draw(whole, found, tmp_path / "all"))
    assert OF_OTHER_DESIGNS.isdisjoint(drawn)
    assert all(drawn.values())
    assert {path.stem for path in (tmp_path / "all").iterdir()} == set(drawn)
    asked = replace(whole, study=built.study.model_copy(update={"figures": ("pareto", "cost")}))
    drawn = dict(draw(asked, found, tmp_path / "asked"))
    assert list(drawn) == ["pareto", "cost"]
    assert drawn["pareto"] is None


def test_seeds_that_record_at_other_steps_are_averaged_at_equal_steps(records: StudyRecords) -> None:
    """A target-KL stop takes fewer gradient steps an update: the grids differ, the line does not."""
    straight = records.curves[["arm", "seed", "step", "objective/kl_per_token"]].dropna().copy()
    straight["objective/kl_per_token"] = straight["step"] / 1000
    odd = (straight["seed"] == 1) & (straight["step"] % 48 != 0)
    curve = next(
        c for c in arm_curves(replace(records, curves=straight[~odd]), "objective/kl_per_token") if c.arm == "beta_0.05"
    )
    assert curve.mean["step"].tolist() == list(range(0, 2017, 16))
    np.testing.assert_allclose(curve.mean["mean"], curve.mean["step"] / 1000)
    np.testing.assert_allclose(curve.mean["high"], curve.mean["low"])
    assert not curve.tails


def test_of_many_arms_those_with_an_alarm_and_the_baseline_get_a_panel(findings: Findings) -> None:
    arms = [f"a{i}" for i in range(20)]
    loud = ArmAlarm("a18", {}, 3, Estimate(4.0, 3.0, 5.0, 3, 0, "student"))
    quiet = ArmAlarm("a1", {}, 3, None)
    assert panels(arms, {"a18": loud, "a1": quiet}, "a15") == [*arms[:10], "a15", "a18"]
    assert panels(arms[:3], {}, "a1") == arms[:3]


def test_of_many_arms_the_baseline_and_both_ends_stand_out(records: StudyRecords, findings: Findings) -> None:
    assert emphasis(records, findings).arms == tuple(records.arms)
    assert emphasis(records, findings).sentence == ""
    names = [f"a{i}" for i in range(20)]
    template = findings.arm("beta_0.05")
    values = dict(zip(names, np.random.default_rng(0).permutation(20) / 20, strict=True))

    def made(name: str) -> ArmResult:
        return replace(
            template,
            arm=name,
            estimates={"eval/win_rate": replace(template.estimates["eval/win_rate"], value=values[name])},
        )

    study = records.study.model_copy(update={"arms": {name: {} for name in names}, "baseline": "a7"})
    chosen = emphasis(replace(records, study=study), replace(findings, arms=tuple(map(made, names))))
    ranked = sorted((name for name in names if name != "a7"), key=lambda name: values[name])
    assert set(chosen.arms) == {"a7", *ranked[:4], *ranked[-4:]}
    assert list(chosen.arms) == sorted(chosen.arms, key=names.index)
    assert [handle.get_label() for handle in chosen.handles(arm_styles(study))] == [*chosen.arms, "11 other arms"]
    assert "grey: means of the other 11" in chosen.sentence


def test_equal_drift_shows_ends_curve_and_differences(strengths: StudyRecords) -> None:
    trials = strengths.trials.copy()
    trials.loc[trials["arm"] == "tight", "cost/tflop"] /= 2
    strengths = replace(strengths, trials=trials)
    found = analyse(strengths)
    with house_style():
        drawn = figure("matched_kl")(strengths, found)
        twice = figure("matched_kl")(strengths, found)
    assert drawn is not None
    assert twice is not None
    pd.testing.assert_frame_equal(drawn.data, twice.data)
    ends = drawn.data[drawn.data["part"] == "end"].set_index("arm")
    assert set(ends.index) == {"beta_0.07", "beta_0.05", "beta_0.035", "tight", "tighter"}
    assert ends.loc["tight", "value"] == found.arm("tight").estimates["eval/win_rate"].value
    line = drawn.data[drawn.data["part"] == "interpolated"]
    assert set(line["seed"]) == set(strengths.seeds)
    assert all(own["kl"].is_monotonic_increasing for _, own in line.groupby("seed"))
    shown = drawn.data[drawn.data["part"] == "difference"].set_index("arm")
    assert list(shown.index) == ["tight", "tighter"]
    rows = {row.arm: row for row in found.matched if row.metric == "eval/win_rate"}
    assert rows["tight"].difference is not None
    assert shown.loc["tight", "value"] == rows["tight"].difference.value
    labels = [label.get_text() for label in drawn.figure.axes[1].get_yticklabels()]
    assert [label.split("\n")[0] for label in labels] == ["tight", "tighter"]
    assert [label.rsplit(", ", 1)[1] for label in labels] == ["0.50 × cost", "1.00 × cost"]
    assert "beta_0.07, beta_0.05 and beta_0.035" in drawn.caption


def test_an_alarm_lies_on_the_line_it_marks(records: StudyRecords, findings: Findings) -> None:
    with house_style():
        drawn = figure("overoptimisation")(records, findings)
    assert drawn is not None
    alarm = next(one for one in findings.alarms if one.arm == "beta_0")
    for seed, turn in alarm.alarms.items():
        lines = drawn.data[(drawn.data["arm"] == "beta_0") & (drawn.data["metric"] == "objective/gold")]
        line = lines[(lines["part"] == "seed") & (lines["seed"] == seed)].set_index("step")
        assert line.loc[turn.step, "kl"] == pytest.approx(turn.kl, rel=0.15)


def test_cost_is_held_against_the_caps(records: StudyRecords, findings: Findings) -> None:
    with house_style():
        drawn = figure("cost")(records, findings)
    assert drawn is not None
    wall = drawn.data[(drawn.data["cap"] == "wall clock") & (drawn.data["arm"] == "beta_0.05")]
    assert wall["share"].tolist() == pytest.approx([48.0 / (2.5 * 3600)] * 3)
    steps = drawn.data[
        (drawn.data["cap"] == "gradient steps") & (drawn.data["arm"] == "beta_0") & (drawn.data["seed"] == 2)
    ]
    assert steps["share"].tolist() == [682 / 2048]
    assert "48.0 s of 2.50 h" in {text.get_text() for text in drawn.figure.axes[0].texts}


def test_what_a_trial_is_charged_for_its_samples_counts_against_no_cap(
    records: StudyRecords, findings: Findings
) -> None:
    """Two arms of which one is charged; the table says for what."""
    charged = np.where(records.trials["arm"] == "beta_0.05", 20.0, np.nan)
    trials = records.trials.assign(**{"cost/values_wall_s": charged})
    with house_style():
        drawn = figure("cost")(replace(records, trials=trials), findings)
    assert drawn is not None
    walls = drawn.data[drawn.data["cap"] == "wall clock"].groupby("arm")["spent"].first()
    assert walls["beta_0.05"] == pytest.approx(28.0)
    assert set(walls.drop("beta_0.05")) == {48.0}
    assert "charged for all of them (stage values)" in cost_table(replace(records, trials=trials)).note
    assert "charged" not in cost_table(records).note


def test_the_kl_figure_shows_the_estimator_that_the_claims_speak_of(records: StudyRecords, findings: Findings) -> None:
    exact = "objective/kl_exact_per_token"
    both = replace(records, curves=records.curves.assign(**{exact: records.curves["policy/kl_ref_per_token"]}))
    claim = records.study.falsifiers[0].model_copy(update={"metric": exact})
    asked = replace(both, study=records.study.model_copy(update={"falsifiers": (claim,)}))
    silent = replace(both, study=records.study.model_copy(update={"falsifiers": ()}))
    for shown, metric in ((both, "objective/kl_per_token"), (asked, exact), (silent, exact)):
        drawn = kl(shown, findings)
        assert drawn is not None
        assert set(drawn.data["metric"]) == {metric}
        assert ("Shaded" in drawn.caption) == bool(shown.study.falsifiers)
