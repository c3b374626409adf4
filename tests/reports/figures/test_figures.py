from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import BETAS, WHOLE, build, with_study

from reports.figures.curves import ArmCurve, arm_curves
from reports.figures.price import COSTS
from reports.figures.registry import FIGURES, draw
from reports.figures.style import INK, Plot, arm_styles, house_style
from reports.findings.findings import Findings, analyse
from reports.records.load import StudyRecords
from studies.definition.schema import FIGURES as FIGURE_NAMES

OF_OTHER_DESIGNS = {"interactions", "pareto", "matched_kl", "price", "tradeoff"}
LAM, BETA, WIN = "algorithm.gae_lambda", "kl.beta", "eval/win_rate"


def drawn(name: str, records: StudyRecords, findings: Findings) -> Plot:
    with house_style():
        return FIGURES[name](records, findings)


def means(plot: Plot) -> Any:
    return plot.data[plot.data["seed"].isna()].set_index("arm")


def test_a_study_can_list_every_figure_and_no_other() -> None:
    assert tuple(FIGURES) == FIGURE_NAMES


def test_arms_differ_in_more_than_colour(records: StudyRecords) -> None:
    styles = arm_styles(with_study(records, arms={f"a{i}": {} for i in range(12)}, baseline="a3").study)
    assert styles["a3"].color == INK
    assert len({(one.color, str(one.dashes), one.marker) for one in styles.values()}) == 12
    for part in ("color", "dashes", "marker"):
        assert len({str(getattr(styles[f"a{i}"], part)) for i in range(6)}) == 6


def test_figures_state_n_and_have_an_alternative_and_their_origin(
    records: StudyRecords, findings: Findings, tmp_path: Path
) -> None:
    """Another test, of the report, draws them twice and compares the files."""
    found = dict(draw(records, findings, tmp_path))
    assert set(found) == set(FIGURES) - OF_OTHER_DESIGNS
    for one in found.values():
        assert any(words in one.caption for words in ("n = ", "seeds: ", "mall marks: seeds"))
        assert len(one.alt) > 40
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == sorted(f"{name}.{kind}" for name in found for kind in ("svg", "pdf", "png", "csv"))
    for name in ("kl.svg", "kl.pdf", "kl.png"):
        content = (tmp_path / name).read_bytes().decode("latin-1")
        for text in (records.digest, "0123abc", f"seed 2: {records.records['beta_0.05', 2].stages['train'].key}"):
            assert text in content
    assert b"/Subtype /Type0" in (tmp_path / "kl.pdf").read_bytes(), "TrueType, as publishers ask for"


@pytest.mark.usefixtures("quick")
def test_a_figure_that_is_asked_for_by_name_and_has_nothing_to_show_is_named(
    records: StudyRecords, findings: Findings, tmp_path: Path
) -> None:
    asked = with_study(records, figures=("pareto", "kl"))
    assert [(name, one is None) for name, one in draw(asked, findings, tmp_path)] == [("pareto", True), ("kl", False)]
    empty = build(tmp_path, seeds=(0,), **WHOLE | {"missing": tuple((arm, 0) for arm in BETAS)})
    assert {FIGURES[name](empty.records, empty.findings) for name in FIGURES} == {None}


def test_a_curve_is_the_mean_and_range_over_seeds_until_one_stops(records: StudyRecords) -> None:
    def curve_of(arm: str, key: str = "objective/kl_per_token") -> ArmCurve:
        return next(curve for curve in arm_curves(records, key) if curve.arm == arm)

    curve = curve_of("beta_0.05")
    frame = records.curves[records.curves["arm"] == "beta_0.05"]
    wide = frame.dropna(subset=["objective/kl_per_token"]).pivot(
        index="step", columns="seed", values="objective/kl_per_token"
    )
    np.testing.assert_allclose(curve.mean[["mean", "low", "high"]], wide.agg(["mean", "min", "max"], axis=1))
    assert (curve.seeds, curve.tails, curve.ends) == (3, (), ())
    stopped = curve_of("beta_0")
    assert stopped.mean["step"].max() == 672
    assert {int(tail["seed"].iloc[0]) for tail in stopped.tails} == {0, 1}
    assert [(step, status) for step, _, status in stopped.ends] == [(672, "diverged")]
    long = curve_of("beta_0.05", "policy/entropy")
    assert len(long.mean) <= 257
    assert long.mean["mean"].iloc[1] == pytest.approx(frame[frame["step"].between(17, 32)]["policy/entropy"].mean())


