"""Claims that the planned trials cannot decide; the user is warned of them before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.algorithms.settings import ADAM_MOVES_THE_POLICY
from pipeline.config.effects import When, above, given, setting
from pipeline.config.networks import CRITIC, SEPARATE
from pipeline.config.train import REPLAY, teaches
from pipeline.config.trial import TrialConfig
from pipeline.rewards.settings import ROUNDS
from pipeline.run.metrics import FEWEST_OF_LAW, each_step
from pipeline.training.parts.settings import APART, BONUS
from studies.definition.design import Cell
from studies.definition.falsifier import Falsifier
from studies.definition.fields import EVALUATION
from studies.definition.hypotheses import Hypothesis
from studies.definition.schema import Study

SEEDS = 2
"""Least number of seeds that shows how much seeds differ, and so whether a hypothesis holds on others."""

JUDGED = ("objective/gold/", "eval/gold/", "eval/gold_reference/")
"""Heads of the metrics of further judges, before the judge's name."""
PARTS = ("reward/", "eval/reward/")
"""Heads of the metrics of parts of a reward, before the part's name."""
ONLY_WITH: tuple[tuple[When, tuple[str, ...]], ...] = (
    (setting("algorithm.advantage", "remax"), ("objective/greedy_reward",)),
    (
        When(
            "an advantage among the responses to a prompt",
            lambda config: ADVANTAGES[config.algorithm.advantage].least_responses > 1,
            "algorithm.advantage",
        ),
        ("objective/equal_groups",),
    ),
    (BONUS, ("objective/ent_coef",)),
    (APART, ("rollout/kl_per_token", "rollout/effective_share", "rollout/largest_ratio")),
    (setting("algorithm.trust_region", "clip", "cispo"), ("policy/pg_clipfrac",)),
    (setting("kl.place", "loss"), ("policy/kl_loss",)),
    (given("kl.hinge"), ("policy/kl_hinge",)),
    (CRITIC, ("value/vf_loss", "value/vf_clipfrac", "value/explained_variance", "value/grad_norm")),
    (SEPARATE, ("value/grad_norm",)),
    (setting("optimiser.clip_norms", "apart"), ("value/grad_norm",)),
    (REPLAY, ("replay/states", "replay/tokens", "replay/explained_variance", "replay/standard_error")),
    (When("critic.target: replay", teaches, "critic.target"), ("replay/critic_bias", "replay/critic_error")),
    (above("replay.continuations", 1), ("replay/standard_error", "replay/critic_error")),
    (
        setting("algorithm.trust_region", "dpo", "ipo"),
        (
            "pairs/chosen_logprobs", "pairs/rejected_logprobs", "pairs/chosen_log_ratio", "pairs/rejected_log_ratio",
            "pairs/accuracy",
        ),
    ),
    (setting("algorithm.trust_region", "kl_penalty"), ("policy/old_kl_coef", "policy/old_kl")),
    (
        setting("algorithm.trust_region", "trpo"),
        (
            "policy/step_accepted", "policy/line_search", "policy/old_kl_exact", "policy/surrogate_gain",
            "policy/expected_gain",
        ),
    ),
    (ADAM_MOVES_THE_POLICY, ("policy/lr", "policy/lr_factor")),
    (given("floor.part"), ("objective/floor_weight",)),
    (ROUNDS, ("objective/round_kl_per_token",)),
    (given("algorithm.target_kl"), ("policy/update_steps",)),
    (
        setting("data.source", "chains"),
        (
            "objective/accuracy", "objective/working_rate", "objective/sound_rate", "objective/length_right",
            "objective/length_wrong", "objective/entropy_forks", "objective/entropy_elsewhere", "eval/accuracy",
            "eval/working_rate", "eval/sound_rate", "eval/length_right", "eval/length_wrong", "eval/entropy_forks",
            "eval/entropy_elsewhere", "eval/entropy_law_miss", "eval/accuracy_reference", "eval/working_rate_reference",
        ),
    ),
    (
        When("answers that a judge scores", lambda config: config.data.source != "chains", "data.source"),
        ("eval/gold_law_miss", "eval/proxy_law_miss"),
    ),
    (
        When(
            f"{FEWEST_OF_LAW} updates on rollouts",
            lambda config: (
                config.algorithm.learns and config.train.data == "rollouts" and config.train.updates >= FEWEST_OF_LAW
            ),
            "train.steps",
        ),
        ("eval/entropy_law_miss", "eval/gold_law_miss", "eval/proxy_law_miss"),
    ),
    *((above("evaluate.passes", k - 1), (f"eval/pass_at_{k}",)) for k in (4, 16, 64)),
    (above("evaluate.passes", 1), ("eval/pass_at_1",)),
    (above("evaluate.best_of", 1), ("eval/kl_below_bound",)),
    (given("evaluate.kl_gradient"), ("eval/kl_cosine",)),
)  # fmt: skip
"""Series that only some configurations record, and their conditions, all of which must hold."""


