from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from browser import document, needs_chromium
from fake_trial import STUDY
from helpers import free_port, healthy, mind_interrupts, wait_until
from tracked_study import Tracked

from pipeline.run.layout import Layout
from studies.definition.schema import load_study
from studies.tracking.store import VIEW

ROOT = Path(__file__).parents[3]
ARMS = ("weak", "strong")


class Served(NamedTuple):
    """A running `ablate ui`, and the two lines that it printed: its address, and the link to its only study."""

    process: subprocess.Popen[str]
    port: int
    address: str
    study: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, port = tmp_path_factory.mktemp("ui"), free_port()
    (folder / "small.yaml").write_text(STUDY)
    tracked = Tracked(load_study(folder / "small.yaml"), Layout(folder / "out"))
    tracked.record(0, 1, 2, 3)
    tracked.sync(status="complete")
    command = [sys.executable, str(ROOT / "ablate.py"), "ui", "--port", str(port), "--out", str(tracked.layout.root)]
    with (folder / "errors.txt").open("w") as errors:
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            preexec_fn=mind_interrupts,
        )  # fmt: skip
    try:
        assert server.stdout is not None
        address = server.stdout.readline()
        study = next(line.strip() for line in server.stdout if line.startswith("Curves of"))
        wait_until(lambda: healthy(port) or server.poll() is not None, 120, "MLflow answers")
        yield Served(server, port, address, study)
        assert "Traceback" not in (folder / "errors.txt").read_text()
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGINT)
            server.communicate(timeout=60)


def curves(html: str) -> int:
    """Lines that were drawn, bands included; a straight one consists of a single stroke."""
    return len(re.findall(r'class="js-line"[^>]* d="M[^"]+L[^"]+"', html))


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", html, flags=re.DOTALL))


@pytest.mark.slow
@needs_chromium
def test_the_link_opens_on_the_curves_of_every_arm(served: Served, tmp_path: Path) -> None:
    study, _, url = served.study.partition(": ")
    assert study == "Curves of small"
    expected, seen = len(VIEW["charts"]) * len(ARMS), []
    for seconds in (30, 60, 120, 240, 480):
        # A page may be dumped before a busy server has sent its data, so each attempt waits longer.
        html = document(url, tmp_path / f"profile-{seconds}", seconds)
        seen.append(curves(html))
        if seen[-1] >= expected:
            break
    assert seen[-1] >= expected, f"curves drawn in each attempt: {seen} of {expected}; the page: {words(html)[-2000:]}"
    for metric in VIEW["charts"]:
        for arm in ARMS:
            assert f">{arm} ({metric})<" in html, "each chart has each arm in its legend"
    assert "Curves by arm" in html
    assert "weak seed 0" in html
    assert "study small" not in html, "the parent run is hidden"


@pytest.mark.slow
def test_the_ui_ends_cleanly_on_ctrl_c(served: Served) -> None:
    assert f"http://127.0.0.1:{served.port}" in served.address
    os.killpg(served.process.pid, signal.SIGINT)
    served.process.communicate(timeout=120)
    assert served.process.returncode == 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", served.port))
