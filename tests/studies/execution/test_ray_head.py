"""A port that takes connections, and one that takes none any more."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from pipeline.errors import FAULT, Fault
from studies.execution import ray_head
from studies.execution.ray_head import OUR_SECONDS, PATIENCE_SECONDS, RAYS_PATIENCE, Head, patience


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


def test_silence_begins_with_the_first_look_that_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was stopped for minutes, or was busy, has not looked meanwhile."""
    answers = iter((True, False, True, False, False))
    monkeypatch.setattr(ray_head, "_answers", lambda address: next(answers))
    head = Head("10.0.0.1:6379", patience=0.2, look=0.0)
    for _ in range(4):
        head.check()
        threading.Event().wait(0.3)
    with pytest.raises(Fault):
        head.check()


def test_a_call_that_has_come_back_is_not_punished(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, back, codes = threading.Event(), threading.Event(), list[int]()

    def answers(address: str) -> bool:
        looks.set()
        back.wait(30)
        return False

    monkeypatch.setattr(ray_head, "_answers", answers)
    head = Head("10.0.0.1:6379", patience=-1.0, look=0.0, end=codes.append)
    with head.asked():
        assert looks.wait(30)
    back.set()
    for thread in threading.enumerate():
        if thread.name == "ray-head":
            thread.join(30)
    assert not codes


@pytest.mark.parametrize(("given", "is_set", "seconds"), [(None, OUR_SECONDS, 60), ("600", "600", 585), ("5", "5", 0)])
def test_a_patience_that_the_user_has_set_is_kept(
    monkeypatch: pytest.MonkeyPatch, given: str | None, is_set: str, seconds: float
) -> None:
    monkeypatch.delenv(RAYS_PATIENCE, raising=False)
    if given is not None:
        monkeypatch.setenv(RAYS_PATIENCE, given)
    assert [patience(), patience()] == [seconds, seconds]
    assert os.environ[RAYS_PATIENCE] == is_set
    assert float(OUR_SECONDS) > 2 * PATIENCE_SECONDS


def test_a_call_that_waits_for_a_head_that_is_gone_ends_with_the_process(
    port: socket.socket, capfd: pytest.CaptureFixture[str]
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
    said = capfd.readouterr().err
    assert said.startswith(f"ablate: the head of the Ray cluster, {where}, has not answered for 0 s.")
    assert said.count("\n") == 1
