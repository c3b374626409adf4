"""A stage in several processes: start them as a launcher of accelerate would, pass on what the first one says, end them
all.

The environment is that of ``accelerate launch`` (RANK, WORLD_SIZE ...), but they meet in a file: a port would listen on
every address of the machine. They read their task as JSON and speak JSON lines; they end with their parent, however it
ends.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter

from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.models.loading import device_of
from pipeline.run.leaving import LEFT, Leaving, can_leave
from pipeline.run.progress import Reporter, Silent
from pipeline.run.store import Artifact
from pipeline.stages.common import settle
from pipeline.training.processes import MEETING

USER_ERROR = 2
POLL_SECONDS = 0.05
ORPHAN_SECONDS = 1.0
LOOPBACK = {
    f"{library}_SOCKET_IFNAME": name
    for _, name in socket.if_nameindex()
    if name in ("lo", "lo0")
    for library in ("GLOO", "NCCL")
}
"""Environment of the processes: what they say to each other does not leave the machine."""


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
    task = _task(function, cfg, out, artifacts)
    meeting = (out / ".meeting").absolute()
    meeting.unlink(missing_ok=True)  # of processes that were killed: it would name them
    errors = [out / f".rank{rank}.err" for rank in range(count)]
    processes = [_start(rank, count, meeting, task, errors[rank]) for rank in range(count)]
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
    for path in (*errors, meeting):
        path.unlink(missing_ok=True)
    if code == USER_ERROR:
        raise UserError(said.splitlines()[-1])
    if code == LEFT:
        raise Leaving
    if failed is not None:
        raise RuntimeError(f"process {failed} of {count} ended with {code}:\n" + "\n".join(said.splitlines()[-8:]))


def _task(function: str, cfg: Any, out: Path, artifacts: Mapping[str, Artifact]) -> str:
    plain = {name: {**asdict(artifact), "path": str(artifact.path)} for name, artifact in artifacts.items()}
    return json.dumps({"function": function, "config": _plain(cfg), "out": str(out), "artifacts": plain})


def _read(task: str) -> tuple[str, Any, Path, dict[str, Artifact]]:
    read = json.loads(task)
    artifacts = {name: Artifact(**{**some, "path": Path(some["path"])}) for name, some in read["artifacts"].items()}
    return read["function"], _config(read["config"]), Path(read["out"]), artifacts


def _plain(cfg: Any) -> dict[str, Any]:
    """A configuration, or the sections of one that a stage sees, some of them in part, as what JSON holds."""
    if isinstance(cfg, TrialConfig):
        return {"whole": cfg.model_dump(mode="json")}
    seen = vars(cfg)
    parts = {name: vars(part) for name, part in seen.items() if isinstance(part, SimpleNamespace)}
    sections = {name: section for name, section in seen.items() if name not in parts}
    plain: dict[str, Any] = TypeAdapter(dict[str, Any]).dump_python({"sections": sections, "parts": parts}, mode="json")
    return plain


def _config(plain: Mapping[str, Any]) -> Any:
    if "whole" in plain:
        return TrialConfig.model_validate(plain["whole"])
    cfg = _typed(TrialConfig, plain["sections"])
    for name, part in plain["parts"].items():
        setattr(cfg, name, _typed(TrialConfig.model_fields[name].annotation, part))
    return cfg


def _typed(model: Any, values: Mapping[str, Any]) -> SimpleNamespace:
    """Some fields and properties of a model, each of its type."""
    kinds = {name: field.annotation for name, field in model.model_fields.items()}
    for name in values.keys() - kinds.keys():
        kinds[name] = get_type_hints(getattr(model, name).fget)["return"]
    return SimpleNamespace(
        **{name: TypeAdapter[Any](kinds[name]).validate_python(value) for name, value in values.items()}
    )


def _start(rank: int, count: int, meeting: Path, task: str, error: Path) -> subprocess.Popen[bytes]:
    local = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, MEETING: meeting}
    environment = {**os.environ, **LOOPBACK, **{name: str(value) for name, value in local.items()}}
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
    process.stdin.write(task.encode())
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


def _die_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_SECONDS)
    os._exit(1)


def main() -> None:
    """One of the processes."""
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    if can_leave():  # a scheduler signals every process of a trial; the first one decides for all
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    name, config, out, artifacts = _read(sys.stdin.read())
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
    except Leaving:
        sys.exit(LEFT)


if __name__ == "__main__":
    main()
