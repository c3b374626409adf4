"""Rankings of several answers for the reward stage, in place of pairs: sampled from the reference and judged with
noise, or given. Held-out pairs stay pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pipeline.config.rewards import RewardConfig
from pipeline.data.preferences import read_rankings
from pipeline.data.text_episodes import text_episodes
from pipeline.models.seeding import uniforms
from pipeline.rewards.base import Completions, Reward
from pipeline.rewards.rankings import Ranked, best_first, comparisons
from pipeline.stages.common import PromptSet
from pipeline.stages.preference_pairs import Gold, Pairs, some, split_prompts


def judged_rankings(
    answers: Callable[[Tensor, str, int], Completions], judge: Reward, prompts: int, cfg: RewardConfig
) -> tuple[Pairs, Gold, float]:
    """As `pipeline.stages.preference_pairs.judged_pairs`, but a noisy judge puts `cfg.ranked` answers to each training
    prompt in order."""
    rows = split_prompts(prompts, cfg)
    train, heldout = rows[: cfg.rankings].repeat_interleave(cfg.ranked), rows[cfg.pairs :].repeat_interleave(2)
    drawn = answers(torch.cat([train, heldout]), "rankings", cfg.pairs_seed)
    points = judge(drawn)
    temperature = cfg.label_noise * float(points.std(correction=0))
    noise = uniforms(len(points), 1, cfg.pairs_seed, "labels of rankings").squeeze(1)

    def ordered(part: slice, width: int) -> Tensor:
        places = best_first(points[part].view(-1, width), temperature, noise[part].view(-1, width))
        return torch.arange(len(points))[part].view(-1, width).gather(1, places)

    best, won = ordered(slice(len(train)), cfg.ranked), ordered(slice(len(train), None), 2)
    shown = torch.arange(len(train), len(points)).view(-1, 2)
    pairs, sides = _pairs(drawn, best, shown, won[:, 0] == shown[:, 0])
    return pairs, Gold(points[sides[0]], points[sides[1]]), temperature


def given_rankings(source: str, key: str, data: PromptSet, cfg: RewardConfig, device: torch.device) -> Pairs:
    """Rankings of the user's file, as many as are asked for and there; those held out are compared pair by pair. Raises
    `UserError` for what is no such file."""
    frame, note = read_rankings(Path(source), key, cfg.ranked)
    train = some(frame[~frame["heldout"]], cfg.rankings, cfg.pairs_seed)
    heldout = some(frame[frame["heldout"]], max(cfg.heldout_pairs // cfg.comparisons, 1), cfg.pairs_seed)
    texts = [text for part in (train, heldout) for completions in part["completions"] for text in completions]
    prompts = [prompt for part in (train, heldout) for prompt in part["prompt"] for _ in range(cfg.ranked)]
    written = Completions(text_episodes(data.tokenizer, prompts, texts, cfg.max_tokens, device), prompts, texts)
    places = torch.arange(len(texts)).view(-1, cfg.ranked)
    better, worse = comparisons(places[len(train) :])
    shown = torch.stack([better.flatten(), worse.flatten()], dim=1)
    pairs, _ = _pairs(written, places[: len(train)], shown, torch.ones(len(shown), dtype=torch.bool), note)
    return replace(pairs, groups=[group for group in heldout["group"] for _ in range(cfg.comparisons)])


def _pairs(
    answers: Completions, best: Tensor, shown: Tensor, first_wins: Tensor, note: str = ""
) -> tuple[Pairs, tuple[Tensor, Tensor]]:
    """All comparisons of rankings `best` (n, K), and the held-out pairs `shown` (m, 2), of rows of `answers`; and the
    rows of both sides."""
    better, worse = (side.flatten() for side in comparisons(best))
    first, second = torch.cat([better, shown[:, 0]]), torch.cat([worse, shown[:, 1]])
    wins = torch.cat([torch.ones(len(better), dtype=torch.bool), first_wins])
    columns = [answers.episodes.take(best[:, place]) for place in range(best.shape[1])]
    ranked = Ranked(columns, torch.arange(best.shape[1]).expand_as(best))
    return Pairs(answers.take(first), answers.take(second), wins, len(better), note, ranked), (first, second)
