"""Servers listen on this machine alone, unless they are asked not to; then they say what that means."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import uvicorn

from pipeline.run.layout import Layout
from studies.console import cli
from studies.serving import server
from studies.tracking import ui


class Started(Exception):
    """Raised where a server would begin."""


class Service:
    """As little of a policy as the command looks at."""

    name = "policy"

    def __init__(self, hosts: frozenset[str] | None) -> None:
        self.hosts = hosts
        self.holder = self.now = self
        self.revision = self
        self.state = "ended"


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The names that the server answers to, and where it listens."""
    found: list[Any] = []

    def build(source: Any, say: Any, limits: Any, hosts: frozenset[str] | None) -> Service:
        found.append(hosts)
        return Service(hosts)

    def run(self: uvicorn.Server, sockets: Any = None) -> None:
        found.append(self.config.host)
        raise KeyboardInterrupt

    for name in ("check_free", "quiet_libraries", "find_source", "start", "stop"):
        monkeypatch.setattr(server, name, lambda *args: None)
    monkeypatch.setattr(server, "build", build)
    monkeypatch.setattr(server, "create_app", lambda service: None)
    monkeypatch.setattr(server.signal, "signal", lambda *args: None)
    monkeypatch.setattr(uvicorn.Server, "run", run)
    return found


def test_serve_listens_on_loopback_and_knows_its_names(
    listening: list[Any], layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect.signature(server.serve).parameters["host"].default == "127.0.0.1"
    assert inspect.signature(cli.serve).parameters["host"].default == "127.0.0.1"
    server.serve("a/b/0", layout, 8000)
    assert listening == [server.HERE, "127.0.0.1"]
    assert {"127.0.0.1", "localhost", "[::1]"} == server.HERE
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_serve_warns_where_others_can_reach_it(
    host: str, listening: list[Any], layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    server.serve("a/b/0", layout, 8000, host)
    assert listening == [None, host]
    assert f"warning: {host} can be reached from other machines, and there is no password" in capsys.readouterr().err


def test_the_ui_listens_on_loopback_and_cannot_be_told_otherwise(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def popen(command: list[str], **options: Any) -> None:
        started.append(command)
        assert "shell" not in options
        raise Started

    monkeypatch.setattr(ui.subprocess, "Popen", popen)
    monkeypatch.setattr(ui.signal, "signal", lambda *args: None)
    monkeypatch.setattr(ui.store, "connect", lambda layout: None)
    monkeypatch.setattr(ui, "links_at", lambda address, client: [])
    monkeypatch.setattr(ui, "check_free", lambda host, port: None)
    with pytest.raises(Started):
        ui.serve(layout, 5000)
    (command,) = started
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command.count("--host") == 1
    for name in ("--allowed-hosts", "--cors-allowed-origins", "--x-frame-options", "--disable-security-middleware"):
        assert name not in command, "MLflow's own checks of host and origin stay as they are"
    assert "host" not in inspect.signature(cli.ui).parameters
