"""Figures: what they show of the findings, that arms can be told apart, and that equal records give equal files."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import seaborn as sns
from matplotlib.text import Text

from reports.figures import style
from reports.figures.curves import ArmCurve, arm_curves
from reports.figures.marks import emphasis
from reports.figures.overoptimisation import panels
from reports.figures.price import COSTS
from reports.figures.registry import FIGURES, draw, figure
from reports.figures.style import INK, Drawn, arm_styles, house_style, save
from reports.findings.findings import Findings, analyse
from reports.findings.trajectories import ArmAlarm
from reports.pages.inline import inline_svg
from reports.records.load import StudyRecords, load_records
from reports.records.provenance import provenance
from reports.records.searches import SearchResult
from reports.statistics.two_level import Estimate
from reports.tables.runs import cost_table
from studies.definition.schema import FIGURES as FIGURE_NAMES
from studies.definition.search import Tried
from studies.definition.space import Objective

if TYPE_CHECKING:
    from tests.reports.conftest import Builder

OF_OTHER_DESIGNS = {"interactions", "pareto", "matched_kl", "price", "tradeoff"}
WHOLE: dict[str, Any] = {"steps": 64, "prompts": 30, "diverged": (), "budget": (), "missing": ()}
LAM, BETA = "algorithm.gae_lambda", "kl.beta"


def drawn(name: str, records: StudyRecords, findings: Findings) -> Drawn:
    with house_style():
        found = figure(name)(records, findings)
    assert found is not None
    return found


def curve_of(records: StudyRecords, arm: str, key: str = "objective/kl_per_token") -> ArmCurve:
    return next(curve for curve in arm_curves(records, key) if curve.arm == arm)


def texts(found: Drawn) -> set[str]:
    return {text.get_text() for text in found.figure.findobj(Text)}  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def whole(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyRecords, Findings]:
    """Four arms, three seeds, all complete."""
    built = build(tmp_path_factory.mktemp("whole"), **WHOLE)
    records = load_records(built.folder, built.study)
    return records, analyse(records)


def test_a_study_can_list_every_figure_and_no_other() -> None:
    assert tuple(FIGURES) == FIGURE_NAMES


def test_arms_differ_in_more_than_colour(records: StudyRecords) -> None:
    arms: dict[str, Any] = {f"a{i}": {} for i in range(12)}
    styles = arm_styles(records.study.model_copy(update={"arms": arms, "baseline": "a3"}))
    assert styles["a3"].color == INK
    assert len({(one.color, str(one.dashes), one.marker) for one in styles.values()}) == 12
    first = [styles[f"a{i}"] for i in range(6)]
    for part in ("color", "dashes", "marker"):
        assert len({str(getattr(one, part)) for one in first}) == 6
    palette = set(sns.color_palette("colorblind").as_hex())
    assert {one.color for one in styles.values()} - {INK} <= palette


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in OF_OTHER_DESIGNS])
def test_a_figure_states_n_has_an_alternative_and_is_the_same_file_twice(
    records: StudyRecords, findings: Findings, tmp_path: Path, name: str
) -> None:
    pair = [drawn(name, records, findings) for _ in range(2)]
    assert re.search(r"\bn = \d+|seeds:|seeds × prompts|mall marks: seeds", pair[0].caption)
    assert len(pair[0].alt) > 40
    assert pair[0].data.to_csv() == pair[1].data.to_csv()
    for place, one in enumerate(pair):
        with house_style():
            save(one.figure, tmp_path / f"{place}", one.title, provenance(records))
    for suffix in (".svg", ".png", ".pdf"):
        assert (tmp_path / f"0{suffix}").read_bytes() == (tmp_path / f"1{suffix}").read_bytes()


def test_files_name_the_design_the_commit_and_the_runs(
    records: StudyRecords, findings: Findings, tmp_path: Path
) -> None:
    found = drawn("win_rate", records, findings)
    with house_style():
        save(found.figure, tmp_path / "f", found.title, provenance(records))
    for suffix in (".svg", ".png", ".pdf"):
        content = (tmp_path / f"f{suffix}").read_bytes().decode("latin-1")
        for text in (records.digest, "0123abc", f"seed 2: {records.records['beta_0.05', 2].stages['train'].key}"):
            assert text in content
    assert b"/Subtype /Type0" in (tmp_path / "f.pdf").read_bytes(), "TrueType, as publishers ask for"
    assert "date" not in (tmp_path / "f.svg").read_text().partition("</metadata>")[0]
    text = inline_svg(tmp_path / "f.svg", "win")
    assert text.startswith("<svg ")
    assert all(part in text for part in ('id="win-', "url(#win-", "beta_0.05"))
    assert "<metadata" not in text


def test_only_figures_that_apply_are_drawn_unless_asked_for_by_name(
    whole: tuple[StudyRecords, Findings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "save", lambda *_: None)
    records, findings = whole
    found = dict(draw(records, findings, tmp_path / "all"))
    assert all(found.values())
    assert {path.stem for path in (tmp_path / "all").iterdir()} == set(found)
    assert OF_OTHER_DESIGNS - {"matched_kl"} == OF_OTHER_DESIGNS - {"matched_kl"} - found.keys()
    asked = replace(records, study=records.study.model_copy(update={"figures": ("pareto", "cost")}))
    assert [(name, one is None) for name, one in draw(asked, findings, tmp_path)] == [("pareto", True), ("cost", False)]


def test_an_empty_study_has_nothing_to_draw(build: Builder, tmp_path: Path) -> None:
    arms = ("beta_0", "beta_0.01", "beta_0.05", "beta_0.2")
    built = build(tmp_path, seeds=(0,), missing=tuple((arm, 0) for arm in arms), diverged=(), budget=())
    empty = load_records(built.folder, built.study)
    found = analyse(empty)
    assert [figure(name)(empty, found) for name in FIGURES] == [None] * len(FIGURES)


def test_a_curve_is_the_mean_and_range_over_seeds_until_one_stops(records: StudyRecords) -> None:
    curve = curve_of(records, "beta_0.05")
    frame = records.curves[records.curves["arm"] == "beta_0.05"].dropna(subset=["objective/kl_per_token"])
    wide = frame.pivot(index="step", columns="seed", values="objective/kl_per_token")
    np.testing.assert_allclose(curve.mean[["mean", "low", "high"]], wide.agg(["mean", "min", "max"], axis=1))
    assert (curve.seeds, curve.tails, curve.ends) == (3, (), ())
    stopped = curve_of(records, "beta_0")
    assert stopped.mean["step"].max() == 672
    assert {int(tail["seed"].iloc[0]) for tail in stopped.tails} == {0, 1}
    assert [(step, status) for step, _, status in stopped.ends] == [(672, "diverged")]


def test_long_series_are_averaged_by_cells(records: StudyRecords) -> None:
    curve = curve_of(records, "beta_0.05", "policy/entropy")
    assert len(curve.mean) <= 257
    frame = records.curves[(records.curves["arm"] == "beta_0.05") & (records.curves["step"].between(17, 32))]
    assert curve.mean["mean"].iloc[1] == pytest.approx(frame["policy/entropy"].mean())


def test_seeds_that_record_at_other_steps_are_averaged_at_equal_steps(records: StudyRecords) -> None:
    """A target-KL stop takes fewer gradient steps an update: the grids differ, the line does not."""
    straight = records.curves[["arm", "seed", "step", "objective/kl_per_token"]].dropna().copy()
    straight["objective/kl_per_token"] = straight["step"] / 1000
    odd = (straight["seed"] == 1) & (straight["step"] % 48 != 0)
    curve = curve_of(replace(records, curves=straight[~odd]), "beta_0.05")
    assert curve.mean["step"].tolist() == list(range(0, 2017, 16))
    for part in ("mean", "low", "high"):
        np.testing.assert_allclose(curve.mean[part], curve.mean["step"] / 1000)
    assert not curve.tails


def test_the_kl_figure_shows_the_estimator_and_the_threshold_of_the_claims(
    records: StudyRecords, findings: Findings
) -> None:
    exact = "objective/kl_exact_per_token"
    both = replace(records, curves=records.curves.assign(**{exact: records.curves["policy/kl_ref_per_token"]}))
    claim = records.study.falsifiers[0].model_copy(update={"metric": exact})
    asked = replace(both, study=records.study.model_copy(update={"falsifiers": (claim,)}))
    without = replace(both, study=records.study.model_copy(update={"falsifiers": ()}))
    for shown, metric in ((both, "objective/kl_per_token"), (asked, exact), (without, exact)):
        found = drawn("kl", shown, findings)
        assert set(found.data["metric"]) == {metric}
        flat = [line for line in found.figure.axes[0].lines if np.allclose(line.get_ydata(), 0.025)]  # type: ignore[arg-type]
        assert len(flat) == len(shown.study.falsifiers)
        assert ("Shaded" in found.caption) == ("before step 2000" in found.caption) == bool(flat)


def test_the_forest_shows_every_evaluated_arm(records: StudyRecords, findings: Findings) -> None:
    data = drawn("win_rate", records, findings).data
    means = data[data["seed"].isna()].set_index("arm")["value"]
    assert means.to_dict() == {one.arm: one.estimates["eval/win_rate"].value for one in findings.arms}
    assert int(data["seed"].notna().sum()) == 10


def test_an_alarm_lies_on_the_line_it_marks(records: StudyRecords, findings: Findings) -> None:
    data = drawn("overoptimisation", records, findings).data.set_index(["arm", "metric", "part", "seed", "step"])
    alarm = next(one for one in findings.alarms if one.arm == "beta_0")
    assert alarm.alarms
    for seed, turn in alarm.alarms.items():
        assert data.loc[("beta_0", "objective/gold", "seed", seed, turn.step), "kl"] == pytest.approx(turn.kl, rel=0.15)


def test_of_many_arms_those_with_an_alarm_and_the_baseline_get_a_panel() -> None:
    arms = [f"a{i}" for i in range(20)]
    loud = ArmAlarm("a18", {}, 3, Estimate(4.0, 3.0, 5.0, 3, 0, "student"))
    assert panels(arms, {"a18": loud, "a1": ArmAlarm("a1", {}, 3, None)}, "a15") == [*arms[:10], "a15", "a18"]
    assert panels(arms[:3], {}, "a1") == arms[:3]


def test_of_many_arms_the_baseline_and_both_ends_stand_out(records: StudyRecords, findings: Findings) -> None:
    assert emphasis(records, findings).arms == tuple(records.arms)
    names, template = [f"a{i}" for i in range(20)], findings.arm("beta_0.05")
    values = dict(zip(names, np.random.default_rng(0).permutation(20) / 20, strict=True))
    rate = template.estimates["eval/win_rate"]
    arms = [replace(template, arm=arm, estimates={"eval/win_rate": replace(rate, value=values[arm])}) for arm in names]
    study = records.study.model_copy(update={"arms": {name: {} for name in names}, "baseline": "a7"})
    chosen = emphasis(replace(records, study=study), replace(findings, arms=tuple(arms)))
    ranked = sorted((name for name in names if name != "a7"), key=values.__getitem__)
    assert set(chosen.arms) == {"a7", *ranked[:4], *ranked[-4:]}
    assert list(chosen.arms) == sorted(chosen.arms, key=names.index)
    assert [handle.get_label() for handle in chosen.handles(arm_styles(study))] == [*chosen.arms, "11 other arms"]
    assert "grey: means of the other 11" in chosen.sentence


def test_labels_are_moved_apart_and_stay_inside() -> None:
    places = style._spread([10.0, 11.0, 12.0, 95.0, 96.0], 10.0, 0.0, 100.0)
    assert all(later - earlier >= 10.0 for earlier, later in pairwise(places))
    assert (places[0], places[-1]) == (10.0, 100.0)


@pytest.mark.parametrize(("value", "wanted"), [(0.037, 0.03), (7.2, 5.0), (216.0, 200.0), (0.5, 0.5)])
def test_ticks_are_round(value: float, wanted: float) -> None:
    assert style._round(value) == pytest.approx(wanted)


def test_equal_drift_shows_ends_curve_and_differences(strengths: StudyRecords) -> None:
    trials = strengths.trials.copy()
    trials.loc[trials["arm"] == "tight", "cost/tflop"] /= 2
    strengths = replace(strengths, trials=trials)
    findings = analyse(strengths)
    found = drawn("matched_kl", strengths, findings)
    parts = dict(list(found.data.groupby("part")))
    ends = parts["end"].set_index("arm")["value"]
    assert set(ends.index) == {"beta_0.07", "beta_0.05", "beta_0.035", "tight", "tighter"}
    assert ends["tight"] == findings.arm("tight").estimates["eval/win_rate"].value
    assert set(parts["interpolated"]["seed"]) == set(strengths.seeds)
    assert all(own["kl"].is_monotonic_increasing for _, own in parts["interpolated"].groupby("seed"))
    shown = parts["difference"].set_index("arm")["value"]
    rows = {one.arm: one for one in findings.matched if one.metric == "eval/win_rate"}
    assert rows["tight"].difference is not None
    assert (list(shown.index), shown["tight"]) == (["tight", "tighter"], rows["tight"].difference.value)
    labels = [label.get_text() for label in found.figure.axes[1].get_yticklabels()]
    assert [(label.split("\n")[0], label.rsplit(", ", 1)[1]) for label in labels] == [
        ("tight", "0.50 × cost"), ("tighter", "1.00 × cost"),
    ]  # fmt: skip


def test_cost_is_held_against_the_caps_without_what_a_trial_is_charged_for(
    records: StudyRecords, findings: Findings
) -> None:
    found = drawn("cost", records, findings)
    data = found.data.set_index(["cap", "arm", "seed"])["share"].sort_index()
    assert data["wall clock", "beta_0.05"].tolist() == pytest.approx([48.0 / (2.5 * 3600)] * 3)
    assert data["gradient steps", "beta_0", 2] == 682 / 2048
    assert "48.0 s of 2.50 h" in texts(found)
    charged = np.where(records.trials["arm"] == "beta_0.05", 20.0, np.nan)
    records = replace(records, trials=records.trials.assign(**{"cost/values_wall_s": charged}))
    spent = drawn("cost", records, findings).data.set_index(["cap", "arm", "seed"])["spent"]
    assert spent["wall clock"].groupby("arm").first().to_dict() == {
        "beta_0": 48.0, "beta_0.01": 48.0, "beta_0.05": 28.0, "beta_0.2": 48.0,
    }  # fmt: skip
    assert "charged for all of them (stage values)" in cost_table(records).note


def costing(records: StudyRecords, **tokens: float) -> StudyRecords:
    """The same records, whose arms have these costs; 1 unless named."""
    cost = records.trials["arm"].map(lambda arm: tokens.get(arm, 1.0))
    return replace(records, trials=records.trials.assign(**dict.fromkeys(COSTS, cost)))


def test_price_shows_arms_at_their_cost_if_costs_differ(whole: tuple[StudyRecords, Findings]) -> None:
    records, findings = whole
    found = drawn("price", costing(records, **{"beta_0.05": 4.0, "beta_0.2": 0.0}), findings)
    means = found.data[found.data["seed"].isna()].set_index("arm")
    assert means["cost/tflop"].to_dict() == {"beta_0": 1.0, "beta_0.01": 1.0, "beta_0.05": 4.0}
    assert means.loc["beta_0.01", "value"] == findings.arm("beta_0.01").estimates["eval/win_rate"].value
    assert "Without a point, since no cost of training is known: beta_0.2." in found.caption
    for cost, shown in ((1.0, False), (1.24, False), (1.26, True)):
        assert (figure("price")(costing(records, **{"beta_0.05": cost}), findings) is not None) == shown


def test_tradeoff_shows_where_two_judges_put_every_arm(whole: tuple[StudyRecords, Findings]) -> None:
    """The further judge's scores are the proxy's."""
    records, findings = whole
    keys = {"eval/gold/harmless": "eval/proxy", "eval/gold_reference/harmless": "eval/proxy"}
    arms = [
        replace(
            one,
            estimates=one.estimates | {key: one.estimates[own] for key, own in keys.items()},
            per_seed=one.per_seed | {key: one.per_seed[own] for key, own in keys.items()},
        )
        for one in findings.arms
    ]
    found = drawn("tradeoff", records, replace(findings, arms=tuple(arms)))
    (axes,) = found.figure.axes
    points = {(float(x), float(y)) for line in axes.lines for x, y in zip(*line.get_data(), strict=True)}  # type: ignore[call-overload]
    for one in arms:
        assert (one.estimates["eval/proxy"].value, one.estimates["eval/gold"].value) in points
    judged = records.reference_gold()
    assert judged is not None
    assert any(y == judged[0] for _, y in points)
    for some in (findings.arms, (arms[0], *findings.arms[1:])):
        assert figure("tradeoff")(records, replace(findings, arms=some)) is None


def test_interactions_show_every_cell_and_its_departure(build: Builder, tmp_path: Path) -> None:
    arms = {f"{beta}_{lam}": {BETA: beta, LAM: lam} for beta in (0.05, 0.2) for lam in (0.8, 0.95)}
    built = build(tmp_path, arms=arms, baseline="0.05_0.95", seeds=(0, 1), **WHOLE)
    records = load_records(built.folder, built.study)
    findings = analyse(records)
    found = drawn("interactions", records, findings)
    left, right = found.figure.axes
    assert left.get_xlabel() == right.get_xlabel() == LAM
    assert [sum("[" in text.get_text() for text in axes.texts) for axes in (left, right)] == [4, 1]
    (interaction,) = findings.crossings[0].interactions
    assert interaction.contrast.estimate is not None
    departures = found.data.set_index(["row", "column"])["departure"].dropna()
    assert departures.to_dict() == {(0.2, 0.8): interaction.contrast.estimate.value}


def test_the_front_of_a_search_leaves_out_what_broke_a_constraint(
    whole: tuple[StudyRecords, Findings], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ((0.8, 2.0), (0.9, 9.0), (0.7, 1.5), None, (0.6, 1.7))
    trials = tuple(
        Tried(
            number, f"search-{number:03d}", {BETA: 0.1}, "complete",
            {"eval/win_rate": own[0], "eval/kl_per_sequence": own[1]} if own else {}, number not in (1, 3), 64,
        )
        for number, own in enumerate(values)
    )  # fmt: skip
    records, findings = whole
    assert figure("pareto")(records, findings) is None
    searched = replace(findings, search=SearchResult(trials, (0,), {"confirm-1": 0}))
    found = drawn("pareto", records, searched)
    data = found.data.set_index("number")
    assert data["front"].to_dict() == {0: True, 1: False, 2: True, 4: False}
    assert (data.loc[0, "confirmed_as"], "confirm-1" in texts(found)) == ("confirm-1", True)
    assert {line.get_marker() for line in found.figure.axes[0].lines} >= {"D", "o", "x"}
    assert "1 trial without both metrics" in found.caption
    aims = (Objective(), Objective(metric="eval/kl_per_sequence", direction="minimize"))
    monkeypatch.setattr("reports.figures.tuning.objectives", lambda study: aims)
    assert drawn("pareto", records, searched).data["front"].sum() == 1, "of several aims the front is the search's own"
