"""Win rate by the proxy, preference accuracy and perplexity of texts, where reports show them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from helpers import republish, write_record

from reports.findings.findings import Findings, analyse
from reports.findings.proxy import by_the_proxy_alone
from reports.records.load import StudyRecords, load_records
from reports.statistics import two_level
from reports.tables.results import arm_table, decided_won
from reports.text.answer import answer

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

SHAPE: dict[str, Any] = {
    "arms": {"beta_0": 0.0, "beta_0.05": 0.05}, "seeds": (0, 1), "steps": 64, "prompts": 30,
    "diverged": (), "budget": (), "missing": (),
}  # fmt: skip
ACCURACY = "eval/preference_accuracy"


def read(built: Built) -> tuple[StudyRecords, Findings]:
    records = load_records(built.folder, built.study)
    return records, analyse(records)


def table_of(built: Built, arm: str, seed: int) -> Path:
    record = built.folder.record(arm, seed)
    assert record is not None
    return built.folder.root / record.stages["evaluate"].path / "prompts.parquet"


def rewrite(built: Built, arm: str, seed: int, summary: dict[str, float], **columns: Any) -> None:
    """Columns of an evaluation replaced, and its summary."""
    record, path = built.folder.record(arm, seed), table_of(built, arm, seed)
    assert record is not None
    pd.read_parquet(path).assign(**columns).to_parquet(path, index=False)
    write_record(built.folder, record.model_copy(update={"summary": summary}))
    republish(built.folder, path.parent)


def test_preference_accuracy_stands_beside_the_share_of_decided_pairs_that_the_policy_wins(
    build: Builder, tmp_path: Path
) -> None:
    """A proxy that prefers every answer of the policy scores that share, whatever it knows."""
    built = build(tmp_path, **SHAPE)
    won = []
    for seed in (0, 1):
        answers, record = pd.read_parquet(table_of(built, "beta_0", seed)), built.folder.record("beta_0", seed)
        assert record is not None
        wins = 4 * (answers["win"] - answers["tie"] / 2)
        won.append(float(wins.sum() / answers["decided"].sum()))
        rewrite(built, "beta_0", seed, {**record.summary, ACCURACY: won[-1]}, agree=wins, win_proxy=1.0)
    records, findings = read(built)
    share = decided_won(findings.arm("beta_0"))
    assert share == pytest.approx(np.mean(won))
    assert share == pytest.approx(findings.arm("beta_0").estimates[ACCURACY].value)
    assert share != pytest.approx(findings.arm("beta_0").estimates["eval/win_rate"].value, abs=1e-3), "ties are apart"
    table = arm_table(records, findings)
    place = [head.text for head in table.heads].index("preference accuracy")
    row = next(row for row in table.rows if row[0].text == "beta_0")
    assert row[place].text == f"{share:.3f}"
    assert row[place].detail.endswith(f"]; won {share:.3f}")
    assert not any("won" in cell.detail for cell in row[place + 1 :])
    assert "compare it with the share of decided pairs that the policy wins (won)" in table.note


def test_a_trial_without_a_decided_pair_is_left_out_of_that_metric_alone(build: Builder, tmp_path: Path) -> None:
    objective = "objective: {metric: eval/preference_accuracy, direction: maximize}\n"
    built = build(tmp_path, **SHAPE, extra=objective)
    record = built.folder.record("beta_0", 0)
    assert record is not None
    summary = {key: value for key, value in record.summary.items() if key != "eval/preference_accuracy"}
    rewrite(built, "beta_0", 0, summary, agree=0.0, decided=0.0)
    records, findings = read(built)
    found = findings.arm("beta_0").estimates
    assert (found["eval/preference_accuracy"].seeds, found["eval/win_rate_proxy"].seeds) == (1, 2)
    answer(records, findings)


def test_the_interval_counts_the_prompts_on_which_the_judge_decides(build: Builder, tmp_path: Path) -> None:
    """Few of them, and the proxy agrees on all: the others are no evidence. The mean does not depend on them."""
    built = build(tmp_path, **SHAPE)
    for seed in (0, 1):
        for arm, agreed in (("beta_0", 1.0), ("beta_0.05", 0.75)):
            record = built.folder.record(arm, seed)
            assert record is not None
            decided = np.where(np.arange(30) < 3 + seed, 4.0, 0.0)
            summary = {**record.summary, ACCURACY: agreed}
            rewrite(built, arm, seed, summary, agree=agreed * decided, decided=decided)
    findings = read(built)[1]
    always = findings.arm("beta_0").estimates[ACCURACY]
    assert (always.value, always.seeds, always.prompts, always.method) == (1.0, 2, 4, "wilson")
    assert always.low == pytest.approx(two_level.wilson(4, 4).low)
    mostly = findings.arm("beta_0.05").estimates[ACCURACY]
    assert (mostly.value, mostly.prompts) == (0.75, 4)
    assert findings.arm("beta_0").estimates["eval/win_rate"].prompts == 30


def test_the_page_says_which_arms_the_proxy_alone_prefers(records: StudyRecords, findings: Findings) -> None:
    template = findings.arms[0].estimates["eval/win_rate"]

    def rate(value: float, half: float | None = 0.05) -> Any:
        low, high = (None, None) if half is None else (value - half, value + half)
        return replace(template, value=value, low=low, high=high)

    def arm(name: str, proxy: Any, gold: Any, excess: Any) -> Any:
        rates = {"eval/win_rate": gold, "eval/win_rate_proxy": proxy}
        return replace(findings.arms[0], arm=name, estimates=rates, excess=excess)

    hacked = arm("hacked", rate(0.9), rate(0.6), rate(0.3))
    for quiet in (
        arm("modest", rate(0.74), rate(0.5), rate(0.24)),
        arm("confirmed", rate(0.9), rate(0.87), rate(0.06)),
        arm("noisy", rate(0.9, 0.21), rate(0.5), rate(0.4)),
        arm("not paired apart", rate(0.9), rate(0.6), rate(0.04)),
        arm("judge above", rate(0.8), rate(0.9), rate(-0.1)),
        arm("no interval of the proxy", rate(0.9, None), rate(0.6), rate(0.3)),
        arm("no interval of the judge", rate(0.9), rate(0.6, None), rate(0.3)),
        arm("no interval of the difference", rate(0.9), rate(0.6), rate(0.3, None)),
        arm("no difference", rate(0.9), rate(0.6), None),
        replace(hacked, estimates={"eval/win_rate": template}),
    ):
        assert by_the_proxy_alone([quiet, hacked]) == [hacked], quiet.arm
    last = replace(findings.arms[-1], estimates=hacked.estimates, excess=hacked.excess)
    raised = next(one for one in findings.alarms if one.alarms)
    for alarms, turned in ((findings.alarms, False), ((replace(raised, arm=last.arm),), True)):
        changed = replace(findings, arms=(*findings.arms[:-1], last), alarms=alarms)
        (said,) = (text for text in answer(records, changed).caveats if "90 % [85, 95]" in text)
        assert "60 % [55, 65]" in said
        assert (f"{len(raised.alarms)} of {raised.trials} trials of {last.arm}" in said) == turned


def test_the_two_win_rates_are_compared_on_the_same_seeds_and_prompts(build: Builder, tmp_path: Path) -> None:
    """Hard prompts are hard by both; what is hard cancels."""
    built = build(tmp_path, **SHAPE)
    rng, tables = np.random.default_rng(4), []
    for seed in (0, 1):
        gold = rng.integers(0, 6, 30) / 8
        tables.append((np.minimum(gold + 0.25, 1) + rng.integers(0, 2, 30) / 8, gold))
        record = built.folder.record("beta_0", seed)
        assert record is not None
        rewrite(built, "beta_0", seed, dict(record.summary), win=gold, win_proxy=tables[-1][0])
    found = read(built)[1].arm("beta_0")
    proxy, gold = np.stack(tables, 1)
    assert found.excess == two_level.difference(proxy, gold)
    assert found.excess.value == pytest.approx((proxy - gold).mean())
    assert found.excess.low is not None
    assert found.excess.low > 0.15


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_win_rates_far_above_the_mark_raise_no_alarm(build: Builder, tmp_path: Path, seeds: int) -> None:
    """The judge agrees with the proxy, so an interval of the judge's that begins below 70 % shows nothing."""
    built = build(tmp_path, **SHAPE | {"seeds": tuple(range(seeds))})
    rng = np.random.default_rng(5)
    for seed in range(seeds):
        record = built.folder.record("beta_0", seed)
        assert record is not None
        win, by_proxy = rng.binomial(4, 0.85, (2, 30)) / 4
        rewrite(built, "beta_0", seed, dict(record.summary), win=win, win_proxy=by_proxy)
    assert by_the_proxy_alone([read(built)[1].arm("beta_0")]) == []
