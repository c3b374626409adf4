"""Logs as TRL writes them, made by hand: of PPO one row an update, its names, its order of keys; of GRPO and RLOO the
keys of one row."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

Rows = list[dict[str, Any]]
GROUPS = {
    "loss": 0.01, "grad_norm": 0.5, "learning_rate": 1e-6, "num_tokens": 900.0, "step_time": 1.5, "epoch": 0.1,
    "completions/mean_length": 48.0, "completions/min_length": 9.0, "completions/max_length": 64.0,
    "completions/clipped_ratio": 0.25, "completions/mean_terminated_length": 40.0,
    "completions/min_terminated_length": 9.0, "completions/max_terminated_length": 60.0,
    "rewards/accuracy_reward/mean": 0.4, "rewards/accuracy_reward/std": 0.3, "reward": 0.7, "reward_std": 0.2,
    "frac_reward_zero_std": 0.1, "kl": 0.02, "entropy": 1.2, "clip_ratio/low_mean": 0.01, "clip_ratio/low_min": 0.0,
    "clip_ratio/high_mean": 0.02, "clip_ratio/high_max": 0.1, "clip_ratio/region_mean": 0.03,
}  # fmt: skip
GRPO = GROUPS | {
    "sampling/sampling_logp_difference/mean": 0.01, "sampling/importance_sampling_ratio/mean": 1.0,
    "tools/call_frequency": 0.0, "eval_reward": 0.8, "eval_kl": 0.03, "eval_runtime": 3.0,
}  # fmt: skip


def rows(beta: float = 0.05, seed: int = 0, updates: int = 12, batch: int = 64) -> Rows:
    """KL grows to a plateau that falls with beta; the reward is score minus penalty, as in TRL."""
    made = []
    for update in range(1, updates + 1):
        kl = (1 - math.exp(-(update - 1) / 4)) * 2.0 / (0.1 + beta) * (1 + 0.05 * seed)
        score = 0.3 * math.sqrt(kl) + 0.01 * seed
        row = {
            "eps": 30, "objective/kl": kl, "objective/entropy": 50.0 - kl, "objective/non_score_reward": -beta * kl,
            "objective/rlhf_reward": score - beta * kl, "objective/scores": score,
            "policy/approxkl_avg": 0.002 + 1e-4 * update, "policy/clipfrac_avg": 0.01 * update / updates,
            "loss/policy_avg": -0.01, "loss/value_avg": 0.4 / update, "val/clipfrac_avg": 0.0,
            "policy/entropy_avg": 2.0 - 0.02 * kl, "val/ratio": 1.0 + 1e-4 * update, "val/ratio_var": 1e-6,
            "val/num_eos_tokens": 40, "lr": 1e-5 * (1 - (update - 1) / updates), "episode": update * batch,
            "epoch": 0.01 * update, "step": update,
        }  # fmt: skip
        made.append(row)
    return made


def write(path: Path, content: Rows, *, state: bool = False) -> Path:
    """Write as JSON lines, a JSON list, CSV, or a trainer's state, by the file's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        pd.DataFrame(content).to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    else:
        around = {"best_metric": None, "note": '"log_history": [1]', "log_history": content, "max_steps": 12}
        path.write_text(json.dumps(around if state else content, indent=2), encoding="utf-8")
    return path


def folder(
    root: Path,
    betas: Mapping[str, float] | None = None,
    seeds: tuple[int, ...] = (0, 1),
    **changes: Callable[[Rows], Rows],
) -> Path:
    """``ARM/seed_N.jsonl`` for every arm and seed; `changes` edit the rows of a trial, by ``ARM__SEED``."""
    for arm, beta in (betas or {"beta_0.05": 0.05, "beta_0.2": 0.2}).items():
        for seed in seeds:
            change = changes.get(f"{arm}__{seed}", list)
            write(root / arm / f"seed_{seed}.jsonl", change(rows(beta, seed)))
    return root
