"""The thread that sends to MLflow: nobody waits for it, and it reports each problem once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from light_study import wait_for
from tracked_study import Tracked

from pipeline.errors import Damaged
from studies.tracking import background
from studies.tracking.background import Background
from studies.tracking.sync import Running, Synced


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "EVERY_S", 0.01)
    monkeypatch.setattr(background, "AGAIN_S", 0.01)
    monkeypatch.setattr(background, "PATIENCE_S", 0.2)


@pytest.fixture
def trial(make: Callable[..., Tracked]) -> Running:
    return make().running(0, 1)


def test_it_sends_what_runs_and_the_rest_at_the_end(trial: Running) -> None:
    passes: list[dict[str, Any]] = []
    answers = iter([None])  # another process sends meanwhile
    last = {"status": "complete", "verdicts": [1]}

    def send(*, warn: Callable[[str], None], **how: Any) -> Synced | None:
        passes.append(how)
        return next(answers, Synced(True, 0)) if how == last else Synced(True, 0)

    running = [trial]
    thread = Background(send, lambda: running[:], print)
    thread.begin()
    wait_for(lambda: {"running": [trial]} in passes)
    running.clear()
    wait_for(lambda: passes[-1] == {"running": []})
    thread.end("complete", verdicts=[1])
    assert passes[-2:] == [last, last]


def test_damage_is_raised_at_the_end(trial: Running) -> None:
    def send(**how: Any) -> Synced:
        raise Damaged(trial.metrics, "it is no record")

    thread = Background(send, lambda: [trial], print)
    thread.begin()
    with pytest.raises(Damaged, match="it is no record"):
        thread.end("complete")


@pytest.mark.parametrize("status", ["interrupted", "complete"])
def test_only_a_complete_study_waits_for_a_server_that_hangs(status: str) -> None:
    release, warnings = threading.Event(), list[str]()

    def send(**how: Any) -> Synced:
        release.wait(60)
        return Synced(True, 0)

    if status == "complete":
        threading.Timer(1.0, release.set).start()
    Background(send, list, warnings.append).end(status)
    assert release.is_set() == (status == "complete")
    assert len(warnings) == 1
    release.set()
