"""The command itself: a process that follows a trial in training, which is killed and started again under load."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.serve_load import healthy, measure
from helpers import free_port, mind_interrupts, wait_until
from tiny_service import network, tokenizer

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
        wait_until(lambda: healthy(port) or server.poll() is not None, "the server answers", 300)
    finally:
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    assert server.returncode in (0, 130)
    assert f" at http://127.0.0.1:{port} (Ctrl-C stops it)" in out
    assert "Traceback" not in err
