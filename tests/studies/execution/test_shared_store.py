"""A folder whose locks do not work, here or between machines, is refused in one line."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable

import fake_trial
import pytest
from light_study import SMALL

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.definition.schema import Study
from studies.execution import shared_store
from studies.execution.started import Started, join, start


@pytest.fixture
def run(write_study: Callable[..., Study], layout: Layout) -> Started:
    return Started(write_study(), "tiny", SMALL, layout, layout.study("small", "tiny"), fake_trial.__name__)


def refused(run: Started) -> str:
    with pytest.raises(UserError) as said, start(run, print):
        pass
    assert "\n" not in str(said.value)
    assert not run.folder.study_file.exists()
    return str(said.value)


def test_a_store_without_locks(run: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    said = refused(run)
    assert (
        f"{run.layout.root} cannot be shared by several processes: it has no locks (flock: No locks available)" in said
    )


def test_a_store_whose_locks_do_nothing(run: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    assert "two processes can hold the same lock (flock)" in refused(run)


def test_a_hand_on_another_machine_has_to_see_the_locks_of_the_others(
    run: Started, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_store, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(shared_store, "LOOK_SECONDS", 0.5)
    here, sees = socket.gethostname(), shared_store.is_held
    with start(run, print):
        monkeypatch.setattr(socket, "gethostname", lambda: "far")
        with join(layout, "small", "tiny") as joined:
            assert joined.cells() == run.cells()
        monkeypatch.setattr(shared_store, "is_held", lambda path: sees(path) and path.name == "tried")
        with pytest.raises(UserError, match=rf"locks that {here} holds are not seen on far \(flock\)"):
            join(layout, "small", "tiny").__enter__()
        with pytest.raises(UserError, match="are not seen on far"):
            start(run, print).__enter__()
    time.sleep(0.1)
    with join(layout, "small", "tiny"):
        pass  # what has ended, or died, renews its file no more
