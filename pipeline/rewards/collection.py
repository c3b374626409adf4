"""Training data of a reward: pairs or rankings of answers, sampled and judged with noise, or given; all at once or in
rounds. Held-out pairs stay pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.data.preferences import read_preferences
from pipeline.data.prompt_set import PromptSet, text_episodes
from pipeline.data.semantics import circle
from pipeline.errors import UserError
from pipeline.intervals import grouped
from pipeline.models.seeding import permutation, uniforms
from pipeline.rewards.base import Completions, Reward
from pipeline.rewards.grammar import endings_of
from pipeline.rewards.rankings import Ranked, best_first, comparisons
from pipeline.rewards.settings import RewardConfig

TEMPERATURE = "label_temperature"
"""Key of the summary: what the judge's differences are divided by, in judge points."""


@dataclass(frozen=True)
class Collection:
    """Round `number` of `count` in which pairs are collected."""

    number: int = 1
    count: int = 1
    temperature: float | None = None
    """Temperature of the labels in the first round, in judge points; None in the first."""
    earlier: Path | None = None
    """Folder of the pairs of the rounds before, from which this round learns as well; None where it does not."""

    def label(self, name: str) -> str:
        """The name of a stream of noise; each round has its own."""
        return name if self.number == 1 else f"{name}, round {self.number}"

    def rows(self, rows: Tensor, cfg: RewardConfig) -> Tensor:
        """The prompts of this round's pairs: its share of those to train on, (pairs / count,), then all held-out ones.

        No prompt that a round holds out is one that another round trains on.
        """
        each = cfg.learned.pairs // self.count
        return torch.cat([rows[(self.number - 1) * each : self.number * each], rows[cfg.learned.pairs :]])


ONCE = Collection()
"""All pairs at once, of the reference."""

Gold = Mapping[str, Tensor]
"""A judge's verdicts on both answers of n pairs, by column of ``pairs.parquet``: points as ``gold_first`` and
``gold_second``, and of a cyclic judge ``ending_first`` and ``ending_second``; (n,) each."""


def judged(judge: Reward, first: Completions, second: Completions) -> Gold:
    """Judge both answers of each pair."""
    gold = {"gold_first": judge(first), "gold_second": judge(second)}
    endings = {f"ending_{side}": endings_of(judge, rows) for side, rows in (("first", first), ("second", second))}
    return gold | {name: column for name, column in endings.items() if column is not None}


def lead(gold: Gold) -> Tensor | float:
    """Return the part of the endings in the difference of the points, (n,); 0 without endings."""
    return circle(gold["ending_first"], gold["ending_second"]) if "ending_first" in gold else 0.0


def gap(gold: Gold) -> Tensor:
    """Return the judge's preference for the first answer over the second, (n,) points."""
    return gold["gold_first"] - gold["gold_second"] + lead(gold)


def spread(gold: Gold) -> float:
    """The scale of a judge on pairs of independent answers, in points: the unit of the annotators' noise.

    Without endings the standard deviation of the points, population form, over both answers. With endings
    √(mean gap² / 2), which is the standard deviation of a score whose differences were the gaps.
    """
    if "ending_first" in gold:
        return float((gap(gold).double() ** 2).mean().div(2).sqrt())
    return float(torch.cat([gold["gold_first"], gold["gold_second"]]).std(correction=0))


@dataclass(frozen=True)
class Pairs:
    """Row i of `first` and `second` are compared. The first `train` rows are for training, the others held out."""

    first: Completions
    second: Completions
    first_wins: Tensor
    """(n,) bool."""
    train: int
    ranked: Ranked
    """Training data of a reward model; the training pairs are its comparisons."""
    gold: Gold
    temperature: float = 0.0
    """Temperature of the labels, in judge points."""
    note: str = ""
    groups: Sequence[str] = ()
    """Names of the groups of held-out pairs, where these are not their prompts."""

    def table(self) -> pd.DataFrame:
        """One row per pair, with the judge's verdicts on both sides."""
        return pd.DataFrame(
            {
                "prompt": self.first.prompts,
                "first": self.first.texts,
                "second": self.second.texts,
                **{name: column.tolist() for name, column in self.gold.items()},
                "first_wins": self.first_wins.tolist(),
                "heldout": [index >= self.train for index in range(len(self.first_wins))],
            }
        )


