"""How fast a policy answers while it trains, what training loses, and whether a request is ever lost.

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
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

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
"""Between two looks at the checkpoints; from the end of the training to a quiet machine."""
SLOWLY = "1 a second"
"""The name of a client who waits between requests."""
MOST_MS, MOST_LOSS = 350, 0.15
"""What is asked of the median beside training, and of what training loses."""


class Clients:
    """Clients of one server, each with a connection of its own, and what they have seen."""

    def __init__(self, port: int, tokens: int, explained: bool = False) -> None:
        self.port, self.asked = port, {"max_tokens": tokens} | ({"logprobs": 0} if explained else {})
        self.seconds: list[float] = []
        self.lost: list[str] = []
        self.first: dict[tuple[str, int, str], dict[str, Any]] = {}
        """Prompt, seed and revision, and the choice that they gave first."""
        self.mixed = 0
        """Answers with a token whose log-prob is not that of their revision."""
        self._lock = threading.Lock()

    def run(self, count: int, more: Callable[[], bool], every: float = 0.0) -> None:
        """So many at once, until `more` is false; `every`: seconds between requests of one."""
        threads = [threading.Thread(target=self._one, args=(n, more, every), daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

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
                self._note(time.monotonic() - began, prompt, seed, content)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.lost.append(f"{type(error).__name__}: {error}")
                connection.close()
                time.sleep(LOOK_SECONDS)  # a server that has ended must not be asked without a pause
            time.sleep(max(0.0, began + every - time.monotonic()))
        connection.close()

    def _note(self, seconds: float, prompt: str, seed: int, answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        with self._lock:
            self.seconds.append(seconds)
            first = self.first.setdefault((prompt, seed, answer["system_fingerprint"]), choice)
            self.mixed += any(gap > ROUNDING for gap in _gaps(first["logprobs"], choice["logprobs"]))

    @property
    def figures(self) -> dict[str, Any]:
        """Median and 99th percentile of the answers in milliseconds, and from how many."""
        p50, p99 = np.quantile(self.seconds or [math.nan], [0.5, 0.99]) * 1e3
        return {
            "requests": len(self.seconds), "lost": len(self.lost), "mixed": self.mixed, "p50_ms": float(p50),
            "p99_ms": float(p99), "why": sorted(set(self.lost))[:5],
        }  # fmt: skip


def asked_for(port: int, tokens: int, count: int, seconds: float, every: float = 0.0) -> dict[str, Any]:
    """The figures of so many clients who ask for so long."""
    clients, end = Clients(port, tokens), time.monotonic() + seconds
    clients.run(count, lambda: time.monotonic() < end, every)
    return clients.figures


def together(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of what was counted in each round, and intervals of what was measured."""
    counts = {name: sum(one[name] for one in rounds) for name in ("requests", "lost", "mixed")}
    measured = {
        name: list(student([one[name] for one in rounds]))
        for name in rounds[0]
        if name.endswith(("_ms", "s_per_second", "_loses"))
    }
    return counts | measured | {"why": [why for one in rounds for why in one["why"]][:5]}


