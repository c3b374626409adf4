"""A stage in several processes: start them as a launcher of accelerate would, pass on what the first one says, end them
all.

The environment is that of ``accelerate launch`` (RANK, WORLD_SIZE, MASTER_ADDR ...), on 127.0.0.1. The processes
speak JSON lines on their standard output; they end with their parent, however it ends.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.models.loading import device_of
from pipeline.run.progress import Reporter, Silent
from pipeline.run.store import Artifact
from pipeline.stages.common import settle

USER_ERROR = 2
POLL_SECONDS = 0.05
ORPHAN_SECONDS = 1.0


class PipeReporter(Silent):
    """The reporter of the first process: says everything to the parent."""

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        _say("progress", stage, done, total, note)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        _say("metrics", step, dict(values))

    def follow(self, path: Path) -> None:
        _say("follow", str(path))

    def warn(self, message: str) -> None:
        _say("warn", message)


def _say(*message: Any) -> None:
    print(json.dumps(message), flush=True)


def launch(
    function: str, count: int, cfg: TrialConfig, out: Path, reporter: Reporter, artifacts: Mapping[str, Artifact]
) -> None:
    """Run ``module:function(cfg, out, reporter, **artifacts)`` in `count` processes until all have ended.

    Raises what the function raised for the user (`UserError`), else `RuntimeError` with the last lines of the first
    that failed.
    """
    # Pickled as multiprocessing would: from this process to its own children, over a pipe that nobody else can write
    # to.
    payload = pickle.dumps((function, cfg, out, dict(artifacts)))
    port = _free_port()
    errors = [out / f".rank{rank}.err" for rank in range(count)]
    processes = [_start(rank, count, port, payload, errors[rank]) for rank in range(count)]
    listener = threading.Thread(target=_listen, args=(processes[0], reporter), daemon=True)
    listener.start()
    try:
        failed = _wait(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        listener.join()
    said = errors[failed].read_text("utf-8", "replace").strip() if failed is not None else ""
    code = processes[failed].returncode if failed is not None else 0
    for path in errors:
        path.unlink()
    if code == USER_ERROR:
        raise UserError(said.splitlines()[-1])
    if failed is not None:
        raise RuntimeError(f"process {failed} of {count} ended with {code}:\n" + "\n".join(said.splitlines()[-8:]))


def _start(rank: int, count: int, port: int, payload: bytes, error: Path) -> subprocess.Popen[bytes]:
    local = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    environment = {**os.environ, **{name: str(value) for name, value in local.items()}, "MASTER_ADDR": "127.0.0.1"}
    with error.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.stages.launch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=file,
            cwd=Path(__file__).parents[2],
            env=environment,
        )
    assert process.stdin is not None
    process.stdin.write(payload)
    process.stdin.close()
    return process


def _wait(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """Until all have ended well (None), or one has not (its rank): the others would wait for it for ever."""
    while True:
        codes = [process.poll() for process in processes]
        bad = [rank for rank, code in enumerate(codes) if code]
        if bad:
            return bad[0]
        if all(code == 0 for code in codes):
            return None
        time.sleep(POLL_SECONDS)


def _listen(process: subprocess.Popen[bytes], reporter: Reporter) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            try:
                name, *rest = json.loads(line)
            except ValueError:  # a library that prints
                continue
            if name == "follow":
                rest = [Path(rest[0])]
            getattr(reporter, name)(*rest)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def _die_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_SECONDS)
    os._exit(1)


def main() -> None:
    """One of the processes."""
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    name, config, out, artifacts = pickle.load(sys.stdin.buffer)
    module, _, function = name.partition(":")
    reporter = PipeReporter() if os.environ["RANK"] == "0" else Silent()
    settle(config.runtime)
    if device_of(config.runtime.device).type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    try:
        getattr(importlib.import_module(module), function)(config, out, reporter, **artifacts)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    main()
