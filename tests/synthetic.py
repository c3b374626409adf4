"""A synthetic study with a known answer, written through the real records, keys and store.

`build` makes studies of any shape; `record_study` records the trials of a given study file.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from helpers import put_record, republish, write_sealed

from pipeline.run import dag
from pipeline.run.layout import Layout, StudyFolder, write_json
from pipeline.run.store import Artifact, Store
from pipeline.stages.graph import STAGES
from reports.findings.findings import Findings, analyse
from reports.records.load import StudyRecords, load_records
from studies.definition.design import Cell, cells
from studies.definition.schema import Study, load_study

WORDS = [
    "the", "film", "was", "a", "warm", "and", "quiet", "surprise", "but", "its", "middle", "act", "drags", "never",
    "dull", "not", "funny", "the", "cast", "is", "superb",
]  # fmt: skip
ENVIRONMENT = {"python": "3.11.9", "torch": "2.13.0", "platform": "Linux x86_64", "git_commit": "0123abc"}
COST = {"wall_s": 48.0, "generated_tokens": 262144.0, "peak_memory_gib": 0.61, "tflop": 3.2, "t4_s": 11.5}
UNTRAINED_COST = {**dict.fromkeys(COST, 0.0), "peak_memory_gib": 0.4, "evaluate_generated_tokens": 38400.0}


def drift_of(beta: float) -> float:
    """Exact KL in nats per token that an arm with this kl_coef drifts to."""
    return 1.6 / (1 + (beta / 0.0035) ** 1.6)


def gold_of(kl_sequence: np.ndarray) -> np.ndarray:
    """Judge points over nats per sequence, after Gao 2022: d (a - b d)."""
    distance = np.sqrt(np.maximum(kl_sequence, 0.0))
    return 0.4 + distance * (1.1 - 0.26 * distance)


def proxy_of(kl_sequence: np.ndarray) -> np.ndarray:
    return 1.05 * np.sqrt(np.maximum(kl_sequence, 0.0))


def curves(beta: float, seed: int, steps: int, planned: int, per_update: int = 16) -> pd.DataFrame:
    """Both cadences merged by step, as the ppo stage writes them."""
    rng = np.random.default_rng([seed, round(beta * 1000)])
    step = np.arange(0, steps + 1)
    final = drift_of(beta) * (1 + 0.15 * rng.normal())
    drift = final * (1 - np.exp(-step / 700.0))
    entropy = 2.1 * np.exp(-0.45 * drift) + 0.03 * rng.normal(size=step.size)
    ramp = 1 - np.exp(-step / 300.0)
    frame = pd.DataFrame({"step": step.astype(np.int64)})
    frame["policy/entropy"] = entropy
    frame["policy/kl_ref_per_token"] = drift + 0.002 * rng.normal(size=step.size)
    frame["policy/approxkl"] = np.abs(0.002 + 0.0005 * rng.normal(size=step.size))
    frame["policy/pg_clipfrac"] = np.clip(0.08 * ramp + 0.01 * rng.normal(size=step.size), 0, 1)
    frame["policy/lr"] = 1e-4 * (1 - step / planned)
    frame["value/vf_loss"] = 0.4 * np.exp(-step / 400.0) + 0.05 + 0.01 * np.abs(rng.normal(size=step.size))
    frame.loc[0, frame.columns[1:]] = np.nan
    at_update = step % per_update == 0
    length = 24 + 3 * ramp + 0.5 * rng.normal(size=step.size)
    rolled = {
        "objective/kl_per_token": drift + (0.001 + 0.05 * drift) * rng.normal(size=step.size),
        "objective/kl": drift * length,
        "objective/scores": proxy_of(drift * length) + 0.08 * rng.normal(size=step.size),
        "objective/gold": gold_of(drift * length) + 0.08 * rng.normal(size=step.size),
        "objective/length": length,
        "objective/eos_rate": np.clip(0.9 + 0.05 * ramp, 0, 1),
        "objective/kl_coef": np.full(step.size, beta),
        "value/explained_variance": 0.7 * ramp + 0.03 * rng.normal(size=step.size),
    }
    for key, values in rolled.items():
        frame[key] = np.where(at_update, values, np.nan)
    return frame


def completion(rng: np.random.Generator, length: int) -> str:
    return " ".join(rng.choice(WORDS, size=length)) + "."


def prompt_table(beta: float, seed: int, n: int, first: str | None = None) -> pd.DataFrame:
    """Per-prompt results; the reference's part, four draws a prompt, depends on the prompt alone."""
    common = np.random.default_rng(99)
    difficulty = common.normal(0, 0.6, n)
    reference_length = common.integers(8, 33, n)
    reference_proxy = common.normal(0, 1, n)
    reference_text = [completion(common, 12) for _ in range(n)]
    rng = np.random.default_rng([seed, round(beta * 1000), 7])
    length = rng.integers(10, 33, n)
    kl = np.abs(drift_of(beta) * length * rng.gamma(4, 0.25, n))
    gold = difficulty + gold_of(np.full(n, kl.mean() if n else 0.0)) + 0.05 * rng.normal() + rng.normal(0, 0.8, n)
    gold, draws = np.round(gold), np.round((difficulty + 0.4)[:, None] + common.normal(0, 0.8, (n, 4)))
    above = np.sign(gold[:, None] - draws)
    texts = [completion(rng, 12) for _ in range(n)]
    if first is not None and n:
        texts[0] = first
    proxy = proxy_of(kl) + rng.normal(0, 0.7, n)
    scored = np.sign((proxy - reference_proxy)[:, None] - np.random.default_rng(98).normal(0, 0.5, (n, 4)))
    return pd.DataFrame(
        {
            "prompt_id": np.arange(n),
            "prompt": [f"{completion(common, 3)[:-1]} number {i}" for i in range(n)],
            "policy_completion": texts,
            "reference_completion": reference_text,
            "policy_gold": gold,
            "reference_gold": draws.mean(1),
            "reference_gold_std": draws.std(1),
            "reference_completion_gold": draws[:, 0],
            "reference_completion_proxy": reference_proxy,
            "policy_proxy": proxy,
            "reference_proxy": reference_proxy,
            "policy_length": length,
            "reference_length": reference_length,
            "policy_eos": rng.random(n) < 0.95,
            "reference_eos": common.random(n) < 0.9,
            "kl": kl,
            "entropy": length * 2.1 * math.exp(-0.4 * drift_of(beta)) * rng.uniform(0.8, 1.2, n),
            "win": (above + 1).mean(1) / 2,
            "tie": (above == 0).mean(1),
            "win_proxy": (scored + 1).mean(1) / 2,
            "agree": (np.abs(above) + above * scored).sum(1) / 2,
            "decided": np.abs(above).sum(1),
        }
    )