def split_prompts(n: int, cfg: RewardConfig) -> Tensor:
    """Return the prompt of each pair, out of `n`, (pairs + heldout_pairs,) int64: no held-out pair has a prompt of a
    training pair.

    The last prompts are held out, the same share of them as of the pairs, and either side goes round its own prompts.
    Raises `UserError` for a single prompt.
    """
    if n < 2:
        raise UserError(
            f"{n} training prompt: judged pairs need at least 2, one to train on and one to hold out; raise"
            " data.train_prompts, or use more texts"
        )
    kept = min(max(round(n * cfg.learned.heldout_pairs / (cfg.learned.pairs + cfg.learned.heldout_pairs)), 1), n - 1)
    return torch.cat(
        [torch.arange(cfg.learned.pairs) % (n - kept), n - kept + torch.arange(cfg.learned.heldout_pairs) % kept]
    )


def judged_pairs(
    answers: Callable[[Tensor, str, int], Completions],
    judge: Reward,
    prompts: int,
    cfg: RewardConfig,
    part: Collection = ONCE,
) -> Pairs:
    """Two answers to a prompt, of the reference or of a later round's policy, labelled by a noisy judge; `prompts`: how
    many there are.

    An annotator does not grow more exact because the policy's answers grow alike, so all rounds have the temperature
    of the first.
    """
    rows = part.rows(split_prompts(prompts, cfg), cfg)
    first, second = (answers(rows, part.label(side), cfg.learned.pairs_seed) for side in ("first", "second"))
    gold = judged(judge, first, second)
    temperature = cfg.learned.label_noise * spread(gold) if part.temperature is None else part.temperature
    noise = uniforms(len(rows), 1, cfg.learned.pairs_seed, part.label("labels")).squeeze(1)
    wins = prefer(gold["gold_first"] + lead(gold), gold["gold_second"], temperature, noise)
    train = cfg.learned.pairs // part.count
    mine, other = (side.episodes.take(slice(train)) for side in (first, second))
    ranked = Ranked.of_pairs(mine, other, wins[:train])
    return Pairs(first, second, wins, train, ranked, gold, temperature)


