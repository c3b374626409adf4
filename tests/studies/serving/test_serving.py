from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from benchmarks.serve_load import measure
from browser import document, needs_chromium
from helpers import free_port, healthy, mind_interrupts, wait_until
from tiny_service import Tiny, network, tokenizer

from studies.serving.app import create_app
from studies.serving.batching import Server

BAD = "<script>document.body.dataset.bad = 1</script><img src=x onerror='document.body.dataset.bad = 1'>"
IN_HTML = "&lt;script&gt;document.body.dataset.bad = 1&lt;/script&gt;"


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


@pytest.mark.slow
@needs_chromium
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


@pytest.mark.slow
@needs_chromium
def test_what_is_refused_is_shown(port: int, tmp_path: Path) -> None:
    html = document(f"http://127.0.0.1:{port}/#prompt=It&tokens=500", tmp_path / "profile")
    assert "max_tokens is 500: the network reads 1 to 96 together</p>" in html


ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # five processes import torch; a minute on an idle machine
def test_nothing_is_lost_or_mixed_while_the_training_is_killed(tmp_path: Path) -> None:
    rows = measure(tmp_path, "smoke", ["runtime.checkpoint_updates=2"], seconds=2.0, tokens=12, requests=400, kills=2)
    assert [(one["lost"], one["mixed"]) for one in rows] == [([], 0)] * 4, rows
    assert all(one["requests"] > 0 for one in rows)
    assert (rows[-1]["kills"], rows[-1]["requests"]) == (2, rows[-1]["asked"])
    assert rows[-1]["asked"] >= 400
    assert (tmp_path / "serve.log").read_text().count("answering with") > 1, "newer weights took over"


@pytest.mark.slow
def test_a_folder_is_served_until_ctrl_c(tmp_path: Path) -> None:
    network(1).save_pretrained(tmp_path / "policy")
    tokenizer().save_pretrained(tmp_path / "policy")
    port = free_port()
    command = [sys.executable, str(ROOT / "ablate.py"), "serve", str(tmp_path / "policy"), "--port", str(port)]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    server = subprocess.Popen(command, **both, text=True, preexec_fn=mind_interrupts)
    try:
        wait_until(lambda: healthy(port) or server.poll() is not None, 300, "the server answers")
    finally:
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    assert server.returncode in (0, 130)
    assert f" at http://127.0.0.1:{port} (Ctrl-C stops it)" in out
    assert "Traceback" not in err
