"""One trial, from prompts to win rate: its stages on one configuration, and what came of them.

To plan a trial, or to find it in the store, imports no torch: what computes is imported where it is called.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.config.trial import TrialConfig
from pipeline.data.files import check_source
from pipeline.resources.machine import hold_allocator
from pipeline.run import dag
from pipeline.run.layout import Layout
from pipeline.run.progress import Reporter, TrialOutcome
from pipeline.run.store import Artifact, Store
from pipeline.stages.graph import STAGES
from pipeline.stages.sources import check_sources

LIBRARIES = (
    "torch", "transformers", "datasets", "accelerate", "tokenizers", "peft", "bitsandbytes", "mlflow", "optuna",
    "pandas", "numpy",
)  # fmt: skip

PRELOAD = ("pipeline.training.trainer", "transformers.models.qwen2.modeling_qwen2")
"""Modules that the server imports that children are forked from, so that a child starts in milliseconds."""
CHARGED = ("values", "critic")
"""Stages that only some algorithms need. Their work is charged in full to every trial that uses them, also where
several trials share it."""
OPPONENTS = "opponents.json"
"""Cost of the opponents of a reward, in the log of the stage `reward`: charged in the same way."""
ADDED_UP = ("wall_s", "generated_tokens", "tflop", "t4_s")
"""Quantities that are charged."""


def run_trial(
    config: TrialConfig, layout: Layout, reporter: Reporter, *, until: str | None = None, wait: bool = True
) -> TrialOutcome:
    """Run the stages up to `until` (all of them by default); what is in the store already is not built again.

    With ``wait=False``, raises `BuiltElsewhere` where another process builds a stage of the trial.
    """
    prepare(config)
    plan_trial(config, layout)
    store = Store(layout.store, reporter.warn, wait=wait)
    artifacts = dag.run(STAGES, config, store, reporter, until)
    if "train" not in artifacts:
        return TrialOutcome(artifacts, "incomplete", None, 0, {}, {}, {})
    meta = artifacts["train"].meta
    summary = artifacts["evaluate"].meta["summary"] if "evaluate" in artifacts else {}
    cost, execution = cost_of(artifacts), _logged(artifacts["train"], "execution.json")
    return TrialOutcome(artifacts, meta["status"], meta["reason"], meta["steps"], summary, cost, execution)


def cost_of(artifacts: Mapping[str, Artifact]) -> dict[str, float]:
    """Cost of a trial: its training, and the stages that its algorithm needs beside those of every trial.

    What such a stage took is in the totals, and apart under its name (``values_wall_s``), and so is what the opponents
    of the first reward took (``opponents_wall_s``). What it took to answer the held-out prompts is apart alone, and
    only of a policy that chooses among several answers (``evaluate_wall_s``): it is no cost of training.
    """
    cost: dict[str, float] = _logged(artifacts["train"], "cost.json")
    for stage in CHARGED:
        if stage in artifacts:
            own = _logged(artifacts[stage], "cost.json")
            cost |= {key: cost[key] + own[key] for key in ADDED_UP}
            cost |= {f"{stage}_{key}": own[key] for key in ADDED_UP}
            cost["peak_memory_gib"] = max(cost["peak_memory_gib"], own["peak_memory_gib"])
    # Later rewards are charged to the training whole, with their opponents.
    first = artifacts.get(dag.round_name("reward", 1, 2), artifacts.get("reward"))
    if first is not None and (first.path / "log" / OPPONENTS).is_file():
        own = _logged(first, OPPONENTS)
        cost |= {key: cost[key] + own[key] for key in ADDED_UP}
        cost |= {f"opponents_{key}": own[key] for key in ADDED_UP}
    answering = _logged(artifacts["evaluate"], "cost.json") if "evaluate" in artifacts else {}
    if "generated_tokens" in answering:
        cost |= {f"evaluate_{key}": answering[key] for key in ADDED_UP}
    return cost


def _logged(artifact: Artifact, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((artifact.path / "log" / name).read_text("utf-8"))
    return content


def plan_trial(config: TrialConfig, layout: Layout) -> list[dag.StagePlan]:
    """Return what `run_trial` would build and what it would find; builds nothing.

    Raises `UserError` where a stage that has still to run would look in vain for its data or a model.
    """
    check_source(config.data)
    plan = dag.plan(STAGES, config, Store(layout.store))
    check_sources(config, [planned.stage for planned in plan if not planned.cached])
    return plan


def prepare(config: TrialConfig) -> None:
    """Settings of the process that a trial relies on; harmless to repeat. Raises `UserError` for GPUs that are not
    there."""
    from pipeline.models.process import check_devices, settle
    from pipeline.rewards import own

    own.search_in(config.runtime.code)
    settle(config.runtime)
    if check_devices(config.runtime).type == "cuda":
        hold_allocator(config.caps.memory_gib)


def check_budget(config: TrialConfig, label: str) -> None:
    """Raise `UserError` for a trial that exceeds its caps, with the knobs that make it fit; `label` names the trial."""
    from pipeline.forecast.advice import check_budget as check

    check(config, label)


def execution(config: TrialConfig) -> dict[str, str]:
    """Hardware and precision for trials of this configuration here. Raises `UserError` for GPUs that are not there."""
    from pipeline.models.precision import execution as how
    from pipeline.models.process import check_devices

    return how(check_devices(config.runtime), config.runtime.threads, config.runtime.processes)


@lru_cache(maxsize=1)
def environment() -> dict[str, str]:
    """Versions, platform and commit: what a reader needs to run the same again."""
    versions = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "git_commit": _commit(),
    }
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    return versions


def _commit() -> str:
    git: list[Any] = ["git", "-C", Path(__file__).parent]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}{' with changes' if changed else ''}"
