"""Outcomes by prompt of another program: the report treats them like those of an evaluation of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.run.layout import Layout, TrialRecord
from reports.findings.findings import Findings, analyse
from reports.records.load import find_study, load_records
from studies.importing.run import import_folder

Run = Callable[..., str]
PROMPTS = 60


def outcomes(arms: dict[str, float], seeds: tuple[int, ...] = (0, 1, 2)) -> pd.DataFrame:
    """Gold and proxy with an effect of each arm, on prompts that differ much more than arms do."""
    rng = np.random.default_rng(5)
    hard, made = rng.normal(0.0, 3.0, PROMPTS), []
    for arm, gain in arms.items():
        for seed in seeds:
            gold = hard + gain + rng.normal(0.0, 0.3, PROMPTS) + 0.02 * seed
            columns = {"prompt_id": np.arange(PROMPTS), "gold": gold, "win": (gold > hard).astype(float)}
            columns |= {"kl": 2.0 + gain + 0.1 * rng.random(PROMPTS), "length": rng.integers(20, 40, PROMPTS)}
            made.append(pd.DataFrame({"arm": arm, "seed": seed, **columns}))
    return pd.concat(made, ignore_index=True)


def imported(layout: Layout, table: pd.DataFrame, map_: str = "plain") -> list[TrialRecord]:
    table.to_csv("prompts.csv", index=False)
    import_folder(Path("prompts.csv"), "paper", layout, map_)
    return layout.study("paper", "imported").records()


def analysed(layout: Layout) -> Findings:
    return analyse(load_records(*find_study(layout, "paper.yaml")))


def test_published_paired_results_are_computed_again(layout: Layout) -> None:
    table = outcomes({"base": 0.0, "tuned": 0.4})
    imported(layout, table)
    (effect,) = analysed(layout).effects_on("eval/gold")
    wide = table.pivot_table(index=["seed", "prompt_id"], columns="arm", values="gold")
    assert effect.estimate is not None
    assert effect.estimate.value == pytest.approx((wide["tuned"] - wide["base"]).mean())
    assert (effect.estimate.seeds, effect.estimate.prompts, effect.outcome) == (3, PROMPTS, "better")
    assert effect.estimate.high is not None
    assert effect.estimate.low is not None
    unpaired = np.sqrt(2 * table["gold"].var() / (3 * PROMPTS))
    assert effect.estimate.high - effect.estimate.low < 2 * unpaired, "prompts are paired"
    base, own = analysed(layout).arm("base"), table[table["arm"] == "base"]
    assert base.estimates["eval/win_rate"].value == pytest.approx(own["win"].mean())
    sums = own.groupby("seed")[["kl", "length"]].sum()
    assert base.estimates["eval/kl_per_token"].value == pytest.approx((sums["kl"] / sums["length"]).mean())
    assert "eval/proxy" not in base.estimates


def test_names_and_units_are_mapped(layout: Layout) -> None:
    table = outcomes({"base": 0.0}, (0,)).rename(columns={"gold": "judge", "length": "n", "prompt_id": "item"})
    Path("map.yaml").write_text(
        "prompts: {prompt_id: item, policy_gold: {key: judge, subtract: 1, factor: 2}, policy_length: n,"
        " kl: {key: kl, unit: nats per token}}\n"
    )
    (record,) = imported(layout, table.assign(kl=table["kl"] / table["n"]), "map.yaml")
    assert record.summary["eval/gold"] == pytest.approx(2 * (table["judge"].mean() - 1))
    assert record.summary["eval/kl_per_sequence"] == pytest.approx(table["kl"].mean())


@pytest.mark.parametrize(
    ("value", "words"),
    [(1, "prompt_id = 1: stands a second time"), ("", "without it a prompt cannot be paired with itself elsewhere")],
)
def test_prompts_that_cannot_be_paired(layout: Layout, value: Any, words: str) -> None:
    table = outcomes({"base": 0.0}, (0,)).astype({"prompt_id": object})
    table.loc[3, "prompt_id"] = value
    with pytest.raises(UserError, match=rf"prompts.csv \(base seed 0\), line 5: .*{words}"):
        imported(layout, table)
