"""How fast a policy answers while it trains, what training loses, and whether a request is ever lost.

    PYTHONPATH=.:tests .venv/bin/python -m benchmarks.serve_load

Takes 12 minutes at most (``--minutes``). Two trials train at `nice` 10, and one of them is served. Measured in rounds,
so that a machine that grows slower does so for all alike: gradient steps per second with the server idle, then, at one
request a second and at several numbers of clients who ask again when they are answered, milliseconds per request and
gradient steps meanwhile. Then many requests while the training is killed and started again, each time as soon as both
trials have left a new checkpoint; then the same clients on a quiet machine. Tells on stderr where it stands, prints a
table, and writes a JSON file, anew after each part. Exit code 1 where a request was lost or an answer mixed two
revisions.

Intervals are of 95 %: those of answer times by a bootstrap over seconds, since answers of one batch come together;
those of what training loses by Student's t over the rounds, each against its own time with the server idle.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
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
LOOK_SECONDS = 0.1
"""Between two looks at how far the trials have come."""
SETTLE_SECONDS = 3.0
"""From the end of the training to a quiet machine."""
SLOWLY = "1 a second"
"""The name of a client who waits between requests."""
MOST_MS, MOST_LOSS = 350, 0.15
"""What is asked of the median beside training, and of what training loses."""


@dataclass
class Tally:
    """What clients have seen."""

    seconds: list[float] = field(default_factory=list)
    """Of each answer."""
    ends: list[float] = field(default_factory=list)
    """When each came, by the monotonic clock."""
    lost: list[str] = field(default_factory=list)
    said: dict[tuple[str, int, str], dict[str, Any]] = field(default_factory=dict)
    """Prompt, seed and revision, and the choice that they gave first."""
    apart: int = 0
    """Answers with another text than the first one to the same: rounding moved a border past a number."""
    mixed: int = 0
    """Answers with a token whose log-prob is not that of their revision."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, seconds: float, prompt: str, seed: int, answer: dict[str, Any]) -> None:
        key = prompt, seed, answer["system_fingerprint"]
        choice = answer["choices"][0]
        with self.lock:
            self.seconds.append(seconds)
            self.ends.append(time.monotonic())
            first = self.said.setdefault(key, choice)
            self.apart += first["text"] != choice["text"]
            self.mixed += any(gap > ROUNDING for gap in _gaps(first["logprobs"], choice["logprobs"]))

    def add(self, other: Tally) -> None:
        """What others have seen too, under weights of their own."""
        self.seconds += other.seconds
        self.ends += other.ends
        self.lost += other.lost
        self.apart += other.apart
        self.mixed += other.mixed

    @property
    def figures(self) -> dict[str, Any]:
        """Median and 99th percentile in milliseconds with their intervals, and from how many answers."""
        return {
            "requests": len(self.seconds),
            "p50_ms": _quantile(self.seconds, self.ends, 0.5),
            "p99_ms": _quantile(self.seconds, self.ends, 0.99),
            "lost": len(self.lost),
            "why": sorted(set(self.lost))[:5],
            "mixed": self.mixed,
            "apart": self.apart,
        }

    @property
    def revisions(self) -> int:
        return len({revision for _, _, revision in self.said})


def _gaps(first: dict[str, Any] | None, second: dict[str, Any] | None) -> Iterator[float]:
    """Between the log-probs of two answers, up to where their tokens part."""
    if first and second:
        columns = (said[name] for name in ("tokens", "token_logprobs") for said in (first, second))
        for mine, other, logprob, its in zip(*columns, strict=False):
            if mine != other:
                return
            yield abs(logprob - its)


