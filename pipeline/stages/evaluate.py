"""Stage 6: the policy's answers to held-out prompts against all draws of the reference's, by the gold judge.

Both are drawn with independent noise (`pipeline.stages.heldout`). With `evaluate.best_of` above 1 the policy answers
with the best of so many samples by the training reward; the gold judge never chooses. The first draw has the noise of a
policy that answers once, each further one noise of its own, so the samples for a small n are the first of those for a
larger n. Beside the answers, both networks are measured on held-out texts (`pipeline.models.heads`). Writes
``prompts.parquet`` (a row per prompt), ``samples.parquet`` (its first rows) and ``summary.json``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.config.trial import TrialConfig
from pipeline.data.prompt_set import PromptSet
from pipeline.data.semantics import circle
from pipeline.data.settings import MEASURED_TEXTS
from pipeline.intervals import grouped
from pipeline.models.heads import perplexity, token_stats
from pipeline.models.loading import CausalLM, freeze, load_snapshot
from pipeline.models.meter import meter
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes, response_hidden
from pipeline.models.precision import Precision
from pipeline.models.process import Bench, bench
from pipeline.models.tokenizers import encode
from pipeline.rewards.base import Completions, Proxy, Reward
from pipeline.rewards.grammar import endings_of
from pipeline.rewards.kinds import GUARDED
from pipeline.rewards.scorers import further_judges, judge_of, reward_of
from pipeline.run.layout import write_json
from pipeline.run.metrics import check_keys, measured_in
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.stages.checked import checked, passed
from pipeline.stages.heldout import TIE, Draws, answers, heldout_prompts, preferences
from pipeline.stages.kl_gradients import kl_cosine
from pipeline.stages.laws import entropy_law, reward_laws
from pipeline.training.new_actor import load_reference

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
    draws, passes = cfg.evaluate.best_of, cfg.evaluate.passes

    def progress(done: int, note: str = "") -> None:
        reporter.progress("evaluate", done, draws + passes - 1 + AFTER, note)

    # Only a choice among several answers is charged, so only then is its work recorded.
    with bench(cfg.runtime, out, reporter.warn, charged=draws > 1) as at:
        data, drawn = heldout_prompts(cfg, prompts), Draws.load(reference)
        policy = freeze(load_snapshot(train.path / "policy", at.device))
        chosen = _answered(cfg, at, data, policy, reward_of(reward, at.device, at.room), progress)
        progress(draws, "judging")
        gold = judge_of(cfg.gold, at.device, at.room, judge)
        columns, points = _judged(cfg, at, data, drawn, chosen, gold)
        progress(draws + 1, "drift")
        base = freeze(load_reference(sft, cfg.adapter.quantize, at.device))
        with Precision.of(at.device).autocast():
            kl, entropy, nats, log_ratios = drift(policy, base, chosen.answers.episodes, 1.0, at.room)
        columns |= {
            "kl": kl.sum(1).double().numpy(),
            "entropy": entropy.sum(1).double().numpy(),
            "reference_nats": nats.sum(1).double().numpy(),
            **checked(gold, chosen.answers, entropy),
            **points,
        }
        if draws > 1:  # the KL summed over the vocabulary is that of the network; a chosen answer is no sample of it
            own = (log_ratios - nats).sum(1).double().exp()
            best = kl_of_best(draws, torch.maximum(chosen.equal, own))
            columns |= {
                "kl": (best + log_ratios.sum(1).double()).numpy(),
                "kl_below_bound": (kl_of_best(draws, torch.zeros(1)) - best).numpy(),
            }
        if passes > 1:
            several = [chosen.answers]
            for number in range(1, passes):
                progress(number + 1, "further samples")
                several.append(answers(cfg, policy, data, at.room, "policy", number))
            columns |= passed(gold, several)
        progress(draws + passes + 1, "texts")
        kept = pd.read_parquet(prompts.path / "heldout_texts.parquet")["text"].head(MEASURED_TEXTS).tolist()
        ask = prompts.meta.get("ask")
        texts = encode(data.tokenizer, kept, cfg.sft.max_tokens)
        capability = {
            "eval/perplexity_texts": perplexity(policy, texts, at.room, ask),
            "eval/perplexity_texts_reference": perplexity(base, texts, at.room, ask),
        }
        table = pd.DataFrame(columns)
        summary = summarise(table, drawn.count) | capability
        if name := cfg.evaluate.kl_gradient:
            # Without autocast: in fp16 small gradients would become 0, since no scaler acts here.
            answered, most = chosen.answers.episodes, cfg.runtime.micro_batch_size
            summary["eval/kl_cosine"] = kl_cosine(name, policy, base, answered, log_ratios, kl, at.room, most)
        series, gold_at_0 = pd.read_parquet(train.path / "metrics.parquet"), summary["eval/gold_reference"]
        summary |= entropy_law(series) if "right" in table else reward_laws(series, gold_at_0)
        if reward.meta.get("heldout_pairs_differing"):  # of a reward that is one trained model
            summary["eval/reward_accuracy"] = float(reward.meta["accuracy_gold"])
        check_keys(summary)
        table.to_parquet(out / "prompts.parquet", index=False)
        table.head(cfg.evaluate.sample_rows).to_parquet(out / "samples.parquet", index=False)
        write_json(out / "summary.json", summary)
        progress(draws + passes - 1 + AFTER)
        return {"summary": summary, "prompts": len(table)}


def _answered(
    cfg: TrialConfig, at: Bench, data: PromptSet, policy: CausalLM, proxy: Proxy, progress: Callable[[int, str], None]
) -> BestAnswers:
    ledger, count = at.ledger, cfg.evaluate.best_of
    if count > 1:
        meter([policy, *proxy.networks], ledger.work)

    def draw(number: int) -> Completions:
        progress(number, "sampling")
        stream = ["policy", number] if number else ["policy"]
        with ledger.timed("generate"):
            return answers(cfg, policy, data, at.room, *stream)

    def score(drawn: Completions) -> tuple[Tensor, Mapping[str, Tensor]]:
        with ledger.timed("score"):
            return proxy.explained(drawn)

    chosen = choose(count, draw, score)
    ledger.generated_tokens = chosen.sampled_tokens
    return chosen


@dataclass(frozen=True)
class BestAnswers:
    """The answers of B prompts."""

    answers: Completions
    proxy: Tensor
    """(B,) calibrated reward, by which they were chosen: before EOS handling."""
    parts: Mapping[str, Tensor]
    equal: Tensor
    """(B,) share of all draws that have that reward, up to rounding; 0 where no other has it; float64."""
    sampled_tokens: int
    """Tokens of all draws, those that were not chosen included."""


def choose(
    count: int,
    draw: Callable[[int], Completions],
    score: Callable[[Completions], tuple[Tensor, Mapping[str, Tensor]]],
) -> BestAnswers:
    """Choose, for each prompt, the draw of 0 to `count` - 1 with the highest reward; of equal ones the first.

    `draw` gives the answers of a draw to every prompt, `score` their calibrated reward (B,) and its parts by name.
    """
    answers = draw(0)
    proxy, parts = score(answers)
    tokens, equal = int(answers.episodes.lengths.sum()), torch.zeros_like(proxy, dtype=torch.double)
    for number in range(1, count):
        other = draw(number)
        scores, others = score(other)
        rows, same = scores > proxy, (scores - proxy).abs() <= TIE
        equal = torch.where(rows & ~same, 0.0, equal + same)
        answers, proxy = _merged(rows, other, answers), torch.where(rows, scores, proxy)
        parts = {name: torch.where(rows, others[name], part) for name, part in parts.items()}
        tokens += int(other.episodes.lengths.sum())
    return BestAnswers(answers, proxy, parts, torch.where(equal > 0, equal + 1, 0.0) / count, tokens)


def _merged(rows: Tensor, here: Completions, elsewhere: Completions) -> Completions:
    """`here` where `rows` (B,) is True, else `elsewhere`; both answer the same prompts, padded alike."""
    place = rows.to(here.episodes.ended.device)
    grids = zip(vars(here.episodes).values(), vars(elsewhere.episodes).values(), strict=True)
    episodes = Episodes(*(torch.where(place.view(-1, *[1] * (grid.dim() - 1)), grid, other) for grid, other in grids))
    texts = zip(rows.tolist(), here.texts, elsewhere.texts, strict=True)
    return Completions(episodes, here.prompts, [mine if chosen else other for chosen, mine, other in texts])


def kl_of_best(n: int, tied: Tensor) -> Tensor:
    """KL of the best of n samples of a policy to the policy; (B,) float64, nats per response.

    `tied` (B,): probability q that a sample has the score of the chosen one. That score is taken as the highest, and
    all others as distinct: with h = 1 - (1 - q)^n, the probability that one of n samples has it, the KL is
    h log(h / q) + (1 - h) (log n + (n - 1) log(1 - q) - (n - 1) / n). It falls from log n - (n - 1) / n at q = 0, which
    is a bound, to 0 at q = 1. The estimator of Beirami 2025 (arXiv 2401.01879, by notes of others), with the
    probability of a score in place of that of a response. With q from the share of ties, right answers of probability
    0.3 among wrong ones give 1.20 on average at n = 16, where 1.18 is exact; those of 0.1 give 2.33 at n = 64, of 2.29.

    >>> [round(float(kl), 4) for kl in kl_of_best(4, torch.tensor([0.0, 0.25, 1.0]))]
    [0.6363, 0.6159, 0.0]
    """
    q = tied.double().clamp(1e-12, 1 - 1e-12)
    none = n * torch.log1p(-q)
    hit = -torch.expm1(none)
    return hit * torch.log(hit / q) + none.exp() * (math.log(n) + (n - 1) * torch.log1p(-q) - (n - 1) / n)


def _judged(
    cfg: TrialConfig, at: Bench, data: PromptSet, drawn: Draws, chosen: BestAnswers, gold_judge: Reward
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of the answers and their comparison with the reference's; those of reward parts and further judges."""
    mine, first, proxy = chosen.answers, cfg.evaluate.first_prompt, chosen.proxy.double().numpy()
    further = further_judges(cfg.gold, at.device, at.room)
    gold, endings = gold_judge(mine).double().numpy(), endings_of(gold_judge, mine)
    ahead = 0.0 if endings is None else circle(endings.double().numpy()[:, None], drawn.grid("ending"))
    columns = {
        "prompt_id": range(first, first + len(data.texts)),
        "prompt": data.texts,
        "policy_completion": mine.texts,
        "policy_gold": gold,
        "policy_proxy": proxy,
        "policy_length": mine.episodes.lengths.cpu().numpy(),
        "policy_eos": mine.episodes.ended.cpu().numpy(),
        **({} if endings is None else {"policy_ending": endings.double().numpy()}),
        **preferences(gold, drawn.grid("gold"), proxy, drawn.grid("proxy"), ahead),
        "reference_gold": drawn.grid("gold").mean(1),
        "reference_gold_std": drawn.grid("gold").std(1),
        "reference_proxy": drawn.grid("proxy").mean(1),
        "reference_length": drawn.grid("length").mean(1),
        "reference_eos": drawn.grid("eos").mean(1),
        "reference_completion": drawn.first("completion"),
        "reference_completion_gold": drawn.first("gold"),
        "reference_completion_proxy": drawn.first("proxy"),
        **{f"reference_{part}": drawn.grid(part).mean(1) for part in drawn.parts},
    }
    if cfg.gold.kind == GUARDED:  # which scores a text with faults below -1, and no other text
        columns |= {
            "policy_faulty": (gold < -1.0).astype(np.float64),
            "reference_faulty": (drawn.grid("gold") < -1.0).mean(1),
        }
    points = {f"policy_reward/{name}": part.double().numpy() for name, part in chosen.parts.items()}
    return columns, points | {f"policy_gold/{name}": one(mine).double().numpy() for name, one in further.items()}


