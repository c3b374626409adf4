"""A large study loaded and reported: 300 trials x 3,000 steps x 20 metrics, 512 prompts each, in a fresh process.

Unlike the other measurements this one has limits: a study of this size must not outgrow a laptop. The limit of time is
on processor seconds, which other work on the machine does not lengthen as it does the wall clock.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.cost import measured
from helpers import write_record, write_sealed

from pipeline.run.layout import Layout, StageRef, TrialRecord
from pipeline.run.store import Store
from studies.definition.design import Cell, cells
from studies.definition.schema import Study, load_study

ARMS, SEEDS, STEPS, PROMPTS = 30, 10, 3_000, 512
ROLLOUT = (
    "objective/kl", "objective/kl_per_token", "objective/entropy", "objective/scores", "objective/gold",
    "objective/length",
    "objective/eos_rate", "objective/kl_coef", "value/explained_variance",
)  # fmt: skip
STEPWISE = (
    "policy/pg_loss", "policy/approxkl", "policy/pg_clipfrac", "policy/ratio", "policy/entropy",
    "policy/kl_ref_per_token",
    "policy/grad_norm", "policy/lr", "policy/lr_factor", "value/vf_loss", "value/vf_clipfrac",
)  # fmt: skip
MAX_SECONDS, MAX_GIB = 30.0, 2.0
FRONT_DOOR = Path(__file__).parents[2] / "ablate.py"


def test_report_of_a_large_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(ROLLOUT) + len(STEPWISE) == 20
    source = write_study(tmp_path)
    spent = measured([sys.executable, str(FRONT_DOOR), "report", str(source), "--out", str(tmp_path / "out")])
    with capsys.disabled():
        print(f"\nreport of {ARMS * SEEDS} trials x {STEPS:,} steps x 20 metrics, {PROMPTS} prompts each:")
        print(f"  {spent.wall:.1f} s wall clock, {spent.cpu:.1f} CPU s (at most {MAX_SECONDS:g}),", end=" ")
        print(f"peak {spent.gib:.2f} GiB (at most {MAX_GIB:g})")
    assert spent.cpu < MAX_SECONDS
    assert spent.gib < MAX_GIB


def write_study(root: Path) -> Path:
    """A study of `ARMS` values of beta with records and artifacts in the real store; returns its file."""
    betas = [round(0.002 * (1 + i), 3) for i in range(ARMS)]
    arms = "\n".join(f"  beta_{beta:.3f}: {{kl.beta: {beta}}}" for beta in betas)
    source = root / "large.yaml"
    source.write_text(
        f"question: How far does each of {ARMS} values of beta drift?\nhypothesis: Less, the larger it is.\nrefuted_if:"
        f" It does not.\nbaseline: beta_{betas[0]:.3f}\nseeds: {list(range(SEEDS))}\narms:\n{arms}\nfalsifiers:\n  -"
        " {name: drift, claim: the policy stays near, metric: objective/kl_per_token, op: '>', threshold: 0.5,"
        " before_step: 2000}\n"
    )
    study, layout = load_study(source), Layout.at(root / "out")
    folder = layout.study(study.name, study.profile)
    for cell in cells(study):
        record = write_trial(layout, study, cell)
        write_record(folder, record)
    started = {"study": study.model_dump(mode="json"), "source": str(source), "profile": study.profile, "overrides": {}}
    write_sealed(folder.study_file, {**started, "environment": {}, "upstream": {}})
    return source


def write_trial(layout: Layout, study: Study, cell: Cell) -> TrialRecord:
    rng = np.random.default_rng([cell.seed, round(cell.config.kl.beta * 1000)])
    store, key = Store(layout.store), cell.config.digest()
    curves, prompts = trajectory(rng, cell.config.kl.beta), answers(rng)

    def evaluate(out: Path) -> dict[str, object]:
        prompts.to_parquet(out / "prompts.parquet", index=False)
        prompts.head(16).to_parquet(out / "samples.parquet", index=False)
        return {}

    made = [
        store.build(
            "train", key, {}, lambda out: (pq.write_table(curves, out / "metrics.parquet"), {})[1], resumable=False
        ),
        store.build("evaluate", key, {}, evaluate, resumable=False),
    ]
    tokens = float(prompts["policy_length"].sum())
    summary = {
        "eval/win_rate": float(prompts["win"].mean()),
        "eval/gold": float(prompts["policy_gold"].mean()),
        "eval/proxy": float(prompts["policy_proxy"].mean()),
        "eval/kl_per_token": float(prompts["kl"].sum()) / tokens,
        "eval/kl_per_sequence": float(prompts["kl"].mean()),
        "eval/entropy": float(prompts["entropy"].sum()) / tokens,
        "eval/length": tokens / PROMPTS,
    }
    return TrialRecord(
        study=study.name,
        profile=study.profile,
        arm=cell.arm,
        seed=cell.seed,
        config=cell.config.model_dump(mode="json"),
        config_digest=cell.config.digest(),
        status="complete",
        steps=STEPS,
        stages={
            one.stage: StageRef(key=key, path=one.path.relative_to(layout.root).as_posix(), digest=one.digest)
            for one in made
        },
        summary=summary,
        cost={"wall_s": 3600.0, "generated_tokens": 3e6, "peak_memory_gib": 9.0, "tflop": 900.0, "t4_s": 4000.0},
        environment={"python": "3.11.9"},
        finished="2025-01-01T00:00:00+00:00",
    )


def trajectory(rng: np.random.Generator, beta: float) -> pa.Table:
    """All 20 metrics at every step, noisy, around a drift that saturates."""
    step = np.arange(STEPS)
    drift = 0.02 / (0.01 + beta) * (1 - np.exp(-step / 700))
    columns: dict[str, np.ndarray] = {"step": step}
    for key in (*ROLLOUT, *STEPWISE):
        columns[key] = drift * rng.uniform(0.2, 1.0) + 0.05 * rng.random(STEPS)
    columns["objective/kl"] = columns["objective/kl_per_token"] * 24
    return pa.table(columns)


def answers(rng: np.random.Generator) -> pd.DataFrame:
    """Per-prompt results; the texts are as long as those of the profile t4."""
    length = rng.integers(20, 64, PROMPTS)
    gold, reference = rng.normal(1, 1, PROMPTS).round(1), rng.normal(0, 1, PROMPTS).round(1)
    texts = [
        " ".join(rng.choice(np.array(["warm", "quiet", "film", "drags", "never", "superb"]), 48))
        for _ in range(PROMPTS)
    ]
    return pd.DataFrame(
        {
            "prompt_id": np.arange(PROMPTS),
            "prompt": [f"review number {i} begins with these words" for i in range(PROMPTS)],
            "policy_completion": texts,
            "reference_completion": texts[::-1],
            "policy_gold": gold,
            "reference_gold": reference,
            "reference_gold_std": 0.8,
            "reference_completion_gold": reference,
            "reference_completion_proxy": reference,
            "policy_proxy": gold + rng.normal(0, 0.5, PROMPTS),
            "reference_proxy": reference,
            "policy_length": length,
            "reference_length": length,
            "policy_eos": rng.random(PROMPTS) < 0.9,
            "reference_eos": rng.random(PROMPTS) < 0.9,
            "kl": rng.gamma(2, 0.3, PROMPTS) * length / 24,
            "entropy": rng.uniform(1.5, 2.5, PROMPTS) * length,
            "reference_nats": rng.uniform(1.5, 2.5, PROMPTS) * length,
            "win": (np.sign(gold - reference) + 1) / 2,
            "tie": (gold == reference).astype(float),
            "win_proxy": rng.integers(0, 2, PROMPTS).astype(float),
            "agree": (gold != reference).astype(float),
            "decided": (gold != reference).astype(float),
        }
    )
