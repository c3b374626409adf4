"""A port that takes connections, and one that takes none any more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from pipeline.errors import FAULT, Fault
from studies.execution.ray_head import Head


@pytest.fixture
def port() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


def test_a_head_that_answers_is_left_alone_however_long(port: socket.socket) -> None:
    ended = list[int]()
    head = Head(address(port), patience=0.1, look=0.02, end=ended.append)
    with head.asked():
        assert not threading.Event().wait(0.5)
    for _ in range(5):
        threading.Event().wait(0.05)
        head.check()
    assert not ended


def test_silence_is_borne_for_a_while_and_then_told(port: socket.socket) -> None:
    head = Head(address(port), patience=0.5, look=0.0)
    head.check()
    port.close()
    head.check()
    threading.Event().wait(0.6)
    with pytest.raises(Fault, match="has not answered for 0 s"):
        head.check()


def test_a_head_that_comes_back_counts_as_heard(port: socket.socket) -> None:
    head = Head(address(port), patience=0.2, look=0.0)
    threading.Event().wait(0.4)
    head.check()
    head.check()


def test_a_call_that_waits_for_a_head_that_is_gone_ends_with_the_process(
    port: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    over, codes = threading.Event(), list[int]()
    where = address(port)
    port.close()

    def end(code: int) -> None:
        codes.append(code)
        over.set()

    with Head(where, patience=0.05, look=0.02, end=end).asked():
        assert over.wait(30)
    assert codes == [FAULT]
    said = capsys.readouterr().err
    assert said.startswith(f"ablate: the head of the Ray cluster, {where}, has not answered for 0 s.")
    assert said.count("\n") == 1
