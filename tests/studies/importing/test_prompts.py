"""Outcomes by prompt of another program: the report computes from them what it computes from an evaluation of ours."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import trl_logs

from pipeline.run.layout import Layout
from reports.findings.findings import Findings, analyse
from reports.records.find import find_study
from reports.records.load import StudyRecords, load_records
from studies.definition.schema import load_study

Run = Callable[..., str]
pytestmark = pytest.mark.usefixtures("no_mlflow")
PROMPTS = 60


def outcomes(arms: dict[str, float], seeds: tuple[int, ...] = (0, 1, 2)) -> pd.DataFrame:
    """Gold and proxy with an effect of each arm, on prompts that differ much more than arms do."""
    rng = np.random.default_rng(5)
    hard = rng.normal(0.0, 3.0, PROMPTS)
    made = []
    for arm, gain in arms.items():
        for seed in seeds:
            gold = hard + gain + rng.normal(0.0, 0.3, PROMPTS) + 0.02 * seed
            made.append(
                pd.DataFrame(
                    {
                        "arm": arm, "seed": seed, "prompt_id": np.arange(PROMPTS), "gold": gold,
                        "win": (gold > hard).astype(float), "kl": 2.0 + gain + 0.1 * rng.random(PROMPTS),
                        "length": rng.integers(20, 40, PROMPTS),
                    }
                )
            )  # fmt: skip
    return pd.concat(made, ignore_index=True)


def analysed(layout: Layout, name: str) -> tuple[StudyRecords, Findings]:
    records = load_records(*find_study(layout, f"{name}.yaml"))
    return records, analyse(records)


def test_published_paired_results_are_computed_again(tmp_path: Path, succeeds: Run, drawn: Run, layout: Layout) -> None:
    table = outcomes({"base": 0.0, "tuned": 0.4})
    table.to_csv(tmp_path / "prompts.csv", index=False)
    told = succeeds("import", "prompts.csv", "--name", "paper")
    assert "Taken by prompt (column: from):" in told
    assert "policy_gold: gold" in told
    study = load_study("paper.yaml")
    assert (study.objective.metric, study.objective.direction) == ("eval/win_rate", "maximize")
    records, findings = analysed(layout, "paper")
    (effect,) = findings.effects_on("eval/gold")
    wide = table.pivot_table(index=["seed", "prompt_id"], columns="arm", values="gold")
    paired = wide["tuned"] - wide["base"]
    assert effect.estimate is not None
    assert effect.estimate.value == pytest.approx(paired.mean())
    assert (effect.estimate.seeds, effect.estimate.prompts, effect.outcome) == (3, PROMPTS, "better")
    unpaired = np.sqrt(2 * table["gold"].var() / (3 * PROMPTS))
    assert effect.estimate.high is not None
    assert effect.estimate.low is not None
    width = effect.estimate.high - effect.estimate.low
    assert width < 2 * unpaired, "prompts are paired: without that, the interval would be at least 3.9 unpaired wide"
    base = findings.arm("base")
    own = table[table["arm"] == "base"]
    assert base.estimates["eval/win_rate"].prompts == PROMPTS
    assert base.estimates["eval/win_rate"].value == pytest.approx(own["win"].mean())
    assert base.estimates["eval/kl_per_sequence"].value == pytest.approx(own["kl"].mean())
    sums = own.groupby("seed")[["kl", "length"]].sum()
    ratios = sums["kl"] / sums["length"]
    assert base.estimates["eval/kl_per_token"].value == pytest.approx(ratios.mean())
    assert "eval/proxy" not in base.estimates
    assert records.evaluated("tuned") == [0, 1, 2]
    page = drawn("paper", "win_rate")
    report = layout.study("paper", "imported").path / "report"
    assert "Quality and drift" in page
    assert "Outcomes by prompt are as the other program published them" in page
    assert "once per trial" not in page
    assert "no longer in the store" not in page
    assert "proxy" not in pd.read_csv(report / "tables" / "arms.csv").columns.str.cat(sep=" ")


def test_what_was_not_published_is_absent_and_not_0(tmp_path: Path, succeeds: Run, drawn: Run, layout: Layout) -> None:
    table = outcomes({"base": 0.0, "tuned": 0.4}).drop(columns=["win"])
    table.loc[table["arm"] == "tuned", "kl"] = np.nan
    table.loc[(table["arm"] == "base") & (table["seed"] == 0) & (table["prompt_id"] < 5), "gold"] = np.nan
    table.to_csv(tmp_path / "prompts.csv", index=False)
    told = succeeds("import", "prompts.csv", "--name", "paper")
    assert "kl (arm base)" in told
    records, findings = analysed(layout, "paper")
    assert "eval/kl_per_sequence" not in findings.arm("tuned").estimates
    assert "eval/kl_per_sequence" not in records.records["tuned", 0].summary
    assert "eval/win_rate" not in findings.arm("base").estimates
    (drift,) = findings.effects_on("eval/kl_per_sequence")
    assert (drift.estimate, drift.outcome) == (None, "not estimable")
    (effect,) = findings.effects_on("eval/gold")
    assert effect.estimate is not None
    assert effect.estimate.prompts == PROMPTS - 5, "prompts that every compared trial has a value for"
    page = drawn("paper", "frontier")
    assert "Quality and drift" in page
    assert "no bound is known for them" in page
    assert "upper bound for any policy" not in page


def test_a_metric_known_by_prompt_of_some_trials_alone_is_compared_once_per_trial(
    tmp_path: Path, succeeds: Run, layout: Layout
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    outcomes({"base": 0.0}).to_csv(logs / "prompts.csv", index=False)
    for seed in (0, 1, 2):
        made = [{"step": at, "objective/scores": 0.1 * at} for at in range(1, 6)]
        trl_logs.write(logs / f"tuned-seed{seed}.jsonl", [*made, {"step": 5, "eval/gold": 1.0 + 0.01 * seed}])
    succeeds("import", logs, "--name", "mixed")
    _, findings = analysed(layout, "mixed")
    (effect,) = findings.effects_on("eval/gold")
    assert effect.estimate is not None
    assert (effect.estimate.prompts, effect.estimate.method) == (0, "student")
    assert findings.arm("tuned").estimates["eval/gold"].value == pytest.approx(1.01)


def test_series_and_outcomes_of_one_trial_stand_on_one_page(
    tmp_path: Path, succeeds: Run, drawn: Run, layout: Layout
) -> None:
    logs = trl_logs.folder(tmp_path / "logs", {"base": 0.2, "tuned": 0.05}, (0, 1, 2))
    outcomes({"base": 0.0, "tuned": 0.4}).to_csv(logs / "eval.csv", index=False)
    succeeds("import", logs, "--name", "both", "--steps-per-update", 16)
    records, findings = analysed(layout, "both")
    assert findings.arm("base").estimates["eval/gold"].prompts == PROMPTS
    assert findings.arm("base").estimates["objective/kl"].prompts == 0
    assert records.study.objective.metric == "eval/win_rate"
    page = drawn("both", "frontier", "matched_kl")
    assert "each trial the mean of the last tenth of its records" in page


def test_ids_of_any_kind_pair_over_imports(tmp_path: Path, succeeds: Run, layout: Layout) -> None:
    table = outcomes({"base": 0.0, "tuned": 0.4})
    table["prompt_id"] = "q" + table["prompt_id"].astype(str)
    table[table["arm"] == "base"].to_csv(tmp_path / "one.csv", index=False)
    table[table["arm"] == "tuned"].sample(frac=1.0, random_state=0).to_csv(tmp_path / "two.csv", index=False)
    succeeds("import", "one.csv", "--name", "paper")
    succeeds("import", "two.csv", "--name", "paper")
    _, findings = analysed(layout, "paper")
    (effect,) = findings.effects_on("eval/gold")
    wide = table.pivot_table(index=["seed", "prompt_id"], columns="arm", values="gold")
    assert effect.estimate is not None
    assert effect.estimate.prompts == PROMPTS
    assert effect.estimate.value == pytest.approx((wide["tuned"] - wide["base"]).mean())


def test_names_and_units_are_mapped(tmp_path: Path, succeeds: Run, layout: Layout) -> None:
    table = outcomes({"base": 0.0}).rename(columns={"gold": "judge", "length": "n", "prompt_id": "item"})
    table["kl"] /= table["n"]
    table.to_csv(tmp_path / "prompts.csv", index=False)
    Path("map.yaml").write_text(
        "prompts: {prompt_id: item, policy_gold: {key: judge, subtract: 1, factor: 2}, policy_length: n,"
        " kl: {key: kl, unit: nats per token}}\n"
    )
    succeeds("import", "prompts.csv", "--name", "paper", "--map", "map.yaml")
    record = layout.study("paper", "imported").record("base", 0)
    own = table[table["seed"] == 0]
    assert record is not None
    assert record.summary["eval/gold"] == pytest.approx(2 * (own["judge"].mean() - 1))
    assert record.summary["eval/kl_per_sequence"] == pytest.approx((own["kl"] * own["n"]).mean())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_id": 1}, "prompt 1 stands a second time"),
        ({"prompt_id": ""}, "no prompt_id, so the prompt cannot be paired"),
    ],
)
def test_prompts_that_cannot_be_paired(tmp_path: Path, refused: Run, change: dict[str, Any], words: str) -> None:
    made = outcomes({"base": 0.0}, (0,)).astype({"prompt_id": object}).to_dict("records")
    made[3] |= change
    with (tmp_path / "prompts.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(made[0]))
        table.writeheader()
        table.writerows(made)
    assert words in refused("import", "prompts.csv", "--name", "paper")


def test_a_win_that_is_no_share_is_left_out_and_told(tmp_path: Path, succeeds: Run) -> None:
    table = outcomes({"base": 0.0}, (0,))
    table.loc[4, "win"] = 2.0
    table.to_csv(tmp_path / "prompts.csv", index=False)
    told = succeeds("import", "prompts.csv", "--name", "paper")
    assert "win = '2.0': outside 0 to 1, which cannot be; 1 of 60 values; the whole column is left out" in told
    assert "Ignored:\n  win: outside 0 to 1" in told


@pytest.mark.parametrize(
    "columns", [("kl", "win"), ("win",), ("length",), ("kl", "length"), ("gold", "reference_gold")]
)
def test_any_columns_alone_make_a_page(tmp_path: Path, succeeds: Run, drawn: Run, columns: tuple[str, ...]) -> None:
    table = outcomes({"base": 0.0, "tuned": 0.4}, (0, 1)).assign(reference_gold=0.1)
    table[["arm", "seed", "prompt_id", *columns]].to_csv(tmp_path / "prompts.csv", index=False)
    succeeds("import", "prompts.csv", "--name", "paper")
    assert "2 × 60" in drawn("paper", "frontier")
