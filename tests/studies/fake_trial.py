"""A trial in milliseconds: the real graph, store and metrics file, with arithmetic in place of training.

``control.json`` in the output root makes trials misbehave; every run of a PPO stage is noted in ``calls.txt``.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.names import TRAINING
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.run import dag
from pipeline.run.layout import Layout, write_json
from pipeline.run.metrics import MetricsLog, to_parquet
from pipeline.run.progress import Reporter, TrialOutcome
from pipeline.run.store import Artifact, Store
from pipeline.stages.graph import STAGES  # noqa: F401
from pipeline.stopping import Watcher

STUDY = """
question: Does it work?
hypothesis: It does.
refuted_if: It does not.
baseline: weak
seeds: [0, 1]
arms:
  weak: {kl.beta: 0.01}
  strong: {kl.beta: 0.2}
falsifiers:
  - {name: drift, claim: it stays, metric: objective/kl_per_token, op: ">", threshold: 0.5, before_step: 32}
"""


SHORT = STUDY.replace("seeds: [0, 1]", "seeds: [0]")
SEARCH = """
question: Which knobs?
hypothesis: Beta.
refuted_if: Not beta.
seeds: [0]
search:
  space:
    kl.beta: {low: 0.005, high: 1.0, log: true}
    algorithm.clip.epsilon: {values: [0.1, 0.2, 0.3]}
  trials: 14
  parallel: 3
  constraints: [{metric: eval/kl_per_token, max: 0.3}]
  confirm: {top: 2, seeds: [10, 11]}
falsifiers:
  - {name: drift, claim: it stays, metric: objective/kl_per_token, op: ">", threshold: 0.5, before_step: 32}
