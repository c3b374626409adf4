"""Real trials that are killed with SIGKILL at random moments, run again, and compared byte for byte with an
uninterrupted one."""

from __future__ import annotations

import random
import shutil
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from helpers import Recorder, store_digests
from tinytrial import CONTROLS as IN_PROCESS

from pipeline.config.presets import PRESETS

BASE: dict[str, Any] = {"train.steps": 240, "runtime.checkpoint_updates": 3}
OF_STAGES: dict[str, dict[str, Any]] = {
    "two rounds": {"reward.learned.rounds": 2},
    "against the reference": {"reward.kind": "pairwise", "reward.against": "reference"},
    "rankings": {"reward.learned.ranked": 4},
    "separate": {"critic.kind": "separate", "critic.init": "reward"},
}
CONTROLS: dict[str, dict[str, Any]] = {
    name: {"algorithm": name} if name in PRESETS else {key.replace("__", "."): value for key, value in knobs.items()}
    for name, knobs in IN_PROCESS.items()
} | OF_STAGES
"""Controls that are killed within a process too, and those that only stages have."""
MODULES = ["pipeline.trial", "pipeline.training.trainer", "transformers.models.qwen2.modeling_qwen2", "pandas"]


def trial(control: str, root: Path, until: str | None = None) -> None:
    """Run the trial of a control to its end, in this process."""
    from pipeline.config.loading import load_config
    from pipeline.run.layout import Layout
    from pipeline.trial import run_trial

    run_trial(load_config("smoke", {**BASE, **CONTROLS[control]}), Layout(root), Recorder(), until=until)


def start(control: str, root: Path, until: str | None = None) -> BaseProcess:
    """The same in a process of its own, which finds the libraries imported: nearly all of its life is work."""
    context = get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    process: BaseProcess = context.Process(target=trial, args=(control, root, until))
    process.start()
    return process


def finish(control: str, root: Path, until: str | None = None) -> float:
    """Run a trial to its end; returns the seconds that it took."""
    process, before = start(control, root, until), time.monotonic()
    process.join()
    assert process.exitcode == 0, f"{control} failed; see {root}"
    return time.monotonic() - before


def compared(control: str, kills: int, seed: int, folder: Path) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The files of the uninterrupted trial, and those of trials of which `kills` were killed at random moments."""
    dice, upstream = random.Random(f"{seed} {control}"), folder / "upstream"
    finish("fixed", upstream, "reward")  # the rounds of a trial have rewards of their own
    whole, found = Path(shutil.copytree(upstream, folder / "whole")), []
    seconds = finish(control, whole)
    while kills > 0:
        root = Path(shutil.copytree(upstream, folder / f"cut{len(found)}"))
        while kills > 0:
            process = start(control, root)
            process.join(dice.uniform(0.0, seconds))
            if not process.is_alive():
                break
            process.kill()
            process.join()
            kills -= 1
        finish(control, root)
        found.append(store_digests(root))
    return store_digests(whole), found
