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

from pipeline.config.presets import PRESETS  # noqa: E402

BASE: dict[str, Any] = {"train.steps": 240, "runtime.checkpoint_updates": 3}
CONTROLS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "adaptive": {"kl.control": "adaptive"},
    "linear": {"kl.control": "linear", "kl.beta": 0.2},
    "cosine": {"kl.control": "cosine", "kl.beta": 0.2},
    "piecewise": {"kl.control": "piecewise", "kl.beta_stages": ((0.3, 0.2), (0.6, 0.0))},
    "adaptive bonus": {"entropy.coef": 0.01, "entropy.control": "adaptive", "entropy.horizon": 100},
    "falling bonus": {"entropy.coef": 0.05, "entropy.control": "linear"},
    "guard": {"optimiser.guard": True},
    "hinge": {"kl.hinge": 0.02},
    "target": {"algorithm.target_kl": 0.005},
    "loss": {"kl.place": "loss", "algorithm.dual_clip": 2.0},
    "clauses in the reward": {"kl.group": "clause", "kl.group_credit": "last"},
    "sentences in the loss": {"kl.place": "loss", "kl.loss_estimator": "k3", "kl.group": "sentence"},
    "separate": {"critic.kind": "separate", "critic.init": "reward"},
    "lora": {"adapter.kind": "lora", "adapter.rank": 4},
    "few bits": {
        "adapter.kind": "lora",
        "adapter.quantize": "4bit",
        "critic.kind": "separate",
        "critic.adapter": "lora",
        "critic.quantize": "8bit",
    },
    "rounded reference": {"train.frozen_dtype": "bf16"},
    "two rounds": {"reward.rounds": 2},
    "against the reference": {"reward.kind": "pairwise", "reward.against": "reference"},
    "rankings": {"reward.ranked": 4, "reward.ranking_loss": "plackett_luce"},
    "floor": {
        "reward.kind": "composite",
        "reward.parts": {"learned": {"kind": "learned"}, "words": {"kind": "lexicon", "weight": 0.0}},
        "floor.part": "words",
        "floor.at": 1.0,
    },
    "replayed targets": {"critic.target": "replay", "replay.share": 0.5},
    **{name: {"algorithm": name} for name in PRESETS if name not in ("ppo", "best_of_n")},
}
PRELOAD = [
    "pipeline.trial",
    "pipeline.training.trainer",
    "transformers.models.qwen2.modeling_qwen2",
    "accelerate",
    "pandas",
]


@dataclass(frozen=True)
class Tally:
    """What a round of killing came to."""

    control: str
    trials: int
    kills: int
    files: int
    different: tuple[str, ...]
    where: dict[str, int]
    """What was on disk when the trial was killed: nothing of training, the first checkpoint, a later one, a finished
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
    context.set_forkserver_preload(PRELOAD)
    process: BaseProcess = context.Process(target=trial, args=(control, root, until))
    process.start()
    return process


def fingerprint(root: Path) -> dict[str, str]:
    """Digest of every file that rewards, trainings and the evaluation left, but for what speaks of time (``log/``) and
    the manifest, which lists it."""
    found = {}
    for stage in ("reward", "train", "evaluate"):
        for path in sorted(one for folder in (root / "store").glob(f"{stage}*") for one in folder.rglob("*")):
            if path.is_file() and "log" not in path.parts and path.name != "manifest.json":
                found[path.relative_to(root).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def place(root: Path) -> str:
    """How far a killed trial had come."""
    if any((root / "store" / "train").glob("*/manifest.json")):
        return "after training"
    found = {path.name.split(".")[0] for path in (root / "store").rglob("update_*.pt")}
    if not found:
        return "before training"
    return "first checkpoint" if found == {"update_00000000"} else "later checkpoint"


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
    done, trials, different, where = (
        0,
        0,
        set(),
        dict.fromkeys(("before training", "first checkpoint", "later checkpoint", "after training"), 0),
    )
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
