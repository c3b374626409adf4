"""Claims that the planned trials cannot decide; the user is warned of them before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.config import TrialConfig
from studies.design import Cell
from studies.schema import Falsifier, Study

ONLY_WITH: dict[str, tuple[str, Callable[[TrialConfig], bool]]] = {
    "policy/dual_clipfrac": ("ppo.dual_clip", lambda config: config.ppo.dual_clip is not None),
    "policy/kl_loss": ("ppo.kl_in: loss", lambda config: config.ppo.kl_in == "loss"),
    "policy/kl_hinge": ("ppo.kl_hinge", lambda config: config.ppo.kl_hinge is not None),
    "value/grad_norm": (
        "ppo.critic: separate and ppo.clip_norms: apart",
        lambda config: config.ppo.critic == "separate" and config.ppo.clip_norms == "apart",
    ),
    "policy/update_steps": ("ppo.target_kl", lambda config: config.ppo.target_kl is not None),
}
"""Series that only some configurations record: the key that they need, and whether a configuration has it."""


def untestable(study: Study, plan: Sequence[Cell]) -> list[str]:
    """One line for each claim that some of the trials cannot decide, with their arms and the reason."""
    return [line for claim in study.falsifiers for line in _of_claim(claim, [cell for cell in plan if claim.applies_to(cell.arm)])]


def needs(metric: str, config: TrialConfig) -> str | None:
    """The key that a trial of this configuration lacks to record a series; None where it records the series."""
    family, _, part = metric.partition("/")
    if family == "reward":
        return None if part in config.reward.parts else f"reward.parts.{part}"
    key, has = ONLY_WITH.get(metric, ("", lambda config: True))
    return None if has(config) else key


def _of_claim(claim: Falsifier, cells: Sequence[Cell]) -> list[str]:
    lines = []
    silent = [cell for cell in cells if needs(claim.metric, cell.config)]
    if silent:
        key = needs(claim.metric, silent[0].config)
        lines.append(f"claim {claim.name} cannot be tested{_on(silent, cells)}: {claim.metric} is recorded only with {key}")
    short = [cell for cell in cells if cell.steps < claim.before_step and cell not in silent]
    if short:
        fate = "be tested" if claim.aggregation == "mean" else "survive"
        steps = " or ".join(f"{step:,}" for step in sorted({cell.steps for cell in short}))
        lines.append(f"claim {claim.name} cannot {fate}{_on(short, cells)}: before_step is {claim.before_step:,}, but ppo.steps is {steps}")
    return lines


def _on(concerned: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """The arms that a line is about, where it is not about all that the claim speaks of."""
    return "" if len(concerned) == len(cells) else f" on {', '.join(dict.fromkeys(cell.arm for cell in concerned))}"
