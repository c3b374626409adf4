"""How fast a policy answers while it trains, what training loses, and whether a request is ever lost.

    PYTHONPATH=.:tests .venv/bin/python -m benchmarks.serve_load

Two trials train at `nice` 10, and one of them is served. Measured: milliseconds per request at several numbers of
clients, each of whom asks again when it is answered; gradient steps per second of the trials meanwhile, against those
with the server idle; then many requests while the training is killed and started again; then the same on a quiet
machine. Prints a table and writes a JSON file. Exit code 1 where a request was lost or an answer mixed two revisions.
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


@dataclass
class Tally:
    """What clients have seen."""

    seconds: list[float] = field(default_factory=list)
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
            first = self.said.setdefault(key, choice)
            self.apart += first["text"] != choice["text"]
            self.mixed += any(gap > ROUNDING for gap in _gaps(first["logprobs"], choice["logprobs"]))

    def quantile(self, q: float) -> float:
        """Milliseconds."""
        ordered = sorted(self.seconds)
        return 1e3 * ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else float("nan")

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


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(Path(temporary), options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"settings": {**vars(options), "out": None}, **found}, indent=1) + "\n")
    show(found)
    print(f"\n{options.out}")
    return 1 if found["kills"]["lost"] or found["kills"]["mixed"] else 0


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Everything, in its order: beside training, under kills, quiet."""
    (folder / "load.yaml").write_text(STUDY.format(profile=options.profile))
    with Training(folder, options.set) as study:
        _until(lambda: study.check() or len(_steps(folder)) == 2, "both trials train", 1800)
        with serving(folder) as port:
            alone = pace(folder, options.seconds)
            beside = {n: timed(port, options, n, folder) for n in options.clients}
            reading = timed(port, options, 1, folder, every=1.0)
            kills = killed(port, options, study)
            study.kill()
            quiet = {n: timed(port, options, n) for n in options.clients}
    return {
        "steps_per_second_alone": alone,
        "beside": beside,
        "one_request_a_second": reading,
        "kills": kills,
        "quiet": quiet,
    }


def timed(
    port: int, options: argparse.Namespace, clients: int, folder: Path | None = None, every: float = 0.0
) -> dict[str, Any]:
    """Figures of a while with so many clients; with `folder` also what training does meanwhile."""
    tally, end = Tally(), time.monotonic() + options.seconds
    before = _steps(folder) if folder else {}
    began = time.monotonic()
    run(port, clients, tally, options.tokens, lambda: time.monotonic() < end, every)
    after, seconds = (_steps(folder) if folder else {}), time.monotonic() - began
    steps = sum(after.values()) - sum(before.values())
    figures = {
        "requests": len(tally.seconds),
        "p50_ms": tally.quantile(0.5),
        "p99_ms": tally.quantile(0.99),
        "requests_per_second": len(tally.seconds) / seconds,
        "lost": len(tally.lost),
        "apart": tally.apart,
    }
    return figures | ({"steps_per_second": steps / seconds} if folder else {})


def pace(folder: Path, seconds: float) -> float:
    """Gradient steps per second of all trials together."""
    before, began = _steps(folder), time.monotonic()
    time.sleep(seconds)
    return (sum(_steps(folder).values()) - sum(before.values())) / (time.monotonic() - began)


def killed(port: int, options: argparse.Namespace, study: Training) -> dict[str, Any]:
    """Many requests while the training is killed and started again at even intervals of requests."""
    tally, kills, left = Tally(), 0, iter(range(options.requests))
    lock, between = threading.Lock(), max(options.requests // (options.kills + 1), 1)

    def more() -> bool:
        with lock:
            return next(left, None) is not None

    clients = threading.Thread(target=run, args=(port, max(options.clients), tally, options.tokens, more, 0.0, True))
    clients.start()
    while clients.is_alive():
        if kills < options.kills and len(tally.seconds) >= (kills + 1) * between:
            study.kill()
            kills += 1
            study.start()
        time.sleep(0.05)
    return {
        "requests": options.requests,
        "answered": len(tally.seconds),
        "kills": kills,
        "lost": options.requests - len(tally.seconds),
        "why": sorted(set(tally.lost))[:5],
        "mixed": tally.mixed,
        "apart": tally.apart,
        "revisions": tally.revisions,
        "p50_ms": tally.quantile(0.5),
        "p99_ms": tally.quantile(0.99),
    }


def run(
    port: int, clients: int, tally: Tally, tokens: int, more: Any, every: float = 0.0, explained: bool = False
) -> None:
    """So many clients, each with a connection of its own, until `more` says that it is enough; `explained` answers have
    log-probs."""
    asked: dict[str, Any] = {"max_tokens": tokens} | ({"logprobs": 0} if explained else {})
    threads = [threading.Thread(target=_client, args=(port, i, tally, asked, more, every)) for i in range(clients)]
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


def _until(true: Any, what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


def show(found: dict[str, Any]) -> None:
    """The figures as a table."""
    alone = found["steps_per_second_alone"]
    print(f"training alone: {alone:.1f} gradient steps a second, both trials together\n")
    print("| clients | beside training: p50 ms | p99 ms | requests/s | training loses | quiet: p50 ms | p99 ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows = [("one request a second", found["one_request_a_second"], None)]
    rows += [(str(n), figures, found["quiet"][n]) for n, figures in found["beside"].items()]
    for name, beside, quiet in rows:
        loss = 1 - beside["steps_per_second"] / alone if alone else float("nan")
        still = f"{quiet['p50_ms']:.0f} | {quiet['p99_ms']:.0f}" if quiet else "- | -"
        print(
            f"| {name} | {beside['p50_ms']:.0f} | {beside['p99_ms']:.0f} | {beside['requests_per_second']:.1f} |"
            f" {loss:.0%} | {still} |"
        )
    kills = found["kills"]
    print(
        f"\n{kills['requests']:,} requests, {kills['kills']} kills of the training in between: {kills['lost']} lost,"
        f" {kills['mixed']} mixed, {kills['apart']} rounded apart, {kills['revisions']} revisions;"
        f" p50 {kills['p50_ms']:.0f} ms, p99 {kills['p99_ms']:.0f} ms"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--set", action="append", default=[], help="a setting of the study, as for ablate study")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    parser.add_argument("--tokens", type=int, default=32, help="most tokens of a completion")
    parser.add_argument("--requests", type=int, default=10_000, help="with kills in between")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "serve_load.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
