"""A trial that is killed, or leaves its machine, equals the one that was left alone, bit for bit; what checkpoints
hold and cost."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ranked
import torch
from helpers import Recorder, smoke
from kill_resume import compared
from tinytrial import CONTROLS, Killed, Killer, run, trainer

from pipeline.run.progress import LEAVE, Leaving, ask_to_leave, asked_to_leave, can_leave
from pipeline.training import checkpoint
from pipeline.training.launch import launch
from pipeline.training.trainer import Outcome

SOME = {
    "adaptive", "adaptive bonus", "floor", "target", "separate", "lora", "few bits", "trpo", "grpo", "vine_ppo", "dpo",
    "replayed targets",
}  # fmt: skip
"""Controllers that keep a state of different kinds; the others are slow tests."""


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Outcome, dict[str, torch.Tensor]]]:
    """Folder, outcome and final weights of a trial that was left alone; made once for each controller."""

    @cache
    def whole(control: str) -> tuple[Path, Outcome, dict[str, torch.Tensor]]:
        folder = tmp_path_factory.mktemp("whole")
        outcome, _, state = run(folder, **CONTROLS[control])
        return folder, outcome, state

    return whole


@pytest.mark.parametrize(
    # After 3 the trial resumes from a checkpoint in the middle, which holds the state of the controllers.
    ("control", "after"),
    [pytest.param(name, 3, marks=[] if name in SOME else pytest.mark.slow) for name in CONTROLS]
    + [pytest.param("adaptive", after, marks=pytest.mark.slow) for after in (1, 2, 5)],
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, control: str, after: int, wholes: Any) -> None:
    knobs = CONTROLS[control]
    folder, whole, state = wholes(control)
    victim = trainer(tmp_path / "cut", reporter=Killer(after), **knobs)
    with pytest.raises(Killed):
        victim.run()
    again, _, resumed = run(tmp_path / "cut", **knobs)
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert all(torch.equal(state[name], resumed[name]) for name in state)
    assert again == whole


def flipped(folder: Path) -> None:
    newest = checkpoint.checkpoints(folder / "checkpoints")[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1  # one bit of one weight
    newest.write_bytes(content)


HARMS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit of the newest checkpoint": (flipped, "falling back"),
    "no metrics": (lambda folder: (folder / "metrics.jsonl").unlink(), "starting over"),
    "short metrics": (lambda folder: os.truncate(folder / "metrics.jsonl", 100), "starting over"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_checkpoint_and_metrics_that_do_not_fit_it_are_made_anew(
    tmp_path: Path, harm: str, wholes: Any
) -> None:
    folder, whole, _ = wholes("fixed")
    with pytest.raises(Killed):
        trainer(tmp_path, reporter=Killer(5)).run()
    damage, words = HARMS[harm]
    damage(tmp_path)
    recorder = Recorder()
    assert trainer(tmp_path, reporter=recorder).run() == whole
    assert words in recorder.warnings[0]
    assert (tmp_path / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("every", "share", "made", "kept"), [(1, 1e-9, 1, [0]), (1, None, 6, [4, 5]), (2, None, 3, [2, 4])]
)
def test_two_checkpoints_are_kept_and_take_no_more_than_their_share_of_the_time(
    tmp_path: Path, every: int, share: float | None, made: int, kept: list[int]
) -> None:
    one = trainer(tmp_path, runtime={"checkpoint_updates": every, "checkpoint_share": share})
    assert one.run().status == "complete"
    assert one.ledger.cost()["checkpoints"] == made
    names = [path.name.split(".")[0] for path in checkpoint.checkpoints(tmp_path / "checkpoints")]
    assert names == [f"update_{update:08d}" for update in kept]


class Leaver(Killer):
    """Asks the trial to leave when it has written the metrics of so many updates."""

    def metrics(self, step: int, values: Any) -> None:
        try:
            super().metrics(step, values)
        except Killed:
            ask_to_leave()


@pytest.fixture
def scheduled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEAVE, raising=False)
    assert not can_leave()
    monkeypatch.setenv(LEAVE, str(tmp_path / "leave"))
    assert (can_leave(), asked_to_leave()) == (True, False)


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("control", ["fixed", "adaptive"])
def test_it_leaves_a_checkpoint_of_the_update_at_hand_and_goes_on_as_if_it_had_stayed(
    tmp_path: Path, scheduled: None, control: str, after: int, wholes: Any
) -> None:
    folder, whole, state = wholes(control)
    knobs = {**CONTROLS[control], "runtime__checkpoint_updates": 10_000}
    with pytest.raises(Leaving):
        trainer(tmp_path, reporter=Leaver(after), **knobs).run()
    newest = checkpoint.checkpoints(tmp_path / "checkpoints")[-1]
    assert newest.name.startswith(f"update_{after:08}")
    (tmp_path / "leave").unlink()
    again, _, resumed = run(tmp_path, **knobs)
    assert (tmp_path / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert all(torch.equal(state[name], resumed[name]) for name in state)
    assert again == whole


@pytest.mark.slow
def test_processes_of_a_trial_leave_together(tmp_path: Path, scheduled: None) -> None:
    """A process that is signalled by itself stays: the first process of the trial decides."""
    with pytest.raises(Leaving):
        launch(ranked.leaves, smoke(runtime__processes=2), tmp_path, Recorder(), None)


@pytest.mark.slow
@pytest.mark.parametrize("control", ["separate", "two rounds"])
def test_a_trial_that_is_killed_and_run_again_leaves_the_same_bytes(control: str, tmp_path: Path) -> None:
    whole, found = compared(control, 2, 1, tmp_path)
    assert len(whole) >= 10
    assert found == [whole] * len(found) != []
