"""What a reward is learned from: pairs or rankings of answers, sampled and judged with noise, or given; all at once or
in rounds. Held-out pairs stay pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.data.preferences import read_preferences
from pipeline.data.prompt_set import PromptSet, text_episodes
from pipeline.errors import UserError
from pipeline.intervals import grouped
from pipeline.models.seeding import permutation, uniforms
from pipeline.resources.ledger import Ledger
from pipeline.rewards.base import Completions, Reward
from pipeline.rewards.grammar import endings_of, lead, spread
from pipeline.rewards.rankings import RESPONSES, Ranked, best_first, comparisons, read_responses
from pipeline.rewards.scorers import part_folder
from pipeline.rewards.settings import RewardConfig
from pipeline.run.layout import write_json
from pipeline.run.store import Artifact
from pipeline.training.rounds import SPENT, name_of, number_of

TEMPERATURE = "label_temperature"
"""Key of the summary: what the judge's differences are divided by, in judge points."""


@dataclass(frozen=True)
class Collection:
    """Where the pairs of a round come from."""

    number: int = 1
    count: int = 1
    last_reward: Artifact | None = None
    last_train: Artifact | None = None
    """Whose policy is sampled; None in the first round: the reference."""

    @classmethod
    def of(cls, count: int, last_reward: Artifact | None, last_train: Artifact | None) -> Collection:
        return cls(number_of(last_train), count, last_reward, last_train)

    def label(self, name: str) -> str:
        """The name of a stream of noise; each round has its own."""
        return name if self.number == 1 else f"{name}, round {self.number}"

    def rows(self, rows: Tensor, cfg: RewardConfig) -> Tensor:
        """The prompts of this round's pairs: its share of those to train on, (pairs / count,), then all held-out ones.

        No prompt that a round holds out is one that another round trains on.
        """
        each = cfg.learned.pairs // self.count
        return torch.cat(
            [rows[: cfg.learned.pairs][(self.number - 1) * each : self.number * each], rows[cfg.learned.pairs :]]
        )

    def temperature(self, spread: float, cfg: RewardConfig, prefix: str) -> float:
        """Of the labels, in judge points: label noise times the judge's `spread` on samples of the reference.

        An annotator does not grow more exact because the policy's answers grow alike, so all rounds have that of the
        first. `prefix`: of the keys of a part's summary.
        """
        if self.last_reward is None:
            return cfg.learned.label_noise * spread
        return float(self.last_reward.meta[f"{prefix}{TEMPERATURE}"])

    def earlier(self, name: str, composite: bool, cfg: RewardConfig) -> pd.DataFrame | None:
        """The pairs of the rounds before that this round learns from as well, as tokens."""
        if self.last_reward is None or cfg.learned.keep_pairs == "newest":
            return None
        return pd.read_parquet(part_folder(self.last_reward.path, name, composite) / RESPONSES)

    def described(self, sft: Artifact) -> dict[str, Any]:
        """Whose samples were compared, for the metadata; nothing in a trial with one round."""
        if self.count == 1:
            return {}
        policy = name_of(self.last_train or sft)
        return {"round": {"number": self.number, "count": self.count, "policy": policy, "reference": name_of(sft)}}

    def charge(self, out: Path, ledger: Ledger) -> None:
        """Leave what a later round has spent: unlike the first reward it is made for one trial alone."""
        if self.number > 1:
            ledger.mark()
            write_json(out / SPENT, ledger.state())


def written(folder: Path, pad: int, device: torch.device) -> Ranked:
    """The pairs that were written to a folder, the preferred responses first."""
    both = read_responses(folder, pad).each(lambda column: column.to(device))
    first, second = both.take(slice(0, None, 2)), both.take(slice(1, None, 2))
    return Ranked.of_pairs(first, second, torch.ones(len(first.ended), dtype=torch.bool))


ONCE = Collection()
"""All pairs at once, of the reference."""


@dataclass(frozen=True)
class Gold:
    """What the judge gives for both answers of n pairs."""

    first: Tensor
    """(n,) points."""
    second: Tensor
    endings: tuple[Tensor, Tensor] | None = None
    """(n,) each, of a cyclic judge."""

    @classmethod
    def of(cls, judge: Reward, first: Completions, second: Completions) -> Gold:
        one, other = endings_of(judge, first), endings_of(judge, second)
        return cls(judge(first), judge(second), None if one is None or other is None else (one, other))

    @property
    def lead(self) -> Tensor | float:
        """What the endings add to the difference of the points, (n,); 0 without endings."""
        return lead(*self.endings) if self.endings else 0.0

    @property
    def gap(self) -> Tensor:
        """(n,) by how much the judge prefers the first answer; points."""
        return self.first - self.second + self.lead

    def each(self, change: Callable[[Tensor], Tensor]) -> Gold:
        """All numbers changed alike."""
        endings = (change(self.endings[0]), change(self.endings[1])) if self.endings else None
        return Gold(change(self.first), change(self.second), endings)

    def columns(self) -> dict[str, list[float]]:
        """For a table of pairs."""
        numbers = {"gold_first": self.first, "gold_second": self.second}
        numbers |= dict(zip(("ending_first", "ending_second"), self.endings or (), strict=False))
        return {name: column.tolist() for name, column in numbers.items()}


