"""Small things that many tests use."""

from __future__ import annotations

import hashlib
import shutil
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.run.layout import Layout, StageRef, StudyFolder, TrialRecord, sealed, write_atomic
from pipeline.run.store import Artifact, read_manifest, write_manifest


def trial_config(**settings: Any) -> TrialConfig:
    """The defaults with changes; ``section__key`` stands for a dotted key. No profile is read."""
    content: dict[str, Any] = {"profile": "test"}
    for key, value in settings.items():
        *sections, name = key.split("__")
        around = content
        for section in sections:
            around = around.setdefault(section, {})
        around[name] = value
    return TrialConfig.model_validate(content)


def smoke(**overrides: Any) -> TrialConfig:
    """The smoke profile with changes; double underscores stand for dots."""
    return load_config("smoke", {key.replace("__", "."): value for key, value in overrides.items()})


def publish(folder: Path) -> str:
    """Give an artifact the manifest of what it holds now, and return its digest: what a test wrote there then counts as
    what a stage wrote."""
    write_manifest(folder, folder.parent.name, folder.name, {}, {})
    return read_manifest(folder).digest


def republish(study: StudyFolder, folder: Path) -> None:
    """`publish` an artifact that a test has changed, and name it so in the records of the study."""
    digest, path = publish(folder), folder.relative_to(study.root).as_posix()
    for record in study.records():
        stages = {
            name: ref.model_copy(update={"digest": digest}) if ref.path == path else ref
            for name, ref in record.stages.items()
        }
        study.write(record.model_copy(update={"stages": stages}))


def put_record(
    layout: Layout, config: TrialConfig, artifacts: Iterable[Path], study: str = "demo", profile: str = "smoke",
    arm: str = "base", seed: int = 0, **more: Any,
) -> TrialRecord:  # fmt: skip
    refs = {
        path.parent.name: StageRef(
            key=path.name, path=path.relative_to(layout.root).as_posix(), digest=read_manifest(path).digest
        )
        for path in artifacts
    }
    fields = {"status": "complete", "steps": 0, "summary": {}, "cost": {}, "environment": {}} | more
    record = TrialRecord.model_validate(
        {"study": study, "profile": profile, "arm": arm, "seed": seed, "config": config.model_dump(mode="json"),
         "config_digest": config.digest(), "stages": refs, "finished": "2026-01-01T00:00:00+00:00", **fields}
    )  # fmt: skip
    layout.study(study, profile).write(record)
    return record


def write_table(path: Path, rows: Any) -> Path:
    """Rows, or columns by name, in the format that the file's suffix names."""
    frame = pd.DataFrame(rows)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def healthy(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def wait_until(ready: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


def flip_bit(path: Path, at: int | None = None) -> None:
    """Flip a bit of a file, where it stands: of this byte, or of the middle one."""
    at = path.stat().st_size // 2 if at is None else at
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0] ^ 1 << at % 8
        file.seek(at)
        file.write(bytes([byte]))


def copy_upstream(store: Path, to: Path, *more: str) -> None:
    """Copy the stages up to the reward, and `more`, from a store to another: they are not built again there."""
    for stage in ("prompts", "sft", "reward", *more):
        shutil.copytree(store / stage, to / stage)


def store_digests(root: Path) -> dict[str, str]:
    """Digest of every file of the store, but for what depends on time (``log/``), the manifests, which list it, locks,
    and what was set aside as damaged."""
    found = {}
    for path in sorted((root / "store").rglob("*")):
        local = path.relative_to(root)
        if path.is_file() and not {"log", ".locks", ".damaged", "manifest.json"} & {*local.parts}:
            found[local.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    write_atomic(path, sealed(content))


def random_base(folder: Path, sizes: Mapping[str, Any]) -> Path:
    """A random network in the hub's layout, with a tokenizer that has fewer words than the vocabulary has places."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from pipeline.data.corpus import load_corpus
    from pipeline.data.settings import DataConfig
    from pipeline.models.tokenizers import train_tokenizer

    tokenizer = train_tokenizer(load_corpus(DataConfig(sft_texts=2000)).train, 700)
    config = AutoConfig.for_model(**sizes, bos_token_id=None, eos_token_id=tokenizer.eos_token_id)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def repeated(act: Callable[[], None], seconds: float = 1.0) -> Iterator[None]:
    """Call `act` from a thread every so many seconds while the context lasts."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def family(pid: int) -> list[psutil.Process]:
    """Return a process and those that it has started, the eldest first; none where it has ended."""
    with suppress(psutil.NoSuchProcess):
        return [first := psutil.Process(pid), *first.children(recursive=True)]
    return []


def kill(processes: Iterable[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def mind_interrupts() -> None:
    """Let a child process end at Ctrl-C: a shell that runs the tests in its background has it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Recorder:
    """A reporter that keeps all calls."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self.steps: list[int] = []
        self.followed: list[Path] = []

    def stage(self, name: str, state: str, detail: str = "") -> None:
        self.stages.append((name, state))

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        assert 0 <= done <= total

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.append(step)

    def follow(self, path: Path) -> None:
        self.followed.append(path)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def recorded(layout: Layout, study: str = "demo", profile: str = "smoke", **changes: Any) -> TrialRecord:
    """The smoke trial, really run, as arm `base`, seed 0 of a study."""
    from pipeline.trial import environment, run_trial

    config = smoke(**changes)
    outcome = run_trial(config, layout, Recorder())
    paths = [one.path for one in outcome.artifacts.values()]
    measured = {"summary": dict(outcome.summary), "cost": dict(outcome.cost), "environment": environment()}
    record = put_record(layout, config, paths, study, profile, steps=outcome.steps, **measured)
    write_sealed(layout.study(study, profile).study_file, {})
    return record


def artifacts(layout: Layout, record: TrialRecord, stages: Iterable[str]) -> dict[str, Artifact]:
    found = {}
    for stage in stages:
        path = layout.root / record.stages[stage].path
        manifest = read_manifest(path)
        found[stage] = Artifact(stage, record.stages[stage].key, path, manifest.digest, manifest.meta)
    return found
