from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import fake_trial
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from light_study import Write
from rich.console import Console

from pipeline.config.loading import load_config
from pipeline.forecast.advice import predict
from pipeline.run.layout import Layout
from pipeline.run.progress import Reporter
from studies.claims.falsifiers import Verdict
from studies.claims.symptoms import ArmHealth, Symptom
from studies.console import cli
from studies.console.plan import _time, dead_line, print_plan, total_line
from studies.console.summary import claim_table, print_health
from studies.definition.design import cells
from studies.definition.schema import Study, load_study
from studies.execution.hand import Inline
from studies.execution.study import run_study

SMALL = {"train.steps": 64}

pytestmark = pytest.mark.usefixtures("no_mlflow")


@pytest.fixture(autouse=True)
def _two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "default_jobs", lambda config: 2)


def shown(
    study: Study, layout: Layout, profile: str | None = None, trials: str = "fake_trial", **settings: Any
) -> list[str]:
    text = io.StringIO()
    print_plan(Console(file=text, width=200), study, profile, {**SMALL, **settings}, layout, trials=trials)
    return [" ".join(line.split()) for line in text.getvalue().splitlines() if line.strip()]


def record(study: Study, layout: Layout) -> None:
    with Path(os.devnull).open("w") as nowhere:
        layout.root.mkdir(parents=True, exist_ok=True)
        run_study(study, layout, None, SMALL, Inline, 1, Console(file=nowhere), trials="fake_trial")


def test_plan_opens_with_what_will_run_and_why(write_study: Write, layout: Layout) -> None:
    study = write_study()
    layout.root.mkdir(parents=True)
    warned = write_study(fake_trial.STUDY.replace("before_step: 32", "before_step: 65"))
    assert sum(line.startswith("claim drift cannot survive") for line in shown(warned, layout)) == 1
    first, _, prompts, sft, *_ = shown(study, layout)
    assert first.startswith("4 of 4 trials will run; how long that takes is not known yet: no trial of profile tiny ")
    assert prompts.endswith("4 trials will run never built")
    assert sft == "sft - 4 trials will run waits for prompts"
    fake_trial.run_trial(cells(study, None, SMALL)[0].config, layout, Reporter())
    first, _, *rows = shown(study, layout)
    assert first.startswith("3 of 4 trials will run; ")
    assert any(row.startswith("train") and row.endswith("strong seed 0 will run kl.beta 0.01 -> 0.2") for row in rows)
    assert any(
        row.startswith("train") and row.endswith("weak seed 0 cached same configuration, inputs and code")
        for row in rows
    )
    states = [state for row in rows for state in ("cached", "will run") if f" {state} " in row]
    assert states == sorted(states, reverse=True), "what will run stands first"


def test_arms_with_other_data_share_no_reference(write_study: Write, layout: Layout) -> None:
    arms = "arms:\n  weak: {data.source: chains}\n  strong: {data.source: chains, data.chains.group: z10}\n"
    study = write_study(re.sub(r"arms:\n(  .*\n)+", arms, fake_trial.STUDY))
    rows = shown(study, layout, "chains")
    assert any(row.startswith("prompts 2 artifacts 4 trials") for row in rows), rows
    assert any(row.startswith("sft 2 artifacts 4 trials") for row in rows), rows


def test_arms_that_are_judged_in_two_ways_are_trained_once(write_study: Write, layout: Layout) -> None:
    arms = "arms:\n  weak: {}\n  strong: {evaluate.kl_gradient: exact}\n"
    study = write_study(re.sub(r"arms:\n(  .*\n)+", arms, fake_trial.STUDY))
    rows = shown(study, layout, trials="pipeline.trial")
    assert any(row.startswith("train 2 artifacts 4 trials") for row in rows), rows
    assert any(row.startswith("evaluate 4 artifacts 4 trials") for row in rows), rows
    apart = write_study(re.sub(r"arms:\n(  .*\n)+", arms.replace("exact", "exact, kl.beta: 0.2"), fake_trial.STUDY))
    once, twice = (float(total_line(one, cells(one, "t4", {})).split()[4]) for one in (study, apart))
    trained = predict(load_config("t4"))
    assert trained is not None
    assert twice - once == pytest.approx(2 * trained.t4_hours, abs=0.02), "two trainings"