"""


PRELOAD = ("pipeline.run.metrics",)
DRIFT = ("objective/kl_per_token", "objective/kl_exact_per_token")


def run_trial(
    config: TrialConfig, layout: Layout, reporter: Reporter, *, until: str | None = None, wait: bool = True
) -> TrialOutcome:
    artifacts = dag.run(_stages(layout), config, Store(layout.store, reporter.warn, wait=wait), reporter, until)
    if "train" not in artifacts:
        return TrialOutcome(artifacts, "incomplete", None, 0, {}, {}, {})
    meta = artifacts["train"].meta
    summary = artifacts["evaluate"].meta["summary"]
    return TrialOutcome(
        artifacts, meta["status"], meta["reason"], meta["steps"], summary, {"wall_s": 0.1}, execution(config)
    )


def plan_trial(config: TrialConfig, layout: Layout) -> list[dag.StagePlan]:
    return dag.plan(_stages(layout), config, Store(layout.store))


def check_budget(config: TrialConfig, label: str) -> None: ...


def environment() -> dict[str, str]:
    return {"python": "3", "git_commit": "unknown"}


def execution(config: TrialConfig) -> dict[str, str]:
    return {"device": "abacus", "precision": "beads", "threads": str(config.runtime.threads)}


def calls(layout: Layout, what: str = "train") -> list[str]:
    path = layout.root / "calls.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[1] for line in lines if line.split()[0] == what]


def pids(layout: Layout, what: str = "") -> set[int]:
    lines = (layout.root / "calls.txt").read_text().splitlines()
    return {int(line.split()[2]) for line in lines if line.startswith(what)}


def control(layout: Layout, **values: Any) -> None:
    layout.root.mkdir(parents=True, exist_ok=True)
    write_json(layout.root / "control.json", values)


def landscape(kl_coef: float, cliprange: float) -> dict[str, float]:
    """Drift falls with beta; the win rate has its top at beta 0.05 and epsilon 0.2."""
    win = 0.9 - 0.1 * math.log10(max(kl_coef, 1e-9) / 0.05) ** 2 - (cliprange - 0.2) ** 2
    return {"eval/win_rate": win, "eval/kl_per_token": 0.01 / max(kl_coef, 1e-9)}


def _stages(layout: Layout) -> list[dag.Stage]:
    def note(what: str, cell: str) -> None:
        with (layout.root / "calls.txt").open("a") as file:
            file.write(f"{what} {cell} {os.getpid()}\n")

    def prompts(cfg: Any, out: Path, reporter: Reporter) -> dict[str, Any]:
        note("prompts", "-")
        (out / "prompts.txt").write_text("a b c")
        return {}

    def sft(cfg: Any, out: Path, reporter: Reporter, *, prompts: Artifact) -> dict[str, Any]:
        (out / "model.txt").write_text(str(cfg.sft.lr))
        return {}

    def reward(cfg: Any, out: Path, reporter: Reporter, *, prompts: Artifact, sft: Artifact) -> dict[str, Any]:
        note("reward", "-")
        wanted = _control(layout)
        if wanted.get("upstream_crash"):
            raise RuntimeError("the reward model exploded")
        (out / "reward.txt").write_text("1")
        return {}

    def reference(cfg: Any, out: Path, reporter: Reporter, *, sft: Artifact, reward: Artifact) -> dict[str, Any]:
        note("reference", "-")
        (out / "draws.txt").write_text(f"{cfg.evaluate.first_prompt} {cfg.evaluate.seed}")
        return {}

    def values(cfg: Any, out: Path, reporter: Reporter, *, reward: Artifact) -> dict[str, Any]:
        note("values", str(cfg.values.samples))
        (out / "samples.txt").write_text(str(cfg.values.samples))
        return {}

    def train(
        cfg: Any, out: Path, reporter: Reporter, *, sft: Artifact, reward: Artifact, values: Artifact | None = None
    ) -> dict[str, Any]:
        cell = f"{cfg.kl.beta}/{cfg.train.seed}"
        note("train", cell)
        wanted = _control(layout)
        _misbehave(wanted, cell, calls(layout).count(cell))
        gate = layout.root / "gate"
        log = out / "metrics.jsonl"
        reporter.follow(log)
        watcher, taken = Watcher(cfg.train.stop), 0
        with MetricsLog(log) as metrics:
            for step in range(0, cfg.train.steps, 16):
                if watcher.broken():
                    break
                drift = dict.fromkeys(DRIFT, step * 0.01 / (1 + 10 * cfg.kl.beta))
                watcher.observe(step, drift)
                metrics.append(step, {**drift, "objective/scores": 0.1 * step, "objective/gold": 1.0 - 0.01 * step})
                metrics.append(step + 1, {"policy/entropy": 2.0 - 0.01 * step})
                metrics.flush()
                reporter.metrics(step, {"objective/kl_per_token": 0.01})
                reporter.progress("train", step + 16, cfg.train.steps)
                taken = step + 16
                time.sleep(wanted.get("sleep", 0))
                while step and cell in wanted.get("gated", []) and not gate.exists():  # half-way
                    time.sleep(0.02)
        to_parquet(log, out / "metrics.parquet")
        (out / "cell.txt").write_text(cell)  # each trial's own, as weights are: none shares its evaluation with another
        if cell in wanted.get("diverge", []):
            return {"status": "diverged", "reason": "entropy 0", "steps": taken}
        reason = watcher.broken() if taken < cfg.train.steps else None
        return {"status": "pruned" if reason else "complete", "reason": reason, "steps": taken}

    def evaluate(cfg: Any, out: Path, reporter: Reporter, *, reference: Artifact, train: Artifact) -> dict[str, Any]:
        summary = {"eval/win_rate": 0.6, "eval/gold": 1.5, "eval/proxy": 0.5, "eval/kl_per_token": 0.01}
        if _control(layout).get("landscape"):
            summary |= landscape(cfg.kl.beta, cfg.algorithm.clip.epsilon)
        write_json(out / "summary.json", summary)
        return {"summary": summary}

    return [
        dag.Stage("prompts", prompts, ("data",), ("pipeline.errors",)),
        dag.Stage("sft", sft, ("sft",), ("pipeline.errors",)),
        dag.Stage("reward", reward, ("reward",), ("pipeline.errors",)),
        dag.Stage("reference", reference, ("evaluate",), ("pipeline.errors",)),
        dag.Stage(
            "values", values, ("values",), ("pipeline.errors",), only=lambda config: config.algorithm.needs_values
        ),
        dag.Stage("train", train, TRAINING, ("pipeline.errors",), resumable=True),
        dag.Stage("evaluate", evaluate, ("evaluate", "kl.beta", "algorithm.clip"), ("pipeline.errors",)),
    ]


def _control(layout: Layout) -> dict[str, Any]:
    path = layout.root / "control.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _misbehave(wanted: Mapping[str, Any], cell: str, attempt: int) -> None:
    if attempt <= wanted.get("kill", {}).get(cell, 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt <= wanted.get("crash", {}).get(cell, 0):
        raise RuntimeError(f"boom in {cell}")
    if cell in wanted.get("user_error", []):
        raise UserError("optimiser.lr is too large for this network")
    if cell in wanted.get("hang", []):
        time.sleep(120)
