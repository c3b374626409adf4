"""`make fuzz`: thousands of bad studies, profiles, settings, names and files; each is to be refused in few words.

The cases of a seed are always the same; `--only KIND NUMBER` makes one of them again and keeps its files.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from fuzz.kinds import KINDS, prepare
from fuzz.oracle import Outcome, Writes, examine
from fuzz.worker import Label, made, outcomes

SHOWN = 3
"""Cases that are listed of one fault."""


def main() -> int:
    options = _options()
    prepare()
    if options.only:
        return _one(options.only[0], int(options.only[1]), options.seed)
    kinds = options.kind or list(KINDS)
    labels = [(kind, number) for kind in kinds for number in range(-(-options.cases // len(kinds)))]
    began, counts, bad = (
        time.monotonic(),
        dict[str, Counter[str]](),
        defaultdict[tuple[str, str, str], list[Label]](list),
    )
    for label, _, outcome in outcomes(KINDS, labels, options.seed):
        kind, _number = label
        counts.setdefault(kind, Counter())[_called(outcome)] += 1
        if outcome.fault:
            bad[kind, outcome.fault, outcome.detail[:400]].append(label)
    _show(counts)
    for (kind, fault, detail), cases in sorted(bad.items()):
        numbers = ", ".join(str(number) for _, number in cases[:SHOWN])
        print(f"{kind} {numbers} ({len(cases)}): {fault}: {detail!r}")
    wrong, seconds = sum(map(len, bad.values())), time.monotonic() - began
    print(f"{len(labels)} cases of seed {options.seed} in {seconds:.0f} s, {wrong} with a fault")
    return int(bool(bad))


def _called(outcome: Outcome) -> str:
    return outcome.fault or ("refused" if outcome.code else "accepted")


def _show(counts: dict[str, Counter[str]]) -> None:
    titles = list(
        dict.fromkeys(["accepted", "refused", *(name for found in counts.values() for name in sorted(found))])
    )
    print("kind".ljust(12), *(title.rjust(max(len(title), 8)) for title in titles))
    for kind, found in counts.items():
        print(kind.ljust(12), *(str(found[title]).rjust(max(len(title), 8)) for title in titles))


def _one(kind: str, number: int, seed: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix=f"ablate-fuzz-{kind}-{number}-"))
    case = made(KINDS[kind], kind, number, seed, folder)
    print(f"cd {folder}\nablate {' '.join(ascii(argument) for argument in case.arguments)[:2000]}", flush=True)
    outcome = examine(case, folder, Writes())
    print(f"{_called(outcome)}, exit code {outcome.code}: {ascii(outcome.detail)[:3000]}")
    return int(bool(outcome.fault))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=...", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="this kind alone; repeatable")
    parser.add_argument(
        "--only", nargs=2, metavar=("KIND", "NUMBER"), help="one case, in this process, without a limit of time"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
