"""Speed of a policy's answers while it trains, the cost to training, and the requests that are lost.

    PYTHONPATH=.:tests .venv/bin/python -m benchmarks.serve_load

Takes 12 minutes at most (``--minutes``). Two trials train at `nice` 10, and one of them is served. In rounds: gradient
steps per second with the server idle, then milliseconds per request and gradient steps under load. Then many requests
while the training is killed and started again; then the same clients on a quiet machine. Prints a table and writes a
JSON file. Exit code 1 where a request was lost or an answer mixed two revisions. Intervals are of 95 %, by Student's t.
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
LOOK_SECONDS, SETTLE_SECONDS = 0.1, 3.0
"""Seconds between two looks at the checkpoints, and from the end of the training to a quiet machine."""
SLOWLY = "1 a second"
"""The name of a client who waits between requests."""
MOST_MS, MOST_LOSS = 350, 0.15
"""Goals: the median beside training [ms], and the share of its speed that training loses."""


class Clients:
    """Clients of one server, each with a connection of its own, and their answers."""

    def __init__(self, port: int, tokens: int, explained: bool = False) -> None:
        self.port, self.asked = port, {"max_tokens": tokens} | ({"logprobs": 0} if explained else {})
        self.seconds: list[float] = []
        self.lost: list[str] = []
        self.first: dict[tuple[str, int, str], dict[str, Any]] = {}
        """Prompt, seed and revision, and the choice that they gave first."""
        self.mixed = 0
        """Answers with a token whose log-prob is not that of their revision."""
        self._lock = threading.Lock()

    def run(self, count: int, more: Callable[[], bool], every: float = 0.0) -> dict[str, Any]:
        """Run so many clients at once, until `more` is false; `every`: seconds between requests of one. Returns the
        number of answers, their median and 99th percentile in milliseconds, and what was lost."""
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda turn: self._one(turn, more, every), range(count)))
        p50, p99 = np.quantile(self.seconds or [math.nan], [0.5, 0.99]) * 1e3
        return {
            "requests": len(self.seconds), "lost": len(self.lost), "mixed": self.mixed, "p50_ms": float(p50),
            "p99_ms": float(p99), "why": sorted(set(self.lost))[:5],
        }  # fmt: skip

    def _one(self, turn: int, more: Callable[[], bool], every: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
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
            time.sleep(max(0.0, began + every - time.monotonic()))
        connection.close()


def _apart(first: dict[str, Any] | None, second: dict[str, Any] | None) -> bool:
    """Return whether log-probs of two answers differ before their tokens part."""
    if first and second:
        columns = (one[name] for name in ("tokens", "token_logprobs") for one in (first, second))
        for mine, other, logprob, its in zip(*columns, strict=False):
            if mine != other:
                return False
            if abs(logprob - its) > ROUNDING:
                return True
    return False


def asked_for(port: int, tokens: int, count: int, seconds: float, every: float = 0.0) -> dict[str, Any]:
    """The figures of so many clients who ask for so long."""
    end = time.monotonic() + seconds
    return Clients(port, tokens).run(count, lambda: time.monotonic() < end, every)


def together(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of what was counted in each round, and intervals of what was measured."""
    counts = {name: sum(one[name] for one in rounds) for name in ("requests", "lost", "mixed")}
    measured = {name for name in rounds[0] if name.endswith(("_ms", "s_per_second", "_loses"))}
    intervals = {name: list(student([one[name] for one in rounds])) for name in sorted(measured)}
    return counts | intervals | {"why": [why for one in rounds for why in one["why"]][:5]}


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure beside training, under kills, and quiet, in this order; report on stderr, and write after each part."""
    began = time.monotonic()
    found: dict[str, Any] = {"settings": {name: str(value) for name, value in vars(options).items()}}

    def say(line: str) -> None:
        print(f"{(time.monotonic() - began) / 60:5.1f} min  {line}", file=sys.stderr, flush=True)

    def keep(**more: Any) -> None:
        found.update(more, took_seconds=time.monotonic() - began)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    (folder / "load.yaml").write_text(STUDY.format(profile=options.profile))
    half, settled = options.seconds / 2, options.rounds * options.seconds / 2 * len(options.clients) + SETTLE_SECONDS
    end = began + 60 * options.minutes - settled
    port, changes = free_port(), [part for one in [*ENDLESS, *options.set] for part in ("--set", one)]
    study = Program(folder, ["study", str(folder / "load.yaml"), "--jobs", "2", *changes], ["nice", "-n", "10"])
    server = Program(folder, ["serve", "load/served/0", "--port", str(port)])
    with study:
        say("two trials begin: data, base, reward")
        wait_until(lambda: study.check() or len(_steps(folder)) == 2, "both trials train", 1800)
        with server:
            wait_until(lambda: server.check() or _healthy(port), "the server answers", 600)
            keep(**beside_training(port, options, folder, say))
            say(f"{options.requests:,} requests, {options.kills} kills of the training")
            keep(kills=killed(port, options, study, folder, end))
            study.kill()
            time.sleep(SETTLE_SECONDS)
            say("a quiet machine")
            quiet = {
                n: [asked_for(port, options.tokens, n, half) for _ in range(options.rounds)] for n in options.clients
            }
            keep(quiet={str(n): together(rounds) for n, rounds in quiet.items()})
    return found


def beside_training(port: int, options: argparse.Namespace, folder: Path, say: Any) -> dict[str, Any]:
    """Steps per second of the trials together with the server idle, and of each kind of load its answer times and what
    training loses, round by round."""
    loads = {SLOWLY: (1, 1.0)} | {str(n): (n, 0.0) for n in options.clients}
    alone, rounds = list[float](), {name: list[dict[str, Any]]() for name in loads}
    for number in range(options.rounds):
        say(f"beside training: round {number + 1} of {options.rounds}")
        before = _steps(folder)
        time.sleep(options.seconds)
        alone.append(pace(before, _steps(folder)))
        for name, (count, every) in loads.items():
            before = _steps(folder)
            seen = asked_for(port, options.tokens, count, options.seconds, every)
            loss = 1 - pace(before, _steps(folder)) / alone[-1] if alone[-1] else math.nan
            rate = seen["requests"] / options.seconds
            rounds[name].append(seen | {"requests_per_second": rate, "training_loses": loss})
    beside = {name: together(found) for name, found in rounds.items()}
    return {"rounds": options.rounds, "steps_per_second_alone": list(student(alone)), "beside": beside}


def killed(port: int, options: argparse.Namespace, study: Program, folder: Path, end: float) -> dict[str, Any]:
    """Make at least so many requests, and so many kills of the training, each once both trials have left a new
    checkpoint, which the server takes over; until `end` at most.

    A kill comes at another time after the checkpoints each time, so that it meets the training at another place.
    """
    clients, asked, kills, lock = Clients(port, options.tokens, explained=True), 0, 0, threading.Lock()

    def more() -> bool:
        nonlocal asked
        with lock:
            going = time.monotonic() < end and (asked < options.requests or kills < options.kills)
            asked += going
            return going

    with ThreadPoolExecutor(1) as pool:
        crowd = pool.submit(clients.run, options.crowd, more)
        before, again = _checkpoints(folder), time.monotonic()
        while not crowd.done():
            if kills < options.kills and all(new > before.get(name, 0) for name, new in _checkpoints(folder).items()):
                time.sleep(0.37 * kills % 1.1)
                study.kill()
                kills += 1
                before, again = _checkpoints(folder), time.monotonic()
                study.start()
            elif kills < options.kills and time.monotonic() - again > 5:
                study.check()
            time.sleep(LOOK_SECONDS)
    answered, revisions = len(clients.seconds), len({revision for _, _, revision in clients.first})
    counts = {"asked": asked, "answered": answered, "lost": asked - answered, "kills": kills, "revisions": revisions}
    left = {"unasked": max(options.requests - asked, 0), "kills_left": options.kills - kills}
    return crowd.result() | counts | left


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


def _healthy(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection, suppress(OSError):
        connection.request("GET", "/health")
        with connection.getresponse() as answer:
            return answer.status == 200
    return False


Steps = dict[str, tuple[float, int]]
"""Time when each trial in training last reported steps, and its last step."""


def _steps(folder: Path) -> Steps:
    found = {}
    for path in (folder / "out" / "store" / "train" / ".partial").glob("*/metrics.jsonl"):
        when = path.stat().st_mtime
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 20_000, 0))
            rows = file.read().split(b"\n")[1:-1]
        steps = [json.loads(row)["step"] for row in rows]
        if steps and any(path.parent.glob("checkpoints/update_*.pt")):
            found[path.parent.name] = when, max(steps)
    return found


def pace(before: Steps, after: Steps) -> float:
    """Gradient steps per second of all trials together, from report to report: many steps are reported at a time."""
    both = [(before[name], now) for name, now in after.items() if name in before]
    return sum((step - first) / (when - since) for (since, first), (when, step) in both if when > since)


def _checkpoints(folder: Path) -> dict[str, int]:
    """The update of the newest checkpoint of each trial in training."""
    found: dict[str, int] = {}
    for path in (folder / "out" / "store" / "train" / ".partial").glob("*/checkpoints/update_*.pt"):
        name, update = path.parent.parent.name, int(path.name.removeprefix("update_").partition(".")[0])
        found[name] = max(found.get(name, 0), update)
    return found


def show(found: dict[str, Any]) -> None:
    """The figures as a table; intervals of 95 % in brackets."""
    print(f"with the server idle: {_between(found['steps_per_second_alone'], '.1f')} gradient steps a second\n")
    rows = {
        name: {
            "n": one["requests"], "p50 ms": _between(one["p50_ms"], ".0f"), "p99 ms": _between(one["p99_ms"], ".0f"),
            "training loses": _between(one["training_loses"], ".0%"),
            "quiet: p50 ms": _between(found["quiet"][name]["p50_ms"], ".0f") if name in found["quiet"] else "-",
            f"p50 under {MOST_MS} ms": _below(one["p50_ms"], MOST_MS),
            f"loses under {MOST_LOSS:.0%}": _below(one["training_loses"], MOST_LOSS),
        }
        for name, one in found["beside"].items()
    }  # fmt: skip
    print(pd.DataFrame(rows).T.rename_axis("clients").to_string())
    kills = found["kills"]
    print(
        f"\n{kills['asked']:,} requests, {kills['kills']} kills of the training in between: {kills['lost']} lost,"
        f" {kills['mixed']} mixed, {kills['revisions']} revisions; {kills['unasked']} requests are missing"
    )


def _between(estimate: Sequence[float], form: str) -> str:
    value, low, high = (format(one, form) for one in estimate)
    return f"{value} [{low}, {high}]"


def _below(estimate: Sequence[float], most: float) -> str:
    """Return whether an estimate is below `most`, by its whole interval."""
    _, low, high = estimate
    return "yes" if high < most else "no" if low >= most else "the interval does not tell"


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started must end with this
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(Path(temporary), options)
    show(found)
    print(f"\n{options.out}")
    parts = [*found["beside"].values(), found["kills"], *found["quiet"].values()]
    short = found["kills"]["unasked"] or found["kills"]["kills_left"]
    return 1 if short or any(part["lost"] or part["mixed"] for part in parts) else 0


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
