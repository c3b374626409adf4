"""Speed of a policy's answers while it trains, the cost to training, and the requests that are lost.

    PYTHONPATH=.:tests .venv/bin/python -m benchmarks.serve_load

Takes 12 minutes at most (``--minutes``). Two trials train at `nice` 10, and one of them is served. In rounds: gradient
steps per second with the server idle, then milliseconds per request and gradient steps under load. Then many requests
while the training is killed and started again. Prints a table and writes a JSON file. Exit code 1 where a request was
lost or an answer mixed two revisions. Intervals are of 95 %, by Student's t.
"""

from __future__ import annotations

import argparse
import http.client
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
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from helpers import free_port, wait_until

from pipeline.intervals import student

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
LOOK_SECONDS = 0.1
"""Seconds between two looks at the checkpoints."""
MOST_MS, MOST_LOSS = 350, 0.15
"""Goals: the median beside training [ms], and the share of its speed that training loses."""


class Clients:
    """Clients of one server, each with a connection of its own, and their answers."""

    def __init__(self, port: int, tokens: int, **asked: Any) -> None:
        self.port, self.asked = port, {"max_tokens": tokens, **asked}
        self.seconds: list[float] = []
        self.lost: list[str] = []
        self.first: dict[tuple[str, int, str], dict[str, Any]] = {}
        """Prompt, seed and revision, and the choice that they gave first."""
        self.mixed = 0
        """Answers with a token whose log-prob is not that of their revision."""
        self._lock = threading.Lock()

    def run(self, count: int, more: Callable[[], bool]) -> dict[str, Any]:
        """Run so many clients at once, until `more` is false: the number of answers, their median and 99th percentile
        in milliseconds, and what was lost."""
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda turn: self._one(turn, more), range(count)))
        p50, p99 = np.quantile(self.seconds or [math.nan], [0.5, 0.99]) * 1e3
        counts = {"requests": len(self.seconds), "lost": len(self.lost), "mixed": self.mixed}
        return {**counts, "p50 ms": float(p50), "p99 ms": float(p99), "why": sorted(set(self.lost))[:5]}

    def _one(self, turn: int, more: Callable[[], bool]) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            while more():
                prompt, seed, began = PROMPTS[turn % len(PROMPTS)], turn % SEEDS, time.monotonic()
                turn += 7
                body = json.dumps({"prompt": prompt, "seed": seed, **self.asked})
                try:
                    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    content = json.loads(answer.read())
                    if answer.status != 200:
                        raise ValueError(f"{answer.status}: {content}")
                    choice = content["choices"][0]
                    with self._lock:
                        self.seconds.append(time.monotonic() - began)
                        first = self.first.setdefault((prompt, seed, content["system_fingerprint"]), choice)
                        self.mixed += _apart(first["logprobs"], choice["logprobs"])
                except (OSError, http.client.HTTPException, ValueError) as error:
                    self.lost.append(f"{type(error).__name__}: {error}")
                    connection.close()
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


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure beside training and under kills, in this order; report on stderr, and write after each part."""
    end = time.monotonic() + 60 * options.minutes
    found: dict[str, Any] = {"settings": {name: str(value) for name, value in vars(options).items()}}

    def keep(**more: Any) -> None:
        found.update(more)
        print(f"{time.strftime('%H:%M:%S')} measured: {', '.join(more)}", file=sys.stderr, flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    (folder / "load.yaml").write_text(STUDY.format(profile=options.profile))
    port, changes = free_port(), [part for one in [*ENDLESS, *options.set] for part in ("--set", one)]
    study = Program(folder, ["study", str(folder / "load.yaml"), "--jobs", "2", *changes], ["nice", "-n", "10"])
    server = Program(folder, ["serve", "load/served/0", "--port", str(port)])
    with study:
        wait_until(lambda: study.check() or len(_steps(folder)) == 2, "both trials train", 1800)
        with server:
            wait_until(lambda: server.check() or healthy(port), "the server answers", 600)
            keep(beside=beside_training(port, options, folder))
            keep(kills=killed(port, options, study, folder, end))
    return found


def beside_training(port: int, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Round by round, for each number of clients: answer times, steps per second of the trials together with the server
    idle, and the share of them that training loses."""
    rows = []
    for _ in range(options.rounds):
        before = _steps(folder)
        time.sleep(options.seconds)
        alone = pace(before, _steps(folder))
        for count in options.clients:
            before, over = _steps(folder), time.monotonic() + options.seconds
            seen = Clients(port, options.tokens).run(count, lambda over=over: time.monotonic() < over)
            loss = 1 - pace(before, _steps(folder)) / alone if alone else math.nan
            rows.append({"clients": count, "steps/s alone": alone, "training loses": loss, **seen})
    return rows


