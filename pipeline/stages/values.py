"""Samples of the reference on the training prompts, scored once for all trials whose algorithm needs them.

Writes ``samples.parquet``, a row for each sample (prompt_id, draw, proxy, length, eos, tokens), with scores before EOS
handling, so that knobs of the algorithm and the rules for a missing EOS can change without another sample; and
``summary.json``. A prompt is named by its number in the prompts' artifact, never by its text, which may occur twice;
its draws stand next to each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from pipeline.config.trial import TrialConfig
from pipeline.data.prompt_set import PromptSet
from pipeline.models.loading import freeze
from pipeline.models.meter import meter
from pipeline.models.precision import Precision
from pipeline.models.process import bench
from pipeline.models.seeding import uniforms
from pipeline.rewards.base import sampled
from pipeline.rewards.scorers import reward_of
from pipeline.run.layout import write_json
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.training.new_actor import load_reference

SAMPLES = "samples.parquet"


def values(
    cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact, sft: Artifact, reward: Artifact
) -> dict[str, Any]:
    """Draw `values.samples` responses of the reference to every training prompt, and score them with the proxy."""
    with bench(cfg.runtime, out, reporter.warn) as at:
        device, room, ledger, count = at.device, at.room, at.ledger, cfg.values.samples
        data, tables = PromptSet.load(prompts, "train"), []
        model, proxy = freeze(load_reference(sft, cfg.adapter.quantize, device)), reward_of(reward, device, room)
        meter([model, *proxy.networks], ledger.work)
        n = len(data.texts)
        for draw in range(count):
            reporter.progress("values", draw * n, count * n, "sampling and scoring")
            # Noise of its own, so that a draw does not depend on how many there are.
            noise = uniforms(n, cfg.train.response_length, 0, "values", draw)
            with ledger.timed("generate"):
                drawn = sampled(model, data, noise, cfg.train.temperature, room)
            with ledger.timed("score"), torch.no_grad(), Precision.of(device).autocast():
                scores, episodes = proxy.explained(drawn)[0], drawn.episodes
            lengths, responses = episodes.lengths.cpu().numpy(), episodes.responses.cpu().numpy().astype(np.int32)
            columns = {
                "prompt_id": range(n),
                "draw": draw,
                "proxy": scores.numpy(),
                "length": lengths,
                "eos": episodes.ended.cpu().numpy(),
                "tokens": [response[:length] for response, length in zip(responses, lengths, strict=True)],
            }
            tables.append(pd.DataFrame(columns))
        table = pd.concat(tables).sort_values(["prompt_id", "draw"], ignore_index=True)
        table.to_parquet(out / SAMPLES, index=False)
        proxies = table["proxy"].to_numpy().reshape(n, count)
        ledger.generated_tokens = int(table["length"].sum())
        summary = {
            "prompts": n,
            "samples_per_prompt": count,
            "generated_tokens": ledger.generated_tokens,
            "proxy": float(proxies.mean()),
            "proxy_std": float(proxies.std()),
            "proxy_std_within_prompts": float(proxies.std(axis=1).mean()),
            "length": float(table["length"].mean()),
            "eos_rate": float(table["eos"].mean()),
        }
        write_json(out / "summary.json", summary)
        note = f"{count} samples of each of {n} training prompts, proxy {summary['proxy']:.3f}"
        return {"note": note, "samples": count, **summary}


def read_scores(values: Artifact) -> dict[str, NDArray[Any]]:
    """proxy, length and eos of all samples, (n, N) each, for n training prompts."""
    names, draws = ("proxy", "length", "eos"), int(values.meta["samples"])
    table = pd.read_parquet(values.path / SAMPLES, columns=list(names))
    return {name: table[name].to_numpy().reshape(-1, draws) for name in names}
