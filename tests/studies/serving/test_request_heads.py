"""A server of one answer, on a socket: who never ends the head of a request is disconnected."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from studies.serving import request_heads
from studies.serving.request_heads import HeadLimit

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        body = (await receive())["body"] or (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(request_heads, "HEAD_SECONDS", 0.5)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=HeadLimit, log_level="error", timeout_keep_alive=60))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    with socket.create_connection(listening.getsockname(), timeout=60) as connection:
        yield connection
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.mark.parametrize("begun", [b"", HEAD[:-2]])
def test_a_head_that_does_not_end_closes_the_connection(client: socket.socket, begun: bytes) -> None:
    client.sendall(begun)
    assert client.recv(100) == b""


def test_a_complete_head_has_time_and_the_next_request_is_limited_again(client: socket.socket) -> None:
    client.sendall(HEAD)
    threading.Event().wait(1.0)
    client.sendall(b"body")
    reply = b""
    while not reply.endswith(b"body"):
        reply += (received := client.recv(1_000))
        assert received, "closed before the answer"
    client.sendall(HEAD[:-2])
    assert client.recv(100) == b""
