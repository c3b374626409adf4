"""`make faults`: hundreds of studies, each disturbed once at a random moment, and what was lost.

After each fault the same command goes on. In the end every file of the results must be that of a study which nothing
disturbed, and MLflow must hold every record once. Runs of a seed are the same but for the moment's chance.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from faults.kinds import FAULTS
from faults.run import Outcome, run, whole


def main() -> int:
    options = _options()
    chosen = options.fault or list(FAULTS)
    lacking = {name: why for name in chosen if (why := FAULTS[name].lacks())}
    for name, why in lacking.items():
        print(f"{name}: left out, since {why}")
    names, came = [name for name in chosen if name not in lacking], defaultdict[str, list[Outcome]](list)
    with tempfile.TemporaryDirectory(prefix="ablate-faults-") as folder:
        undisturbed = whole(Path(folder))
        print(f"undisturbed: {undisturbed.seconds:.0f} s, {len(undisturbed.identity)} files and records", flush=True)
        began = time.monotonic()
        for number in range(options.runs):
            name = names[number % len(names)]
            outcome = run(name, number, options.seed, undisturbed)
            came[name].append(outcome)
            left = (time.monotonic() - began) / (number + 1) * (options.runs - number - 1)
            print(f"{number + 1}/{options.runs}, {left / 60:.0f} min left: {_in_words(outcome)}", flush=True)
    print("\n" + "\n".join(table(came)))
    return int(any(one.lost for outcomes in came.values() for one in outcomes))


def _in_words(one: Outcome) -> str:
    lost = f"LOST: {one.lost}" if one.lost else "nothing lost"
    told = f", told: {one.told}" if one.told else ""
    return f"{one.fault} at {one.at:.1f} s, commands: {one.calls}, {lost}{told}"


def table(came: dict[str, list[Outcome]]) -> list[str]:
    """Lines of a table in Markdown: how often each fault came, what was lost, and how long it took to go on."""
    lines = [
        "| fault | times | lost | ended with a word | seconds until it goes on: median, most |",
        "|---|---|---|---|---|",
    ]
    for name, outcomes in came.items():
        seconds = [one.seconds for one in outcomes]
        lost, told = sum(bool(one.lost) for one in outcomes), sum(bool(one.told) for one in outcomes)
        lines.append(
            f"| {name}: {FAULTS[name].says} | {len(outcomes)} | {lost} | {told} |"
            f" {median(seconds):.1f}, {max(seconds):.1f} |"
        )
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only this one; may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