def test_plan_shows_the_time_that_earlier_trials_took(write_study: Write, layout: Layout) -> None:
    study = write_study()
    record(study, layout)
    assert shown(study, layout)[0] == "Nothing will run: all 4 trials are cached"
    assert any("2 seeds detect a difference of" in line for line in shown(study, layout))
    assert any("no earlier trials give its size here" in line for line in shown(study, layout, "smoke"))
    more = write_study(Path(study.source).read_text().replace("seeds: [0, 1]", "seeds: [0, 1, 2]"))
    assert (
        shown(more, layout)[0] == "2 of 6 trials will run, about 1 s in all (measured on 4 earlier trials; 2 at once)"
    )
    longer = shown(more, layout, **{"train.steps": 64_000})[0]  # 0.1 s for 64 steps
    assert longer == "6 of 6 trials will run, about 5 min in all (measured on 4 earlier trials; 2 at once)"
    records = layout.study("small", "tiny").records()
    once, twice = (cells(study, None, {"train.steps": 64_000, "reward.learned.rounds": count})[0] for count in (1, 2))
    both, one = (_time(left, [], records, layout) for left in ([twice] * 2, [once]))
    assert both == one, "each of two rounds trains half of the steps"
    for ended in records:  # a stage that trials share counts once, what each has for itself as often
        for stage, seconds in {"sft": 600.0, "evaluate": 120.0}.items():
            log = layout.root / ended.stages[stage].path / "log"
            log.mkdir(exist_ok=True)
            (log / "cost.json").write_text(json.dumps({"wall_s": seconds}))
    slower = _time([once] * 2, ["sft"] * 3 + ["evaluate"] * 2, records, layout)
    assert ", about 19 min in all" in slower, "100 s of training each, 3 x 10 min and 2 x 2 min, two at once"
    other = shown(more, layout, "smoke")[0]
    assert other.endswith("no trial of profile smoke has been measured here")


def test_the_budget_of_a_t4_stands_last(write_study: Write, layout: Layout) -> None:
    study = write_study()
    layout.root.mkdir(parents=True)
    lines = shown(study, layout, "t4")
    budget = next(index for index, line in enumerate(lines) if line.startswith("each trial of weak, strong: fits"))
    assert max(index for index, line in enumerate(lines) if " will run " in line and index) < budget
    assert re.fullmatch(r"4 trials in all: [\d.]+ h on a T4 by the roofline", lines[-1])
    sizes = {"train.response_length": 20_000, "train.batch_size": 4096, "runtime.micro_batch_size": 1024}
    assert any("does not fit" in line for line in shown(study, layout, **sizes))


def test_the_verdicts_of_many_trials_are_one_row_for_each_claim() -> None:
    verdicts = [
        Verdict("drift", arm, seed, "FALSIFIED" if arm == "a" and seed else "SURVIVED", None, None, 1, f"{arm}{seed}")
        for arm in ("a", "b")
        for seed in range(3)
    ]
    verdicts += [Verdict("wins", "b", 0, "NOT TESTED", None, None, 0, "no record")]
    text = io.StringIO()
    Console(file=text, width=200).print(claim_table(verdicts))
    _, drift, wins = text.getvalue().splitlines()
    assert re.split(r"\s{2,}", drift.strip())[1:] == [
        "FALSIFIED", "2 FALSIFIED, 4 SURVIVED", "a 2/3 FALSIFIED, such as seed 1 of a: a1",
    ]  # fmt: skip
    assert wins.strip().endswith("b 1/1 NOT TESTED, such as seed 0 of b: no record")


CHAINS = {"algorithm": "grpo", "train.responses_per_prompt": 2, "evaluate.reference_draws": 3}


@pytest.mark.parametrize(
    ("changes", "built", "line"),
    [
        ({}, False, "at least 68 %, 52 %, 52 % of groups of 2 start dead (equal scores) if 20 %, 40 %, 60 % of"),
        ({"reward.verifier.false_positive": 0.5}, False, "at least 52 %, 58 %, 68 % of groups of 2"),
        ({"reward.verifier.false_negative": 0.5}, False, "at least 82 %, 68 %, 58 % of groups of 2"),
        ({"train.missing_eos": "none"}, True, "67 % of groups of 2 start dead (equal scores), by 3 draws of the refer"),
        ({}, True, "33 % of groups of 2 start dead"),  # the cut answer has another score
        ({"train.responses_per_prompt": 4, "train.missing_eos": "none"}, True, "21 to 50 % of groups of 4"),
        ({"train.responses_per_prompt": 4}, True, "0 % of groups of 4"),
    ],
)
def test_dead_groups_are_forecast(tmp_path: Path, changes: dict[str, Any], built: bool, line: str) -> None:
    file = tmp_path / "draws.parquet"
    pq.write_table(pa.table({"proxy": [1.0, 1, 1, 0, 0, 1], "eos": [True, True, False, *[True] * 3]}), file)
    assert dead_line(load_config("chains", {**CHAINS, **changes}), [file] * built).startswith(line)


def test_arms_that_compare_responses_have_a_forecast(layout: Layout) -> None:
    forecast = [line for line in shown(load_study("critic_free"), layout, "chains") if " start dead " in line]
    assert [line.partition(":")[0] for line in forecast] == ["rloo, grpo, dr_grpo, lite_ppo"]


KL = Symptom("objective/kl_exact_per_token", "above", 0.5, 30, 100, 4, "far", "raise kl.beta")


def printed(*arms: ArmHealth) -> str:
    text = io.StringIO()
    print_health(Console(file=text, width=200), arms)
    return text.getvalue()


def test_unhealthy_arms_are_named() -> None:
    assert printed(ArmHealth("a", 5, {}), ArmHealth("b", 3, {7: (KL,)}, (8,))) == (
        "Health of 8 judged trials: unhealthy in b (2 of 3); the report names the series\n\n"
    )
    assert printed(ArmHealth("a", 1, {})) == "Health of 1 judged trials: ok\n\n"
    assert not printed(ArmHealth("a", 0, {}))
