"""A small study that is run by its command, disturbed, and gone on with; and what must be the same in the end."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from helpers import mind_interrupts
from series import Series, compared, shown, written

TESTS = Path(__file__).resolve().parent.parent
STUDY = """\
question: Does the weight of the KL penalty matter?
profile: smoke
baseline: none
seeds: [0]
arms:
  none: {}
  weak: {kl.beta: 0.01}
"""
COMMAND = """
import sys
import ablate
from studies.console import cli
cli.report_with(lambda study, folder: folder.study_file)
try:
    ablate.app()
except KeyboardInterrupt:
    sys.exit(130)
"""
"""``ablate`` without the report, which only reads what is compared here."""
SETTINGS = ("--set", "train.steps=192", "--set", "runtime.checkpoint_updates=2", "--jobs", "2")
LONGEST = 1200.0
"""Seconds after which a command counts as hanging."""
Identity = dict[str, str]


@dataclass
class Scene:
    """A folder with the study, its output root, and the command that runs there."""

    folder: Path
    dice: random.Random
    name: str = "small"
    called: str = ""
    """Name of the log, where two give the same command."""
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    sizes: tuple[int, int] = (0, 0)
    """Bytes of the output root before and after the study, where nothing disturbs it."""
    executor: str = "processes"
    around: ExitStack = field(default_factory=ExitStack)
    """Daemons and threads that end with the run."""
    daemons: Any = None
    """Daemons that the fault has started before the command, and kills."""

    @property
    def root(self) -> Path:
        return self.folder / "out"

    def start(self, verb: str = "study") -> subprocess.Popen[bytes]:
        """Give the command, in a session of its own."""
        settings = (*SETTINGS, "--executor", self.executor) if verb == "study" else ()
        (self.folder / f"{self.name}.yaml").write_text(STUDY)
        paths = {"PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))), "OMP_NUM_THREADS": "1"}
        environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        self.log = self.folder / f"{self.called or self.name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, verb, f"{self.name}.yaml", "--out", str(self.root), *settings],
                cwd=self.folder, env=environment | paths | self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, preexec_fn=mind_interrupts,
            )  # fmt: skip
        return self.process

    def ended(self) -> tuple[int | None, str]:
        """Exit code of the command (None: it hung), and its output."""
        try:
            code: int | None = self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            self.kill_all()
            code = None
        return code, self.log.read_text("utf-8", "replace")[-4000:]

    def family(self) -> list[psutil.Process]:
        """The processes that the command has started, the eldest first."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill_all(self) -> None:
        """SIGKILL for the command and all that it started."""
        family = self.family()
        self.process.kill()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, 5)
        self.process.wait()

    def files(self) -> list[Path]:
        """Return the files that it has written, but for locks."""
        found = (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())
        return sorted(path for path in found if ".lock" not in path.as_posix())


def identity(root: Path) -> Identity:
    """Digest of every file of the store and of the records' content, but for what depends on time (``log/``, `cost`),
    the manifests, which list it, and what was set aside as damaged."""
    found = {}
    for path in sorted((root / "store").rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not {"log", ".locks", ".damaged"} & {*parts} and path.name != "manifest.json":
            found["/".join(parts)] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted((root / "studies" / "small").rglob("trials/*.json")):
        record = json.loads(path.read_text())
        kept = {name: record[name] for name in ("arm", "seed", "config", "status", "steps", "stages", "summary")}
        kept["stages"] = {name: stage | {"finished": None} for name, stage in kept["stages"].items()}
        found[path.name] = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return found


def series_differ(root: Path) -> Iterator[str]:
    """Yield where the series in MLflow's database are not those of ``metrics.jsonl``: missing, double or other."""
    with sqlite3.connect(f"file:{root / 'mlflow.db'}?mode=ro", uri=True) as database:
        for path in sorted((root / "studies" / "small").rglob("trials/*.json")):
            key = json.loads(path.read_text())["stages"]["train"]["key"]
            runs = database.execute(
                "select t.run_uuid from tags t"
                " join tags s on s.run_uuid = t.run_uuid and s.key = 'study' and s.value = 'small'"
                " join runs r on r.run_uuid = t.run_uuid and r.lifecycle_stage = 'active'"
                " where t.key = 'identity' and t.value = ?",
                (key,),
            ).fetchall()
            if len(runs) != 1:
                yield f"{path.stem} has {len(runs)} runs"
                continue
            rows = database.execute("select key, step, value, is_nan from metrics where run_uuid = ?", runs[0])
            sent = Series((name, step, shown(math.nan if nan else value)) for name, step, value, nan in rows)
            yield from compared(path.stem, written(root / "store" / "train" / key / "metrics.jsonl"), sent)