def killed(port: int, options: argparse.Namespace, study: Program, folder: Path, end: float) -> dict[str, Any]:
    """Make at least so many requests, and so many kills of the training, each once both trials have left a new
    checkpoint, which the server takes over; until `end` at most.

    A kill comes at another time after the checkpoints each time, so that it meets the training at another place.
    """
    clients, asked, kills, lock = Clients(port, options.tokens, logprobs=0), 0, 0, threading.Lock()

    def more() -> bool:
        nonlocal asked
        with lock:
            going = time.monotonic() < end and (asked < options.requests or kills < options.kills)
            asked += going
            return going

    with ThreadPoolExecutor(1) as pool:
        crowd, before = pool.submit(clients.run, options.crowd, more), _checkpoints(folder)
        while not crowd.done():
            if kills < options.kills and all(new > before.get(name, 0) for name, new in _checkpoints(folder).items()):
                time.sleep(0.37 * kills % 1.1)
                study.kill()
                kills += 1
                before = _checkpoints(folder)
                study.start()
            time.sleep(LOOK_SECONDS)
    counts = {"asked": asked, "kills": kills, "revisions": len({revision for _, _, revision in clients.first})}
    short = asked < options.requests or kills < options.kills
    return {**crowd.result(), **counts, "lost": asked - len(clients.seconds), "short": short}


class Program:
    """A command of `ablate` in a process of its own; at the end of a ``with`` it is killed."""

    def __init__(self, folder: Path, command: list[str], before: Sequence[str] = ()) -> None:
        self._command = [*before, sys.executable, str(ROOT / "ablate.py"), *command, "--out", str(folder / "out")]
        self._log = folder / f"{command[0]}.log"

    def start(self) -> None:
        """Start it, or go on with it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """End it without a farewell; its workers notice, and end."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def check(self) -> None:
        """Raise where it has ended by itself."""
        if self._process.poll() is not None:
            raise SystemExit(f"it ended: {self._log.read_text()}")

    def __enter__(self) -> Program:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def healthy(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection, suppress(OSError):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


Steps = dict[str, tuple[float, int]]
"""Time when each trial in training last reported steps, and its last step."""


def _steps(folder: Path) -> Steps:
    found = {}
    for path in (folder / "out" / "store" / "train" / ".partial").glob("*/metrics.jsonl"):
        when, rows = path.stat().st_mtime, path.read_bytes().split(b"\n")[:-1]
        if rows and any(path.parent.glob("checkpoints/update_*.pt")):
            found[path.parent.name] = when, max(json.loads(row)["step"] for row in rows[-50:])
    return found


def pace(before: Steps, after: Steps) -> float:
    """Gradient steps per second of all trials together, from report to report: many steps are reported at a time."""
    both = [(before[name], now) for name, now in after.items() if name in before]
    return sum((step - first) / (when - since) for (since, first), (when, step) in both if when > since)


def _checkpoints(folder: Path) -> dict[str, int]:
    """The update of the newest checkpoint of each trial in training."""
    paths = (folder / "out" / "store" / "train" / ".partial").glob("*/checkpoints/update_*.pt")
    return {path.parts[-3]: int(path.name[7:].partition(".")[0]) for path in sorted(paths)}


def show(found: dict[str, Any]) -> None:
    """The figures as a table; intervals of 95 % in brackets."""
    rounds = pd.DataFrame(found["beside"]).groupby("clients")
    rows = rounds[["p50 ms", "p99 ms", "training loses", "steps/s alone"]].agg(
        lambda column: "{:.4g} [{:.4g}, {:.4g}]".format(*student(list(column)))
    )
    medians = rounds[["p50 ms", "training loses"]].median()
    met = {f"p50 under {MOST_MS} ms": medians["p50 ms"] < MOST_MS}
    met[f"loses under {MOST_LOSS:.0%}"] = medians["training loses"] < MOST_LOSS
    print(rows.assign(n=rounds["requests"].sum(), **met).to_string())
    print({name: value for name, value in found["kills"].items() if name != "why"})


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # programs that were started must end with this one
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options)
    show(found)
    parts = [*found["beside"], found["kills"]]
    return 1 if found["kills"]["short"] or any(part["lost"] or part["mixed"] for part in parts) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--set", action="append", default=[], help="a setting of the study, as for ablate study")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="most tokens of a completion")
    parser.add_argument("--requests", type=int, default=10_000, help="with kills in between")
    parser.add_argument("--crowd", type=int, default=32, help="clients at once while the training is killed")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=12.0, help="after which no more is asked")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "serve_load.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
