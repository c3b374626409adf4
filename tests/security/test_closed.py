"""Nothing of the user's is open to others: servers listen on this machine alone, unless an option opens them and warns;
files are readable by the user alone, and have names that cannot be guessed."""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.layout import Layout, replacing, writable
from studies.console import cli
from studies.faults import explained
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


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """A user whose files are readable by all unless a program restricts them."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_files_and_folders_are_private_and_old_folders_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o775)
    for folder, wanted in ((tmp_path / "above" / "out", 0o700), (tmp_path / "shared", 0o775)):
        writable(folder)
        assert mode(folder) == wanted
    with replacing(tmp_path / "record.json") as beside:
        assert mode(beside) == 0o600
        beside.write_text("{}")


def test_the_log_of_a_fault_is_private_and_its_name_cannot_be_guessed(tmp_path: Path) -> None:
    logs = [Path(str(explained(ValueError("secret"), tmp_path)).partition("details: ")[2]) for _ in range(2)]
    assert {log.parent for log in logs} == {tmp_path / "log"}
    assert all(mode(log) == 0o600 and "ValueError: secret" in log.read_text() for log in logs)
    assert sum(a != b for a, b in zip(logs[0].stem, logs[1].stem, strict=True)) > 2, "more than the time differs"
