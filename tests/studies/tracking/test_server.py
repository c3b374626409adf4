"""A server for a team: MLflow's own, on PostgreSQL where that is installed, disturbed while a study is sent. Nothing is
lost, and nothing is double."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from fake_trial import SHORT
from mlflow_servers import Postgres, Proxy, Server, missing_postgres, proxy_to
from series import series_differ
from tracked_study import Tracked

from studies.tracking import store
from studies.tracking.sync import Synced
from studies.tracking.ui import serve

VARIABLE = "MLFLOW_TRACKING_URI"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres | None]:
    found = None if missing_postgres() else Postgres()
    yield found
    if found:
        found.end()


@pytest.fixture(scope="module")
def server(postgres: Postgres | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    database = postgres.address if postgres else f"sqlite:///{folder / 'team.db'}"
    server = Server(database, folder / "artifacts", folder / "log.txt")
    yield server
    server.kill()


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy_to(server.uri) as proxy:
        monkeypatch.setenv(VARIABLE, proxy.uri)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
        yield proxy


@pytest.fixture
def study(proxy: Proxy, make: Callable[..., Tracked]) -> Callable[..., Tracked]:
    """The study under a name of its own: the server is the same for all tests."""
    return partial(make, SHORT, name=f"small-{uuid.uuid4().hex[:8]}")


def end(tracked: Tracked, server: Server) -> int:
    tracked.record(0, 1)
    passes = [tracked.sync(status="complete")]
    while passes[-1] is None or not passes[-1].complete:
        passes.append(tracked.sync(status="complete"))
        assert len(passes) < 40
    assert list(series_differ(store.client_of(server.uri), tracked.folder)) == []
    assert tracked.sync(status="complete") == Synced(True, 0)
    return len(passes)


def test_two_folders_with_the_same_study(server: Server, study: Callable[..., Tracked]) -> None:
    both = [study(out) for out in ("ann", "bob")]
    for one in both:
        one.sync(one.running(0, 3), one.running(1, 5))
    assert [end(one, server) for one in both] == [1, 1]
    assert [one.warnings for one in both] == [[], []]


def test_a_server_that_is_killed_and_started_again(server: Server, study: Callable[..., Tracked]) -> None:
    tracked = study()
    assert tracked.sync(tracked.running(0, 3)) == Synced(True, 9)
    server.kill()
    assert tracked.sync(tracked.running(0, 5)) == Synced(False, 0)
    server.start()
    assert tracked.sync(tracked.running(0, 5)) == Synced(True, 5)
    assert end(tracked, server) == 1
    assert len(tracked.warnings) == 1


def test_lost_answers(server: Server, proxy: Proxy, study: Callable[..., Tracked]) -> None:
    """The server carries out a request, and its answer is lost, at times also that to the repeated request."""
    tracked = study()
    proxy.loses = lambda: proxy.requests % 7 < 3
    for rows in range(1, 8):
        tracked.sync(tracked.running(0, rows), tracked.running(1, rows))
    tracked.record(0, 1)
    for _ in range(20):
        tracked.sync(status="complete")
    proxy.loses = lambda: False
    end(tracked, server)


def test_the_ui_starts_no_server_beside_another(
    make: Callable[..., Tracked], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(VARIABLE, "http://me:secret@host:5000")
    serve(make().layout, 5000)
    assert capsys.readouterr().out.startswith("Runs go to http://host:5000 (MLFLOW_TRACKING_URI)")
