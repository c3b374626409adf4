from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import WHOLE, Built, build

from pipeline.intervals import wilson
from reports.figures.curves import arm_curves, kl, training
from reports.figures.frontier import frontier
from reports.figures.matched_kl import arithmetic
from reports.figures.matched_kl import matched as matched_figure
from reports.findings.bound import choosing_arms
from reports.findings.findings import Findings, analyse
from reports.findings.matched_kl import matched
from reports.findings.pairs import by_the_proxy_alone
from reports.records.load import StudyRecords
from reports.statistics import contrast
from reports.tables.results import arm_table, decided_won
from reports.tables.runs import cost_table
from reports.text.answer import answer
from reports.text.methods import methods

TRAINED = {f"beta_{beta}": beta for beta in (0.05, 0.032, 0.025)}
SHAPE: dict[str, Any] = {**WHOLE, "steps": 64, "prompts": 30}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> StudyRecords:
    arms = {**TRAINED, "best_of_8": {"algorithm": "best_of_n"}}
    found = build(tmp_path_factory.mktemp("untrained"), arms=arms, **SHAPE).records
    for table, key in ((found.prompts, "kl"), (found.trials, "eval/kl_per_sequence")):
        table.loc[table["arm"] == "best_of_8", key] = math.log(8) - 7 / 8
    return found


@pytest.fixture(scope="module")
def findings(records: StudyRecords) -> Findings:
    return analyse(records)


def test_it_has_no_curve_and_stands_at_its_bound(records: StudyRecords, findings: Findings) -> None:
    assert [curve.arm for curve in arm_curves(records, "objective/kl")] == list(TRAINED)
    for figure in (kl, training):
        assert "best_of_8" not in set(figure(records, findings).data["arm"])
    assert choosing_arms(records) == {"best_of_8": 8}
    assert "best_of_8 (n = 8)" in frontier(records, findings).caption
    result = findings.arm("best_of_8").estimates["eval/kl_per_sequence"]
    assert (result.value, result.low, result.high) == pytest.approx((1.2044, 1.2044, 1.2044), abs=1e-4)


def test_it_is_compared_at_its_kl_and_costs_only_its_answers(records: StudyRecords, findings: Findings) -> None:
    assert [(row.arm, row.reason) for row in matched(records) if row.metric == "eval/gold"] == [("best_of_8", "")]
    assert arithmetic(records)["best_of_8"] == 0.0
    axes = matched_figure(records, findings).figure.axes
    assert any("1.20 nats, no training" in label.get_text() for one in axes for label in one.get_yticklabels())
    row = cost_table(records).frame.set_index("arm").loc["best_of_8"]
    assert (row["steps_mean"], row["cost/tflop_mean"], row["cost/evaluate_generated_tokens_mean"]) == (0, 0, 38400)
    assert "best_of_8 (n = 8)" in methods(records, findings)["Evaluation"]


def test_a_study_that_trains_nothing_at_all_can_be_shown(tmp_path: Path) -> None:
    arms: dict[str, Any] = {f"n_{n}": {"algorithm": "best_of_n", "evaluate.best_of": n} for n in (1, 2)}
    built = build(tmp_path, arms=arms, baseline="n_1", **SHAPE)
    records, found = built.records, built.findings
    assert (kl(records, found), training(records, found)) == (None, None)
    assert frontier(records, found) is not None
    assert arithmetic(records) == {}, "no multiple of nothing"


ARMS = {"beta_0": 0.0, "beta_0.05": 0.05}
SIZE: dict[str, Any] = {**WHOLE, "arms": ARMS, "seeds": (0, 1), "steps": 64, "prompts": 30}
ACCURACY = "eval/preference_accuracy"


def rewrite(built: Built, arm: str, seed: int, accuracy: float | None = None, **columns: Any) -> None:
    """Replace columns of an evaluation, and its preference accuracy."""
    record = built.folder.record(arm, seed)
    summary = {key: value for key, value in record.summary.items() if key != ACCURACY}
    summary |= {} if accuracy is None else {ACCURACY: accuracy}
    built.folder.write(record.model_copy(update={"summary": summary}))
    built.rewrite(built.table(arm, seed, "evaluate", "prompts.parquet"), lambda table: table.assign(**columns))