def _quantile(seconds: Sequence[float], ends: Sequence[float], q: float, draws: int = 500) -> list[float]:
    """A quantile in milliseconds, and the ends of its interval: whole seconds are drawn anew, with replacement."""
    if not seconds:
        return [float("nan")] * 3
    blocks: dict[int, list[float]] = {}
    for value, end in zip(seconds, ends, strict=True):
        blocks.setdefault(int(end), []).append(1e3 * value)
    groups, rng = list(blocks.values()), np.random.default_rng(0)
    drawn = [
        np.quantile(np.concatenate([groups[i] for i in rng.integers(len(groups), size=len(groups))]), q)
        for _ in range(draws)
    ]
    return [float(one) for one in (np.quantile(1e3 * np.array(seconds), q), *np.quantile(drawn, [0.025, 0.975]))]


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


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Everything, in its order: beside training, under kills, quiet."""
    began = time.monotonic()
    end = began + 60 * options.minutes
    found: dict[str, Any] = {"settings": {name: str(value) for name, value in vars(options).items()}}

    def keep(**more: Any) -> None:
        found.update(more, took_seconds=time.monotonic() - began)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")

    (folder / "load.yaml").write_text(STUDY.format(profile=options.profile))
    quiet_seconds = options.rounds * options.seconds / 2 * len(options.clients) + SETTLE_SECONDS
    with Training(folder, options.set) as study:
        _say(began, "two trials begin: data, base, reward")
        _until(lambda: study.check() or len(_steps(folder)) == 2, "both trials train", 1800)
        with serving(folder) as port:
            keep(**beside_training(port, options, folder, lambda line: _say(began, line)))
            _say(began, f"{options.requests:,} requests, {options.kills} kills of the training")
            keep(kills=killed(port, options, study, folder, end - quiet_seconds))
            study.kill()
            time.sleep(SETTLE_SECONDS)
            _say(began, "a quiet machine")
            keep(quiet={str(n): quietly(port, options, n).figures for n in options.clients})
    return found


def _say(began: float, line: str) -> None:
    print(f"{(time.monotonic() - began) / 60:5.1f} min  {line}", file=sys.stderr, flush=True)


def beside_training(port: int, options: argparse.Namespace, folder: Path, say: Any) -> dict[str, Any]:
    """Steps per second of the trials together with the server idle, and of each kind of load its answer times and what
    training loses, round by round."""
    loads = {SLOWLY: (1, 1.0)} | {str(n): (n, 0.0) for n in options.clients}
    alone, tallies = [], {name: Tally() for name in loads}
    losses: dict[str, list[float]] = {name: [] for name in loads}
    for number in range(options.rounds):
        say(f"beside training: round {number + 1} of {options.rounds}")
        with Pace(folder) as idle:
            time.sleep(options.seconds)
        alone.append(idle.steps_per_second)
        for name, (clients, every) in loads.items():
            with Pace(folder) as meanwhile:
                tallies[name].add(timed(port, clients, options.seconds, options.tokens, every))
            losses[name].append(1 - meanwhile.steps_per_second / alone[-1] if alone[-1] else float("nan"))
    seconds = options.rounds * options.seconds
    return {
        "rounds": options.rounds,
        "steps_per_second_alone": list(student(alone)),
        "beside": {
            name: tally.figures
            | {"requests_per_second": len(tally.seconds) / seconds, "training_loses": list(student(losses[name]))}
            for name, tally in tallies.items()
        },
    }


def quietly(port: int, options: argparse.Namespace, clients: int) -> Tally:
    """So many clients, for half of the time that they have had beside training."""
    return timed(port, clients, options.rounds * options.seconds / 2, options.tokens)


def timed(port: int, clients: int, seconds: float, tokens: int, every: float = 0.0) -> Tally:
    """What so many clients see in a while."""
    tally, end = Tally(), time.monotonic() + seconds
    run(port, clients, tally, tokens, lambda: time.monotonic() < end, every)
    return tally


class Pace:
    """How fast the trials train, in a ``with``: by when their steps are reported, not by how many are, since they are
    reported many at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._end = folder, threading.Event()
        self._seen: dict[str, list[tuple[float, int]]] = {}
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Pace:
        self._began, self._before = time.monotonic(), _steps(self._folder)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
        self._seconds = time.monotonic() - self._began

    def _look(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            for name, step in _steps(self._folder).items():
                seen = self._seen.setdefault(name, [])
                if step != (seen[-1][1] if seen else self._before.get(name)):
                    seen.append((time.monotonic(), step))

    @property
    def steps_per_second(self) -> float:
        """Gradient steps of all trials together."""
        return sum(self._pace(name, seen) for name, seen in self._seen.items())

    def _pace(self, name: str, seen: list[tuple[float, int]]) -> float:
        if not seen:
            return 0.0
        (first, before), (last, after) = seen[0], seen[-1]
        if last > first:
            return (after - before) / (last - first)
        return (after - self._before.get(name, 0)) / self._seconds  # reported once: by how many


def killed(port: int, options: argparse.Namespace, study: Training, folder: Path, end: float) -> dict[str, Any]:
    """At least so many requests, and so many kills of the training, each once both trials have left a new checkpoint,
    which the server takes over; until `end` at most.

    A kill comes at another time after the checkpoints each time, so that it meets the training at another place.
    """
    tally, asked, kills, lock = Tally(), 0, 0, threading.Lock()

    def more() -> bool:
        nonlocal asked
        with lock:
            going = time.monotonic() < end and (asked < options.requests or kills < options.kills)
            asked += going
            return going

    arguments = (port, options.crowd, tally, options.tokens, more, 0.0, True)
    clients = threading.Thread(target=run, args=arguments, daemon=True)
    clients.start()
    before, again = _checkpoints(folder), time.monotonic()
    while clients.is_alive():
        now = _checkpoints(folder)
        if kills < options.kills and all(newest > before.get(name, 0) for name, newest in now.items()):
            time.sleep(0.37 * kills % 1.1)
            study.kill()
            kills += 1
            before, again = _checkpoints(folder), time.monotonic()
            study.start()
        elif kills < options.kills and time.monotonic() - again > 5:
            study.check()
        time.sleep(LOOK_SECONDS)
    return tally.figures | {
        "asked": asked,
        "answered": len(tally.seconds),
        "lost": asked - len(tally.seconds),
        "unasked": max(options.requests - asked, 0),
        "kills": kills,
        "kills_left": options.kills - kills,
        "revisions": tally.revisions,
    }


def run(
    port: int, clients: int, tally: Tally, tokens: int, more: Any, every: float = 0.0, explained: bool = False
) -> None:
    """So many clients, each with a connection of its own, until `more` says that it is enough; `explained` answers have
    log-probs."""
    asked: dict[str, Any] = {"max_tokens": tokens} | ({"logprobs": 0} if explained else {})
    arguments = [(port, number, tally, asked, more, every) for number in range(clients)]
    threads = [threading.Thread(target=_client, args=one, daemon=True) for one in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _client(port: int, number: int, tally: Tally, asked: dict[str, Any], more: Any, every: float) -> None:
    connection, turn = http.client.HTTPConnection("127.0.0.1", port, timeout=60), number
    while more():
        prompt, seed = PROMPTS[turn % len(PROMPTS)], turn % SEEDS
        turn += 7
        body = json.dumps({"prompt": prompt, "seed": seed, **asked})
        began = time.monotonic()
        try:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = json.loads(answer.read())
            if answer.status == 200:
                tally.note(time.monotonic() - began, prompt, seed, content)
            else:
                tally.lost.append(f"{answer.status}: {content}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            tally.lost.append(f"{type(error).__name__}: {error}")
            connection.close()
            time.sleep(LOOK_SECONDS)  # a server that has ended must not be asked without a pause
        if every:
            time.sleep(max(0.0, began + every - time.monotonic()))
    connection.close()


class Training:
    """The study in a process of its own; at the end of a ``with`` it is ended."""

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        changes = [part for one in [*ENDLESS, *settings] for part in ("--set", one)]
        self._command = [
            "nice",
            "-n",
            "10",
            sys.executable,
            str(ROOT / "ablate.py"),
            "study",
            str(folder / "load.yaml"),
        ]
        self._command += ["--out", str(folder / "out"), "--jobs", "2", *changes]
        self._log = folder / "study.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or go on with it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """End it without a farewell; its workers notice, and end."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def check(self) -> None:
        """Raise where it has ended by itself."""
        if self._process is None or self._process.poll() is not None:
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


def _steps(folder: Path) -> dict[str, int]:
    """The last step that each trial in training has reported."""
    found = {}
    for path in (folder / "out" / "store" / "train" / ".partial").glob("*/metrics.jsonl"):
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 20_000, 0))
            rows = file.read().split(b"\n")[1:-1]
        steps = [json.loads(row)["step"] for row in rows]
        if steps and any(path.parent.glob("checkpoints/update_*.pt")):
            found[path.parent.name] = max(steps)
    return found


def _checkpoints(folder: Path) -> dict[str, int]:
    """The update of the newest checkpoint of each trial in training."""
    partial = folder / "out" / "store" / "train" / ".partial"
    found: dict[str, int] = {}
    for path in partial.glob("*/checkpoints/update_*.pt"):
        name = path.parent.parent.name
        found[name] = max(found.get(name, 0), int(path.name.removeprefix("update_").partition(".")[0]))
    return found


def _until(true: Any, what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


def show(found: dict[str, Any]) -> None:
    """The figures as a table."""
    print(f"training with the server idle: {_between(found['steps_per_second_alone'], '.1f')} gradient steps a second,")
    print(f"both trials together; {found['rounds']} rounds. In brackets: intervals of 95 %.\n")
    print(
        "| clients | beside training: n | p50 ms | p99 ms | requests/s | training loses | quiet: n | p50 ms | p99 ms |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, beside in found["beside"].items():
        quiet = found["quiet"].get(name)
        cells = [
            name,
            *_times(beside),
            f"{beside['requests_per_second']:.1f}",
            _between(beside["training_loses"], ".0%"),
        ]
        print(f"| {' | '.join(cells + (_times(quiet) if quiet else ['-'] * 3))} |")
    kills = found["kills"]
    print(
        f"\n{kills['asked']:,} requests, {kills['kills']} kills of the training in between: {kills['lost']} lost,"
        f" {kills['mixed']} mixed, {kills['apart']} rounded apart, {kills['revisions']} revisions;"
        f" p50 {_between(kills['p50_ms'], '.0f')} ms, p99 {_between(kills['p99_ms'], '.0f')} ms"
    )
    if kills["unasked"] or kills["kills_left"]:
        left = f"{kills['unasked']:,} requests and {kills['kills_left']} kills are missing"
        print(f"the time was too short: {left}; give --minutes more")
    for name, figures in found["beside"].items():
        fast, little = _below(figures["p50_ms"], MOST_MS), _below(figures["training_loses"], MOST_LOSS)
        print(f"{name}: p50 under {MOST_MS} ms: {fast}; training loses under {MOST_LOSS:.0%}: {little}")


def _times(figures: dict[str, Any]) -> list[str]:
    return [f"{figures['requests']:,}", _between(figures["p50_ms"], ".0f"), _between(figures["p99_ms"], ".0f")]


def _between(estimate: Sequence[float], form: str) -> str:
    value, low, high = (format(one, form) for one in estimate)
    return f"{value} [{low}, {high}]"


def _below(estimate: Sequence[float], most: float) -> str:
    """Whether it is, by its whole interval."""
    _, low, high = estimate
    return "yes" if high < most else "no" if low >= most else "the interval does not tell"


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
