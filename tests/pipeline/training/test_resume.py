from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ranked
import torch
from helpers import Recorder, flip_bit, smoke
from kill_resume import compared
from tinytrial import CONTROLS, Killed, Killer, run, trainer

from pipeline.run.metrics import merged
from pipeline.run.progress import LEAVE, Leaving, ask_to_leave, asked_to_leave, can_leave
from pipeline.training import checkpoint
from pipeline.training.processes import launch
from pipeline.training.rounds import Round
from pipeline.training.trainer import Outcome, Trainer

SOME = {
    "adaptive", "adaptive bonus", "floor", "target", "separate", "lora", "few bits", "grpo", "vine_ppo", "dpo",
    "replayed targets", "old sampler",
}  # fmt: skip
"""Controllers that keep a state of different kinds; the others are slow tests."""


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Outcome, dict[str, torch.Tensor]]]:
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


HARMS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit": (lambda folder: flip_bit(checkpoint.checkpoints(folder / "checkpoints")[-1]), "falling back"),
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
    one = trainer(tmp_path, runtime__checkpoint_updates=every, runtime__checkpoint_share=share)
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


ROUND_KL = "objective/round_kl_per_token"


@dataclass
class Rounds:
    """Trains a round after the other, each in a folder of its own, as the stages do."""

    folder: Path
    count: int
    knobs: dict[str, Any]

    def of(self, number: int, reporter: Recorder | None = None, last: Trainer | None = None, **more: Any) -> Trainer:
        part = Round(1, self.count)
        if last is not None:
            part = Round(number, self.count, copy.deepcopy(last.actor.lm).requires_grad_(False), self._begin(number))
        return trainer(self.folder / str(number), reporter, part=part, **self.knobs, **more)

    def _begin(self, number: int) -> Any:
        def begin() -> None:
            last, out = (self.folder / str(one) for one in (number - 1, number))
            (out / "metrics.jsonl").write_bytes((last / "metrics.jsonl").read_bytes())
            content = checkpoint.load_latest(last / "end", print)
            assert content is not None
            checkpoint.save(out / "checkpoints", content["update"], content)

        return begin

    def finish(self, number: int, one: Trainer) -> Outcome:
        outcome = one.run()
        if number < self.count:
            one.checkpoints.leave(self.folder / str(number) / "end")
        return outcome

    def run(self, killed: int = 0, after: int = 0) -> tuple[Outcome, Trainer]:
        """Train all rounds; that of the number `killed` dies `after` so many updates, and goes on."""
        last = None
        for number in range(1, self.count + 1):
            if number == killed:
                with pytest.raises(Killed):
                    self.of(number, Killer(after), last).run()
            last = self.of(number, last=last)
            outcome = self.finish(number, last)
        assert last is not None
        return outcome, last


IN_ROUNDS = ["fixed", "adaptive", "linear", "guard", "lora", "adaptive bonus", "dpo"]
FURTHER = ["floor", "separate", "few bits", "replayed targets", "trpo"]


@pytest.mark.parametrize("control", [*IN_ROUNDS, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
def test_rounds_with_one_reward_are_one_training(tmp_path: Path, control: str) -> None:
    knobs = CONTROLS[control]
    whole, wanted, state = run(tmp_path / "whole", **knobs)
    outcome, last = Rounds(tmp_path, 3, knobs).run()
    assert outcome == whole
    rows = merged(tmp_path / "3" / "metrics.jsonl")
    for row in rows.values():
        row.pop(ROUND_KL, None)
    assert rows == wanted
    assert all(torch.equal(state[name], tensor) for name, tensor in last.actor.state_dict().items())


def test_each_round_measures_how_far_it_went_from_its_own_start(tmp_path: Path) -> None:
    Rounds(tmp_path, 2, {}).run()
    rows = [row for _, row in sorted(merged(tmp_path / "2" / "metrics.jsonl").items()) if ROUND_KL in row]
    to_start, to_reference = ([row[key] for row in rows] for key in (ROUND_KL, "objective/kl_exact_per_token"))
    assert len(rows) == 6
    assert to_start[:3] == to_reference[:3], "the first round starts at the reference"
    assert to_start[3] == pytest.approx(0.0, abs=1e-7)
    assert to_reference[3] > 1e-3
    assert all(0 < mine < other for mine, other in zip(to_start[4:], to_reference[4:], strict=True))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("after", [1, 2])
def test_a_round_that_was_killed_goes_on_as_if_it_had_not(tmp_path: Path, number: int, after: int) -> None:
    """Killed in round 1 and 2, with the newest checkpoint that of the round's start, and a later one."""
    whole, wanted = Rounds(tmp_path / "whole", 2, {}).run()
    outcome, last = Rounds(tmp_path / "cut", 2, {}).run(number, after)
    assert outcome == whole
    for name in ("1/metrics.jsonl", "2/metrics.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    weights = last.actor.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in wanted.actor.state_dict().items())


def test_caps_hold_over_all_rounds(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 2, {})
    first = rounds.of(1)
    tokens = rounds.finish(1, first).tokens
    capped = rounds.of(2, last=first, caps__generated_tokens=tokens + 1).run()
    assert (capped.status, capped.updates) == ("budget", 4)
    assert capped.cap is not None
    assert capped.cap["spent"] == capped.tokens > tokens
    whole, _, _ = run(tmp_path / "whole")
    assert rounds.of(2, last=first).run() == whole