def _gaps(first: dict[str, Any] | None, second: dict[str, Any] | None) -> Iterator[float]:
    """Between the log-probs of two answers, up to where their tokens part."""
    if first and second:
        columns = (one[name] for name in ("tokens", "token_logprobs") for one in (first, second))
        for mine, other, logprob, its in zip(*columns, strict=False):
            if mine != other:
                return
            yield abs(logprob - its)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Everything, in its order: beside training, under kills, quiet; told on stderr, and written after each part."""
    began = time.monotonic()
    found: dict[str, Any] = {"settings": {name: str(value) for name, value in vars(options).items()}}

    def say(line: str) -> None:
        print(f"{(time.monotonic() - began) / 60:5.1f} min  {line}", file=sys.stderr, flush=True)

    def keep(**more: Any) -> None:
        found.update(more, took_seconds=time.monotonic() - began)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    (folder / "load.yaml").write_text(STUDY.format(profile=options.profile))
    quiet_seconds = options.rounds * options.seconds / 2 * len(options.clients) + SETTLE_SECONDS
    end = began + 60 * options.minutes - quiet_seconds
    with Training(folder, options.set) as study:
        say("two trials begin: data, base, reward")
        _until(lambda: study.check() or len(_steps(folder)) == 2, "both trials train", 1800)
        with serving(folder) as port:
            keep(**beside_training(port, options, folder, say))
            say(f"{options.requests:,} requests, {options.kills} kills of the training")
            keep(kills=killed(port, options, study, folder, end))
            study.kill()
            time.sleep(SETTLE_SECONDS)
            say("a quiet machine")
            half = options.seconds / 2
            keep(
                quiet={
                    str(n): together([asked_for(port, options.tokens, n, half) for _ in range(options.rounds)])
                    for n in options.clients
                }
            )
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
            rate, meanwhile = seen["requests"] / options.seconds, pace(before, _steps(folder))
            loss = 1 - meanwhile / alone[-1] if alone[-1] else float("nan")
            rounds[name].append(seen | {"requests_per_second": rate, "training_loses": loss})
    beside = {name: together(found) for name, found in rounds.items()}
    return {"rounds": options.rounds, "steps_per_second_alone": list(student(alone)), "beside": beside}


def killed(port: int, options: argparse.Namespace, study: Training, folder: Path, end: float) -> dict[str, Any]:
    """At least so many requests, and so many kills of the training, each once both trials have left a new checkpoint,
    which the server takes over; until `end` at most.

    A kill comes at another time after the checkpoints each time, so that it meets the training at another place.
    """
    clients, asked, kills, lock = Clients(port, options.tokens, explained=True), 0, 0, threading.Lock()

    def more() -> bool:
        nonlocal asked
        with lock:
            going = time.monotonic() < end and (asked < options.requests or kills < options.kills)
            asked += going
            return going

    crowd = threading.Thread(target=clients.run, args=(options.crowd, more), daemon=True)
    crowd.start()
    before, again = _checkpoints(folder), time.monotonic()
    while crowd.is_alive():
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
    return clients.figures | counts | left


class Training:
    """The study in a process of its own; at the end of a ``with`` it is ended."""

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        changes = [part for one in [*ENDLESS, *settings] for part in ("--set", one)]
        study = ["nice", "-n", "10", sys.executable, str(ROOT / "ablate.py"), "study", str(folder / "load.yaml")]
        self._command, self._log = [*study, "--out", str(folder / "out"), "--jobs", "2", *changes], folder / "study.log"

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
            raise SystemExit(f"the study ended: {self._log.read_text()}")

    def __enter__(self) -> Training:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """The server of the trial `served`; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, str(ROOT / "ablate.py"), "serve", "load/served/0", "--port", str(port)]
    with (folder / "serve.log").open("ab") as log:
        server = subprocess.Popen([*command, "--out", str(folder / "out")], stdout=log, stderr=log)
    try:
        _until(lambda: _healthy(port) or server.poll() is not None, "the server answers", 600)
        if server.poll() is not None:
            raise SystemExit(f"the server ended: {(folder / 'serve.log').read_text()}")
        yield port
    finally:
        server.terminate()
        server.wait(60)


def _healthy(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection, suppress(OSError):
        connection.request("GET", "/health")
        with connection.getresponse() as answer:
            return answer.status == 200
    return False


Steps = dict[str, tuple[float, int]]
"""When each trial in training has last reported steps, and its last step."""


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


def _until(true: Any, what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


def show(found: dict[str, Any]) -> None:
    """The figures as a table; intervals of 95 % in brackets."""
    print(f"with the server idle: {_between(found['steps_per_second_alone'], '.1f')} gradient steps a second\n")
    print("| clients | beside training: n | p50 ms | p99 ms | training loses | quiet: p50 ms |\n|" + " --- |" * 6)
    for name, beside in found["beside"].items():
        quiet = found["quiet"].get(name)
        times = [_between(beside[one], ".0f") for one in ("p50_ms", "p99_ms")]
        loss = _between(beside["training_loses"], ".0%")
        still = _between(quiet["p50_ms"], ".0f") if quiet else "-"
        print(f"| {' | '.join([name, str(beside['requests']), *times, loss, still])} |")
    kills = found["kills"]
    print(
        f"\n{kills['asked']:,} requests, {kills['kills']} kills of the training in between: {kills['lost']} lost,"
        f" {kills['mixed']} mixed, {kills['revisions']} revisions; {kills['unasked']} requests are missing"
    )
    for name, figures in found["beside"].items():
        fast, little = _below(figures["p50_ms"], MOST_MS), _below(figures["training_loses"], MOST_LOSS)
        print(f"{name}: p50 under {MOST_MS} ms: {fast}; training loses under {MOST_LOSS:.0%}: {little}")


def _between(estimate: Sequence[float], form: str) -> str:
    value, low, high = (format(one, form) for one in estimate)
    return f"{value} [{low}, {high}]"


def _below(estimate: Sequence[float], most: float) -> str:
    """Whether it is, by its whole interval."""
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