MEANS = {
    "win_rate": "win", "win_rate_proxy": "win_proxy", "tie_rate": "tie", "gold": "policy_gold",
    "gold_reference": "reference_gold", "proxy": "policy_proxy", "proxy_reference": "reference_proxy",
    "kl_per_sequence": "kl", "length": "policy_length", "eos_rate": "policy_eos",
}  # fmt: skip


def summary_of(table: pd.DataFrame) -> dict[str, float]:
    tokens, decided = float(table["policy_length"].sum()), float(table["decided"].sum())
    kl, entropy = float(table["kl"].sum()) / tokens, float(table["entropy"].sum()) / tokens
    words = " ".join(table["policy_completion"]).split()
    return {
        **{f"eval/{key}": float(table[column].mean()) for key, column in MEANS.items()},
        **({"eval/preference_accuracy": float(table["agree"].sum() / decided)} if decided else {}),
        "eval/kl_per_token": kl,
        "eval/entropy": entropy,
        "eval/distinct_1": len(set(words)) / len(words),
        "eval/distinct_2": len(set(itertools.pairwise(words))) / (len(words) - 1),
        "eval/ppl_reference": math.exp(entropy + kl),
        "eval/perplexity_texts": 8.31 * math.exp(kl),
        "eval/perplexity_texts_reference": 8.31,
    }


def reference_draws(path: Path) -> None:
    """Write four answers to each of 1,000 prompts: gold is normal with mean 0.4 and std 1 under the reference."""
    prompts = np.repeat([f"prompt {index}" for index in range(1000)], 4)
    gold = np.random.default_rng(5).normal(0.4, 1, len(prompts))
    pd.DataFrame({"prompt": prompts, "gold": gold}).to_parquet(path / "draws.parquet", index=False)


Cells = tuple[tuple[str, int], ...]
"""Arms and seeds."""
REASONS = {"budget": "wall clock: 2.5 h reached", "diverged": "non-finite loss"}
PART = {"complete": 1, "budget": 2, "diverged": 3}
"""The status of a trial -> the part of the steps after which it ended."""


