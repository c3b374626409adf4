"""Speed of a policy's answers while it trains, the cost to training, and the requests that are lost.

    PYTHONPATH=.:tests .venv/bin/python -m benchmarks.serve_load

Two trials train at `nice` 10, and one of them is served: milliseconds per request and gradient steps per second under
load, beside those with the server idle (goals: a median under 350 ms, less than 15 % of the steps lost). Then 10,000
requests while the training is killed and started again. Takes about 5 minutes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import requests
from helpers import free_port, healthy, wait_until

ROOT = Path(__file__).parents[2]
STUDY = """
question: What does serving cost?
profile: {profile}
baseline: served
seeds: [0]
arms:
  served: {{kl.beta: 0.05}}
  beside: {{kl.beta: 0.1}}
"""
ENDLESS = ["train.steps=1000000", "runtime.threads=1", "caps.wall_clock_h=1000", "caps.generated_tokens=100000000000"]
PROMPTS = ("The acting was", "The film", "A slow story that", "The script")
SEEDS = 40
"""Different requests: with few, each is asked again under the same revision, and must be answered alike."""
ROUNDING = 0.01
"""Nats between the log-probs of one token under one revision, at most: batches round differently."""
PARTIAL = "out/store/train/.partial"
LOOK_SECONDS, KILLING_SECONDS = 0.1, 1500
"""Seconds between two looks at the checkpoints, and until no more is asked."""


class Clients:
    """Clients of one server, each with a connection of its own, and their answers."""

    def __init__(self, port: int, tokens: int, **asked: Any) -> None:
        self.url, self.asked = f"http://127.0.0.1:{port}/v1/completions", {"max_tokens": tokens, **asked}
        self.seconds: list[float] = []
        self.lost: list[str] = []
        self.first: dict[tuple[str, int, str], dict[str, Any]] = {}
        """Prompt, seed and revision, and the choice that they gave first."""
        self.mixed = 0
        """Answers with a token whose log-prob is not that of their revision."""
        self._lock = threading.Lock()

    def run(self, count: int, more: Callable[[], bool]) -> dict[str, Any]:
        """Run so many clients at once, until `more` is false: numbers of answers, and their median in milliseconds."""
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda turn: self._one(turn, more), range(count)))
        counts = {"requests": len(self.seconds), "lost": sorted(self.lost), "mixed": self.mixed}
        return {"clients": count, **counts, "p50 ms": float(np.median(self.seconds or math.nan)) * 1e3}

    def _one(self, turn: int, more: Callable[[], bool]) -> None:
        session = requests.Session()
        session.trust_env = False  # no proxy
        while more():
            prompt, seed, began = PROMPTS[turn % len(PROMPTS)], turn % SEEDS, time.monotonic()
            turn += 7
            try:
                answer = session.post(self.url, json={"prompt": prompt, "seed": seed, **self.asked}, timeout=60)
                if not answer.ok:
                    raise ValueError(f"{answer.status_code}: {answer.text}")
                content = answer.json()
                with self._lock:
                    self.seconds.append(time.monotonic() - began)
                    choice = content["choices"][0]
                    first = self.first.setdefault((prompt, seed, content["system_fingerprint"]), choice)
                    self.mixed += _apart(first["logprobs"], choice["logprobs"])
            except (OSError, ValueError) as error:
                self.lost.append(f"{type(error).__name__}: {error}")
                time.sleep(LOOK_SECONDS)  # a server that has ended must not be asked without a pause


def _apart(first: dict[str, Any] | None, second: dict[str, Any] | None) -> bool:
    """Return whether log-probs of two answers differ before their tokens part."""
    columns = (one[name] if one else [] for name in ("tokens", "token_logprobs") for one in (first, second))
    for mine, other, logprob, its in zip(*columns, strict=False):
        if mine != other:
            return False
        if abs(logprob - its) > ROUNDING:
            return True
    return False


def measure(
    folder: Path, profile: str, changes: Sequence[str], seconds: float, tokens: int, requests: int, kills: int
) -> list[dict[str, Any]]:
    """Return a row for each number of clients beside training, and one of at least so many requests and kills."""
    (folder / "load.yaml").write_text(STUDY.format(profile=profile))
    port, settings = free_port(), [part for one in (*ENDLESS, *changes) for part in ("--set", one)]
    study = Program(folder, ["study", str(folder / "load.yaml"), "--jobs", "2", *settings], ["nice", "-n", "10"])
    server = Program(folder, ["serve", "load/served/0", "--port", str(port)])
    with study:
        wait_until(lambda: study.check() or len(_steps(folder)) == 2, 1800, "both trials train")
        with server:
            wait_until(lambda: server.check() or healthy(port), 600, "the server answers")
            before, rows = _steps(folder), []
            time.sleep(seconds)
            alone = pace(before, _steps(folder))
            for count in (1, 4, 16):
                before, over = _steps(folder), time.monotonic() + seconds
                seen = Clients(port, tokens).run(count, lambda over=over: time.monotonic() < over)
                loss = 1 - pace(before, _steps(folder)) / alone if alone else math.nan
                rows.append({**seen, "steps/s alone": alone, "training loses": loss})
            return [*rows, killed(Clients(port, tokens, logprobs=0), study, folder, requests, kills)]


def killed(clients: Clients, study: Program, folder: Path, requests: int, kills: int) -> dict[str, Any]:
    """Kill the training each time that both trials have left a new checkpoint, which the server takes over.

    A kill comes at another time after the checkpoints each time, so that it meets the training at another place.
    """
    asked, done, end = itertools.count(), 0, time.monotonic() + KILLING_SECONDS
    with ThreadPoolExecutor(1) as pool:
        crowd = pool.submit(
            clients.run, 32, lambda: time.monotonic() < end and (next(asked) < requests or done < kills)
        )
        before = _checkpoints(folder)
        while not crowd.done():
            if done < kills and all(new > before.get(name, 0) for name, new in _checkpoints(folder).items()):
                time.sleep(0.37 * done % 1.1)
                study.kill()
                done += 1
                before = _checkpoints(folder)
                study.start()
            time.sleep(LOOK_SECONDS)
    found = crowd.result()
    return {**found, "asked": found["requests"] + len(found["lost"]), "kills": done}


class Program:
    """A command of `ablate` in a process of its own; at the end of a ``with`` it is killed."""

    def __init__(self, folder: Path, command: list[str], before: Sequence[str] = ()) -> None:
        self._command = [*before, sys.executable, str(ROOT / "ablate.py"), *command, "--out", str(folder / "out")]
        self._log = folder / f"{command[0]}.log"

    def start(self) -> Program:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        return self

    __enter__ = start

    def kill(self, *_: object) -> None:
        """End it without a farewell; its workers notice, and end."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    __exit__ = kill

    def check(self) -> None:
        assert self._process.poll() is None, self._log.read_text()


Steps = dict[str, tuple[float, int]]
"""Time when each trial in training last reported steps, and its last step."""


def _steps(folder: Path) -> Steps:
    found = {}
    for name in _checkpoints(folder):
        path = folder / PARTIAL / name / "metrics.jsonl"
        when, rows = path.stat().st_mtime, path.read_bytes().split(b"\n")[:-1]
        if rows:
            found[name] = when, max(json.loads(row)["step"] for row in rows[-50:])
    return found


def pace(before: Steps, after: Steps) -> float:
    """Gradient steps per second of all trials together, from report to report: many steps are reported at a time."""
    both = [(before[name], now) for name, now in after.items() if name in before]
    return sum((step - first) / (when - since) for (since, first), (when, step) in both if when > since)


def _checkpoints(folder: Path) -> dict[str, int]:
    """The update of the newest checkpoint of each trial in training."""
    paths = (folder / PARTIAL).glob("*/checkpoints/update_*.pt")
    return {path.parts[-3]: int(path.name[7:].partition(".")[0]) for path in sorted(paths)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(*measure(Path(place), "tiny", (), seconds=20.0, tokens=32, requests=10_000, kills=5), sep="\n")
