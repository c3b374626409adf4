"""A trial that has to leave its machine: it comes further, leaves a checkpoint, and loses nothing by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, smoke
from tinytrial import CONTROLS, run, trainer

from pipeline.run.leaving import LEAVE, Leaving, ask_to_leave, asked_to_leave, can_leave
from pipeline.stages.launch import launch
from pipeline.training import checkpoint


class Leaver(Recorder):
    """Asks the trial to leave when it has written the metrics of so many updates."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def metrics(self, step: int, values: Any) -> None:
        self.left -= 1
        if self.left == 0:
            ask_to_leave()


@pytest.fixture
def scheduled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEAVE, str(tmp_path / "leave"))


def test_a_trial_on_its_own_machine_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEAVE, raising=False)
    assert not can_leave()
    assert not asked_to_leave()


def test_a_trial_under_a_scheduler_is_asked_by_a_file(scheduled: None) -> None:
    assert can_leave()
    assert not asked_to_leave()
    ask_to_leave()
    assert asked_to_leave()


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("control", ["fixed", "adaptive", pytest.param("guard", marks=pytest.mark.slow)])
def test_it_leaves_a_checkpoint_of_the_update_at_hand_and_goes_on_as_if_it_had_stayed(
    tmp_path: Path, scheduled: None, control: str, after: int
) -> None:
    knobs = {**CONTROLS[control], "runtime__checkpoint_updates": 10_000}
    whole, _, state = run(tmp_path / "whole", **knobs)
    with pytest.raises(Leaving):
        trainer(tmp_path / "cut", reporter=Leaver(after), **knobs).run()
    newest = checkpoint.checkpoints(tmp_path / "cut" / "checkpoints")[-1]
    assert newest.name.startswith(f"update_{after:08}")
    (tmp_path / "leave").unlink()
    again, _, resumed = run(tmp_path / "cut", **knobs)
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert all(torch.equal(state[name], resumed[name]) for name in state)
    assert again == whole


def test_it_comes_further_before_it_leaves_however_early_it_is_asked(tmp_path: Path, scheduled: None) -> None:
    ask_to_leave()
    for update in (1, 2):
        with pytest.raises(Leaving):
            trainer(tmp_path / "cut").run()
        newest = checkpoint.checkpoints(tmp_path / "cut" / "checkpoints")[-1]
        assert newest.name.startswith(f"update_{update:08}")


@pytest.mark.slow
def test_processes_of_a_trial_leave_together(tmp_path: Path, scheduled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is signalled by itself stays: the first process of the trial decides."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with pytest.raises(Leaving):
        launch("ranked:leaves", 2, smoke(), tmp_path, Recorder(), {})
