"""What is announced while trials run, and trials that end as soon as they refute a claim."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fake_trial
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from light_study import go

from pipeline.run.layout import Layout
from studies.claims.falsifiers import evaluate
from studies.claims.live import LiveVerdicts
from studies.definition.falsifier import Falsifier
from studies.definition.schema import Study

KL = "objective/kl_per_token"
STOP = (
    fake_trial.STUDY.partition("falsifiers:")[0]
    + """falsifiers:
  - {name: drift, claim: it stays, metric: objective/kl_per_token, op: ">", threshold: 0.2, before_step: 60,
     stop: true, arms: [weak]}
  - {name: calm, claim: it rests, metric: policy/entropy, op: "<", threshold: 0.0, before_step: 60}
"""
)
Write = Callable[..., Study]


def claim(aggregation: object = "any") -> Falsifier:
    keys = {"name": "drift", "claim": "stays", "metric": KL, "op": ">", "threshold": 0.25, "before_step": 100}
    return Falsifier.model_validate({**keys, "aggregation": aggregation})


def write(path: Path, values: list[float], mode: str = "a", start: int = 0) -> None:
    with path.open(mode) as file:
        for index, value in enumerate(values, start):
            file.write(json.dumps({"step": index, KL: value, "policy/entropy": 1.0}) + "\n")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.sampled_from([0.1, 0.4]), max_size=4), max_size=6),
    st.sampled_from(["any", {"consecutive": 2}]),
)
def test_a_fall_is_told_once_and_as_soon_as_it_is_written(
    tmp_path: Path, chunks: list[list[float]], aggregation: object
) -> None:
    path, live, one = tmp_path / "metrics.jsonl", LiveVerdicts(), claim(aggregation)
    path.unlink(missing_ok=True)
    live.follow("a", 0, path, [one])
    written: list[float] = []
    told = []
    for chunk in chunks:
        write(path, chunk, start=len(written))
        written += chunk
        before, fallen = bool(told), replace(evaluate(one, list(enumerate(written)), 0), arm="a")
        told += live.poll("a", 0)
        assert bool(told) == (fallen.outcome == "FALSIFIED")
        assert before or not told or told == [fallen]
    assert len(told) <= 1


def test_a_line_that_is_half_written_waits_and_a_resumed_file_is_read_again(tmp_path: Path) -> None:
    path, live = tmp_path / "metrics.jsonl", LiveVerdicts()
    live.follow("a", 0, path, [claim({"consecutive": 2})])
    assert live.poll("a", 0) == []
    write(path, [0.1, 0.4])
    with path.open("a") as file:
        file.write('{"step": 2, "objective/kl_per_')
    assert live.poll("a", 0) == []
    write(path, [0.1], mode="w")
    assert live.poll("a", 0) == [], "cut back to its checkpoint"
    write(path, [0.1, 0.4], start=1)
    assert live.poll("a", 0) == [], "what was cut off is forgotten"
    write(path, [0.4], start=3)
    assert [one.step for one in live.poll("a", 0)] == [3]


@pytest.mark.usefixtures("no_mlflow")
@pytest.mark.parametrize(
    ("executor", "trouble"), [("inline", {}), ("inline", {"crash": 1}), ("processes", {"kill": 1})]
)
def test_a_trial_that_breaks_a_claim_ends_at_once_is_evaluated_and_counts(
    write_study: Write, layout: Layout, executor: str, trouble: dict[str, int]
) -> None:
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, **{what: {"0.01/0": n} for what, n in trouble.items()})
    result, text = go(write_study(STOP), layout, executor)
    by_arm = {record.arm: record for record in result.records if record.seed == 0}
    weak, strong = by_arm["weak"], by_arm["strong"]
    assert (weak.status, weak.steps) == ("pruned", 48)
    assert weak.reason == f"stopped by rule: {KL} = 0.2909 > 0.2 at step 32"
    assert weak.summary["eval/win_rate"] == 0.6, "it is evaluated as it was when it stopped"
    assert (strong.status, strong.steps) == ("complete", 64)
    told = {(one.arm, one.name): one for one in result.verdicts if one.seed == 0}
    drift = told["weak", "drift"]
    assert (drift.outcome, drift.evidence) == ("FALSIFIED", ((32, pytest.approx(0.2909, abs=1e-4)),))
    assert drift.run == weak.stages["train"].key
    assert told["weak", "calm"].reason == "the run came to 48 of 60 gradient steps"
    assert ("strong", "drift") not in told
    assert told["strong", "calm"].outcome == "SURVIVED"
    assert text.count("weak seed 0: claim drift FALSIFIED, 0.2909 at step 32") == 1


@pytest.mark.usefixtures("no_mlflow")
def test_stopping_is_part_of_what_a_trial_is(write_study: Write, layout: Layout) -> None:
    """Only the arms that the rule speaks of run again without it; a claim in other words is the same rule."""
    go(write_study(STOP), layout)
    assert len(fake_trial.calls(layout)) == 4
    result, _ = go(write_study(STOP.replace("stop: true", "stop: false")), layout)
    assert sorted(fake_trial.calls(layout)[4:]) == ["0.01/0", "0.01/1"]
    assert {record.status for record in result.records} == {"complete"}
    go(write_study(STOP.replace("claim: it stays", "claim: it is calm").replace("name: drift", "name: other")), layout)
    assert len(fake_trial.calls(layout)) == 6