def some(frame: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    """Draw at most `n` rows without replacement."""
    return frame.iloc[np.asarray(permutation(len(frame), seed, "given pairs")[:n])]


def prefer(gold_first: Tensor, gold_second: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """Draw a noisy annotator's preference: P(first) = sigmoid((gold_first - gold_second) / temperature).

    All (n,), noise in [0, 1); returns (n,) bool, true for the first. Temperature 0: no noise; equal scores are a toss.
    """
    gap = gold_first - gold_second
    certain = torch.where(gap == 0, 0.5, (gap > 0).float())
    return noise < (torch.sigmoid(gap / temperature) if temperature > 0 else certain)


def accuracy(margin: Tensor, gap: Tensor, wins: Tensor, prompts: Sequence[str]) -> dict[str, float]:
    """Agreement of the proxy's margin with the labels, and with the judge where the judge's gap is not 0; all (n,).

    Intervals of 95 % are over prompts (`pipeline.intervals.grouped`): pairs of one prompt are no independent evidence.
    """
    differ = gap != 0
    groups = torch.as_tensor(pd.factorize(np.asarray(prompts, dtype=object))[0])
    return {
        **_agreement("accuracy", (margin > 0) == wins, groups),
        **_agreement("accuracy_gold", ((margin > 0) == (gap > 0))[differ], groups[differ]),
        "heldout_prompts": float(len(set(prompts))),
        "label_agreement": float((wins == (gap > 0))[differ].float().mean().nan_to_num(0.5)),
        "heldout_pairs": float(len(margin)),
        "heldout_pairs_differing": float(differ.sum()),
    }


def _agreement(name: str, right: Tensor, groups: Tensor) -> dict[str, float]:
    """The rate of `right` (n,) with its interval over groups; 0.5 of nothing."""
    if not len(right):
        return {name: 0.5, f"{name}_low": 0.0, f"{name}_high": 1.0}
    sizes = groups.bincount()
    rate, low, high = grouped(groups.bincount(right.double())[sizes > 0].numpy(), sizes[sizes > 0].numpy())
    return {name: rate, f"{name}_low": low, f"{name}_high": high}


def judged_rankings(
    answers: Callable[[Tensor, str, int], Completions], judge: Reward, prompts: int, cfg: RewardConfig
) -> Pairs:
    """Collect pairs like `judged_pairs`, but a noisy judge puts `ranked` answers to each training prompt in order."""
    learned, rows = cfg.learned, split_prompts(prompts, cfg)
    train = rows[: learned.rankings].repeat_interleave(learned.ranked)
    drawn = answers(torch.cat([train, rows[learned.pairs :].repeat_interleave(2)]), "rankings", learned.pairs_seed)
    points = judge(drawn)
    temperature = learned.label_noise * float(points.std(correction=0))
    noise = uniforms(len(points), 1, learned.pairs_seed, "labels of rankings").squeeze(1)

    def ordered(part: slice, width: int) -> Tensor:
        places = best_first(points[part].view(-1, width), temperature, noise[part].view(-1, width))
        return torch.arange(len(points))[part].view(-1, width).gather(1, places)

    best, won = ordered(slice(len(train)), learned.ranked), ordered(slice(len(train), None), 2)
    better, worse = (side.flatten() for side in comparisons(best))
    shown = torch.arange(len(train), len(points)).view(-1, 2)
    first, second = torch.cat([better, shown[:, 0]]), torch.cat([worse, shown[:, 1]])
    wins = torch.cat([torch.ones(len(better), dtype=torch.bool), won[:, 0] == shown[:, 0]])
    columns = [drawn.episodes.take(best[:, place]) for place in range(learned.ranked)]
    ranked = Ranked(columns, torch.arange(learned.ranked).expand_as(best))
    gold = {"gold_first": points[first], "gold_second": points[second]}
    return Pairs(drawn.take(first), drawn.take(second), wins, len(better), ranked, gold, temperature)


def given_pairs(
    source: str, key: str, judge: Reward, data: PromptSet, cfg: RewardConfig, device: torch.device
) -> Pairs:
    """Pairs of the user's file, as many as are asked for and there; the judge compares those held out, too. Raises
    `UserError` for what is no such file."""
    learned = cfg.learned
    frame, note = read_preferences(Path(source), key)
    train = some(frame[~frame["heldout"]], learned.pairs, learned.pairs_seed)
    heldout = some(frame[frame["heldout"]], learned.heldout_pairs, learned.pairs_seed)
    used = pd.concat([train, heldout])
    texts = used[["chosen", "rejected"]].to_numpy().ravel().tolist()
    prompts = used["prompt"].repeat(2).tolist()
    written = Completions(text_episodes(data.tokenizer, prompts, texts, learned.max_tokens, device), prompts, texts)
    first, second = (written.take(slice(side, None, 2)) for side in (0, 1))
    wins = torch.ones(len(used), dtype=torch.bool)
    known = judged(judge, *(side.take(slice(len(train), None)) for side in (first, second)))
    unjudged = torch.full((len(train),), torch.nan)
    gold = {name: torch.cat([unjudged, numbers]) for name, numbers in known.items()}
    better, worse = (side.episodes.take(slice(len(train))) for side in (first, second))
    ranked = Ranked.of_pairs(better, worse, wins[: len(train)])
    return Pairs(first, second, wins, len(train), ranked, gold, note=note, groups=heldout["group"].tolist())
