"""Trials that end as soon as they refute a claim."""

from __future__ import annotations

import fake_trial
import pytest
from light_study import Write, go

from pipeline.run.layout import Layout

KL = "objective/kl_per_token"
STOP = (
    fake_trial.STUDY.partition("falsifiers:")[0]
    + """falsifiers:
  - {name: drift, claim: it stays, metric: objective/kl_per_token, op: ">", threshold: 0.2, before_step: 60,
     stop: true, arms: [weak]}
  - {name: calm, claim: it rests, metric: policy/entropy, op: "<", threshold: 0.0, before_step: 60}
"""
)


@pytest.mark.usefixtures("no_mlflow")
@pytest.mark.parametrize(("executor", "trouble"), [("inline", {}), ("processes", {"kill": 1})])
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
    found = {(one.arm, one.name): one for one in result.verdicts if one.seed == 0}
    drift = found["weak", "drift"]
    assert (drift.outcome, drift.evidence) == ("FALSIFIED", ((32, pytest.approx(0.2909, abs=1e-4)),))
    assert drift.run == weak.stages["train"].key
    assert found["weak", "calm"].reason == "the run came to 48 of 60 gradient steps"
    assert ("strong", "drift") not in found
    assert found["strong", "calm"].outcome == "SURVIVED"
    assert text.count("weak seed 0: claim drift FALSIFIED, 0.2909 at step 32") == 1


@pytest.mark.usefixtures("no_mlflow")
def test_stopping_is_part_of_what_a_trial_is(write_study: Write, layout: Layout) -> None:
    """Only the arms of the rule run again without it; a claim in other words is the same rule."""
    go(write_study(STOP), layout)
    assert len(fake_trial.calls(layout)) == 4
    result, _ = go(write_study(STOP.replace("stop: true", "stop: false")), layout)
    assert sorted(fake_trial.calls(layout)[4:]) == ["0.01/0", "0.01/1"]
    assert {record.status for record in result.records} == {"complete"}
    go(write_study(STOP.replace("claim: it stays", "claim: it is calm").replace("name: drift", "name: other")), layout)
    assert len(fake_trial.calls(layout)) == 6
