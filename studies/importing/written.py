"""The study file that an import writes where there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from pipeline.config.names import nearest
from pipeline.config.yaml_limits import PlainDumper
from pipeline.errors import UserError
from pipeline.named_files import place
from pipeline.run.layout import safe
from pipeline.run.metrics import METRICS
from studies.definition.schema import IMPORTED, Study, study_names

PREFERRED = (
    "eval/win_rate", "eval/gold", "objective/gold", "eval/proxy", "objective/scores", "eval/kl_per_token",
    "objective/kl_per_token", "objective/kl",
)  # fmt: skip
"""What a study that is written here compares arms on: the first that every trial has."""
_SAID = "say what this arm was, for example {kl.beta: 0.05}; a known kl.beta also checks the unit of KL"
_EXAMPLE = """\
# falsifiers:
#   - name: drift
#     claim: the policy stays within 12 nats per sequence of the reference for its first 2,000 gradient steps
#     metric: objective/kl
#     op: ">"
#     threshold: 12
#     before_step: 2000
"""


def study_file(name: str) -> Path:
    """Where the study of this name stands, or is to stand. Raises `UserError` for a name that cannot be one."""
    path = place(name) if name.endswith((".yaml", ".yml")) else Path(f"{safe(name)}.yaml").absolute()
    safe(path.stem)
    if path.stem in study_names():
        raise UserError(f"--name: '{path.stem}' is a study that comes with the project; choose another name")
    return path


def study_text(
    name: str, trials: Sequence[tuple[str, int]], metrics: Sequence[Iterable[str]], origin: str, before: Study | None
) -> str:
    """A study file for these trials, to be edited: its sentences say that they were written by nobody.

    `metrics` are those of each trial; `before` is the file as it was written for fewer trials.
    """
    arms = list(dict.fromkeys(arm for arm, _ in trials))
    metric = objective(metrics)
    content = {
        "question": before.question if before else f"What do the trials imported from {origin} show?",
        "baseline": before.baseline if before and before.baseline in arms else arms[0],
        "seeds": sorted({seed for _, seed in trials}),
        "objective": {"metric": metric, "direction": METRICS[metric].direction},
        "imported": {arm: {} for arm in arms},
    }
    text = yaml.dump(content, Dumper=PlainDumper, sort_keys=False, width=140, allow_unicode=True)
    text = text.replace("imported:\n", f"imported:  # {_SAID}\n")
    return f"# Study of imported trials; edit it, then: ablate report {name}\n{text}{_EXAMPLE}"


def objective(metrics: Sequence[Iterable[str]]) -> str:
    """A metric that every trial has and that has a better side; win rate where there is none."""
    everywhere = set.intersection(*(set(own) for own in metrics))
    listed = [*PREFERRED, *sorted(key for key in everywhere if METRICS[key].direction)]
    return next((key for key in listed if key in everywhere), PREFERRED[0])


def text_digest(text: str) -> str:
    """What tells whether a file is still as it was written."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_covers(study: Study, trials: Mapping[tuple[str, int], str], folder: Path) -> None:
    """Refuse trials that the study's file does not list; `trials` gives the file of each. Raises `UserError`."""
    if study.kind != IMPORTED:
        raise UserError(
            f"{study.source}: runs its own trials ({study.kind}); a study of imported ones lists its arms under"
            " `imported`"
        )
    arms = list(study.arm_overrides())
    for (arm, seed), name in trials.items():
        if arm not in arms:
            raise UserError(
                f"{folder}: '{name}' is arm '{arm}', which {study.source} does not list under `imported`"
                f"{nearest(arm, arms)}; add '{arm}: {{}}' there, or leave the file out with --exclude"
            )
        if seed not in study.seeds:
            listed = ", ".join(map(str, study.seeds))
            raise UserError(
                f"{folder}: '{name}' is seed {seed}; the seeds of {study.source} are {listed}; add it there, or leave"
                " the file out with --exclude"
            )
