"""Stage 4: one PPO trial; resumable at any moment.

Writes ``policy/`` (save_pretrained: one safetensors file and the config), ``critic.safetensors``,
``metrics.jsonl`` and ``metrics.parquet``, ``samples.parquet``, ``status.json`` and ``log/cost.json``.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.artifacts import Artifact
from pipeline.budget import Ledger, cap_memory, shape_of
from pipeline.config import TrialConfig
from pipeline.layout import write_json
from pipeline.models.loading import device_of, freeze, load_snapshot, save_head
from pipeline.models.policy import Episodes
from pipeline.ppo.rollout import Scores
from pipeline.ppo.trainer import Trainer
from pipeline.reporter import Reporter
from pipeline.rewards.base import Completions
from pipeline.stages.common import PromptSet, judge_of, reward_of
from pipeline.tracking import MetricsLog, to_parquet


def ppo(cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact, sft: Artifact, reward: Artifact) -> dict[str, Any]:
    """Train the policy against the calibrated proxy; the gold judge watches and is never trained on."""
    device = device_of(cfg.runtime.device)
    data = PromptSet.load(prompts, "train")
    proxy, gold = reward_of(reward, device, cfg.runtime.rollout_batch_size), judge_of(cfg.judge)

    def score(episodes: Episodes, rows: Sequence[int]) -> Scores:
        completions = Completions.of(data.tokenizer, episodes, [data.texts[row] for row in rows])
        return Scores(proxy(completions), gold(completions), completions.prompts, completions.texts)

    metrics = out / "metrics.jsonl"
    reporter.follow(metrics)
    cap_memory(cfg.ppo)
    ledger = Ledger(shape_of(cfg.model, len(data.tokenizer)))
    trainer = Trainer(
        cfg.ppo,
        cfg.runtime,
        load_snapshot(sft.path / "model", device),
        freeze(load_snapshot(sft.path / "model", device)),
        score,
        data.ids,
        data.mask,
        data.token_ids,
        lambda offset: MetricsLog.resume(metrics, offset) if offset else MetricsLog(metrics),
        reporter,
        ledger,
        out / "checkpoints",
    )
    outcome = trainer.run()
    actor = trainer.actor_critic
    actor.lm.save_pretrained(out / "policy")
    save_head(actor.value_head, out / "critic.safetensors")
    to_parquet(metrics, out / "metrics.parquet")
    columns = ["step", "prompt", "completion", "proxy", "gold"]
    pd.DataFrame(outcome.samples, columns=columns).to_parquet(out / "samples.parquet", index=False)
    status = {key: value for key, value in vars(outcome).items() if key != "samples"}
    write_json(out / "status.json", status)
    write_json(out / "log" / "cost.json", ledger.cost())
    shutil.rmtree(out / "checkpoints")
    return status
