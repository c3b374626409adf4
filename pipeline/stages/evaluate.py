"""Stage 6: the policy's answers to held-out prompts against all draws of the reference's, by the gold judge.

Both are drawn with independent noise (`pipeline.stages.heldout`). With `evaluate.best_of` above 1 the policy answers
with the best of so many samples by the training reward (`pipeline.stages.best_of`). Beside the answers, both networks
are measured on held-out texts (`pipeline.stages.perplexity`). Writes ``prompts.parquet`` (a row per prompt),
``samples.parquet`` (its first rows) and ``summary.json``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.config.rewards import GUARDED
from pipeline.config.trial import TrialConfig
from pipeline.data.endings import circle
from pipeline.intervals import grouped
from pipeline.models.loading import CausalLM, device_of, freeze, load_snapshot
from pipeline.models.meter import meter
from pipeline.models.policy import Episodes, response_hidden, to_grid
from pipeline.models.precision import Precision
from pipeline.resources.ledger import Ledger
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.base import Completions
from pipeline.rewards.cycle import endings_of
from pipeline.rewards.fluency import faulty
from pipeline.run.layout import write_json
from pipeline.run.metrics import check_keys
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.stages.agreement import preferences
from pipeline.stages.best_of import Chosen, choose, kl_of_chosen
from pipeline.stages.common import PromptSet, further_judges, judge_of, reward_of, rollout_room
from pipeline.stages.heldout import Draws, answers, heldout_prompts
from pipeline.stages.new_actor import load_reference
from pipeline.stages.perplexity import heldout_texts, perplexity
from pipeline.stages.spending import spending
from pipeline.training.token_stats import token_stats

FloatGrid = NDArray[np.float64]
AFTER = 3
"""Steps after the answers: judging, drift, texts."""


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
    judge: Artifact | None = None,
) -> dict[str, Any]:
    """Judge one completion of the policy on every held-out prompt, and measure its drift from the reference."""
    device, steps = device_of(cfg.runtime.device), cfg.evaluate.best_of + AFTER
    ledger = Ledger(device.type == "cuda")
    # Only a choice among several answers is charged, so only then is its work recorded.
    with spending(out, device, ledger.cost if cfg.evaluate.best_of > 1 else dict):
        drawn = Draws.load(reference)
        data = heldout_prompts(cfg, prompts)
        texts = heldout_texts(prompts, data.tokenizer, cfg.evaluate.texts, cfg.sft.max_tokens)
        table, capability = _measured(cfg, reporter, data, texts, sft, reward, drawn, train, judge, device, ledger)
        summary = summarise(table, drawn.count) | capability | of_reward(reward)
        check_keys(summary)
        table.to_parquet(out / "prompts.parquet", index=False)
        table.head(cfg.evaluate.sample_rows).to_parquet(out / "samples.parquet", index=False)
        write_json(out / "summary.json", summary)
        reporter.progress("evaluate", steps, steps)
        return {"summary": summary, "prompts": len(table)}


def _measured(
    cfg: TrialConfig,
    reporter: Reporter,
    data: PromptSet,
    texts: list[list[int]],
    sft: Artifact,
    reward: Artifact,
    drawn: Draws,
    train: Artifact,
    judge: Artifact | None,
    device: torch.device,
    ledger: Ledger,
) -> tuple[pd.DataFrame, dict[str, float]]:
    """The rows of ``prompts.parquet``, and the perplexities on `texts`. Raises `MemoryFull`."""
    room, first, draws = rollout_room(cfg.runtime, reporter.warn), cfg.evaluate.first_prompt, cfg.evaluate.best_of
    policy = freeze(load_snapshot(train.path / "policy", device))
    chosen = _answered(cfg, reporter, policy, data, reward, device, room, ledger)
    mine = chosen.answers
    reporter.progress("evaluate", draws, draws + AFTER, "judging")
    further, proxy = further_judges(cfg.gold, device, room), chosen.proxy.double().numpy()
    gold_judge = judge_of(cfg.gold, device, room, judge)
    gold, endings = gold_judge(mine).double().numpy(), endings_of(gold_judge, mine)
    ahead = 0.0 if endings is None else circle(endings.double().numpy()[:, None], drawn.grid("ending"))
    reporter.progress("evaluate", draws + 1, draws + AFTER, "drift")
    reference = freeze(load_reference(sft, cfg.adapter.quantize, device))
    with Precision.of(device).autocast():
        kl, entropy, ref_nats, log_ratios = drift(policy, reference, mine.episodes, cfg.evaluate.temperature, room)
    # Summed over the vocabulary, a KL is that of the network: a chosen answer is not one of its samples.
    own_kl = kl.sum(1).double() if draws == 1 else kl_of_chosen(draws, log_ratios)
    reporter.progress("evaluate", draws + 2, draws + AFTER, "texts")
    capability = {
        "eval/perplexity_texts": perplexity(policy, texts, room),
        "eval/perplexity_texts_reference": perplexity(reference, texts, room),
    }
    table = pd.DataFrame(
        {
            "prompt_id": range(first, first + len(data.texts)),
            "prompt": data.texts,
            "policy_completion": mine.texts,
            "policy_gold": gold,
            "policy_proxy": proxy,
            "policy_length": mine.episodes.lengths.cpu().numpy(),
            "policy_eos": mine.episodes.ended.cpu().numpy(),
            **({} if endings is None else {"policy_ending": endings.double().numpy()}),
            **preferences(gold, drawn.grid("gold"), proxy, drawn.grid("proxy"), ahead),
            **of_reference(drawn),
            **(of_faults(gold, drawn.grid("gold")) if cfg.gold.kind == GUARDED else {}),
            "kl": own_kl.numpy(),
            "entropy": entropy.sum(1).double().numpy(),
            "reference_nats": ref_nats.sum(1).double().numpy(),
            **{f"policy_reward/{name}": part.double().numpy() for name, part in chosen.parts.items()},
            **{f"policy_gold/{name}": one(mine).double().numpy() for name, one in further.items()},
        }
    )
    return table, capability


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
        reporter.progress("evaluate", number, draws + AFTER, "sampling")
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


def of_faults(gold: FloatGrid, reference: FloatGrid) -> dict[str, FloatGrid]:
    """Columns of a guarded judge: whether the policy's answers (n,) have a fault, and which share of the reference's
    draws (n, draws)."""
    return {"policy_faulty": faulty(gold), "reference_faulty": faulty(reference).mean(1)}


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
    tokens, decided = float(table["policy_length"].sum()), float(table["decided"].sum())
    words = [completion.split() for completion in table["policy_completion"]]
    summary = {
        **_rate("eval/win_rate", table["win"], draws),
        **_rate("eval/win_rate_proxy", table["win_proxy"], draws),
        # Undefined where the judge decides no pair: no key, since files hold no NaN.
        **({"eval/preference_accuracy": table["agree"].sum() / decided} if decided else {}),
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
        **{
            f"eval/fault_rate{suffix}": table[column].mean()
            for suffix, column in (("", "policy_faulty"), ("_reference", "reference_faulty"))
            if column in table
        },
        # exp is capped so that a collapsed policy gives a number that files and plots can hold.
        "eval/ppl_reference": math.exp(min(table["reference_nats"].sum() / tokens, 50.0)),
        **{
            f"eval/{name.removeprefix('policy_')}": table[name].mean()
            for name in table.columns
            if name.startswith(("policy_reward/", "policy_gold/"))
        },
        **{
            f"eval/gold_reference/{name.removeprefix('reference_gold/')}": table[name].mean()
            for name in table.columns
            if name.startswith("reference_gold/")
        },
    }
    return {key: float(value) for key, value in summary.items()}


def of_reward(reward: Artifact) -> dict[str, float]:
    """How well the reward model agrees with the judge on held-out pairs, of a reward that is one trained model."""
    known = reward.meta.get("heldout_pairs_differing", 0)
    return {"eval/reward_accuracy": float(reward.meta["accuracy_gold"])} if known else {}


def _rate(key: str, won: pd.Series, draws: int) -> dict[str, float]:
    """A win rate and the ends of its 95 % interval over prompts, from the share of `draws` draws that was beaten at
    each."""
    found = grouped(won.to_numpy() * draws, np.full(len(won), draws))
    return dict(zip((key, f"{key}_low", f"{key}_high"), found, strict=True))


def distinct(words: Iterable[Sequence[str]], n: int) -> float:
    """Different n-grams / n-grams over all completions (Li 2016); 0 where there is none.

    >>> distinct([["a", "b", "a"], ["a", "b"]], 2)
    0.6666666666666666
    """
    grams = [tuple(row[start : start + n]) for row in words for start in range(len(row) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
