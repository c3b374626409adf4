"""Stage 4: the reference's answers to the held-out prompts, k draws a prompt, scored once for all trials.

Writes ``draws.parquet`` (prompt_id, draw, prompt, completion, gold, proxy, length, eos, and ``reward/<part>`` of a
composite, ``gold/<judge>`` of further judges, ending of a cyclic judge, and ``mark/right`` and ``mark/worked`` where
answers can be checked; the draws of one prompt next to each other)
and ``summary.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config.trial import TrialConfig
from pipeline.intervals import student
from pipeline.models.loading import freeze
from pipeline.models.process import bench
from pipeline.rewards.grammar import endings_of
from pipeline.rewards.scorers import further_judges, judge_of, reward_of
from pipeline.run.layout import write_json
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.stages.checked import marks_of_draws
from pipeline.stages.heldout import DRAWS, Draws, answers, heldout_prompts
from pipeline.training.new_actor import load_reference


def reference(
    cfg: TrialConfig,
    out: Path,
    reporter: Reporter,
    *,
    prompts: Artifact,
    sft: Artifact,
    reward: Artifact,
    judge: Artifact | None = None,
) -> dict[str, Any]:
    """Draw and score `evaluate.reference_draws` answers of the reference to every held-out prompt."""
    with bench(cfg.runtime, out, reporter.warn) as at:
        device, room, count = at.device, at.room, cfg.evaluate.reference_draws
        data = heldout_prompts(cfg, prompts)
        model = freeze(load_reference(sft, cfg.adapter.quantize, device))
        further = further_judges(cfg.gold, device, room)
        gold, proxy = judge_of(cfg.gold, device, room, judge), reward_of(reward, device, room)
        tables = []
        for draw in range(count):
            reporter.progress("reference", draw, count, "sampling and judging")
            drawn = answers(cfg, model, data, room, "reference", draw)
            scores, parts = proxy.explained(drawn)
            columns = {
                "prompt_id": range(cfg.evaluate.first_prompt, cfg.evaluate.first_prompt + len(data.texts)),
                "draw": draw,
                "prompt": data.texts,
                "completion": drawn.texts,
                "gold": gold(drawn).double().numpy(),
                "proxy": scores.double().numpy(),
                "length": drawn.episodes.lengths.cpu().numpy(),
                "eos": drawn.episodes.ended.cpu().numpy(),
            }
            if (endings := endings_of(gold, drawn)) is not None:
                columns["ending"] = endings.double().numpy()
            columns |= marks_of_draws(gold, drawn)
            columns |= {f"reward/{name}": part.double().numpy() for name, part in parts.items()}
            columns |= {f"gold/{name}": one(drawn).double().numpy() for name, one in further.items()}
            tables.append(pd.DataFrame(columns))
        table = pd.concat(tables).sort_values(["prompt_id", "draw"], ignore_index=True)
        table.to_parquet(out / DRAWS, index=False)
        summary = summarise(Draws(table, count))
        write_json(out / "summary.json", summary)
        reporter.progress("reference", count, count)
        half = summary["gold_high"] - summary["gold"]
        note = f"gold {summary['gold']:.3f} ± {half:.3f} judge points, {len(data.texts)} prompts, {count} draws each"
        return {"note": note, "draws": count, **summary}


def summarise(draws: Draws) -> dict[str, float]:
    """Means over all draws, with 95 % intervals over prompts, and the spread of single draws."""
    summary: dict[str, float] = {"prompts": float(len(draws.grid("gold"))), "draws_per_prompt": float(draws.count)}
    for name in ("gold", "proxy"):
        grid = draws.grid(name)
        mean, low, high = student(grid.mean(1))
        summary[name] = mean
        if len(grid) > 1:
            summary |= {f"{name}_low": low, f"{name}_high": high}
        summary[f"{name}_std"] = float(grid.std())
    return summary | {"length": float(draws.grid("length").mean()), "eos_rate": float(draws.grid("eos").mean())}
