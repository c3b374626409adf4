from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.execution.live_health import SECONDS, LiveHealth


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, first: int, values: list[float], mode: str = "a") -> None:
    with path.open(mode) as file:
        for step, value in enumerate(values, first):
            file.write(json.dumps({"step": step, "policy/approxkl": value, "policy/lr": 1.0}) + "\n")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def words(live: LiveHealth, clock: Clock) -> str | None:
    clock.now += SECONDS
    health = live.poll("a", 0)
    return None if health is None else health.words


def test_a_trial_is_judged_by_what_it_has_written(tmp_path: Path, clock: Clock) -> None:
    path, live = tmp_path / "metrics.jsonl", LiveHealth(clock)
    assert words(live, clock) is None  # nobody follows it
    live.follow("a", 0, path, {})
    assert words(live, clock) is None  # it has not begun
    write(path, 1, [0.5] * 5)
    assert words(live, clock) == "not judged"
    assert words(live, clock) is None  # nothing is new
    write(path, 6, [0.1] * 5)
    assert words(live, clock) == "policy/approxkl 100 %"
    write(path, 11, [0.0] * 90)
    assert words(live, clock) == "ok"


def test_it_is_not_looked_at_more_often_than_every_few_seconds(tmp_path: Path, clock: Clock) -> None:
    path, live = tmp_path / "metrics.jsonl", LiveHealth(clock)
    live.follow("a", 0, path, {})
    write(path, 1, [0.1] * 20)
    assert live.poll("a", 0) is not None
    write(path, 21, [0.1] * 20)
    clock.now += 0.9 * SECONDS
    assert live.poll("a", 0) is None
    clock.now += 0.2 * SECONDS
    assert live.poll("a", 0) is not None


def test_a_resumed_trial_is_read_from_its_start(tmp_path: Path, clock: Clock) -> None:
    path, live = tmp_path / "metrics.jsonl", LiveHealth(clock)
    live.follow("a", 0, path, {})
    write(path, 1, [0.0] * 10 + [0.1] * 30)
    assert words(live, clock) == "policy/approxkl 75 %"
    write(path, 1, [0.0] * 10, mode="w")
    assert words(live, clock) == "ok"


def test_its_settings_hold_bands_back_and_an_ended_trial_is_forgotten(tmp_path: Path, clock: Clock) -> None:
    path, live = tmp_path / "metrics.jsonl", LiveHealth(clock)
    live.follow("a", 0, path, {"train.data": "pairs"})
    write(path, 1, [1.0] * 20)
    assert words(live, clock) == "not judged"
    write(path, 21, [1.0] * 20)
    live.leave("a", 0)
    assert words(live, clock) is None