def test_the_kl_figure_shows_the_estimator_and_the_threshold_of_the_claims(
    records: StudyRecords, findings: Findings
) -> None:
    exact = "objective/kl_exact_per_token"
    both = replace(records, curves=records.curves.assign(**{exact: records.curves["policy/kl_ref_per_token"]}))
    asked = with_study(both, falsifiers=(records.study.falsifiers[0].model_copy(update={"metric": exact}),))
    without = with_study(both, falsifiers=())
    for shown, metric in ((both, "objective/kl_per_token"), (asked, exact), (without, exact)):
        found = drawn("kl", shown, findings)
        assert set(found.data["metric"]) == {metric}
        flat = [line for line in found.figure.axes[0].lines if np.allclose(line.get_ydata(), 0.025)]
        assert len(flat) == len(shown.study.falsifiers)


def test_the_forest_shows_every_evaluated_arm(records: StudyRecords, findings: Findings) -> None:
    found = drawn("win_rate", records, findings)
    assert means(found)["value"].to_dict() == {one.arm: one.estimates[WIN].value for one in findings.arms}
    assert int(found.data["seed"].notna().sum()) == 10


def test_equal_drift_shows_ends_curve_and_differences(strengths: StudyRecords) -> None:
    trials = strengths.trials.copy()
    trials.loc[trials["arm"] == "tight", "cost/tflop"] /= 2
    strengths = replace(strengths, trials=trials)
    findings = analyse(strengths)
    found = drawn("matched_kl", strengths, findings)
    parts = dict(list(found.data.groupby("part")))
    ends = parts["end"].set_index("arm")["value"]
    assert set(ends.index) == {"beta_0.07", "beta_0.05", "beta_0.035", "tight", "tighter"}
    assert ends["tight"] == findings.arm("tight").estimates[WIN].value
    assert all(own["kl"].is_monotonic_increasing for _, own in parts["interpolated"].groupby("seed"))
    shown = parts["difference"].set_index("arm")["value"]
    rows = {one.arm: one for one in findings.matched if one.metric == WIN}
    assert (list(shown.index), shown["tight"]) == (["tight", "tighter"], rows["tight"].difference.value)
    labels = [label.get_text() for label in found.figure.axes[1].get_yticklabels()]
    assert [label.rsplit(", ", 1)[1] for label in labels] == ["0.50 × cost", "1.00 × cost"]


def test_price_shows_arms_at_their_cost_if_costs_differ(records: StudyRecords, findings: Findings) -> None:
    def costing(**tokens: float) -> StudyRecords:
        cost = records.trials["arm"].map(lambda arm: tokens.get(arm, 1.0))
        return replace(records, trials=records.trials.assign(**dict.fromkeys(COSTS, cost)))

    shown = means(drawn("price", costing(**{"beta_0.05": 4.0, "beta_0.2": 0.0}), findings))
    assert shown["cost/tflop"].to_dict() == {"beta_0": 1.0, "beta_0.01": 1.0, "beta_0.05": 4.0}
    assert shown.loc["beta_0.01", "value"] == findings.arm("beta_0.01").estimates[WIN].value
    assert FIGURES["price"](costing(**{"beta_0.05": 1.24}), findings) is None


def test_interactions_show_every_cell_and_its_departure(tmp_path: Path) -> None:
    arms = {f"{beta}_{lam}": {BETA: beta, LAM: lam} for beta in (0.05, 0.2) for lam in (0.8, 0.95)}
    built = build(tmp_path, arms=arms, baseline="0.05_0.95", seeds=(0, 1), steps=64, prompts=30, **WHOLE)
    found = drawn("interactions", built.records, built.findings)
    left, right = found.figure.axes
    assert left.get_xlabel() == right.get_xlabel() == LAM
    assert [sum("[" in text.get_text() for text in axes.texts) for axes in (left, right)] == [4, 1]
    (interaction,) = built.findings.crossings[0].interactions
    departures = found.data.set_index(["row", "column"])["departure"].dropna()
    assert departures.to_dict() == {(0.2, 0.8): interaction.contrast.estimate.value}
