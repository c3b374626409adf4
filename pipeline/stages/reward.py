"""Stage 3: the training reward (proxy): its parts, learned or ready, each calibrated, weighed, and calibrated again.

Writes ``reference_samples.parquet`` (prompt, completion, proxy, gold; and ``reward/<part>`` of a composite: the samples
that set the scales), ``summary.json`` and, of every learned part, the model, ``pairs.parquet`` (prompt, first, second,
gold_first, gold_second, first_wins, heldout; and ending_first, ending_second of a cyclic judge; each comparison of a
ranking is a pair) and ``pair_responses.parquet`` (the training pairs as tokens): beside them, or in ``parts/<name>/``
of a composite. With `reward.against`, also ``opponents.parquet`` (`pipeline.rewards.scorers`), and what they took in
``log/opponents.json``.

In a later round (``reward.learned.rounds``) the pairs are samples of the policy trained so far, the model starts anew
from the reference, and all scales are set on the same reference samples again, so that beta keeps its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipeline.config.effects import content_of
from pipeline.config.trial import TrialConfig
from pipeline.data.prompt_set import PromptSet
from pipeline.models.loading import CausalLM, freeze, load_snapshot, scratch_model
from pipeline.models.meter import meter
from pipeline.models.process import Bench, bench
from pipeline.models.seeding import seed_of, uniforms
from pipeline.models.trunk import check_room
from pipeline.resources.ledger import Ledger
from pipeline.rewards.base import Calibrated, Completions, Proxy, Reward, calibration, sampled, standardised
from pipeline.rewards.collection import (
    ONCE,
    RESPONSES,
    TEMPERATURE,
    Collection,
    Pairs,
    Ranked,
    accuracy,
    gap,
    given_pairs,
    judged_pairs,
    judged_rankings,
    read_ranked,
    response_table,
)
from pipeline.rewards.kinds import TRAINED
from pipeline.rewards.learned import LearnedReward, RewardModel, model_of, train_reward_model
from pipeline.rewards.scorers import (
    Against,
    compared,
    further_judges,
    judge_of,
    part_folder,
    read_opponents,
    ready,
    save_opponents,
)
from pipeline.rewards.settings import FURTHER, OPPONENTS, PartConfig, is_judged, part_key
from pipeline.run.layout import write_json
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.training.language_model import MAX_POSITIONS
from pipeline.training.rounds import SPENT, carried_on, described, has_ended, number_of


@dataclass(frozen=True)
class _Inputs:
    cfg: TrialConfig
    reporter: Reporter
    prompts: Artifact
    sft: Artifact
    data: PromptSet
    reference: CausalLM
    gold: Reward
    further: dict[str, Reward]
    at: Bench
    policy: CausalLM
    """Network whose answers are compared: the reference, in a later round the policy trained so far."""
    last_reward: Artifact | None
    composite: bool

    def samples(self, model: CausalLM, rows: Tensor, label: str, seed: int) -> Completions:
        """One sample of a network for each of `rows`, which are numbers of prompts, (n,) int64."""
        noise = uniforms(len(rows), self.cfg.train.response_length, seed, label)
        answers = sampled(model, self.data, noise, self.cfg.train.temperature, self.at.room, rows)
        self.at.ledger.generated_tokens += int(answers.episodes.lengths.sum())
        return answers


def reward(
    cfg: TrialConfig,
    out: Path,
    reporter: Reporter,
    *,
    prompts: Artifact,
    sft: Artifact,
    judge: Artifact | None = None,
    last_reward: Artifact | None = None,
    last_train: Artifact | None = None,
) -> dict[str, Any]:
    """Make the parts, measure learned ones on held-out pairs, set all scales on reference samples."""
    if last_reward is not None and has_ended(last_train):
        return carried_on(last_reward, out)
    with bench(cfg.runtime, out, reporter.warn) as at, at.ledger.timed("reward"):
        reference: CausalLM = freeze(load_snapshot(sft.path / "model", at.device))
        policy = reference if last_train is None else freeze(load_snapshot(last_train.path / "policy", at.device))
        meter([reference] if policy is reference else [reference, policy], at.ledger.work)
        data = PromptSet.load(prompts, "train")
        check_room(reference, "train.response_length", cfg.train.response_length, beside=data.ids.shape[1])
        gold = judge_of(cfg.gold, at.device, at.room, judge)
        further, composite = further_judges(cfg.gold, at.device, at.room), cfg.reward.kind == "composite"
        work = _Inputs(cfg, reporter, prompts, sft, data, reference, gold, further, at, policy, last_reward, composite)
        made = _made(work, out)
    if last_reward is not None:  # unlike the first reward it is made for one trial alone, which is charged for it
        at.ledger.mark()
        write_json(out / SPENT, at.ledger.state())
    return made | described(cfg, last_train, policy=last_train or sft, reference=sft)


def _made(work: _Inputs, out: Path) -> dict[str, Any]:
    cfg, composite = work.cfg, work.composite
    rows = torch.arange(cfg.reward.calibration_samples) % len(work.data.texts)
    samples = work.samples(work.reference, rows, "calibration", cfg.reward.seed)
    raw, summary = _parts(work, out)
    if cfg.reward.against != "none":
        raw = _against(work, raw, out)
    scores, specs = {name: part(samples) for name, part in raw.items()}, cfg.reward.scorers()
    scales = {name: calibration(score, part_key(name, composite)) for name, score in scores.items()}
    calibrated = {name: standardised(score, *scales[name]) for name, score in scores.items()}
    proxy = Proxy(
        {name: Calibrated(raw[name], *scales[name]) for name in raw},
        {name: spec.weight for name, spec in specs.items()},
        combine=cfg.reward.composite.combine if composite else "sum",
        caution=cfg.reward.composite.caution,
    )
    mean, std = calibration(proxy.weigh(calibrated), "reward") if composite else (0.0, 1.0)
    proxy = replace(proxy, mean=mean, std=std)
    total, judged = standardised(proxy.weigh(calibrated), mean, std), work.gold(samples)
    by_part = calibrated if composite else {}

    def correlation(scores: Tensor) -> float:
        return float(torch.corrcoef(torch.stack([scores, judged]))[0, 1].nan_to_num())

    for name, scale in scales.items():
        prefix = f"{name}/" if composite else ""
        summary |= {f"{prefix}calibration_mean": scale[0], f"{prefix}calibration_std": scale[1]}
    summary |= {f"{name}/correlation_gold": correlation(part) for name, part in by_part.items()}
    summary |= {
        "gold_reference": float(judged.mean()),
        "correlation_gold": correlation(total),
        "reference_samples": len(judged),
    }
    table = {"prompt": samples.prompts, "completion": samples.texts, "proxy": total.tolist(), "gold": judged.tolist()}
    table |= {f"reward/{name}": part.tolist() for name, part in by_part.items()}
    pd.DataFrame(table).to_parquet(out / "reference_samples.parquet", index=False)
    write_json(out / "summary.json", {"kind": cfg.reward.kind, "judge": cfg.gold.kind, **summary})
    figures = [
        f"{key.replace('_', ' ')} {value:.3f}"
        for key, value in summary.items()
        if key.endswith(("accuracy", "correlation_gold"))
    ]
    return {
        "kind": cfg.reward.kind,
        "judge": cfg.gold.kind,
        **({} if cfg.reward.against == "none" else {"against": cfg.reward.against}),
        "parts": {
            name: {"spec": content_of(spec, cfg), "mean": scales[name][0], "std": scales[name][1]}
            for name, spec in specs.items()
        },
        "mean": mean,
        "std": std,
        **({"combine": proxy.combine, "caution": proxy.caution} if composite else {}),
        "note": ", ".join(figures),
        **summary,
    }


def _parts(work: _Inputs, out: Path) -> tuple[dict[str, Reward], dict[str, Any]]:
    """The parts, and what was measured of those that were learned."""
    raw, summary = dict[str, Reward](), dict[str, Any]()
    for name, spec in work.cfg.reward.scorers().items():
        if spec.kind in TRAINED:
            raw[name], measured = _learn(work, spec, name, part_folder(out, name, work.composite))
            summary |= {f"{name}/{what}": value for what, value in measured.items()} if work.composite else measured
        else:
            raw[name] = ready(part_key(name, work.composite), spec, work.at.device, work.at.room)
            meter(raw[name].networks, work.at.ledger.work)
    return raw, summary


def _against(work: _Inputs, raw: dict[str, Reward], out: Path) -> dict[str, Reward]:
    cfg, ledger = work.cfg, Ledger(work.at.device.type == "cuda")
    meter([work.reference, *(network for part in raw.values() for network in part.networks)], ledger.work)
    texts = list(dict.fromkeys([*work.data.texts, *PromptSet.load(work.prompts, "heldout").texts]))
    data, drawn = PromptSet.of(work.data.tokenizer, texts), list[Completions]()
    for draw in range(OPPONENTS):
        work.reporter.progress("reward", draw, OPPONENTS, "opponents")
        noise = uniforms(len(texts), cfg.train.response_length, cfg.reward.seed, "opponents", draw)
        with ledger.timed("generate"):
            drawn.append(sampled(work.reference, data, noise, cfg.train.temperature, work.at.room))
        ledger.generated_tokens += int(drawn[-1].episodes.lengths.sum())
    with ledger.timed("score"), torch.no_grad():
        numbers = {name: torch.stack([part(one) for one in drawn], dim=1) for name, part in raw.items()}
    save_opponents(out, drawn, numbers)
    ledger.mark()
    work.at.ledger.generated_tokens += ledger.generated_tokens
    write_json(out / "log" / "opponents.json", ledger.cost())
    found, specs = read_opponents(out), cfg.reward.scorers()
    return {name: Against(part, compared(specs[name].kind), found[name]) for name, part in raw.items()}


def _learn(work: _Inputs, spec: PartConfig, name: str, out: Path) -> tuple[Reward, dict[str, Any]]:
    """The model of a part, and what was measured of it."""
    cfg, part = work.cfg.reward, ONCE
    work.reporter.progress("reward", 0, 1, "pairs")
    if is_judged(spec.preferences):
        part = Collection(1, work.cfg.rounds)
        if (last := work.last_reward) is not None:
            temperature = float(last.meta[f"{name}/{TEMPERATURE}" if work.composite else TEMPERATURE])
            earlier = part_folder(last.path, name, work.composite) if cfg.learned.keep_pairs == "all" else None
            part = Collection(number_of(last), work.cfg.rounds, temperature, earlier)
    pairs = _collected(work, spec, name, part)
    train, kept = slice(pairs.train), slice(pairs.train, None)
    first, second = pairs.first.episodes.take(train), pairs.second.episodes.take(train)
    ranked, learned_from = pairs.ranked, response_table(first, second, pairs.first_wins[train])
    out.mkdir(parents=True, exist_ok=True)
    if part.earlier is not None:
        learned_from = pd.concat([pd.read_parquet(part.earlier / RESPONSES), learned_from], ignore_index=True)
    learned_from.to_parquet(out / RESPONSES, index=False)
    if part.earlier is not None:
        ranked = read_ranked(out, work.data.token_ids["pad_id"], work.at.device)
    kind = model_of(spec.kind)
    learned = _trained(work, kind, out, ranked, spec.member or 0)
    pairs.table().to_parquet(out / "pairs.parquet", index=False)
    measured: dict[str, Any] = {"train_pairs": len(learned_from) // 2, **({"pairs": pairs.note} if pairs.note else {})}
    if cfg.learned.ranked > 2:
        measured["train_rankings"] = len(ranked.order)
    if cfg.learned.trunk == "scratch":
        measured["parameters"] = sum(weight.numel() for weight in learned.networks[0].parameters())
    answers = pairs.first.take(kept), pairs.second.take(kept)
    margin = kind.margin(learned(answers[0]), learned(answers[1]))
    measured |= accuracy(margin, gap(pairs.gold)[kept], pairs.first_wins[kept], pairs.groups or answers[0].prompts)
    if part.count > 1:
        measured[TEMPERATURE] = pairs.temperature
    return learned, measured


def _collected(work: _Inputs, spec: PartConfig, name: str, part: Collection) -> Pairs:
    cfg, given, prompts = work.cfg.reward, spec.preferences, len(work.data.texts)
    # Given pairs are compared with the gold judge.
    judge = work.further[given.removeprefix(FURTHER)] if given.startswith(FURTHER) else work.gold
    if not is_judged(spec.preferences):
        check_room(work.reference, "reward.learned.max_tokens", cfg.learned.max_tokens)
        key = f"{cfg.key(name)}.preferences"
        return given_pairs(spec.preferences, key, judge, work.data, cfg, work.at.device)
    answers = partial(work.samples, work.policy)
    if cfg.learned.ranked > 2:
        return judged_rankings(answers, judge, prompts, cfg)
    return judged_pairs(answers, judge, prompts, cfg, part)


def _trained(work: _Inputs, kind: type[RewardModel], out: Path, ranked: Ranked, member: int) -> LearnedReward:
    cfg, runtime = work.cfg.reward, work.cfg.runtime
    if member:  # the pairs have a seed of their own
        cfg = cfg.model_copy(update={"seed": seed_of(cfg.seed, "member", member)})

    def progress(done: int, total: int, loss: float) -> None:
        if done % 10 == 0 or done == total:
            work.reporter.progress("reward", done, total, f"loss {loss:.3f}")

    model = kind.new(_trunk(work, cfg.seed), cfg, work.at.device)
    meter([model.lm], work.at.ledger.work)
    train_reward_model(model, ranked, cfg, progress, runtime.gradient_checkpointing, work.reporter.warn)
    freeze(model).save(out)
    return LearnedReward(model, work.at.room)


def _trunk(work: _Inputs, seed: int) -> CausalLM:
    learned, reference = work.cfg.reward.learned, work.reference.config
    if learned.trunk == "reference":
        return load_snapshot(work.sft.path / "model", work.at.device)
    positions = int(getattr(reference, "max_position_embeddings", MAX_POSITIONS))
    special = work.data.tokenizer.pad_token_id, work.data.tokenizer.eos_token_id
    # As many embeddings as the reference has: a tokenizer may name fewer tokens.
    size = learned.scratch.sizes(), int(reference.vocab_size), *special, positions
    return scratch_model(*size, seed_of(seed, "reward trunk")).to(work.at.device)
