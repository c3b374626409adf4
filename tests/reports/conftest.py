"""A synthetic study with a known answer, written through the real record classes and file layout.

The builder is a fixture that gives a function, so that other tests can build studies of other shapes:
``build(root, seeds=(0,), diverged=(), ...)``.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import publish, write_record, write_sealed

from pipeline.run.layout import Layout, StageRef, StudyFolder, TrialRecord, write_json
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


@dataclass(frozen=True)
class Built:
    """A synthetic study on disk."""

    layout: Layout
    study: Study
    folder: StudyFolder


Builder = Callable[..., Built]


def study_yaml(
    seeds: tuple[int, ...],
    arms: Mapping[str, float | dict[str, float]],
    baseline: str,
    extra: str = "",
    design: str = "",
) -> str:
    own = {name: given if isinstance(given, dict) else {"kl.beta": given} for name, given in arms.items()}
    listed = "\n".join(f"  {name}: {json.dumps(overrides)}" for name, overrides in own.items())
    design = design or f"baseline: {baseline}\narms:\n{listed}"
    return f"""
question: How does the KL coefficient beta move a PPO policy along the reward-KL frontier?
hypothesis: A larger beta means less drift; without the penalty the proxy reward is hacked and gold reward falls.
refuted_if: KL per token at the end does not fall as beta grows, or beta 0 gets at least the gold reward of beta 0.05.
profile: tiny
seeds: {list(seeds)}
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


def prompt_table(beta: float, seed: int, n: int, first_completion: str | None = None) -> pd.DataFrame:
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
    if first_completion is not None and n:
        texts[0] = first_completion
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


def scored_samples(path: Path) -> None:
    """What the reward stage leaves: gold is normal with mean 0.4 and std 1 under the reference; samples hold the
    held-out pairs."""
    rng, prompt = np.random.default_rng(5), [f"prompt {index}" for index in range(2000)]
    first, second = rng.normal(0.4, 1, (2, 2000))
    pairs = pd.DataFrame({"gold_first": first, "gold_second": second, "heldout": np.arange(2000) >= 1500})
    pairs.assign(prompt=prompt).to_parquet(path / "pairs.parquet", index=False)
    gold = np.concatenate([rng.normal(0.4, 1, 300), first[1500:], second[1500:]])
    samples = pd.DataFrame({"prompt": [*prompt[:300], *prompt[1500:], *prompt[1500:]], "gold": gold, "source": "pair"})
    samples.assign(proxy=gold).to_parquet(path / "reference_samples.parquet", index=False)


class _Writer:
    def __init__(self, built: Built, prompts: int, first_completion: str | None) -> None:
        self.built, self.prompts, self.first = built, prompts, first_completion
        self.upstream = self._upstream()

    def stage(self, stage: str, key: str, write: Callable[[Path], object] = lambda path: None) -> StageRef:
        relative = f"store/{stage}/{key}"
        path = self.built.layout.root / relative
        path.mkdir(parents=True, exist_ok=True)
        write(path)
        return StageRef(key=key, path=relative, digest=publish(path))

    def _upstream(self) -> dict[str, StageRef]:
        def write(path: Path) -> None:
            if path.parent.name == "sft":
                write_json(path / "summary.json", {"perplexity": 8.31, "nats_per_token": 2.117})
            if path.parent.name == "reward":
                write_json(path / "summary.json", {"accuracy": 0.79, "accuracy_gold": 0.88})
                scored_samples(path)

        stages = ("prompts", "sft", "reward", "reference")
        return {stage: self.stage(stage, f"{stage[:2]}00112233445566", write) for stage in stages}

    def trial(self, cell: Cell, status: str, steps: int, *, evaluated: bool, digest: str | None) -> None:
        refs = dict(self.upstream)
        key = f"{cell.config.digest()}"
        table, cost = curves(cell.config.kl.beta, cell.seed, steps, cell.config.train.steps), COST
        if not cell.config.algorithm.learns:
            steps, table, cost = 0, table[["step"]].head(0), UNTRAINED_COST
        if status == "diverged":
            table.loc[table.index[-1], "policy/entropy"] = np.inf
        refs["train"] = self.stage("train", key, lambda path: table.to_parquet(path / "metrics.parquet", index=False))
        summary: dict[str, float] = {}
        if evaluated:
            prompts = prompt_table(cell.config.kl.beta, cell.seed, self.prompts, self.first)

            def write(path: Path) -> None:
                prompts.to_parquet(path / "prompts.parquet", index=False)
                prompts.head(16).to_parquet(path / "samples.parquet", index=False)

            refs["evaluate"] = self.stage("evaluate", key, write)
            summary = summary_of(prompts) if self.prompts else {}
        reasons = {"budget": "wall clock: 2.5 h reached", "diverged": "non-finite loss", "failed": "killed"}
        record = TrialRecord(
            study=self.built.study.name,
            profile="tiny",
            arm=cell.arm,
            seed=cell.seed,
            config=cell.config.model_dump(mode="json"),
            config_digest=digest or cell.config.digest(),
            status=status,  # type: ignore[arg-type]
            reason=reasons.get(status),
            steps=steps,
            stages=refs,
            summary=summary,
            cost=cost,
            environment=ENVIRONMENT,
            finished="2025-01-01T00:00:00+00:00",
        )
        write_record(self.built.folder, record)