@torch.inference_mode()
def drift(policy: CausalLM, reference: CausalLM, episodes: Episodes, temperature: float, room: Room) -> Tensor:
    """Exact KL to the reference, entropy of the policy, and of the token that stands there -log ref and log π - log
    ref; (4, B, T) on the CPU, nats. Raises `MemoryFull`."""

    def columns(chunk: Episodes) -> list[Tensor]:
        hidden, ref_hidden = response_hidden(policy, chunk), response_hidden(reference, chunk)
        stats = token_stats(policy, hidden, reference, ref_hidden, chunk.labels, temperature)
        return [stats.kl, stats.entropy, -stats.ref_logprobs, stats.logprobs - stats.ref_logprobs]

    return episodes.grids(4, room, columns).cpu()


def summarise(table: pd.DataFrame, draws: int) -> dict[str, float]:
    """The ``eval/*`` metrics of one trial by `draws` draws a prompt; see pipeline/run/metrics.csv."""
    tokens = float(table["policy_length"].sum())
    words = [completion.split() for completion in table["policy_completion"]]
    summary = {
        **_rate("eval/win_rate", table["win"], draws),
        **_rate("eval/win_rate_proxy", table["win_proxy"], draws),
        "eval/distinct_1": distinct(words, 1),
        "eval/distinct_2": distinct(words, 2),
        # exp is capped so that a collapsed policy gives a number that files and plots can hold.
        "eval/ppl_reference": math.exp(min(table["reference_nats"].sum() / tokens, 50.0)),
    }
    for key, (above, below) in measured_in(table.columns).items():
        if key in summary:
            continue
        if below is None:
            summary[key] = table[above].mean()
        elif total := table[below].sum():  # else it is undefined: no key, since files hold no NaN
            summary[key] = table[above].sum() / total
    return {key: float(value) for key, value in summary.items()}


def _rate(key: str, won: pd.Series, draws: int) -> dict[str, float]:
    found = grouped(won.to_numpy() * draws, np.full(len(won), draws))
    return dict(zip((key, f"{key}_low", f"{key}_high"), found, strict=True))


def distinct(words: Iterable[Sequence[str]], n: int) -> float:
    """Different n-grams / n-grams over all completions (Li 2016); 0 where there is none.

    >>> distinct([["a", "b", "a"], ["a", "b"]], 2)
    0.6666666666666666
    """
    grams = [tuple(row[start : start + n]) for row in words for start in range(len(row) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
