from __future__ import annotations

import inspect
import re
from unittest.mock import Mock

import pytest

from pipeline.run.layout import Layout
from studies.console import cli
from studies.serving import app
from studies.tracking import ui

OWN = {"127.0.0.1", "localhost", "[::1]"}
HOSTS = {"127.0.0.1": OWN, "localhost": OWN, "::1": OWN, "0.0.0.0": {"*"}, "::": {"*"}, "192.0.2.7": {"*"}}


@pytest.mark.parametrize("host", HOSTS)
def test_serve_listens_on_loopback_and_warns_where_others_can_reach_it(
    host: str, layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, run = Mock(), Mock()
    for name in ("check_free", "quiet_libraries", "find", "Server"):
        monkeypatch.setattr(app, name, Mock())
    monkeypatch.setattr(app, "create_app", made)
    monkeypatch.setattr(app.uvicorn, "run", run)
    app.serve("a/b/0", layout, 8000, host, None)
    assert inspect.signature(cli.serve).parameters["host"].default == "127.0.0.1"
    assert (set(made.call_args.args[1]), run.call_args.kwargs["host"]) == (HOSTS[host], host)
    warning = f"warning: {host} can be reached from other machines, and there is no password"
    assert (warning in capsys.readouterr().err) == (HOSTS[host] == {"*"})


def test_the_ui_listens_on_loopback(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(ui.subprocess, "Popen", popen)
    for part, name in ((ui.signal, "signal"), (ui.store, "connect"), (ui, "links_at"), (ui, "check_free")):
        monkeypatch.setattr(part, name, Mock())
    with pytest.raises(InterruptedError):
        ui.serve(layout, 5000)
    ((command,), options), opens = popen.call_args, re.compile("--(allowed-hosts|cors|disable-security)")
    assert (command[command.index("--host") + 1], [*filter(opens.match, command)]) == ("127.0.0.1", [])
    assert "shell" not in options
