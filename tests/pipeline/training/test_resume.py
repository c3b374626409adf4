"""A trial that is killed, or leaves its machine, equals the one that was left alone, bit for bit; what checkpoints
hold and cost."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, smoke
from kill_resume import CONTROLS as KILLED
from kill_resume import rounds
from tinytrial import CONTROLS, Killed, Killer, run, trainer

from pipeline.run.leaving import LEAVE, Leaving, ask_to_leave, asked_to_leave, can_leave
from pipeline.training import checkpoint
from pipeline.training.given import Outcome
from pipeline.training.launch import launch

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
    "after",
    [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 3, pytest.param(5, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "control", [pytest.param(name, marks=[] if name in SOME else pytest.mark.slow) for name in CONTROLS]
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


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    whole, _, _ = run(tmp_path / "whole")
    with pytest.raises(Killed):
        trainer(tmp_path / "cut", reporter=Killer(5)).run()
    newest = checkpoint.checkpoints(tmp_path / "cut" / "checkpoints")[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1  # one bit of one weight
    newest.write_bytes(content)
    recorder = Recorder()
    assert trainer(tmp_path / "cut", reporter=recorder).run() == whole
    assert "falling back" in recorder.warnings[0]
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("harm", ["gone", "short"])
def test_metrics_that_do_not_fit_the_checkpoint_start_the_trial_over(tmp_path: Path, harm: str) -> None:
    whole, _, _ = run(tmp_path / "whole")
    with pytest.raises(Killed):
        trainer(tmp_path / "cut", reporter=Killer(5)).run()
    path = tmp_path / "cut" / "metrics.jsonl"
    path.unlink() if harm == "gone" else path.write_bytes(path.read_bytes()[:100])
    recorder = Recorder()
    assert trainer(tmp_path / "cut", reporter=recorder).run() == whole
    assert "starting over" in recorder.warnings[0]
    assert path.read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_two_checkpoints_are_kept_and_none_can_carry_code(tmp_path: Path) -> None:
    run(tmp_path)
    found = checkpoint.checkpoints(tmp_path / "checkpoints")
    assert [path.name.split(".")[0] for path in found] == ["update_00000002", "update_00000004"]
    checkpoint.save(tmp_path / "evil", 1, {"x": Path})
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load_latest(tmp_path / "evil", print)


# --- checkpoints ---

COLLAPSING: dict[str, Any] = {"train__min_entropy": 3.0, "optimiser__lr": 3e-2}


def test_a_checkpoint_holds_the_weights_once_and_their_two_moments(tmp_path: Path) -> None:
    one = trainer(tmp_path, train__steps=240, runtime={"checkpoint_updates": 1})
    one.run()
    newest = checkpoint.checkpoints(tmp_path / "checkpoints")[-1]
    state = torch.load(newest, weights_only=True)
    assert list(state["actor"]) == [name for name, _ in one.state.trained()]
    weights = 12 * one.trained_size
    tensors = sum(
        sum(tensor.nbytes for tensor in moments.values()) for moments in state["steps"]["optimiser"]["state"].values()
    )
    assert sum(tensor.nbytes for tensor in state["actor"].values()) + tensors == pytest.approx(weights, rel=0.01)
    assert weights < newest.stat().st_size < weights + 80_000  # metadata of the archive, samples, series


def test_the_name_of_a_checkpoint_is_the_digest_of_its_file(tmp_path: Path) -> None:
    size = checkpoint.save(tmp_path, 3, {"x": torch.arange(100_000.0), "y": torch.ones(3)})
    (path,) = checkpoint.checkpoints(tmp_path)
    assert path.name == f"update_00000003.{checkpoint._digest(path)}.pt"
    assert path.stat().st_size == size


@pytest.mark.parametrize(("share", "names"), [(1e-9, [0]), (None, [4, 5])])
def test_checkpoints_take_no_more_than_their_share_of_the_time(
    tmp_path: Path, share: float | None, names: list[int]
) -> None:
    one = trainer(tmp_path, runtime={"checkpoint_updates": 1, "checkpoint_share": share})
    assert one.run().status == "complete"
    assert one.ledger.cost()["checkpoints"] == (1 if share else 6)
    assert [path.name.split(".")[0] for path in checkpoint.checkpoints(tmp_path / "checkpoints")] == [
        f"update_{n:08d}" for n in names
    ]


def test_weights_that_cannot_be_trained_again_for_lack_of_memory_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    one = trainer(tmp_path, runtime={"checkpoint_share": 1e-9}, **COLLAPSING)
    start = {name: tensor.clone() for name, tensor in one.actor.state_dict().items()}
    rewind = one._rewind

    def short_of_memory() -> int:
        one.rollout_context.room.rows = 1
        one._rollout = lambda: one.rollout_context.room.fit(full)  # type: ignore[method-assign]
        return rewind()

    def full(rows: int) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    one._rewind = short_of_memory  # type: ignore[method-assign]
    outcome = one.run()
    assert outcome.status == "diverged"
    assert str(outcome.reason).endswith("the policy kept is that of step 0")
    assert all(torch.equal(start[name], tensor) for name, tensor in one.actor.state_dict().items())


def test_a_trial_killed_after_its_checkpoint_diverges_to_the_same_weights(tmp_path: Path) -> None:
    knobs = {**COLLAPSING, "runtime": {"checkpoint_updates": 1}}
    whole, _, state = run(tmp_path / "whole", **knobs)
    for after in (1, whole.updates):
        with pytest.raises(Killed):
            trainer(tmp_path / f"cut{after}", reporter=Killer(after), **knobs).run()
        again, _, resumed = run(tmp_path / f"cut{after}", **knobs)
        assert again == whole
        assert all(torch.equal(state[name], resumed[name]) for name in state)


# --- leaving ---


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
    monkeypatch.delenv(LEAVE, raising=False)
    assert not can_leave()
    monkeypatch.setenv(LEAVE, str(tmp_path / "leave"))
    assert can_leave()
    assert not asked_to_leave()


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


# --- SIGKILL ---


@pytest.mark.slow
@pytest.mark.parametrize("control", ["adaptive", "separate", "few bits", "two rounds"])
def test_a_trial_that_is_killed_and_run_again_leaves_the_same_bytes(control: str) -> None:
    (tally,) = rounds([control], kills=2, seed=1)
    assert tally.kills == 2
    assert tally.different == ()
    assert tally.files >= 10


def test_every_control_is_killed_by_both() -> None:
    """Rounds and rewards are of stages; within a process tests/pipeline/training/test_rounds.py kills rounds."""
    of_stages = {"two rounds", "against the reference", "rankings"}
    assert of_stages <= KILLED.keys()
    assert len(KILLED) == len(CONTROLS) + len(of_stages)
