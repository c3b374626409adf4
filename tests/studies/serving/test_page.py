"""The page in a real browser: reference and policy side by side, and texts that stay texts."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from browser import document, needs_chromium
from tiny_service import Tiny

from studies.serving.app import create_app
from studies.serving.batching import Server

BAD = "<script>document.body.dataset.bad = 1</script><img src=x onerror='document.body.dataset.bad = 1'>"
IN_HTML = "&lt;script&gt;document.body.dataset.bad = 1&lt;/script&gt;"

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server whose networks write HTML."""
    tokens = {"tokens": [BAD, " and an end"], "token_logprobs": [-1.0, -2.0]}
    monkeypatch.setattr(Server, "_explained", lambda *given: tokens)
    server = uvicorn.Server(uvicorn.Config(create_app(Tiny().server), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield int(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join(60)


def test_answers_stand_side_by_side_and_markup_in_them_is_text(port: int, tmp_path: Path) -> None:
    prompt = "It %3Cimg src=y onerror='document.body.dataset.bad = 2'%3E"
    html = document(f"http://127.0.0.1:{port}/#prompt={prompt}&seed=4&tokens=30", tmp_path / "profile")
    assert 'data-done="yes"' in html
    assert re.findall(r"<h2>(\w+)</h2>", html) == ["Reference", "Policy"]
    assert re.sub(r"</?span[^>]*>", "", html).count(IN_HTML) == 2
    assert html.count("It &lt;img src=y") == 3 - html.count("<textarea"), "before each answer"
    assert "data-bad" not in html
    assert len(re.findall("<script", html)) == 1
    for name in ("Proxy", "Gold", "Log-prob under the policy", "Log-prob under the reference", "Revision", "Seed"):
        assert html.count(f">{name}</th>") == 2
    assert html.count(">step 1, training</td>") == 2
    assert 'id="fault" role="alert" hidden' in html


def test_what_is_refused_is_shown(port: int, tmp_path: Path) -> None:
    html = document(f"http://127.0.0.1:{port}/#prompt=It&tokens=500", tmp_path / "profile")
    assert "max_tokens is 500: the network reads 1 to 96 together</p>" in html