def test_preference_accuracy_stands_beside_the_share_of_decided_pairs_that_the_policy_wins(tmp_path: Path) -> None:
    """A proxy that prefers every answer of the policy scores that share, whatever its quality."""
    built, won = build(tmp_path, **SIZE), []
    frames = built.read().prompts.set_index(["arm", "seed"])
    for seed in (0, 1):
        own = frames.loc[("beta_0", seed)]
        wins = 4 * (own["win"] - own["tie"] / 2)
        won.append(float(wins.sum() / own["decided"].sum()))
        rewrite(built, "beta_0", seed, won[-1], agree=wins.to_numpy(), win_proxy=1.0)
    arm = built.findings.arm("beta_0")
    share = decided_won(arm)
    assert share == pytest.approx(np.mean(won))
    assert share == pytest.approx(arm.estimates[ACCURACY].value)
    assert share != pytest.approx(arm.estimates["eval/win_rate"].value, abs=1e-3), "ties are apart"
    table = arm_table(built.records, built.findings)
    cell = table.rows[0][[head.text for head in table.heads].index("preference accuracy")]
    assert (cell.text, cell.detail.split("won ")[1]) == (f"{share:.3f}", f"{share:.3f}")


def test_the_interval_counts_the_prompts_on_which_the_judge_decides(tmp_path: Path) -> None:
    """Few of them, and the proxy agrees on all: the others are no evidence. A trial without any is left out."""
    built = build(tmp_path, **SIZE | {"seeds": (0, 1, 2)})
    for seed in (0, 1, 2):
        decided = np.where(np.arange(30) < 3 + seed, 4.0, 0.0) * (seed < 2)
        for arm, agreed in (("beta_0", 1.0), ("beta_0.05", 0.75)):
            rewrite(built, arm, seed, agreed if seed < 2 else None, agree=agreed * decided, decided=decided)
    always, mostly = (built.findings.arm(arm).estimates[ACCURACY] for arm in ("beta_0", "beta_0.05"))
    assert (always.value, always.seeds, always.prompts, always.method) == (1.0, 2, 4, "wilson")
    assert always.low == pytest.approx(wilson(1.0, 4)[0])
    assert (mostly.value, mostly.prompts) == (0.75, 4)
    rate = built.findings.arm("beta_0").estimates["eval/win_rate"]
    assert (rate.seeds, rate.prompts) == (3, 30)


def test_the_page_says_which_arms_the_proxy_alone_prefers(records: StudyRecords, findings: Findings) -> None:
    def arm(proxy: float, gold: float, excess: float | None, half: float | None = 0.05) -> Any:
        def rate(value: float, half: float | None) -> Any:
            low, high = (None, None) if half is None else (value - half, value + half)
            return replace(findings.arms[0].estimates["eval/win_rate"], value=value, low=low, high=high)

        rates = {"eval/win_rate": rate(gold, 0.05), "eval/win_rate_proxy": rate(proxy, half)}
        return replace(findings.arms[-1], estimates=rates, excess=None if excess is None else rate(excess, 0.05))

    hacked = arm(0.9, 0.6, 0.3)
    for quiet in (
        arm(0.74, 0.5, 0.24), arm(0.9, 0.87, 0.06), arm(0.9, 0.5, 0.4, half=0.21), arm(0.9, 0.6, 0.04),
        arm(0.9, 0.6, 0.3, half=None), arm(0.9, 0.6, None),
    ):  # fmt: skip
        assert by_the_proxy_alone([quiet, hacked]) == [hacked]
    changed = replace(findings, arms=(*findings.arms[:-1], hacked))
    (said,) = (text for text in answer(records, changed).caveats if "90 % [85, 95]" in text)
    assert "60 % [55, 65]" in said


def test_the_two_win_rates_are_compared_on_the_same_seeds_and_prompts(tmp_path: Path) -> None:
    """Hard prompts are hard by both; what is hard cancels."""
    built, rng, tables = build(tmp_path, **SIZE), np.random.default_rng(4), []
    for seed in (0, 1):
        gold = rng.integers(0, 6, 30) / 8
        tables.append((np.minimum(gold + 0.25, 1) + rng.integers(0, 2, 30) / 8, gold))
        rewrite(built, "beta_0", seed, win=gold, win_proxy=tables[-1][0])
    found = built.findings.arm("beta_0")
    proxy, gold = np.stack(tables, 1)
    assert found.excess == contrast.estimate((1, -1), [(proxy, None), (gold, None)])
    assert found.excess.low > 0.15
