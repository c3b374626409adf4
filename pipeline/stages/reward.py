"""Stage 3: the training reward (proxy), from preferences of the gold judge or from a lexicon, calibrated.

Writes ``pairs.parquet`` (prompt, first, second, gold_first, gold_second, first_wins, heldout),
``reference_samples.parquet`` (prompt, completion, proxy, gold, source: `calibration` or `pair`; nothing that the proxy
was trained on), the model where one is learned, and ``summary.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipeline.artifacts import Artifact
from pipeline.config import TrialConfig
from pipeline.layout import write_json
from pipeline.models.generation import sample
from pipeline.models.loading import CausalLM, device_of, freeze, load_snapshot
from pipeline.models.policy import Episodes
from pipeline.models.seeding import uniforms
from pipeline.reporter import Reporter
from pipeline.rewards.base import Completions, Reward, calibration
from pipeline.rewards.learned import LearnedReward, new_reward_model, train_reward_model
from pipeline.rewards.lexicon import LexiconReward
from pipeline.stages.common import PromptSet, judge_of


@dataclass(frozen=True)
class Scored:
    """Completions with the uncalibrated proxy's scores and the judge's, (n,) each."""

    completions: Completions
    raw: Tensor
    gold: Tensor


def reward(cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact, sft: Artifact) -> dict[str, Any]:
    """Make the proxy, measure it against held-out preferences, set its scale on reference samples."""
    device = device_of(cfg.runtime.device)
    reference: CausalLM = freeze(load_snapshot(sft.path / "model", device))
    data = PromptSet.load(prompts, "train")
    gold = judge_of(cfg.judge)
    summary: dict[str, Any] = {"kind": cfg.reward.kind, "judge": cfg.judge}
    raw: Reward = LexiconReward()
    unseen: list[Scored] = []
    if cfg.reward.kind == "learned":
        raw, accuracy, unseen = _learn(cfg, out, reporter, reference, data, gold, sft, device)
        summary |= accuracy
    samples = _answers(cfg, reference, data, cfg.reward.calibration_samples, device, "calibration")
    scores, golden = raw(samples), gold(samples)
    mean, std = calibration(scores)
    proxy = (scores - mean) / std
    summary |= {
        "calibration_mean": mean,
        "calibration_std": std,
        "gold_reference": float(golden.mean()),
        "correlation_gold": float(torch.corrcoef(torch.stack([proxy, golden]))[0, 1].nan_to_num()),
        "reference_samples": len(samples.texts),
    }
    tables = [_scored("calibration", Scored(samples, scores, golden), mean, std), *(_scored("pair", one, mean, std) for one in unseen)]
    pd.concat(tables).to_parquet(out / "reference_samples.parquet", index=False)
    write_json(out / "summary.json", summary)
    return summary


def _scored(source: str, scored: Scored, mean: float, std: float) -> pd.DataFrame:
    prompts, texts = scored.completions.prompts, scored.completions.texts
    proxy, gold = ((scored.raw - mean) / std).tolist(), scored.gold.tolist()
    return pd.DataFrame({"prompt": prompts, "completion": texts, "proxy": proxy, "gold": gold, "source": source})


def _answers(cfg: TrialConfig, reference: CausalLM, data: PromptSet, n: int, device: torch.device, label: str) -> Completions:
    """`n` reference samples, going round the prompts as often as needed."""
    rows = torch.arange(n) % len(data.texts)
    noise = uniforms(n, cfg.ppo.response_length, cfg.reward.seed, label)
    episodes = sample(
        reference,
        data.ids[rows].to(device),
        data.mask[rows].to(device),
        noise,
        temperature=cfg.ppo.temperature,
        batch=cfg.runtime.rollout_batch_size,
        **data.token_ids,
    )
    return Completions.of(data.tokenizer, episodes, [data.texts[row] for row in rows.tolist()])


def _learn(
    cfg: TrialConfig, out: Path, reporter: Reporter, reference: CausalLM, data: PromptSet, gold: Reward, sft: Artifact, device: torch.device
) -> tuple[LearnedReward, dict[str, float], list[Scored]]:
    settings = cfg.reward
    n = settings.pairs + settings.heldout_pairs
    reporter.progress("reward", 0, 1, f"sampling {n} pairs")
    first, second = (_answers(cfg, reference, data, n, device, label) for label in ("first", "second"))
    gold_first, gold_second = gold(first), gold(second)
    temperature = settings.label_noise * float(torch.cat([gold_first, gold_second]).std(correction=0))
    wins = prefer(gold_first, gold_second, temperature, uniforms(n, 1, settings.seed, "labels").squeeze(1))
    model = new_reward_model(load_snapshot(sft.path / "model", device), settings.seed, device)
    train = slice(settings.pairs)

    def progress(done: int, total: int, loss: float) -> None:
        if done % 10 == 0 or done == total:
            reporter.progress("reward", done, total, f"loss {loss:.3f}")

    train_reward_model(model, first.episodes.take(train), second.episodes.take(train), wins[train], settings, progress)
    freeze(model).save(out)
    learned = LearnedReward(model, cfg.runtime.rollout_batch_size)
    table = {
        "prompt": first.prompts,
        "first": first.texts,
        "second": second.texts,
        "gold_first": gold_first.tolist(),
        "gold_second": gold_second.tolist(),
        "first_wins": wins.tolist(),
        "heldout": [index >= settings.pairs for index in range(n)],
    }
    pd.DataFrame(table).to_parquet(out / "pairs.parquet", index=False)
    kept = slice(settings.pairs, n)
    both = (_some(first, kept), gold_first[kept]), (_some(second, kept), gold_second[kept])
    unseen = [Scored(completions, learned(completions), judged) for completions, judged in both]
    margin, gap = unseen[0].raw - unseen[1].raw, unseen[0].gold - unseen[1].gold
    return learned, accuracy(margin, gap, wins[kept]), unseen


def _some(completions: Completions, rows: slice) -> Completions:
    episodes: Episodes = completions.episodes.take(rows)
    return Completions(episodes, completions.prompts[rows], completions.texts[rows])


def prefer(gold_first: Tensor, gold_second: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """Which completion a noisy annotator prefers: P(first) = sigmoid((gold_first - gold_second) / temperature).

    All (n,), noise in [0, 1); returns (n,) bool. Temperature 0 is the judge himself; equal scores are a toss.
    """
    gap = gold_first - gold_second
    certain = torch.where(gap == 0, 0.5, (gap > 0).float())
    return noise < (torch.sigmoid(gap / temperature) if temperature > 0 else certain)


def accuracy(margin: Tensor, gap: Tensor, wins: Tensor) -> dict[str, float]:
    """Agreement of the proxy's margin with noisy labels, and with the judge where the judge sees a difference."""
    differ = gap != 0
    return {
        "accuracy": float(((margin > 0) == wins).float().mean()),
        "accuracy_gold": float(((margin > 0) == (gap > 0))[differ].float().mean().nan_to_num(0.5)),
        "label_agreement": float((wins == (gap > 0))[differ].float().mean().nan_to_num(0.5)),
        "heldout_pairs": float(len(margin)),
        "heldout_pairs_differing": float(differ.sum()),
    }
