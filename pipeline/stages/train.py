"""Stage 5: the training of one trial; resumable at any moment, and beyond a cap that has been raised. Of a trial that
learns nothing, the reference as its policy, after 0 gradient steps.

Writes ``policy/`` (save_pretrained: one safetensors file and the config), ``critic.safetensors`` where there is a
critic, ``metrics.jsonl`` and ``metrics.parquet``, ``samples.parquet``, ``status.json`` and ``log/cost.json``. In a
later round the series, the samples, the counts and the cost are those of all rounds so far.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pipeline.config.trial import TrialConfig
from pipeline.data.prompt_set import PromptSet
from pipeline.models.adapters import WithoutAdapter, merged
from pipeline.models.loading import device_of, freeze
from pipeline.models.meter import meter
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes, restore_critic, save_critic
from pipeline.models.precision import execution
from pipeline.models.tokenizers import closing_tokens
from pipeline.resources.ledger import KEPT, Ledger
from pipeline.resources.machine import GIB, fresh_marks, hold_allocator
from pipeline.rewards import own
from pipeline.rewards.base import Completions
from pipeline.rewards.collection import read_responses
from pipeline.rewards.scorers import further_judges, judge_of, reward_of
from pipeline.rewards.verifier import marks_of
from pipeline.run.layout import write_json
from pipeline.run.metrics import MetricsLog, to_parquet
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.stages.values import read_scores
from pipeline.training.checkpoint import checkpoints
from pipeline.training.judging import Scores, TrainingData, v_star_of
from pipeline.training.new_actor import load_reference, new_actor
from pipeline.training.processes import launch
from pipeline.training.rounds import END, carried_on, described, has_ended, round_of
from pipeline.training.trainer import Outcome, Trainer

Inputs = tuple[Artifact, Artifact, Artifact, Artifact | None, Artifact | None, Artifact | None, Artifact | None]
"""The artifacts that a training is made from: prompts, sft, reward, values, critic, judge, last train; the last four as
far as the trial has them."""


def train(
    cfg: TrialConfig,
    out: Path,
    reporter: Reporter,
    *,
    prompts: Artifact,
    sft: Artifact,
    reward: Artifact,
    values: Artifact | None = None,
    critic: Artifact | None = None,
    judge: Artifact | None = None,
    last_train: Artifact | None = None,
) -> dict[str, Any]:
    """Train the policy against the calibrated proxy; the gold judge watches and is never trained on."""
    if not cfg.algorithm.learns:
        return _untrained(cfg, out, sft)
    if last_train is not None and has_ended(last_train):
        return carried_on(last_train, out)
    metrics, kept = out / "metrics.jsonl", out / KEPT
    if (kept / "metrics.jsonl").exists() and not metrics.exists():  # the stage takes up a trial that a cap has ended
        shutil.copyfile(kept / "metrics.jsonl", out / ".metrics")
        os.replace(out / ".metrics", metrics)
    inputs = prompts, sft, reward, values, critic, judge, last_train
    if cfg.runtime.processes == 1:
        one_process(cfg, out, reporter, inputs)
    else:
        launch(one_process, cfg, out, reporter, inputs)
    status: dict[str, Any] = json.loads((out / "status.json").read_text("utf-8"))
    if status["cap"] is None:
        shutil.rmtree(kept)
    else:
        for older in checkpoints(kept)[:-1]:
            older.unlink()
        shutil.copyfile(metrics, kept / "metrics.jsonl")
    return status | described(cfg, last_train, reference=sft, start=last_train or sft, reward=reward)


def _untrained(cfg: TrialConfig, out: Path, sft: Artifact) -> dict[str, Any]:
    """Leave the reference as policy, a series without a record, and the cost of copying."""
    device = device_of(cfg.runtime.device)
    ledger = Ledger(device.type == "cuda")
    fresh_marks(device.type == "cuda")
    load_reference(sft, cfg.adapter.quantize, torch.device("cpu")).save_pretrained(out / "policy")
    MetricsLog(out / "metrics.jsonl").close()
    status = _write_tables(out, Outcome("complete", None, 0, 0, 0, 0, None))
    ledger.mark()
    _write_log(cfg, out, device, ledger)
    return status


def one_process(cfg: TrialConfig, out: Path, reporter: Reporter, inputs: Inputs) -> None:
    """One process of the trial; the first of them writes everything."""
    prompts, sft, reward, values, critic, judge, last_train = inputs
    own.search_in(cfg.runtime.code)  # a process of its own has not been prepared
    device = device_of(cfg.runtime.device)
    ledger = Ledger(device.type == "cuda")
    if device.type == "cuda":
        hold_allocator(cfg.caps.memory_gib)
    fresh_marks(device.type == "cuda")
    data = PromptSet.load(prompts, "train")
    room = Room("runtime.rollout_batch_size", cfg.runtime.rollout_batch_size, reporter.warn)
    proxy, gold = reward_of(reward, device, room), judge_of(cfg.gold, device, room, judge)
    further = further_judges(cfg.gold, device, room)

    def score(episodes: Episodes, rows: Sequence[int]) -> Scores:
        completions = Completions.of(data.tokenizer, episodes, [data.texts[row] for row in rows])
        scores, parts = proxy.explained(completions)
        points = {name: one(completions) for name, one in further.items()}
        width = cfg.train.response_length
        marks = marks_of(gold, completions, width)
        earned = proxy.earned(completions, data.tokenizer, width) if cfg.reward.dense else None
        return Scores(scores, gold(completions), completions.prompts, completions.texts, parts, points, marks, earned)

    metrics = out / "metrics.jsonl"
    reporter.follow(metrics)
    actor = new_actor(cfg, sft, reward, device)
    if critic is not None:
        restore_critic(actor, critic.path / "critic.safetensors")
    adapted = cfg.adapter.kind != "none"
    reference = WithoutAdapter(actor.lm) if adapted else freeze(load_reference(sft, "none", device))
    round_ = round_of(cfg, out, device, ledger, reward, last_train)
    beside: list[Any] = [] if adapted else [reference]
    beside += [] if round_ is None or round_.start is None else [round_.start]
    judges = [network for one in (gold, *further.values()) for network in one.networks]
    meter([*actor.networks, *beside, *proxy.networks, *judges], ledger.work)
    v_star = None
    if values is not None and cfg.algorithm.needs_values:
        v_star = v_star_of(cfg, *map(torch.tensor, read_scores(values).values()))
    closes = closing_tokens(data.tokenizer, cfg.kl.group, int(actor.lm.config.vocab_size))
    pairs = read_responses(reward.path, data.token_ids["pad_id"]) if cfg.train.data == "pairs" else None
    training = TrainingData(data.ids, data.mask, data.token_ids, v_star, pairs, closes)
    trainer = Trainer(cfg, (actor, reference), training, score, out, reporter, ledger, round_)
    outcome = trainer.run()
    if trainer.ranks.main:
        policy = actor.lm
        if adapted:
            policy = merged(policy, load_reference(sft, cfg.adapter.quantize, torch.device("cpu")))
        policy.save_pretrained(out / "policy")
        save_critic(actor, out / "critic.safetensors")
        _write_tables(out, outcome)
        _write_log(cfg, out, device, ledger, trainer.state.nbytes(reference, trainer.round.start))
        if outcome.status == "complete" and trainer.round.number < trainer.round.count:
            trainer.checkpoints.leave(out / END)
    trainer.ranks.end()


def _write_tables(out: Path, outcome: Outcome) -> dict[str, Any]:
    to_parquet(out / "metrics.jsonl", out / "metrics.parquet")
    columns = ["step", "prompt", "completion", "proxy", "gold"]
    pd.DataFrame(outcome.samples, columns=columns).to_parquet(out / "samples.parquet", index=False)
    status = {key: value for key, value in vars(outcome).items() if key != "samples"}
    write_json(out / "status.json", status)
    return status


def _write_log(
    cfg: TrialConfig, out: Path, device: torch.device, ledger: Ledger, state_bytes: int | None = None
) -> None:
    kept = {} if state_bytes is None else {"state_gib": state_bytes / GIB}
    write_json(out / "log" / "cost.json", {**ledger.cost(), **kept})
    write_json(out / "log" / "execution.json", execution(device, cfg.runtime.threads, cfg.runtime.processes))
