"""Claims that the planned trials cannot decide; the user is warned of them before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.config.presets import ADVANTAGES
from pipeline.config.trial import TrialConfig
from studies.definition.design import Cell
from studies.definition.hypotheses import Hypothesis
from studies.definition.schema import Falsifier, Study

SEEDS = 2
"""Least number of seeds that says how much seeds differ, and so whether a hypothesis holds on others."""

ONLY_WITH: dict[str, tuple[str, Callable[[TrialConfig], bool]]] = {
    "objective/greedy_reward": (
        "algorithm.advantage: remax",
        lambda config: ADVANTAGES[config.algorithm.advantage].greedy,
    ),
    "policy/pg_clipfrac": (
        "algorithm.trust_region: clip or cispo",
        lambda config: config.algorithm.trust_region in ("clip", "cispo"),
    ),
    "policy/dual_clipfrac": ("algorithm.dual_clip", lambda config: config.algorithm.dual_clip is not None),
    "policy/kl_loss": ("kl.place: loss", lambda config: config.kl.place == "loss"),
    "policy/kl_hinge": ("kl.hinge", lambda config: config.kl.hinge is not None),
    **dict.fromkeys(
        ("value/vf_loss", "value/vf_clipfrac", "value/explained_variance"),
        ("a critic (critic.kind: shared or separate)", lambda config: config.critic.kind != "none"),
    ),
    "value/grad_norm": (
        "critic.kind: separate and optimiser.clip_norms: apart",
        lambda config: config.critic.kind == "separate" and config.optimiser.clip_norms == "apart",
    ),
    "policy/update_steps": ("algorithm.target_kl", lambda config: config.algorithm.target_kl is not None),
}
"""Series that only some configurations record: the key that they need, and whether a configuration has it."""


def untestable(study: Study, plan: Sequence[Cell]) -> list[str]:
    """One line for each claim that some of the trials cannot decide, with their arms and the reason."""
    return [line for part in study.hypotheses if (line := _of_hypothesis(part, study, plan))] + [
        line
        for claim in study.falsifiers
        for line in _of_claim(claim, [cell for cell in plan if claim.applies_to(cell.arm)])
    ]


def needs(metric: str, config: TrialConfig) -> str | None:
    """The key that a trial of this configuration lacks to record a series; None where it records the series."""
    family, _, part = metric.partition("/")
    if family == "reward":
        return None if part in config.reward.parts else f"reward.parts.{part}"
    key, has = ONLY_WITH.get(metric, ("", lambda config: True))
    return None if has(config) else key


def _of_hypothesis(part: Hypothesis, study: Study, plan: Sequence[Cell]) -> str | None:
    seeds = study.search.confirm.seeds if study.search else study.seeds
    if len(seeds) < SEEDS:
        return f"hypothesis {part.name} cannot be tested: it needs at least {SEEDS} seeds"
    silent = {cell.arm: key for cell in plan if cell.arm in part.arms and (key := needs(part.metric, cell.config))}
    if silent:
        arm, key = next(iter(silent.items()))
        return f"hypothesis {part.name} cannot be tested: {arm} records {part.metric} only with {key}"
    return None


def _of_claim(claim: Falsifier, cells: Sequence[Cell]) -> list[str]:
    lines = []
    silent = [cell for cell in cells if needs(claim.metric, cell.config)]
    if silent:
        key = needs(claim.metric, silent[0].config)
        lines.append(
            f"claim {claim.name} cannot be tested{_on(silent, cells)}: {claim.metric} is recorded only with {key}"
        )
    short = [cell for cell in cells if cell.steps < claim.before_step and cell not in silent]
    if short:
        fate = "be tested" if claim.aggregation == "mean" else "survive"
        steps = " or ".join(f"{step:,}" for step in sorted({cell.steps for cell in short}))
        covers = f"it covers the first {claim.before_step:,} gradient steps, but train.steps is {steps}"
        lines.append(f"claim {claim.name} cannot {fate}{_on(short, cells)}: {covers}")
    few = [cell for cell in cells if records_before(claim, cell.config) < claim.consecutive and cell not in silent]
    if few:
        most = max(records_before(claim, cell.config) for cell in few)
        needed = (
            f"{claim.consecutive} records in a row would refute it, and at most {most} come before step"
            f" {claim.before_step:,}"
        )
        lines.append(f"claim {claim.name} cannot be tested{_on(few, cells)}: {needed}")
    return lines


def records_before(claim: Falsifier, config: TrialConfig) -> int:
    """How many records of its series a claim can count on at most: of a rollout one an update, of the losses one a
    gradient step."""
    steps = min(claim.before_step, config.train.steps)
    return -(-steps // config.train.steps_per_update) if claim.metric.startswith(("objective/", "reward/")) else steps


def _on(concerned: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """The arms that a line is about, where it is not about all that the claim speaks of."""
    return "" if len(concerned) == len(cells) else f" on {', '.join(dict.fromkeys(cell.arm for cell in concerned))}"
