"""Servers listen on this machine alone, unless an option opens them; then they warn of its effect."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pipeline.run.layout import Layout
from studies.console import cli
from studies.serving import app
from studies.tracking import ui

OWN = {"127.0.0.1", "localhost", "[::1]"}


@pytest.mark.parametrize(
    ("host", "names"),
    [("127.0.0.1", OWN), ("localhost", OWN), ("::1", OWN), ("0.0.0.0", {"*"}), ("::", {"*"}), ("192.0.2.7", {"*"})],
)
def test_serve_listens_on_loopback_and_warns_where_others_can_reach_it(
    host: str, names: set[str], layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[Any] = []
    for name in ("check_free", "quiet_libraries", "find", "Server"):
        monkeypatch.setattr(app, name, lambda *args: None)
    monkeypatch.setattr(app, "create_app", lambda server, hosts: found.append(set(hosts)))
    monkeypatch.setattr(app.uvicorn, "run", lambda made, **options: found.append(options["host"]))
    app.serve("a/b/0", layout, 8000, host, 1, None, 0.2)
    assert inspect.signature(cli.serve).parameters["host"].default == "127.0.0.1"
    assert found == [names, host]
    warning = f"warning: {host} can be reached from other machines, and there is no password"
    assert (warning in capsys.readouterr().err) == (names == {"*"})


def test_the_ui_listens_on_loopback(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        """Raised where a server would begin."""

    def popen(command: list[str], **options: Any) -> None:
        assert command[command.index("--host") + 1] == "127.0.0.1"
        assert not [word for word in command if word.startswith(("--allowed-hosts", "--cors", "--disable-security"))]
        assert "shell" not in options
        raise Started

    monkeypatch.setattr(ui.subprocess, "Popen", popen)
    monkeypatch.setattr(ui.signal, "signal", lambda *args: None)
    monkeypatch.setattr(ui.store, "connect", lambda layout: None)
    monkeypatch.setattr(ui, "links_at", lambda address, client: [])
    monkeypatch.setattr(ui, "check_free", lambda host, port: None)
    with pytest.raises(Started):
        ui.serve(layout, 5000)