def untestable(study: Study, plan: Sequence[Cell]) -> list[str]:
    """One line for each claim that some of the trials cannot decide, with their arms and the reason."""
    return [line for part in study.hypotheses if (line := _of_hypothesis(part, study, plan))] + [
        line for claim in study.falsifiers for line in _of_claim(claim, study.baseline, plan)
    ]


def needs(metric: str, config: TrialConfig) -> str | None:
    """The key that a trial of this configuration lacks to record a series; None where it records the series."""
    if not (config.algorithm.learns or metric.startswith(EVALUATION)):
        return "an algorithm that takes gradient steps"
    if metric.startswith(PARTS):
        part, parts = metric.rpartition("/")[2], config.reward.parts
        if part not in parts:
            return f"reward.parts.{part}"
        return None if len(parts) > 1 else "a second part in reward.parts"
    if metric.startswith(JUDGED):
        judge = metric.rpartition("/")[2]
        return None if judge in config.judge.also else f"judge.also.{judge}"
    missing = [condition.words for condition, series in ONLY_WITH if metric in series and not condition.holds(config)]
    return " and ".join(missing) or None


def _of_hypothesis(part: Hypothesis, study: Study, plan: Sequence[Cell]) -> str | None:
    seeds = study.search.confirm.seeds if study.search else study.seeds
    if len(seeds) < SEEDS:
        return f"hypothesis {part.name} cannot be tested: it needs at least {SEEDS} seeds"
    silent = {cell.arm: key for cell in plan if cell.arm in part.arms and (key := needs(part.metric, cell.config))}
    if silent:
        arm, key = next(iter(silent.items()))
        return f"hypothesis {part.name} cannot be tested: {arm} records {part.metric} only with {key}"
    return None


def _of_claim(claim: Falsifier, baseline: str, plan: Sequence[Cell]) -> list[str]:
    cells = [cell for cell in plan if claim.applies_to(cell.arm, baseline)]
    base = next((cell for cell in plan if cell.arm == baseline), None) if claim.relative_to else None
    lines = []
    if base is not None and (key := needs(claim.metric, base.config)):
        lines.append(
            f"claim {claim.name} cannot be tested: the baseline {baseline} records {claim.metric} only with {key}"
        )
        base = None
    silent = [cell for cell in cells if needs(claim.metric, cell.config)]
    if silent:
        key = needs(claim.metric, silent[0].config)
        lines.append(
            f"claim {claim.name} cannot be tested{_on(silent, cells)}: {claim.metric} is recorded only with {key}"
        )
    tested = [cell for cell in cells if cell not in silent]
    return lines if claim.evaluated else [*lines, *_too_short(claim, tested, base, cells)]


def _too_short(claim: Falsifier, tested: Sequence[Cell], base: Cell | None, cells: Sequence[Cell]) -> list[str]:
    """Trials that take too few steps for the claim, or record too little before its step."""
    lines = []
    beside = [base] if base is not None else []
    taken = [(cell, min(one.steps for one in (cell, *beside))) for cell in tested]
    short = [cell for cell, steps in taken if steps < claim.horizon]
    if short:
        fate = "be tested" if claim.aggregation == "mean" else "survive"
        planned = " or ".join(f"{step:,}" for step in sorted({steps for _, steps in taken if steps < claim.horizon}))
        covers = f"it covers the first {claim.horizon:,} gradient steps, but train.steps is {planned}"
        lines.append(f"claim {claim.name} cannot {fate}{_on(short, cells)}: {covers}")
    counts = [(cell, records_before(claim, cell.config, *(one.config for one in beside))) for cell in tested]
    few = [cell for cell, count in counts if count < claim.consecutive]
    if few:
        most = max(count for _, count in counts if count < claim.consecutive)
        needed = (
            f"{claim.consecutive} records in a row would refute it, and at most {most} come before step"
            f" {claim.horizon:,}"
        )
        lines.append(f"claim {claim.name} cannot be tested{_on(few, cells)}: {needed}")
    return lines


def records_before(claim: Falsifier, *configs: TrialConfig) -> int:
    """Return how many records of its series a claim can count on at most, in trials of all these configurations at the
    same steps: of a rollout one an update, as of TRPO's policy; of the losses one a gradient step."""
    steps = min(claim.horizon, *(config.train.steps for config in configs))
    natural = any(config.algorithm.trust_region == "trpo" for config in configs)
    if each_step(claim.metric) and not (natural and claim.metric.startswith("policy/")):
        return steps
    return -(-steps // math.lcm(*(config.train.steps_per_update for config in configs)))


def _on(concerned: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """Name the arms that a line is about, where these are not all arms of the claim."""
    return "" if len(concerned) == len(cells) else f" on {', '.join(dict.fromkeys(cell.arm for cell in concerned))}"
