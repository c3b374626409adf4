"""Training data of a reward: pairs or rankings of K answers, sampled and judged with noise, or given; all at once or in
rounds. A pair is a ranking of two; held-out pairs stay pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.data.corpus import read_preferences
from pipeline.data.prompt_set import PromptSet, text_episodes
from pipeline.data.semantics import circle
from pipeline.errors import UserError
from pipeline.intervals import grouped
from pipeline.models.policy import Episodes, padded_episodes
from pipeline.models.seeding import permutation, uniforms
from pipeline.rewards.base import Completions, Reward
from pipeline.rewards.grammar import endings_of
from pipeline.rewards.settings import RewardConfig

RESPONSES = "pair_responses.parquet"
TEMPERATURE = "label_temperature"
"""Key of the summary: what the judge's differences are divided by, in judge points."""


@dataclass(frozen=True)
class Ranked:
    """n rankings of K answers to a prompt each."""

    answers: Sequence[Episodes]
    """K of n rows."""
    order: Tensor
    """(n, K) int64: which of the K answers is best, second, and so on."""

    @classmethod
    def of_pairs(cls, first: Episodes, second: Episodes, first_wins: Tensor) -> Ranked:
        """Return pairs as rankings of 2; `first_wins` (n,) bool is true where the first answer was preferred."""
        loses = (~first_wins).long()
        return cls((first, second), torch.stack([loses, 1 - loses], dim=1))


def best_first(points: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """A noisy annotator's order of K answers, by the model of Plackett (1975) and Luce (1959):

        P(i_1, ..., i_K) = product over m of exp(g_{i_m} / T) / sum over l >= m of exp(g_{i_l} / T).

    Sorting g / T + Gumbel noise draws from it (Yellott 1977), so of any two answers i is before j with probability
    sigmoid((g_i - g_j) / T), as for pairs. points and noise (n, K), noise uniform in [0, 1); T >= 0 in points, and 0
    is the judge itself, which puts equal answers in random order. Returns (n, K) int64.
    """
    if temperature > 0:
        return (points.double() / temperature - (-noise.double().log()).log()).argsort(dim=1, descending=True)
    by_chance = noise.argsort(dim=1)
    return by_chance.gather(1, points.gather(1, by_chance).argsort(dim=1, descending=True, stable=True))


def in_order(numbers: Tensor, order: Tensor) -> Tensor:
    """Sort a model's numbers of K answers, (n, K) or (n, K, d), best first by an order (n, K)."""
    return numbers.gather(1, order.view(*order.shape, *[1] * (numbers.dim() - 2)).expand_as(numbers))


def comparisons(order: Tensor) -> tuple[Tensor, Tensor]:
    """The better and the worse answers of the comparisons that each ranking (n, K) makes; (n, K (K - 1) / 2) each."""
    better, worse = torch.triu_indices(order.shape[1], order.shape[1], 1)
    return order[:, better], order[:, worse]


def response_table(first: Episodes, second: Episodes, first_wins: Tensor) -> pd.DataFrame:
    """Rows of n pairs; first_wins (n,) bool."""
    rows = list[dict[str, Any]]()
    for row, wins in enumerate(first_wins.tolist()):
        for side in (first, second) if wins else (second, first):
            prompt = side.query_responses[row, : side.context_length][side.query_mask[row]].tolist()
            response = side.responses[row][side.response_mask[row]].tolist()
            rows.append({"prompt": prompt, "response": response, "ended": bool(side.ended[row])})
    return pd.DataFrame(rows)


def read_responses(folder: Path, pad: int) -> Episodes:
    """The rows as episodes on the CPU: (2n, ...). Raises `UserError` where a pair answers different prompts."""
    table = pd.read_parquet(folder / RESPONSES)
    prompts, responses = (table[name].tolist() for name in ("prompt", "response"))
    apart = sum(list(one) != list(other) for one, other in zip(prompts[::2], prompts[1::2], strict=True))
    if apart:
        raise UserError(
            f"train.data 'pairs' must be two responses to one prompt, and {apart} of {len(prompts) // 2} given pairs"
            " have no prompt, or one that was cut; give them prompts, raise reward.learned.max_tokens, or use"
            " train.data: rollouts"
        )
    return padded_episodes(prompts, responses, torch.tensor(table["ended"].to_numpy()), pad)


def read_ranked(folder: Path, pad: int, device: torch.device) -> Ranked:
    """The same as pairs, the preferred responses first."""
    both = read_responses(folder, pad).each(lambda column: column.to(device))
    first, second = both.take(slice(0, None, 2)), both.take(slice(1, None, 2))
    return Ranked.of_pairs(first, second, torch.ones(len(first.ended), dtype=torch.bool))


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
        """The prompts of this round's pairs: its share of those to train on, (pairs / count,), and the held-out."""
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
    """Return the prompt of each pair, out of `n`, (pairs + heldout_pairs,) int64. Raises `UserError` for one prompt.

    The last prompts are held out, the same share of them as of the pairs, and either side goes round its own prompts.
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
    """Two answers to each of `prompts` prompts, of the reference or of a later round's policy, by a noisy judge."""
    rows = part.rows(split_prompts(prompts, cfg), cfg)
    first, second = (answers(rows, part.label(side), cfg.learned.pairs_seed) for side in ("first", "second"))
    gold = judged(judge, first, second)
    # An annotator does not grow more exact because the policy's answers grow alike: all rounds have the first's.
    temperature = cfg.learned.label_noise * spread(gold) if part.temperature is None else part.temperature
    noise = uniforms(len(rows), 1, cfg.learned.pairs_seed, part.label("labels")).squeeze(1)
    wins = prefer(gold["gold_first"] + lead(gold), gold["gold_second"], temperature, noise)
    train = cfg.learned.pairs // part.count
    mine, other = (side.episodes.take(slice(train)) for side in (first, second))
    ranked = Ranked.of_pairs(mine, other, wins[:train])
    return Pairs(first, second, wins, train, ranked, gold, temperature)


def prefer(gold_first: Tensor, gold_second: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """Draw a noisy annotator's preference: P(first) = sigmoid((gold_first - gold_second) / temperature).

    All (n,), noise in [0, 1); returns (n,) bool, true for the first. Temperature 0: no noise; equal scores are a toss.
    """
    gap = gold_first - gold_second
    certain = torch.where(gap == 0, 0.5, (gap > 0).float())
    return noise < (torch.sigmoid(gap / temperature) if temperature > 0 else certain)


def accuracy(margin: Tensor, gap: Tensor, wins: Tensor, prompts: Sequence[str]) -> dict[str, float]:
    """Agreement of the proxy's margin with the labels, and with the judge where the judge's gap is not 0; all (n,).
    Intervals of 95 % are over prompts: pairs of one prompt are no independent evidence."""
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
    """Pairs of the user's file; the judge compares those held out, too. Raises `UserError` for no such file."""
    learned = cfg.learned
    frame, note = read_preferences(Path(source), key)
    train, heldout = (
        side.iloc[np.asarray(permutation(len(side), learned.pairs_seed, "given pairs")[:n])]
        for side, n in (
            (frame[~frame["heldout"]], learned.pairs),
            (frame[frame["heldout"]], learned.heldout_pairs),
        )
    )
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
