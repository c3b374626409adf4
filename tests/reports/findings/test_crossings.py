from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic

from reports.findings.crossings import crossed
from reports.findings.findings import analyse
from reports.records.load import StudyRecords
from reports.statistics import contrast, two_level
from reports.tables.crossings import crossings_table
from reports.text.answer import crossing_sentence
from reports.text.words import signed

LAM, BETA, CLIP = "algorithm.gae_lambda", "kl.beta", "algorithm.clip.epsilon"
BASE, ALONE_BETA, ALONE_LAM, BOTH = (
    f"beta={beta}+gae_lambda={lam}" for lam, beta in ((0.95, 0.05), (0.95, 0.2), (0.5, 0.05), (0.5, 0.2))
)
GRID = f'grid: {{"{BETA}": [0.05, 0.2], "{LAM}": [0.5, 0.95]}}\nbaseline: {BASE}'
SHAPE: dict[str, Any] = {**synthetic.WHOLE, "steps": 64, "prompts": 60, "extra": "objective: {metric: eval/gold}"}
Made = Callable[..., StudyRecords]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Studies in which gold of an arm is its shift, the difficulty of the prompt, which all arms share, and noise."""

    def make(shifts: Mapping[str, float], design: str = GRID, seeds: tuple[int, ...] = (0, 1, 2), **more: Any) -> Any:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        records = synthetic.build(folder, **{**SHAPE, **more}, seeds=seeds, design=design).records
        rng, prompts = np.random.default_rng(11), records.prompts.copy()
        difficulty = rng.normal(size=60)
        for (arm, _), rows in prompts.groupby(["arm", "seed"], sort=False):
            noise = 0.02 * rng.normal() + 0.3 * rng.normal(size=len(rows))
            prompts.loc[rows.index, "policy_gold"] = shifts.get(str(arm), 0.0) + difficulty[rows["prompt_id"]] + noise
        return replace(records, prompts=prompts)

    return make


def gold(records: StudyRecords, *arms: str) -> list[np.ndarray]:
    """(S, P) of each arm, straight from the per-prompt tables."""
    tables = records.prompts.pivot_table(index=["arm", "seed"], columns="prompt_id", values="policy_gold")
    return [tables.loc[arm].to_numpy(float) for arm in arms]


def sentence(records: StudyRecords) -> str:
    return crossing_sentence(crossed(records), records.study.objective.metric)


def test_two_by_two_against_numpy(made: Made) -> None:
    records = made({ALONE_BETA: 0.3, ALONE_LAM: -0.2, BOTH: 0.6})
    (found,) = crossed(records)
    base, beta, lam, both = gold(records, BASE, ALONE_BETA, ALONE_LAM, BOTH)
    wanted = {
        (LAM, 0.5, 0.95, BETA, 0.05): (lam, base),
        (LAM, 0.5, 0.95, BETA, 0.2): (both, beta),
        (BETA, 0.2, 0.05, LAM, 0.95): (beta, base),
        (BETA, 0.2, 0.05, LAM, 0.5): (both, lam),
    }
    assert [(one.knob, one.value, one.base, one.other, one.level) for one in found.effects] == list(wanted)
    for one, (changed, unchanged) in zip(found.effects, wanted.values(), strict=True):
        estimate, direct = one.contrast.estimate, contrast.estimate((1, -1), [(changed, None), (unchanged, None)])
        assert (estimate.value, estimate.low) == pytest.approx((direct.value, direct.low))
        assert one.contrast.p == pytest.approx(two_level.two_level_p(estimate))
    raw = [one.contrast.p for one in found.effects]
    assert [one.contrast.p_holm for one in found.effects] == two_level.holm(raw)
    (interaction,) = (one.contrast for one in found.interactions)
    assert interaction.estimate.value == pytest.approx((both - beta - lam + base).mean(), abs=1e-12)
    assert interaction.estimate.value == pytest.approx(0.5, abs=0.15)
    assert (interaction.p_holm, interaction.differs) == (interaction.p, True)
    row = crossings_table(records, analyse(records)).frame.iloc[4]
    assert row["contrast"] == f"{BOTH} - {ALONE_BETA} - {ALONE_LAM} + {BASE}"
    assert (row["difference"], row["p_holm"]) == (interaction.estimate.value, interaction.p_holm)


def test_effects_that_add_up_do_not_interact(made: Made) -> None:
    records = made({ALONE_BETA: 0.5, ALONE_LAM: -0.4, BOTH: 0.1})
    (found,) = crossed(records)
    assert all(one.contrast.differs for one in found.effects)
    assert not found.interactions[0].contrast.differs
    assert "not distinguishable from 0" in sentence(records)


def test_factors_are_crossed_where_the_study_says_so(made: Made) -> None:
    factors = f'factors: {{"{BETA}": [0.2], "{LAM}": [0.5, 0.8], "{CLIP}": [0.1]}}\n'
    records = made({"beta=0.2+gae_lambda=0.5": 0.4}, f'{factors}interactions: [["{BETA}", "{LAM}"]]')
    (found,) = crossed(records)
    assert (found.crossing.rows, found.crossing.columns) == (BETA, LAM)
    assert [(one.row, one.column) for one in found.interactions] == [(0.2, 0.5), (0.2, 0.8)]
    both, beta, lam, base = gold(records, "beta=0.2+gae_lambda=0.5", "beta=0.2", "gae_lambda=0.5", "baseline")
    strong, weak = (one.contrast for one in found.interactions)
    assert strong.estimate.value == pytest.approx((both - beta - lam + base).mean(), abs=1e-12)
    assert [strong.p_holm, weak.p_holm] == two_level.holm([strong.p, weak.p])
    assert (strong.differs, weak.differs) == (True, False)
    said = sentence(records)
    assert "1 of the 2 cells" in said
    assert f"beta=0.2 with gae_lambda=0.5, is {signed(strong.estimate, 'eval/gold')} judge points (3 seeds" in said
    plain = made({}, factors, seeds=(0,))
    assert (crossed(plain), sentence(plain)) == ((), "")


def test_a_single_seed_tests_nothing(made: Made) -> None:
    records = made({BOTH: 5.0}, seeds=(0,))
    assert not any(one.differs for one in crossed(records)[0].contrasts)
    assert "share no evaluated seed" in sentence(made({}, seeds=(0,), diverged=((BOTH, 0),)))
