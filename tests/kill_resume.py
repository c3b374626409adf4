"""Kill real trials with SIGKILL at random moments, run them again, and compare every byte with an uninterrupted one.

    python tests/kill_resume.py --kills 200

One uninterrupted trial per control, then trials that are killed until the wanted number of kills is reached. Exit
code 1 when a single file differs. A test does a few; this does as many as you have time for.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from tinytrial import CONTROLS as IN_PROCESS  # noqa: E402

from pipeline.config.presets import PRESETS  # noqa: E402

MOMENTS = ("before training", "first checkpoint", "later checkpoint", "after training")
BASE: dict[str, Any] = {"train.steps": 240, "runtime.checkpoint_updates": 3}
OF_STAGES: dict[str, dict[str, Any]] = {
    "two rounds": {"reward.learned.rounds": 2},
    "against the reference": {"reward.kind": "pairwise", "reward.against": "reference"},
    "rankings": {"reward.learned.ranked": 4, "reward.learned.ranking_loss": "plackett_luce"},
    "separate": {"critic.kind": "separate", "critic.init": "reward"},
}
CONTROLS: dict[str, dict[str, Any]] = {
    name: {"algorithm": name} if name in PRESETS else {key.replace("__", "."): value for key, value in knobs.items()}
    for name, knobs in IN_PROCESS.items()
} | OF_STAGES
"""Controls that are killed within a process too, and those that only stages have."""
MODULES = (
    "pipeline.trial",
    "pipeline.training.trainer",
    "transformers.models.qwen2.modeling_qwen2",
    "pandas",
)


@dataclass(frozen=True)
class Tally:
    """Result of a round of killing."""

    control: str
    trials: int
    kills: int
    files: int
    different: tuple[str, ...]
    where: dict[str, int]
    """State on disk when the trial was killed: nothing of training, the first checkpoint, a later one, a finished
    training."""


def trial(control: str, root: Path, until: str | None = None) -> None:
    """Run the trial of a control to its end, in this process."""
    from helpers import Recorder

    from pipeline.config.loading import load_config
    from pipeline.run.layout import Layout
    from pipeline.trial import run_trial

    run_trial(load_config("smoke", {**BASE, **CONTROLS[control]}), Layout(root), Recorder(), until=until)


def start(control: str, root: Path, until: str | None = None) -> BaseProcess:
    """The same in a process of its own, which finds the libraries imported: nearly all of its life is work."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(MODULES))
    process: BaseProcess = context.Process(target=trial, args=(control, root, until))
    process.start()
    return process


def fingerprint(root: Path) -> dict[str, str]:
    """Digest of every file that rewards, trainings and the evaluation left, but for what depends on time (``log/``) and
    the manifest, which lists it."""
    found = {}
    for stage in ("reward", "train", "evaluate"):
        for path in sorted(one for folder in (root / "store").glob(f"{stage}*") for one in folder.rglob("*")):
            if path.is_file() and "log" not in path.parts and path.name != "manifest.json":
                found[path.relative_to(root).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def place(root: Path) -> str:
    """Return how far a killed trial had come."""
    found = {path.name.split(".")[0] for path in (root / "store").rglob("update_*.pt")}
    finished = any((root / "store" / "train").glob("*/manifest.json"))
    return MOMENTS[3 if finished else min(len(found - {"update_00000000"}), 1) + bool(found)]


def round_of_kills(control: str, kills: int, folder: Path, dice: random.Random, upstream: Path) -> Tally:
    """Kill trials of one control until `kills` kills have happened; every trial is finished in the end."""

    def fresh(name: str) -> Path:
        root = folder / f"{control}-{name}"
        shutil.copytree(upstream, root)
        return root

    whole = fresh("whole")
    process, before = start(control, whole), time.monotonic()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{control}: the uninterrupted trial failed")
    seconds = time.monotonic() - before
    wanted = fingerprint(whole)
    done, trials, different, where = 0, 0, set[str](), dict.fromkeys(MOMENTS, 0)
    while done < kills:
        root = fresh(f"cut{trials}")
        trials += 1
        while True:
            process = start(control, root)
            process.join(dice.uniform(0.0, seconds) if done < kills else None)
            if process.is_alive():
                process.kill()
                process.join()
                done += 1
                where[place(root)] += 1
            elif process.exitcode:
                raise SystemExit(f"{control}: a resumed trial failed with exit code {process.exitcode}; see {root}")
            else:
                break
        found = fingerprint(root)
        different |= {name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)}
        shutil.rmtree(root)
    return Tally(control, trials, done, len(wanted), tuple(sorted(different)), where)


def rounds(controls: list[str], kills: int, seed: int) -> Iterator[Tally]:
    """A round per control, the kills shared out evenly; the stages before training are built once."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        upstream = folder / "upstream"
        first = start("fixed", upstream, "reward")  # the rounds of a trial have rewards of their own
        first.join()
        if first.exitcode:
            raise SystemExit("the stages before training failed")
        for index, control in enumerate(controls):
            share = kills // len(controls) + (index < kills % len(controls))
            if share:
                yield round_of_kills(control, share, folder, random.Random(f"{seed} {control}"), upstream)


def main() -> int:
    """Kill as often as asked and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--control", action="append", choices=sorted(CONTROLS), help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    failed = 0
    for tally in rounds(given.control or list(CONTROLS), given.kills, given.seed):
        failed += len(tally.different)
        verdict = f"DIFFERENT: {', '.join(tally.different)}" if tally.different else f"all {tally.files} files equal"
        moments = ", ".join(f"{n} {name}" for name, n in tally.where.items() if n)
        print(f"{tally.control}: {tally.kills} kills ({moments}) in {tally.trials} trials, {verdict}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
