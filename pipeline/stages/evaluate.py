"""Stage 6: the policy's answers to held-out prompts against all draws of the reference's, by the gold judge.

Both are drawn with independent noise (`pipeline.stages.heldout`). With `evaluate.best_of` above 1 the policy answers
with the best of so many samples by the training reward (`pipeline.stages.best_of`). Writes ``prompts.parquet`` (a row
per prompt), ``samples.parquet`` (its first rows) and ``summary.json``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.config.trial import TrialConfig
from pipeline.intervals import grouped
from pipeline.models.loading import CausalLM, device_of, freeze, load_snapshot
from pipeline.models.meter import meter
from pipeline.models.policy import Episodes, response_hidden, to_grid
from pipeline.models.precision import Precision
from pipeline.resources.ledger import Ledger
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.base import Completions
from pipeline.run.layout import write_json
from pipeline.run.metrics import check_keys
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.stages.best_of import Chosen, choose, kl_of_chosen
from pipeline.stages.common import PromptSet, judge_of, reward_of, rollout_room
from pipeline.stages.heldout import Draws, answers, heldout_prompts, shares
from pipeline.stages.new_actor import load_reference
from pipeline.stages.spending import spending
from pipeline.training.token_stats import token_stats


def evaluate(
    cfg: TrialConfig,
    out: Path,
    reporter: Reporter,
    *,
    prompts: Artifact,
    sft: Artifact,
    reward: Artifact,
    reference: Artifact,
    train: Artifact,
) -> dict[str, Any]:
    """Judge one completion of the policy on every held-out prompt, and measure its drift from the reference."""
    device, steps = device_of(cfg.runtime.device), cfg.evaluate.best_of + 2
    ledger = Ledger(device.type == "cuda")
    # Only a choice among several answers is charged, so only then is its work recorded.
    with spending(out, device, ledger.cost if cfg.evaluate.best_of > 1 else dict):
        drawn = Draws.load(reference)
        table = _table(cfg, reporter, heldout_prompts(cfg, prompts), sft, reward, drawn, train, device, ledger)
        summary = summarise(table, drawn.count)
        check_keys(summary)
        table.to_parquet(out / "prompts.parquet", index=False)
        table.head(cfg.evaluate.sample_rows).to_parquet(out / "samples.parquet", index=False)
        write_json(out / "summary.json", summary)
        reporter.progress("evaluate", steps, steps)
        return {"summary": summary, "prompts": len(table)}


def _table(
    cfg: TrialConfig,
    reporter: Reporter,
    data: PromptSet,
    sft: Artifact,
    reward: Artifact,
    drawn: Draws,
    train: Artifact,
    device: torch.device,
    ledger: Ledger,
) -> pd.DataFrame:
    room, first, draws = rollout_room(cfg.runtime, reporter.warn), cfg.evaluate.first_prompt, cfg.evaluate.best_of
    policy = freeze(load_snapshot(train.path / "policy", device))
    chosen = _answered(cfg, reporter, policy, data, reward, device, room, ledger)
    mine = chosen.answers
    reporter.progress("evaluate", draws, draws + 2, "judging")
    gold = judge_of(cfg.gold, device, room)(mine).double().numpy()
    win, tie = shares(gold, drawn.grid("gold"))
    reporter.progress("evaluate", draws + 1, draws + 2, "drift")
    reference = freeze(load_reference(sft, cfg.adapter.quantize, device))
    with Precision.of(device).autocast():
        kl, entropy, ref_nats, log_ratios = drift(policy, reference, mine.episodes, cfg.evaluate.temperature, room)
    # Summed over the vocabulary, a KL is that of the network: a chosen answer is not one of its samples.
    own_kl = kl.sum(1).double() if draws == 1 else kl_of_chosen(draws, log_ratios)
    return pd.DataFrame(
        {
            "prompt_id": range(first, first + len(data.texts)),
            "prompt": data.texts,
            "policy_completion": mine.texts,
            "policy_gold": gold,
            "policy_proxy": chosen.proxy.double().numpy(),
            "policy_length": mine.episodes.lengths.cpu().numpy(),
            "policy_eos": mine.episodes.ended.cpu().numpy(),
            "win": win,
            "tie": tie,
            **of_reference(drawn),
            "kl": own_kl.numpy(),
            "entropy": entropy.sum(1).double().numpy(),
            "reference_nats": ref_nats.sum(1).double().numpy(),
            **{f"policy_reward/{name}": part.double().numpy() for name, part in chosen.parts.items()},
        }
    )


def _answered(
    cfg: TrialConfig,
    reporter: Reporter,
    policy: CausalLM,
    data: PromptSet,
    reward: Artifact,
    device: torch.device,
    room: Room,
    ledger: Ledger,
) -> Chosen:
    """The policy's answers, and what choosing them took in `ledger`. Raises `MemoryFull`."""
    proxy, draws = reward_of(reward, device, room), cfg.evaluate.best_of
    if draws > 1:
        meter([policy, *proxy.networks], ledger.work)

    def draw(number: int) -> Completions:
        reporter.progress("evaluate", number, draws + 2, "sampling")
        with ledger.timed("generate"):
            return answers(cfg, policy, data, device, room, "policy", *([number] if number else []))

    def score(drawn: Completions) -> tuple[Tensor, Mapping[str, Tensor]]:
        with ledger.timed("score"):
            return proxy.explained(drawn)

    chosen = choose(draws, draw, score)
    ledger.generated_tokens = chosen.sampled_tokens
    return chosen


