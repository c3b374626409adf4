"""Crossed knobs: simple effects and interactions against numpy, and their numbers in the sentence and the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from reports.findings.crossings import Crossed, crossed
from reports.findings.findings import analyse
from reports.records.load import StudyRecords, load_records
from reports.statistics import two_level
from reports.tables.results import all_tables
from reports.text.answer import crossing_sentence
from reports.text.words import signed
from studies.definition.space import Objective

if TYPE_CHECKING:
    from tests.reports.conftest import Builder

LAM, BETA, CLIP = "algorithm.gae_lambda", "kl.beta", "algorithm.clip.epsilon"
BASE, ALONE_BETA, ALONE_LAM, BOTH = (
    f"beta={beta}+gae_lambda={lam}" for lam, beta in ((0.95, 0.05), (0.95, 0.2), (0.5, 0.05), (0.5, 0.2))
)
GRID = f'grid: {{"{BETA}": [0.05, 0.2], "{LAM}": [0.5, 0.95]}}\nbaseline: {BASE}'
WHOLE: dict[str, Any] = {"seeds": (0, 1, 2), "steps": 64, "prompts": 60, "diverged": (), "budget": (), "missing": ()}
GOLD = "objective: {metric: eval/gold}"
Made = Callable[..., StudyRecords]


@pytest.fixture
def made(build: Builder, tmp_path: Path) -> Made:
    def make(design: str = GRID, **shape: Any) -> StudyRecords:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        built = build(folder, **{**WHOLE, **shape}, design=design, extra=GOLD)
        return load_records(built.folder, built.study)

    return make


@pytest.fixture(scope="module")
def grid(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> StudyRecords:
    built = build(tmp_path_factory.mktemp("grid"), **WHOLE, design=GRID, extra=GOLD)
    return load_records(built.folder, built.study)


def shifted(records: StudyRecords, shifts: Mapping[str, float], spread: float = 0.3) -> StudyRecords:
    """Gold of each arm: its shift, the difficulty of the prompt, which all arms share, and noise."""
    rng = np.random.default_rng(11)
    prompts = records.prompts.copy()
    difficulty = rng.normal(size=int(prompts["prompt_id"].max()) + 1)
    for arm in records.arms:
        for seed in records.seeds:
            at = (prompts["arm"] == arm) & (prompts["seed"] == seed)
            noise = 0.02 * rng.normal() + spread * rng.normal(size=int(at.sum()))
            prompts.loc[at, "policy_gold"] = shifts.get(arm, 0.0) + difficulty[prompts.loc[at, "prompt_id"]] + noise
    return replace(records, prompts=prompts)


def gold(records: StudyRecords, arm: str) -> np.ndarray:
    """(S, P) straight from the per-prompt tables."""
    rows = records.prompts[records.prompts["arm"] == arm]
    return rows.pivot_table(index="seed", columns="prompt_id", values="policy_gold").to_numpy(float)


def said_of(records: StudyRecords) -> str:
    return crossing_sentence(crossed(records), records.study.objective.metric)


def on(records: StudyRecords, metric: str) -> StudyRecords:
    return replace(records, study=records.study.model_copy(update={"objective": Objective(metric=metric)}))


def the_only(records: StudyRecords) -> Crossed:
    (found,) = crossed(records)
    return found


def test_two_by_two_against_numpy(grid: StudyRecords) -> None:
    records = shifted(grid, {ALONE_BETA: 0.3, ALONE_LAM: -0.2, BOTH: 0.6})
    found = the_only(records)
    base, beta, lam, both = (gold(records, arm) for arm in (BASE, ALONE_BETA, ALONE_LAM, BOTH))
    wanted = {
        (LAM, 0.5, 0.95, BETA, 0.05): lam - base,
        (LAM, 0.5, 0.95, BETA, 0.2): both - beta,
        (BETA, 0.2, 0.05, LAM, 0.95): beta - base,
        (BETA, 0.2, 0.05, LAM, 0.5): both - lam,
    }
    assert [(one.knob, one.value, one.base, one.other, one.level) for one in found.effects] == list(wanted)
    for one, table in zip(found.effects, wanted.values(), strict=True):
        assert one.contrast.estimate is not None
        assert one.contrast.estimate.value == pytest.approx(table.mean(), abs=1e-12)
        changed, unchanged = (gold(records, arm) for arm in one.contrast.weights)
        assert one.contrast.estimate.low == pytest.approx(two_level.difference(changed, unchanged).low)
        assert one.contrast.p == pytest.approx(two_level.two_level_p(one.contrast.estimate))
        assert (one.contrast.estimate.seeds, one.contrast.estimate.prompts) == (3, 60)
    raw = [one.contrast.p for one in found.effects]
    assert [one.contrast.p_holm for one in found.effects] == two_level.holm([p for p in raw if p is not None])
    (interaction,) = found.interactions
    assert (interaction.row, interaction.column) == (0.2, 0.5)
    assert interaction.contrast.estimate is not None
    assert interaction.contrast.estimate.value == pytest.approx((both - beta - lam + base).mean(), abs=1e-12)
    assert interaction.contrast.estimate.value == pytest.approx(0.5, abs=0.15)
    assert interaction.contrast.p_holm == interaction.contrast.p
    assert interaction.contrast.differs
    said = said_of(records)
    for one in (*found.effects[:2], interaction):
        assert one.contrast.estimate is not None
        assert signed(one.contrast.estimate, "eval/gold") in said
    assert "the effect of gae_lambda depends on beta" in said
    assert "3 seeds × 60 prompts" in said
    assert "not distinguishable" not in said
    (table,) = (one for one in all_tables(records, analyse(records)) if one.name == "crossings")
    row = table.frame.iloc[4]
    assert row["contrast"] == f"{BOTH} - {ALONE_BETA} - {ALONE_LAM} + {BASE}"
    assert (row["difference"], row["p_holm"]) == (interaction.contrast.estimate.value, interaction.contrast.p_holm)
    assert (row["unit"], row["seeds"], row["prompts"]) == ("judge points", 3, 60)


def test_effects_that_add_up_are_not_called_an_interaction(grid: StudyRecords) -> None:
    records = shifted(grid, {ALONE_BETA: 0.5, ALONE_LAM: -0.4, BOTH: 0.1})
    found, said = the_only(records), said_of(records)
    assert all(one.contrast.differs for one in found.effects)
    assert not found.interactions[0].contrast.differs
    assert "not distinguishable from 0), so it is open" in said


def test_ratios_are_compared_as_ratios(grid: StudyRecords) -> None:
    records = on(grid, "eval/kl_per_token")
    rng = np.random.default_rng(4)
    prompts = records.prompts.assign(kl=records.prompts["kl"] * rng.uniform(0.5, 1.5, len(records.prompts)))
    records = replace(records, prompts=prompts)
    sums = prompts.groupby(["arm", "seed"])[["kl", "policy_length"]].sum()
    ratio = (sums["kl"] / sums["policy_length"]).groupby("arm").mean()
    (interaction,) = the_only(records).interactions
    assert interaction.contrast.estimate is not None
    assert interaction.contrast.estimate.value == pytest.approx(
        ratio[BOTH] - ratio[ALONE_BETA] - ratio[ALONE_LAM] + ratio[BASE]
    )
    assert "nats per token (p " in said_of(records)


def test_what_exists_once_per_trial_is_compared_over_seeds(grid: StudyRecords) -> None:
    records = on(grid, "eval/distinct_1")
    values = np.random.default_rng(5).normal(0.5, 0.01, len(records.trials))
    records = replace(records, trials=records.trials.assign(**{"eval/distinct_1": values}))
    by_arm = {arm: rows["eval/distinct_1"].to_numpy() for arm, rows in records.trials.groupby("arm")}
    (interaction,) = the_only(records).interactions
    seeds = by_arm[BOTH] - by_arm[ALONE_BETA] - by_arm[ALONE_LAM] + by_arm[BASE]
    estimate = interaction.contrast.estimate
    assert estimate is not None
    assert estimate.value == pytest.approx(seeds.mean())
    assert estimate.prompts == 0
    assert estimate.se == pytest.approx(seeds.std(ddof=1) / np.sqrt(3))
    assert "Each is over 3 seeds; " in said_of(records)


def test_factors_are_crossed_where_the_study_says_so(made: Made) -> None:
    records = made(
        f'factors: {{"{BETA}": [0.2], "{LAM}": [0.5, 0.8], "{CLIP}": [0.1]}}\ninteractions: [["{BETA}", "{LAM}"]]'
    )
    records = shifted(records, {"beta=0.2+gae_lambda=0.5": 0.4})
    found = the_only(records)
    assert (found.crossing.rows, found.crossing.columns) == (BETA, LAM)
    assert [(one.row, one.column) for one in found.interactions] == [(0.2, 0.5), (0.2, 0.8)]
    arms = ("beta=0.2+gae_lambda=0.5", "beta=0.2", "gae_lambda=0.5", "baseline")
    both, beta, lam, base = (gold(records, arm) for arm in arms)
    strong, weak = (one.contrast for one in found.interactions)
    assert strong.estimate is not None
    assert strong.estimate.value == pytest.approx((both - beta - lam + base).mean(), abs=1e-12)
    assert [strong.p_holm, weak.p_holm] == two_level.holm([strong.p or 0.0, weak.p or 0.0])
    assert (strong.differs, weak.differs) == (True, False)
    said = said_of(records)
    assert said.startswith("1 of the 2 cells that change both beta and gae_lambda ")
    assert f"beta=0.2 with gae_lambda=0.5, is {signed(strong.estimate, 'eval/gold')} judge points (3 seeds" in said
    plain = made(f'factors: {{"{BETA}": [0.2], "{LAM}": [0.5]}}')
    assert crossed(plain) == ()
    assert said_of(plain) == ""


def test_each_pair_of_three_knobs_is_taken_at_the_baseline_of_the_third(made: Made) -> None:
    values = {BETA: (0.05, 0.2), LAM: (0.5, 0.95), CLIP: (0.1, 0.2)}
    listed = ", ".join(f'"{key}": {list(own)}' for key, own in values.items())
    records = made(f"grid: {{{listed}}}\nbaseline: {BASE}+epsilon=0.2", seeds=(0, 1), prompts=40)
    far = f"{BOTH}+epsilon=0.1"
    found = crossed(shifted(records, {far: 50.0}))
    assert [(one.crossing.rows, one.crossing.columns) for one in found] == [(BETA, LAM), (BETA, CLIP), (LAM, CLIP)]
    assert all(far not in one.weights for pair in found for one in pair.contrasts)
    assert set(found[2].interactions[0].contrast.weights) == {
        f"beta=0.05+gae_lambda={lam}+epsilon={clip}" for lam, clip in product(values[LAM], values[CLIP])
    }
    none = shifted(records, {})
    assert said_of(none).startswith("None of the 3 cells that change two knobs ")


def test_a_single_seed_tests_nothing(made: Made) -> None:
    records = shifted(made(seeds=(0,)), {BOTH: 5.0})
    said = said_of(records)
    assert said.startswith("As far as a single seed can tell, at beta=0.05, gae_lambda=0.5 instead of 0.95 ")
    assert said.count("(not tested)") == 3
    assert "1 seed × 60 prompts" in said
    lost = made(seeds=(0, 1), diverged=((BOTH, 0), (BOTH, 1)))
    assert "share no evaluated seed" in said_of(lost)
    assert not any(one.differs for one in the_only(records).contrasts)
