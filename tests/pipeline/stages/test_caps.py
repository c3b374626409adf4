from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, copy_upstream, smoke
from tinytrial import CONTROLS, run, trainer

from pipeline.resources import ledger
from pipeline.run.dag import StagePlan
from pipeline.run.layout import Layout
from pipeline.run.progress import TrialOutcome
from pipeline.training import health
from pipeline.trial import plan_trial, run_trial


@pytest.mark.parametrize("control", ["fixed", "adaptive", "guard", "separate"])
def test_a_trial_that_a_cap_ended_goes_on_as_if_the_cap_had_been_larger_from_the_start(
    tmp_path: Path, control: str
) -> None:
    whole, _, state = run(tmp_path / "whole", **CONTROLS[control])
    capped, _, _ = run(tmp_path / "cut", caps__generated_tokens=100, **CONTROLS[control])
    assert (capped.status, 0 < capped.steps < whole.steps) == ("budget", True)
    assert capped.cap == {"key": "generated_tokens", "spent": capped.tokens, "step": capped.steps}
    for older in sorted((tmp_path / "cut" / "checkpoints").glob("*.pt"))[:-1]:
        older.unlink()  # the newest is enough
    again, _, resumed = run(tmp_path / "cut", **CONTROLS[control])
    assert again == whole
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert all(torch.equal(state[name], resumed[name]) for name in state)


def test_a_cap_does_not_hide_that_the_last_step_broke_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "MIN_ENTROPY", 3.0)
    knobs: dict[str, Any] = {"optimiser__lr": 3e-2}
    whole, _, state = run(tmp_path / "a", **knobs)
    # The cap is reached with the very tokens after which the next rollout shows the collapse.
    capped, _, kept = run(tmp_path / "b", caps__generated_tokens=whole.tokens, **knobs)
    assert (capped.status, capped.cap) == ("diverged", None)
    assert all(torch.equal(state[name], kept[name]) for name in state)


def test_a_trial_that_memory_ended_goes_on_in_a_process_that_takes_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its high-water mark stays on record, and does not end it again."""
    whole, _, state = run(tmp_path / "whole")
    recorder = Recorder()
    monkeypatch.setattr(ledger, "peak_gib", lambda on_card: 20.0 if len(recorder.steps) == 3 else 1.0)
    capped = trainer(tmp_path / "cut", recorder).run()
    assert capped.cap == {"key": "memory_gib", "spent": 20.0, "step": capped.steps}
    assert 0 < capped.steps < whole.steps
    monkeypatch.setattr(ledger, "peak_gib", lambda on_card: 2.0)
    other = trainer(tmp_path / "cut")
    assert other.run() == whole
    assert other.ledger.peak_gib == 20.0
    assert all(torch.equal(state[name], tensor) for name, tensor in other.actor.state_dict().items())


def went(layout: Layout, **caps: Any) -> tuple[TrialOutcome, list[str]]:
    recorder = Recorder()
    outcome = run_trial(smoke(**caps), layout, recorder)
    return outcome, [name for name, state in recorder.stages if state == "built"]


def train_plan(layout: Layout, **caps: Any) -> StagePlan:
    return next(stage for stage in plan_trial(smoke(**caps), layout) if stage.stage == "train")


def test_a_larger_cap_continues_the_stage_in_the_store(smoke_layout: Layout, layout: Layout) -> None:
    copy_upstream(smoke_layout.store, layout.store)
    plain = run_trial(smoke(), smoke_layout, Recorder())
    capped, built = went(layout, caps__generated_tokens=600)
    assert (capped.status, "train" in built, "evaluate" in built) == ("budget", True, True)
    folder = capped.artifacts["train"].path
    kept = layout.store / "train" / ".kept" / folder.name
    assert len(list(kept.glob("update_*.pt"))) == 1
    assert not (folder / "checkpoints").exists()
    assert went(layout, caps__generated_tokens=600)[1] == []
    assert went(layout, caps__generated_tokens=5)[1] == []  # a smaller cap takes nothing back
    assert train_plan(layout, caps__generated_tokens=600).cached
    plan = train_plan(layout)
    assert (plan.cached, plan.key) == (False, folder.name)
    assert plan.why == f"caps.generated_tokens is 5e+07 now: continues from step {capped.steps}"
    whole, built = went(layout)
    assert (whole.status, "train" in built) == ("complete", True)
    assert whole.artifacts["train"].digest == plain.artifacts["train"].digest
    assert whole.artifacts["evaluate"].digest == plain.artifacts["evaluate"].digest
    assert not kept.exists()
    assert went(layout, caps__generated_tokens=5)[1] == []  # a complete trial is none of a cap's business
