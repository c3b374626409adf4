"""Preference pairs for the reward stage: sampled from the reference and judged with noise, or given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.config.rewards import RewardConfig
from pipeline.data.preferences import read_preferences
from pipeline.data.text_episodes import text_episodes
from pipeline.errors import UserError
from pipeline.intervals import grouped
from pipeline.models.seeding import permutation, uniforms
from pipeline.rewards.base import Completions, Reward
from pipeline.rewards.cycle import endings_of, lead, spread
from pipeline.rewards.rankings import Ranked
from pipeline.run.store import Artifact
from pipeline.stages.common import PromptSet
from pipeline.stages.reward_round import Collection

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
    kept = min(max(round(n * cfg.heldout_pairs / (cfg.pairs + cfg.heldout_pairs)), 1), n - 1)
    return torch.cat([torch.arange(cfg.pairs) % (n - kept), n - kept + torch.arange(cfg.heldout_pairs) % kept])


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
    first, second = (answers(rows, part.label(side), cfg.pairs_seed) for side in ("first", "second"))
    gold = Gold.of(judge, first, second)
    temperature = part.temperature(spread((gold.first, gold.second), gold.lead), cfg, prefix)
    noise = uniforms(n, 1, cfg.pairs_seed, part.label("labels")).squeeze(1)
    wins = prefer(gold.first + gold.lead, gold.second, temperature, noise)
    return Pairs(first, second, wins, cfg.pairs // part.count), gold, temperature


def given_pairs(
    source: str, key: str, prompts: Artifact, data: PromptSet, cfg: RewardConfig, device: torch.device
) -> Pairs:
    """Pairs of labelled reviews, or of the user's file, as many as are asked for and there. Raises `UserError` for what
    is no such file."""
    if source == "labels":
        frame, note = pd.read_parquet(prompts.path / "preferences.parquet"), "from labels"
    else:
        frame, note = read_preferences(Path(source), key)
    chosen = pd.concat(
        [
            some(frame[~frame["heldout"]], cfg.pairs, cfg.pairs_seed),
            some(frame[frame["heldout"]], cfg.heldout_pairs, cfg.pairs_seed),
        ]
    )
    opening = chosen["prompt"].tolist()
    first, second = (
        Completions(text_episodes(data.tokenizer, opening, texts, cfg.max_tokens, device), opening, texts)
        for texts in (chosen["chosen"].tolist(), chosen["rejected"].tolist())
    )
    return Pairs(first, second, torch.ones(len(chosen), dtype=torch.bool), int((~chosen["heldout"]).sum()), note)


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
