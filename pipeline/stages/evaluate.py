"""Stage 5: policy against reference on held-out prompts, under common random numbers, by the gold judge.

Writes ``prompts.parquet`` (a row per prompt), ``samples.parquet`` (its first rows) and ``summary.json``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.artifacts import Artifact
from pipeline.config import TrialConfig
from pipeline.intervals import wilson
from pipeline.layout import write_json
from pipeline.metrics import check_keys
from pipeline.models.generation import sample
from pipeline.models.loading import CausalLM, device_of, freeze, load_snapshot
from pipeline.models.policy import Episodes, response_hidden, to_grid
from pipeline.models.precision import Precision
from pipeline.models.seeding import uniforms
from pipeline.ppo.measure import token_stats
from pipeline.reporter import Reporter
from pipeline.rewards.base import Completions
from pipeline.stages.common import PromptSet, judge_of, reward_of
from pipeline.stages.spending import spending


def evaluate(
    cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact, sft: Artifact, reward: Artifact, ppo: Artifact
) -> dict[str, Any]:
    """Judge one completion of each network on every held-out prompt."""
    with spending(out):
        return _evaluate(cfg, out, reporter, prompts, sft, reward, ppo)


def _evaluate(
    cfg: TrialConfig, out: Path, reporter: Reporter, prompts: Artifact, sft: Artifact, reward: Artifact, ppo: Artifact
) -> dict[str, Any]:
    device, batch = device_of(cfg.runtime.device), cfg.runtime.rollout_batch_size
    autocast = Precision.of(device).autocast
    data = PromptSet.load(prompts, "heldout", cfg.evaluate.prompts)
    reference = freeze(load_snapshot(sft.path / "model", device))
    policy = freeze(load_snapshot(ppo.path / "policy", device))
    noise = uniforms(len(data.texts), cfg.ppo.response_length, cfg.evaluate.seed, "evaluate")

    def answers(model: CausalLM, place: int) -> Completions:
        reporter.progress("evaluate", place, 3, "sampling")
        ids, mask = data.ids.to(device), data.mask.to(device)
        with autocast():
            episodes = sample(model, ids, mask, noise, temperature=cfg.evaluate.temperature, batch=batch, **data.token_ids)
        return Completions.of(data.tokenizer, episodes, data.texts)

    mine, theirs = answers(policy, 0), answers(reference, 1)
    reporter.progress("evaluate", 2, 3, "judging")
    judge, proxy = judge_of(cfg.gold, device, batch), reward_of(reward, device, batch)
    (scores, parts), (ref_scores, ref_parts) = proxy.explained(mine), proxy.explained(theirs)
    with autocast():
        kl, entropy, ref_nats = drift(policy, reference, mine.episodes, cfg.evaluate.temperature, batch)
    table = pd.DataFrame(
        {
            "prompt_id": range(len(data.texts)),
            "prompt": data.texts,
            "policy_completion": mine.texts,
            "reference_completion": theirs.texts,
            "policy_gold": judge(mine).double().numpy(),
            "reference_gold": judge(theirs).double().numpy(),
            "policy_proxy": scores.double().numpy(),
            "reference_proxy": ref_scores.double().numpy(),
            "policy_length": mine.episodes.lengths.cpu().numpy(),
            "reference_length": theirs.episodes.lengths.cpu().numpy(),
            "policy_eos": mine.episodes.ended.cpu().numpy(),
            "reference_eos": theirs.episodes.ended.cpu().numpy(),
            "kl": kl.sum(1).double().numpy(),
            "entropy": entropy.sum(1).double().numpy(),
            "reference_nats": ref_nats.sum(1).double().numpy(),
            **{f"policy_reward/{name}": one.double().numpy() for name, one in parts.items()},
            **{f"reference_reward/{name}": one.double().numpy() for name, one in ref_parts.items()},
        }
    )
    table["winner"] = winners(table["policy_gold"].to_numpy(), table["reference_gold"].to_numpy())
    summary = summarise(table)
    check_keys(summary)
    table.to_parquet(out / "prompts.parquet", index=False)
    table.head(cfg.evaluate.sample_rows).to_parquet(out / "samples.parquet", index=False)
    write_json(out / "summary.json", summary)
    reporter.progress("evaluate", 3, 3)
    return {"summary": summary, "prompts": len(table)}


@torch.inference_mode()
def drift(policy: CausalLM, reference: CausalLM, episodes: Episodes, temperature: float, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Exact KL to the reference, entropy of the policy, and -log ref of the sampled token; each (B, T) on the CPU, nats."""
    kl, entropy, ref_nats = torch.zeros(3, *episodes.response_mask.shape)
    for rows in episodes.shelves(batch):
        chunk = episodes.take(rows)
        hidden, ref_hidden = response_hidden(policy, chunk), response_hidden(reference, chunk)
        stats = token_stats(policy, hidden, reference, ref_hidden, chunk.labels, temperature)
        columns = (stats.kl, stats.entropy, -stats.ref_logprobs)
        for grid, column in zip((kl, entropy, ref_nats), columns, strict=True):
            grid[rows.cpu(), : chunk.response_mask.shape[1]] = to_grid(column, chunk.response_mask).cpu()
    return kl, entropy, ref_nats


def winners(policy: np.ndarray, reference: np.ndarray) -> list[str]:
    """Who has the higher gold score, row by row.

    >>> winners(np.array([2.0, 1.0, 0.0]), np.array([1.0, 1.0, 3.0]))
    ['policy', 'tie', 'reference']
    """
    names = np.array(["reference", "tie", "policy"])
    return [str(name) for name in names[(np.sign(policy - reference) + 1).astype(int)]]


def summarise(table: pd.DataFrame) -> dict[str, float]:
    """The ``eval/*`` metrics of one trial; definitions in pipeline/metrics.py."""
    tokens = float(table["policy_length"].sum())
    wins, ties = (table["winner"] == "policy").mean(), (table["winner"] == "tie").mean()
    win_rate = float(wins + ties / 2)
    low, high = wilson(win_rate, len(table))
    words = [completion.split() for completion in table["policy_completion"]]
    summary = {
        "eval/win_rate": win_rate,
        "eval/win_rate_low": low,
        "eval/win_rate_high": high,
        "eval/tie_rate": ties,
        "eval/gold": table["policy_gold"].mean(),
        "eval/gold_reference": table["reference_gold"].mean(),
        "eval/proxy": table["policy_proxy"].mean(),
        "eval/proxy_reference": table["reference_proxy"].mean(),
        "eval/kl_per_token": table["kl"].sum() / tokens,
        "eval/kl_per_sequence": table["kl"].mean(),
        "eval/entropy": table["entropy"].sum() / tokens,
        "eval/distinct_1": distinct(words, 1),
        "eval/distinct_2": distinct(words, 2),
        "eval/length": table["policy_length"].mean(),
        "eval/eos_rate": table["policy_eos"].mean(),
        # exp is capped so that a collapsed policy gives a number that files and plots can hold.
        "eval/ppl_reference": math.exp(min(table["reference_nats"].sum() / tokens, 50.0)),
        **{f"eval/{name.removeprefix('policy_')}": table[name].mean() for name in table.columns if name.startswith("policy_reward/")},
    }
    return {key: float(value) for key, value in summary.items()}


def distinct(words: Iterable[Sequence[str]], n: int) -> float:
    """Different n-grams / n-grams over all completions (Li 2016); 0 where there is none.

    >>> distinct([["a", "b", "a"], ["a", "b"]], 2)
    0.6666666666666666
    """
    grams = [tuple(row[start : start + n]) for row in words for start in range(len(row) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
