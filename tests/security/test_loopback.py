"""Servers listen on this machine alone, unless an option opens them; then they warn of its effect."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pipeline.run.layout import Layout
from studies.console import cli
from studies.serving import app
from studies.tracking import ui


class Started(Exception):
    """Raised where a server would begin."""


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The names that the server answers to, and where it listens."""
    found: list[Any] = []
    for name in ("check_free", "quiet_libraries", "find", "Server"):
        monkeypatch.setattr(app, name, lambda *args: None)
    monkeypatch.setattr(app, "create_app", lambda server, hosts: found.append(set(hosts)))
    monkeypatch.setattr(app.uvicorn, "run", lambda made, **options: found.append(options["host"]))
    return found


def test_serve_listens_on_loopback_and_knows_its_names(
    listening: list[Any], layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect.signature(cli.serve).parameters["host"].default == "127.0.0.1"
    for host in ("127.0.0.1", "localhost", "::1"):
        listening.clear()
        app.serve("a/b/0", layout, 8000, host, 1, None, 0.2)
        assert listening == [{"127.0.0.1", "localhost", "[::1]"}, host]
    said = capsys.readouterr()
    assert "warning" not in said.err
    assert "Serving a/b/0 at http://[::1]:8000 (" in said.out


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_serve_warns_where_others_can_reach_it(
    host: str, listening: list[Any], layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    app.serve("a/b/0", layout, 8000, host, 1, None, 0.2)
    assert listening == [{"*"}, host]
    assert f"warning: {host} can be reached from other machines, and there is no password" in capsys.readouterr().err


def test_the_ui_listens_on_loopback(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not [word for word in command if word.startswith(("--allowed-hosts", "--cors", "--disable-security"))]
