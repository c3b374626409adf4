"""A diagnosis of a trained critic: its values against what the states of held-out episodes are worth, by replay."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from pipeline.config.replay import ReplayConfig
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.models.closing_tokens import closing_tokens
from pipeline.models.critic import restore_critic
from pipeline.models.loading import device_of, freeze, load_snapshot
from pipeline.models.policy import Episodes
from pipeline.models.precision import Precision
from pipeline.models.sampler import EagerSampler
from pipeline.models.seeding import uniforms
from pipeline.resources.out_of_memory import MemoryFull
from pipeline.rewards.base import Completions
from pipeline.run.store import Artifact
from pipeline.stages.common import PromptSet, reward_of, rollout_room, settle
from pipeline.stages.new_actor import load_reference, with_critic
from pipeline.training.judging import Prompts, RolloutContext, Scores, measure
from pipeline.training.processes import Ranks
from pipeline.training.replay import replay

COLUMNS = ("prompt_id", "place", "value", "worth", "noise")


@dataclass(frozen=True)
class Replaying:
    """How much is replayed."""

    prompts: int
    """Held-out prompts, one episode each."""
    continuations: int
    """Of each state, at least 2, so that the noise of their mean is known."""
    every: int
    """Tokens from one state to the next."""


def critic_bias(
    cfg: TrialConfig, how: Replaying, *, prompts: Artifact, sft: Artifact, reward: Artifact, train: Artifact
) -> pd.DataFrame:
    """A row for each state: prompt_id; place, the tokens before it; value, of the critic; worth, mean of the rewards to
    go of its continuations; noise, the squared standard error of worth; all in score units.

    Policy, critic, beta and the weight of a floor are those at the end of training. Raises `UserError` for a trial that
    is `unfit`, for more prompts than were evaluated, and where memory runs out.
    """
    if why := unfit(cfg):
        raise UserError(f"the critic cannot be diagnosed: {why}")
    if how.prompts > cfg.evaluate.prompts:
        raise UserError(
            f"--prompts {how.prompts} is too many: only {cfg.evaluate.prompts} were evaluated (evaluate.prompts)"
        )
    try:
        return _critic_bias(cfg, how, prompts, sft, reward, train)
    except MemoryFull as error:
        raise UserError(str(error)) from None


def _critic_bias(
    cfg: TrialConfig, how: Replaying, prompts: Artifact, sft: Artifact, reward: Artifact, train: Artifact
) -> pd.DataFrame:
    settle(cfg.runtime)
    device = device_of(cfg.runtime.device)
    data = PromptSet.load(prompts, "heldout", cfg.evaluate.first_prompt, how.prompts)
    room, count = rollout_room(cfg.runtime, lambda message: None), len(data.texts)
    proxy = reward_of(reward, device, room)

    def score(episodes: Episodes, rows: Any) -> Scores:
        completions = Completions.of(data.tokenizer, episodes, [data.texts[row] for row in rows])
        scores, parts = proxy.explained(completions)
        return Scores(scores, scores, completions.prompts, completions.texts, parts)

    policy = freeze(load_snapshot(train.path / "policy", device))
    actor = with_critic(policy, cfg, cfg.train.seed, sft, reward, device).eval()
    restore_critic(actor, train.path / "critic.safetensors")
    reference = freeze(load_reference(sft, cfg.adapter.quantize, device))
    sampler = EagerSampler(policy, cfg.train.temperature, room, **data.token_ids)
    whole = cfg.model_copy(update={"replay": ReplayConfig(continuations=how.continuations, every=how.every)})
    closes = closing_tokens(data.tokenizer, cfg.kl.group, int(policy.config.vocab_size))
    context = RolloutContext(
        actor,
        reference,
        score,
        whole,
        sampler,
        room,
        lambda phase: nullcontext(),
        Ranks.of(device),
        None if closes is None else closes.to(device),
        None if cfg.floor.part is None else _last(train, "objective/floor_weight"),
    )
    asked = Prompts(data.ids.to(device), data.mask.to(device), list(range(count)))
    with Precision.of(device).autocast(), torch.no_grad():
        noise = uniforms(count, cfg.train.response_length, cfg.evaluate.seed, "critic bias episodes")
        episodes = sampler.sample(asked.queries, asked.query_mask, noise)
        values = measure(actor, reference, episodes, cfg.train.temperature, room).values
        found = replay(context, asked, episodes, slice(0, count), 0, _last(train, "objective/kl_coef"), "critic bias")
    assert values is not None
    rows, places = (axis.cpu() for axis in found.states.known.nonzero(as_tuple=True))
    columns = (grid.cpu()[rows, places].double().numpy() for grid in (values, found.states.values, found.noise))
    first = cfg.evaluate.first_prompt
    return pd.DataFrame(dict(zip(COLUMNS, ((rows + first).numpy(), places.numpy(), *columns), strict=True)))


def unfit(cfg: TrialConfig) -> str | None:
    """Why a trial has no values that could be compared; None where it has."""
    if cfg.critic.kind == "none":
        return "it has no critic"
    if cfg.algorithm.whiten_rewards:
        return "algorithm.whiten_rewards fitted its critic to other units in every update"
    return None


def _last(train: Artifact, series: str) -> float:
    """The value of a series at the last rollout."""
    values = pd.read_parquet(train.path / "metrics.parquet", columns=[series])[series]
    return float(values.dropna().iloc[-1])
