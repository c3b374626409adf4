"""A folder whose locks do not work, here or between machines, is refused in one line."""

from __future__ import annotations

import errno
import fcntl
import os
import socket

import fake_trial
import pytest
from light_study import SMALL, Write
from repeated import repeated

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from pipeline.run.store import try_lock
from studies.execution import shared_store
from studies.execution.started import Started, join, start
from studies.execution.status import StatusFile


@pytest.fixture
def run(write_study: Write, layout: Layout) -> Started:
    return Started(write_study(), "tiny", SMALL, layout, layout.study("small", "tiny"), fake_trial.__name__)


@pytest.mark.parametrize("works", [True, False])
def test_a_store_without_locks(run: Started, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    def flock(file: int, how: int) -> None:
        if not works:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="two processes can hold" if works else "No locks available"), start(run, print):
        pass
    assert not run.folder.study_file.exists()


def test_locks_that_another_machine_holds_have_to_be_seen(
    run: Started, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_store, "LOOK_SECONDS", 0.3)
    name = "weak__seed0"
    with start(run, print):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "far")
        status = StatusFile(run.folder.status_file(name), "weak seed 0", False, lock=name)
    with join(layout, "small", "tiny") as joined:
        assert joined.cells() == run.cells(), "a trial that died renews its status no more"
    with repeated(lambda: status.warn("at work"), 0.05):
        for enter in (lambda: start(run, print), lambda: join(layout, "small", "tiny")):
            with pytest.raises(UserError, match=r"locks that far holds are not seen on .* \(flock\)"), enter():
                pass
        lock = try_lock(run.folder.lock_file(name))
        assert lock is not None
        with join(layout, "small", "tiny"):
            lock.release()
    status.end("complete")
    with join(layout, "small", "tiny"):
        pass
