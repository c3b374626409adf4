"""The process: where it listens, what it says of that, and by which names a browser may call it."""

from __future__ import annotations

import inspect
import socket
from typing import Any

import pytest
import uvicorn
from tiny_service import States, Tiny

from studies.console import cli
from studies.serving import server
from studies.serving.limits import Limits


def test_it_listens_on_this_machine_and_warns_where_others_can_reach_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Any] = []
    shares: list[float] = []

    def build(source: Any, say: Any, limits: Any, hosts: Any) -> Any:
        heard.append(hosts)
        shares.append(limits.share)
        return Tiny().service

    class Listens(uvicorn.Server):
        def run(self, sockets: Any = None) -> None:
            heard.append((self.config.host, self.config.port))

    monkeypatch.setattr(server, "find_source", lambda *arguments: States())
    monkeypatch.setattr(server, "build", build)
    monkeypatch.setattr(server.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(uvicorn, "Server", Listens)
    monkeypatch.setattr(server, "check_free", lambda host, port: None)
    here = frozenset({"127.0.0.1", "localhost", "[::1]"})
    warning = " can be reached from other machines, and there is no password"
    for given, host, hosts in (
        ({}, "127.0.0.1", here),
        ({"host": "::1"}, "::1", here),
        ({"host": "0.0.0.0", "share": 0.5}, "0.0.0.0", None),
    ):
        heard.clear()
        server.serve("study/arm/0", None, 8123, **given)  # type: ignore[arg-type]
        assert heard == [hosts, (host, 8123)]
        said = capsys.readouterr()
        assert (warning in said.err) == (hosts is None)
        assert f"Serving at http://{'[::1]' if host == '::1' else host}:8123 (" in said.out
    defaults = {name: one.default for name, one in inspect.signature(cli.serve).parameters.items()}
    assert (defaults["host"], defaults["share"], shares) == ("127.0.0.1", Limits.share, [Limits.share] * 2 + [0.5])


def test_a_port_that_is_taken_is_said_so_before_anything_loads() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(server.UserError, match="choose another with --port"):
            server.serve("no/such/0", None, taken.getsockname()[1])  # type: ignore[arg-type]