def build_study(
    root: Path,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    arms: Mapping[str, float | dict[str, float]] | None = None,
    baseline: str = "beta_0.05",
    steps: int = 2048,
    prompts: int = 200,
    diverged: tuple[tuple[str, int], ...] = (("beta_0", 2),),
    budget: tuple[tuple[str, int], ...] = (("beta_0.2", 1),),
    missing: tuple[tuple[str, int], ...] = (("beta_0.01", 2),),
    failed: tuple[tuple[str, int], ...] = (),
    stale: tuple[tuple[str, int], ...] = (),
    first_completion: str | None = None,
    extra: str = "",
    design: str = "",
) -> Built:
    """Write a study file, study.json, records and artifacts under `root`; cells are named as (arm, seed).

    `design`: YAML that stands in the place of `arms` and `baseline`, such as a grid.
    """
    chosen = arms or {"beta_0": 0.0, "beta_0.01": 0.01, "beta_0.05": 0.05, "beta_0.2": 0.2}
    root.mkdir(parents=True, exist_ok=True)
    source = root / "kl_demo.yaml"
    source.write_text(study_yaml(seeds, chosen, baseline, extra, design), encoding="utf-8")
    study = load_study(source)
    layout = Layout.at(root / "out")
    folder = layout.study(study.name, "tiny")
    built = Built(layout, study, folder)
    writer = _Writer(built, prompts, first_completion)
    upstream: dict[str, Any] = {stage: ref.model_dump() for stage, ref in writer.upstream.items()}
    started = {"study": study.model_dump(mode="json"), "source": str(source), "profile": "tiny", "overrides": {}}
    write_sealed(folder.study_file, {**started, "environment": ENVIRONMENT, "upstream": upstream})
    for cell in cells(study):
        name = (cell.arm, cell.seed)
        if name in missing:
            continue
        digest = "0" * 16 if name in stale else None
        ends = {"diverged": (diverged, 3), "failed": (failed, 4), "budget": (budget, 2), "complete": ((name,), 1)}
        status = next(status for status, (named, _) in ends.items() if name in named)
        ran = steps // ends[status][1]
        writer.trial(cell, status, ran, evaluated=status in ("budget", "complete"), digest=digest)
    return built


@pytest.fixture(scope="session")
def build() -> Builder:
    return build_study


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Four arms, three seeds; one trial diverged, one ended by its budget, one is missing."""
    return build_study(tmp_path_factory.mktemp("demo"))


STRENGTHS: dict[str, float | dict[str, float]] = {
    "beta_0.07": 0.07,
    "beta_0.05": 0.05,
    "beta_0.035": 0.035,
    "tight": {"kl.beta": 0.04, "algorithm.clip.epsilon": 0.1},
    "tighter": {"kl.beta": 0.06, "algorithm.clip.epsilon": 0.05},
    "loose": {"kl.beta": 0.005, "algorithm.clip.epsilon": 0.4},
}
"""Three strengths of one method; two arms of others that end between them, and one that ends beyond."""


@pytest.fixture(scope="session")
def strengths(tmp_path_factory: pytest.TempPathFactory) -> StudyRecords:
    """Six arms x three seeds, all complete."""
    shape: dict[str, Any] = {"diverged": (), "budget": (), "missing": (), "steps": 640}
    built = build_study(tmp_path_factory.mktemp("strengths"), arms=STRENGTHS, **shape)
    return load_records(built.folder, built.study)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def records(demo: Built) -> StudyRecords:
    return load_records(demo.folder, demo.study)


@pytest.fixture(scope="module")
def findings(records: StudyRecords) -> Findings:
    return analyse(records)