@dataclass(frozen=True)
class Pairs:
    """Row i of `first` and `second` are compared. The first `train` rows are for training, the others held out."""

    first: Completions
    second: Completions
    first_wins: Tensor
    """(n,) bool."""
    train: int
    note: str = ""
    rankings: Ranked | None = None
    """Of which the training pairs are the comparisons; None where they are independent pairs."""
    groups: Sequence[str] = ()
    """What held-out pairs have in common, where `openings` would miss it."""

    def to_learn(self) -> Ranked:
        """What a reward model learns from."""
        train, _ = self.halves()
        if self.rankings is not None:
            return self.rankings
        return Ranked.of_pairs(
            self.first.episodes.take(train), self.second.episodes.take(train), self.first_wins[train]
        )

    def halves(self) -> tuple[slice, slice]:
        """Rows for training and rows held out."""
        return slice(self.train), slice(self.train, len(self.first_wins))

    def openings(self) -> list[str]:
        """What pairs have in common: the prompt, or where it is empty the text itself."""
        return [prompt or text for prompt, text in zip(self.first.prompts, self.first.texts, strict=True)]

    def table(self, gold: Gold) -> pd.DataFrame:
        """One row per pair, with what the judge gives for both sides."""
        return pd.DataFrame(
            {
                "prompt": self.first.prompts,
                "first": self.first.texts,
                "second": self.second.texts,
                **gold.columns(),
                "first_wins": self.first_wins.tolist(),
                "heldout": [index >= self.train for index in range(len(self.first_wins))],
            }
        )


def split_prompts(n: int, cfg: RewardConfig) -> Tensor:
    """Which of `n` prompts each pair is about, (pairs + heldout_pairs,) int64: no held-out pair has a prompt of a
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
    prefix: str = "",
) -> tuple[Pairs, Gold, float]:
    """Two answers to a prompt, of the reference or of a later round's policy, labelled by a noisy judge; what the judge
    gives for them; and the temperature of the labels. `prompts`: how many there are; `prefix`: of a part's summary."""
    rows = part.rows(split_prompts(prompts, cfg), cfg)
    n = len(rows)
    first, second = (answers(rows, part.label(side), cfg.learned.pairs_seed) for side in ("first", "second"))
    gold = Gold.of(judge, first, second)
    temperature = part.temperature(spread((gold.first, gold.second), gold.lead), cfg, prefix)
    noise = uniforms(n, 1, cfg.learned.pairs_seed, part.label("labels")).squeeze(1)
    wins = prefer(gold.first + gold.lead, gold.second, temperature, noise)
    return Pairs(first, second, wins, cfg.learned.pairs // part.count), gold, temperature


def some(frame: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    """At most `n` rows, drawn without replacement."""
    return frame.iloc[np.asarray(permutation(len(frame), seed, "given pairs")[:n])]


def prefer(gold_first: Tensor, gold_second: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """Which completion a noisy annotator prefers: P(first) = sigmoid((gold_first - gold_second) / temperature).

    All (n,), noise in [0, 1); returns (n,) bool. Temperature 0 is the judge himself; equal scores are a toss.
    """
    gap = gold_first - gold_second
    certain = torch.where(gap == 0, 0.5, (gap > 0).float())
    return noise < (torch.sigmoid(gap / temperature) if temperature > 0 else certain)


def accuracy(margin: Tensor, gap: Tensor, wins: Tensor, prompts: Sequence[str]) -> dict[str, float]:
    """Agreement of the proxy's margin with the labels, and with the judge where the judge sees a difference; all (n,).

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
) -> tuple[Pairs, Gold, float]:
    """As `judged_pairs`, but a noisy judge puts `ranked` answers to each training
    prompt in order."""
    rows = split_prompts(prompts, cfg)
    train, heldout = (
        rows[: cfg.learned.rankings].repeat_interleave(cfg.learned.ranked),
        rows[cfg.learned.pairs :].repeat_interleave(2),
    )
    drawn = answers(torch.cat([train, heldout]), "rankings", cfg.learned.pairs_seed)
    points = judge(drawn)
    temperature = cfg.learned.label_noise * float(points.std(correction=0))
    noise = uniforms(len(points), 1, cfg.learned.pairs_seed, "labels of rankings").squeeze(1)

    def ordered(part: slice, width: int) -> Tensor:
        places = best_first(points[part].view(-1, width), temperature, noise[part].view(-1, width))
        return torch.arange(len(points))[part].view(-1, width).gather(1, places)

    best, won = ordered(slice(len(train)), cfg.learned.ranked), ordered(slice(len(train), None), 2)
    shown = torch.arange(len(train), len(points)).view(-1, 2)
    pairs, sides = _compared(drawn, best, shown, won[:, 0] == shown[:, 0])
    return pairs, Gold(points[sides[0]], points[sides[1]]), temperature


def given_rankings(source: str, key: str, data: PromptSet, cfg: RewardConfig, device: torch.device) -> Pairs:
    """Pairs or rankings of the user's file, as many as are asked for and there; those held out are compared pair by
    pair. Raises `UserError` for what is no such file."""
    learned = cfg.learned
    frame, note = read_preferences(Path(source), key, learned.ranked)
    kept = max(learned.heldout_pairs // learned.comparisons, 1)
    train = some(frame[~frame["heldout"]], learned.rankings, learned.pairs_seed)
    heldout = some(frame[frame["heldout"]], kept, learned.pairs_seed)
    texts = [text for part in (train, heldout) for completions in part["completions"] for text in completions]
    prompts = [prompt for part in (train, heldout) for prompt in part["prompt"] for _ in range(learned.ranked)]
    written = Completions(text_episodes(data.tokenizer, prompts, texts, learned.max_tokens, device), prompts, texts)
    places = torch.arange(len(texts)).view(-1, learned.ranked)
    better, worse = comparisons(places[len(train) :])
    shown = torch.stack([better.flatten(), worse.flatten()], dim=1)
    pairs, _ = _compared(written, places[: len(train)], shown, torch.ones(len(shown), dtype=torch.bool), note)
    return replace(pairs, groups=[group for group in heldout["group"] for _ in range(learned.comparisons)])


def _compared(
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