def of_reference(drawn: Draws) -> dict[str, Any]:
    """Columns of the reference: means over its draws, the spread of their gold scores, and the first one as an
    example."""
    gold = drawn.grid("gold")
    return {
        "reference_gold": gold.mean(1),
        "reference_gold_std": gold.std(1),
        "reference_proxy": drawn.grid("proxy").mean(1),
        "reference_length": drawn.grid("length").mean(1),
        "reference_eos": drawn.grid("eos").mean(1),
        "reference_completion": drawn.first("completion"),
        "reference_completion_gold": drawn.first("gold"),
        "reference_completion_proxy": drawn.first("proxy"),
        **{f"reference_{part}": drawn.grid(part).mean(1) for part in drawn.parts},
    }


@torch.inference_mode()
def drift(
    policy: CausalLM, reference: CausalLM, episodes: Episodes, temperature: float, room: Room
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Exact KL to the reference, entropy of the policy, and of the token that stands there -log ref and log π - log
    ref; each (B, T) on the CPU, nats.

    Raises `MemoryFull`.
    """
    kl, entropy, ref_nats, log_ratios = torch.zeros(4, *episodes.response_mask.shape)

    def fill(rows: Tensor, chunk: Episodes) -> None:
        hidden, ref_hidden = response_hidden(policy, chunk), response_hidden(reference, chunk)
        stats = token_stats(policy, hidden, reference, ref_hidden, chunk.labels, temperature)
        columns = (stats.kl, stats.entropy, -stats.ref_logprobs, stats.logprobs - stats.ref_logprobs)
        for grid, column in zip((kl, entropy, ref_nats, log_ratios), columns, strict=True):
            grid[rows.cpu(), : chunk.response_mask.shape[1]] = to_grid(column, chunk.response_mask).cpu()

    episodes.by_length(room, fill)
    return kl, entropy, ref_nats, log_ratios


def summarise(table: pd.DataFrame, draws: int) -> dict[str, float]:
    """The ``eval/*`` metrics of one trial, whose policy was compared with `draws` draws a prompt; see
    pipeline/run/metrics.py."""
    tokens = float(table["policy_length"].sum())
    win_rate, low, high = grouped(table["win"].to_numpy() * draws, np.full(len(table), draws))
    words = [completion.split() for completion in table["policy_completion"]]
    summary = {
        "eval/win_rate": win_rate,
        "eval/win_rate_low": low,
        "eval/win_rate_high": high,
        "eval/tie_rate": table["tie"].mean(),
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
        **{
            f"eval/{name.removeprefix('policy_')}": table[name].mean()
            for name in table.columns
            if name.startswith("policy_reward/")
        },
    }
    return {key: float(value) for key, value in summary.items()}


def distinct(words: Iterable[Sequence[str]], n: int) -> float:
    """Different n-grams / n-grams over all completions (Li 2016); 0 where there is none.

    >>> distinct([["a", "b", "a"], ["a", "b"]], 2)
    0.6666666666666666
    """
    grams = [tuple(row[start : start + n]) for row in words for start in range(len(row) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
