"""Rounds of a training: with one and the same reward they are the training without rounds, bit for bit."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder
from tinytrial import CONTROLS, Killed, Killer, run, trainer

from pipeline.run.metrics import merged
from pipeline.training.checkpoint import load_latest, save
from pipeline.training.rounds import Round
from pipeline.training.trainer import Outcome, Trainer

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
            content = load_latest(last / "end", print)
            assert content is not None
            save(out / "checkpoints", content["update"], content)

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


SOME = ["fixed", "adaptive", "linear", "guard", "lora", "adaptive bonus", "dpo"]
FURTHER = ["floor", "separate", "few bits", "replayed targets", "trpo"]


@pytest.mark.parametrize("control", [*SOME, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
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
    capped = rounds.of(2, last=first, caps={"generated_tokens": tokens + 1}).run()
    assert (capped.status, capped.updates) == ("budget", 4)
    assert capped.cap is not None
    assert capped.cap["spent"] == capped.tokens > tokens
    whole, _, _ = run(tmp_path / "whole")
    assert rounds.of(2, last=first).run() == whole