@dataclass(frozen=True)
class Built:
    layout: Layout
    study: Study
    folder: StudyFolder

    def read(self) -> StudyRecords:
        return load_records(self.folder, self.study)

    @cached_property
    def records(self) -> StudyRecords:
        return self.read()

    @cached_property
    def findings(self) -> Findings:
        return analyse(self.records)

    def table(self, arm: str, seed: int, stage: str, name: str) -> Path:
        return self.folder.root / self.folder.record(arm, seed).stages[stage].path / name

    def rewrite(self, path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
        """Change a Parquet file of an artifact, and have the records name what it then is."""
        change(pd.read_parquet(path)).to_parquet(path, index=False)
        republish(self.folder, path.parent)


def with_study(records: StudyRecords, **changes: Any) -> StudyRecords:
    return replace(records, study=records.study.model_copy(update=changes))


def record_study(
    study: Study, layout: Layout, steps: int, prompts: int, missing: Cells = (),
    status: Mapping[str, Cells] | None = None, stale: Cells = (), first: str | None = None,
) -> None:  # fmt: skip
    """Write artifacts and records of every cell that is not missing; `steps` of training, and an evaluation on so many
    prompts, are recorded of each."""
    for cell in [one for one in cells(study) if (one.arm, one.seed) not in missing]:
        name, store, artifacts = (cell.arm, cell.seed), Store(layout.store), dict[str, Artifact]()
        ended = next((one for one, listed in (status or {}).items() if name in listed), "complete")
        learns, evaluated = cell.config.algorithm.learns, ended in ("complete", "budget")
        ran = steps // PART[ended] if learns else 0
        answers = prompt_table(cell.config.kl.beta, cell.seed, prompts, first)
        for stage in dag.stages_of(STAGES, cell.config):
            if stage.name != "evaluate" or evaluated:
                identity = dag._identity(stage, cell.config, {own: one.digest for own, one in artifacts.items()})
                write = _writer(stage.name, cell, ran, answers, lost=ended == "diverged")
                artifacts[stage.name] = store.build(stage.name, dag._key(identity), identity, write, resumable=False)
        more = {"status": ended, "reason": REASONS.get(ended), "steps": ran, "environment": ENVIRONMENT}
        more |= {"summary": summary_of(answers)} if evaluated and prompts else {}
        more |= {"config_digest": "0" * 16} if name in stale else {}
        put_record(
            layout, cell.config, [one.path for one in artifacts.values()], study.name, study.profile, *name,
            cost=COST if learns else UNTRAINED_COST, **more,
        )  # fmt: skip


def _writer(stage: str, cell: Cell, steps: int, answers: pd.DataFrame, lost: bool) -> Callable[[Path], dict[str, Any]]:
    def write(out: Path) -> dict[str, Any]:
        if stage == "sft":
            summary = {"perplexity": 8.31, "nats_per_token": 2.117, "entropy_floor_nats_per_token": 2.09}
            write_json(out / "summary.json", summary)
        elif stage == "reward":
            write_json(out / "summary.json", {"accuracy": 0.79, "accuracy_gold": 0.88})
        elif stage == "reference":
            reference_draws(out)
        elif stage == "train":
            table = curves(cell.config.kl.beta, cell.seed, steps, cell.config.train.steps)
            table = table if steps else table[["step"]].head(0)
            if lost:
                table.loc[table.index[-1], "policy/entropy"] = np.inf
            table.to_parquet(out / "metrics.parquet", index=False)
            rows = [{key: value for key, value in row.items() if value == value} for row in table.to_dict("records")]
            (out / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            (out / "model.safetensors").write_bytes(f"{cell.config.kl.beta} {cell.seed}".encode())
        elif stage == "evaluate":
            answers.to_parquet(out / "prompts.parquet", index=False)
            answers.head(16).to_parquet(out / "samples.parquet", index=False)
        else:
            shutil.copyfile(Path(__file__), out / "something")
        return {}

    return write


def start(study: Study, source: Path, layout: Layout) -> StudyFolder:
    """Write study.json, as `ablate study` does before the first trial."""
    folder = layout.study(study.name, study.profile)
    content = {"study": study.model_dump(mode="json"), "source": str(source), "profile": study.profile, "overrides": {}}
    write_sealed(folder.study_file, {**content, "environment": ENVIRONMENT, "upstream": {}})
    return folder


STUDY = """
question: How does the KL coefficient beta move a PPO policy along the reward-KL frontier?
hypothesis: A larger beta means less drift; without the penalty the proxy reward is hacked and gold reward falls.
refuted_if: KL per token at the end does not fall as beta grows, or beta 0 gets at least the gold reward of beta 0.05.
profile: tiny
seeds: {seeds}
{design}
falsifiers:
  - name: drift
    claim: the policy stays within 0.025 nats per token of the reference for its first 2,000 gradient steps
    metric: objective/kl_per_token
    op: ">"
    threshold: 0.025
    before_step: 2000
    arms: ["*"]
{extra}"""
BETAS: dict[str, Any] = {f"beta_{beta}": beta for beta in (0, 0.01, 0.05, 0.2)}
WHOLE: dict[str, Any] = {"diverged": (), "budget": (), "missing": ()}


def build(
    root: Path,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    arms: Mapping[str, Any] = BETAS,
    baseline: str = "beta_0.05",
    steps: int = 2048,
    prompts: int = 200,
    diverged: Cells = (("beta_0", 2),),
    budget: Cells = (("beta_0.2", 1),),
    missing: Cells = (("beta_0.01", 2),),
    stale: Cells = (),
    first: str | None = None,
    extra: str = "",
    design: str = "",
) -> Built:
    """Write a study file, study.json, records and artifacts under `root`.

    `arms`: overrides, or a beta. `design`: YAML in the place of `arms` and `baseline`, such as a grid. `first`: the
    completion of the first prompt. `extra`: more YAML.
    """
    own = {name: given if isinstance(given, dict) else {"kl.beta": given} for name, given in arms.items()}
    design = design or f"baseline: {baseline}\narms: {json.dumps(own)}"
    root.mkdir(parents=True, exist_ok=True)
    source = root / "kl_demo.yaml"
    source.write_text(STUDY.format(seeds=list(seeds), design=design, extra=extra), encoding="utf-8")
    study, layout = load_study(source), Layout.at(root / "out")
    status = {"diverged": diverged, "budget": budget}
    record_study(study, layout, steps, prompts, missing, status=status, stale=stale, first=first)
    return Built(layout, study, start(study, source, layout))
