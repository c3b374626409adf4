"""Nothing of the user's is open to others: servers listen on this machine alone, unless an option opens them and warns;
their page runs its own script alone; files are readable by the user alone, and have names that cannot be guessed."""

from __future__ import annotations

import base64
import hashlib
import inspect
import os
import re
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipeline.run.layout import Layout, replacing, writable
from studies.console import cli
from studies.faults import explained
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


def test_the_page_of_the_server_makes_no_markup_of_texts_and_runs_its_own_script_alone() -> None:
    """A real browser tries it in tests/studies/serving/test_page.py."""
    from starlette.testclient import TestClient
    from tiny_service import Tiny

    answer = TestClient(app.create_app(Tiny().server, ["testserver"])).get("/")
    page = answer.text
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", page), "no handlers in attributes, which the policy would refuse"
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy, "after a change, this belongs into the page's policy"
    assert re.findall(r'(?:href|src)="([^"]*)"|https?://', page) == ["data:,"], "it takes nothing from elsewhere"
    assert (answer.headers["x-content-type-options"], answer.headers["x-frame-options"]) == ("nosniff", "DENY")


def test_files_are_private_names_of_logs_cannot_be_guessed_and_old_folders_keep_their_mode(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(os.umask, os.umask(0)))  # a user whose files are readable by all
    (tmp_path / "shared").mkdir(mode=0o775)
    for folder, wanted in ((tmp_path / "above" / "out", 0o700), (tmp_path / "shared", 0o775)):
        writable(folder)
        assert folder.stat().st_mode & 0o777 == wanted
    with replacing(tmp_path / "record.json") as beside:
        assert beside.stat().st_mode & 0o777 == 0o600
        beside.write_text("{}")
    logs = [Path(str(explained(ValueError("secret"), tmp_path)).partition("details: ")[2]) for _ in range(2)]
    assert {log.parent for log in logs} == {tmp_path / "log"}
    assert all(log.stat().st_mode & 0o777 == 0o600 and "ValueError: secret" in log.read_text() for log in logs)
    assert sum(a != b for a, b in zip(logs[0].stem, logs[1].stem, strict=True)) > 2, "more than the time differs"
