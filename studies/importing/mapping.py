"""What a foreign log calls things: names, units and what its x-axis counts. A mapping file (YAML) states what TRL does
not say.

steps_per_update: 16              # gradient steps taken in one update: num_ppo_epochs x num_mini_batches
step: {key: step, counts: updates, first: 1}        # or: episodes (with episodes_per_update), gradient_steps
length: 53                        # tokens of a response: a number, or the key that logs their mean
files: "{arm}/run{seed}"          # where arm and seed stand in a path without its suffix
metrics:                          # ours: theirs
  objective/kl: {key: ppo/mean_kl, unit: bits per sequence}
  objective/scores: {key: reward, subtract: 1.2, factor: 0.5}
  policy/ratio: none              # leave a series out
environment: {trl: 1.12.0}        # what the trials ran with, for the page
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Positive, Section, StrictlyPositive
from pipeline.config.messages import validate
from pipeline.config.names import nearest
from pipeline.config.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.run.metrics import METRICS, Metric, metric

Counts = Literal["updates", "episodes", "gradient_steps"]
TRL = {
    "objective/kl": "objective/kl",
    "objective/entropy": "objective/entropy",
    "objective/non_score_reward": "objective/non_score_reward",
    "objective/rlhf_reward": "objective/rlhf_reward",
    "objective/scores": "objective/scores",
    "policy/approxkl_avg": "policy/approxkl",
    "policy/clipfrac_avg": "policy/pg_clipfrac",
    "policy/entropy_avg": "policy/entropy",
    "loss/policy_avg": "policy/pg_loss",
    "loss/value_avg": "value/vf_loss",
    "val/clipfrac_avg": "value/vf_clipfrac",
    "val/ratio": "policy/ratio",
    "lr": "policy/lr",
}
"""Names of TRL 1.12 (trl/experimental/ppo/ppo_trainer.py) and ours."""
KNOWN_UNUSED = {
    "eps",
    "episode",
    "epoch",
    "step",
    "global_step",
    "val/ratio_var",
    "val/num_eos_tokens",
    "num_input_tokens_seen",
    "_step",
}
"""Logged by TRL or its trackers, and no metric of ours."""
PREFIX = "train/"
"""What trackers put before the names that a trainer logs."""
AXES: dict[str, Counts] = {"step": "updates", "global_step": "updates", "episode": "episodes"}
_UNITS = {("bits", "nats"): math.log(2.0), ("percent", "fraction"): 0.01}
_PER_LENGTH = {("token", "sequence"): 1, ("sequence", "token"): -1}


class Named(Section):
    """Where a metric of ours comes from: ``(theirs - subtract) x factor``, after its unit has been converted."""

    key: str
    unit: str | None = Field(None, description="theirs; ours when not given")
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    subtract: Annotated[float, Field(allow_inf_nan=False)] = 0.0


class Axis(Section):
    """What the x-axis of the log is."""

    key: str | None = Field(None, description="default: step, global_step or episode, whichever is there first")
    counts: Counts | None = Field(None, description="default: updates for step, episodes for episode")
    first: Literal[0, 1] = Field(1, description="number of the first update, where updates are counted")


class Mapping(Section):
    """The content of a mapping file; everything has a default but the gradient steps of an update."""

    steps_per_update: Positive | None = None
    episodes_per_update: Positive | None = Field(
        None, description="batch_size of TRL: episodes of one rollout over all devices"
    )
    step: Axis = Axis()
    length: StrictlyPositive | str | None = None
    files: str | None = None
    metrics: dict[str, Named | None] = Field(default_factory=dict)
    environment: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(default_factory=dict)

    @field_validator("metrics", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        plain = {
            key: None if one in (None, "none") else {"key": one} if isinstance(one, str) else one
            for key, one in value.items()
        }
        for key, one in plain.items():
            _check_target(str(key), one)
        return plain

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        for key, named in self.metrics.items():
            if named is not None and named.unit is not None:
                conversion(named.unit, METRICS[key], self.length is not None)
        return self


def load_mapping(path: Path | None, steps_per_update: int | None = None) -> Mapping:
    """Read a mapping file; `steps_per_update` is what the command line says. Raises `UserError` with file, key and
    value."""
    content = read_yaml(path) if path else {}
    if steps_per_update is not None:
        if content.get("steps_per_update", steps_per_update) != steps_per_update:
            raise UserError(
                f"{path}: steps_per_update is {content['steps_per_update']}, and {steps_per_update} on the command"
                " line; give one"
            )
        content = {**content, "steps_per_update": steps_per_update}
    return validate(Mapping, content, str(path) if path else "--steps-per-update")


def conversion(unit: str, target: Metric, with_length: bool) -> tuple[float, int]:
    """Factor, and the power of the response length, that turn `unit` into the target's. Raises `ValueError`."""
    theirs, ours = unit.split(" per "), target.unit.split(" per ")
    factor = 1.0 if theirs[0] == ours[0] else _UNITS.get((theirs[0], ours[0]))
    power = (
        0
        if theirs[1:] == ours[1:]
        else _PER_LENGTH.get((theirs[-1], ours[-1]))
        if len(theirs) == len(ours) == 2
        else None
    )
    if factor is None or power is None:
        known = ", ".join(sorted({f"{one[0]} to {one[1]}" for one in _UNITS} | {"per token to per sequence and back"}))
        raise ValueError(
            f"metrics.{target.key}: no way from '{unit}' to '{target.unit}'; known: {known}; or give a factor"
        )
    if power and not with_length:
        raise ValueError(
            f"metrics.{target.key}: from '{unit}' to '{target.unit}' needs `length`: tokens of a response, or their key"
        )
    return factor, power


def resolve(mapping: Mapping, keys: Iterable[str], origin: str) -> dict[str, Named]:
    """Our metric -> theirs, for a log with these keys: what the mapping says, else TRL's names, else our own.

    Raises `UserError` when two keys of a log are the same metric.
    """
    present = list(keys)
    found = {ours: named for ours, named in mapping.metrics.items() if named is not None and named.key in present}
    taken = {named.key for named in found.values()}
    for key in present:
        ours = own_name(key)
        if ours is None or ours in mapping.metrics or key in taken:
            continue
        if ours in found:
            raise UserError(
                f"{origin}: '{found[ours].key}' and '{key}' are both {ours}; say which under `metrics` in the mapping"
            )
        found[ours] = Named(key=key)
    return {**found, **_derived(mapping, found, present)}


def _derived(mapping: Mapping, found: dict[str, Named], present: list[str]) -> dict[str, Named]:
    """What a stated length allows: the length itself where it was logged, and KL per token (both are sums over the same
    tokens)."""
    added: dict[str, Named] = {}
    if isinstance(mapping.length, str) and mapping.length in present:
        added["objective/length"] = Named(key=mapping.length)
    per_sequence = found.get("objective/kl")
    if mapping.length is not None and per_sequence is not None and per_sequence.subtract == 0:
        unit = per_sequence.unit or METRICS["objective/kl"].unit
        added["objective/kl_per_token"] = per_sequence.model_copy(update={"unit": unit})
    return {ours: named for ours, named in added.items() if ours not in found and ours not in mapping.metrics}


def own_name(key: str) -> str | None:
    """Our name of a key that TRL, a tracker or this project logs; none when it is unknown."""
    bare = key.removeprefix(PREFIX)
    return TRL.get(bare) or (bare if bare in METRICS else None)


def unused(mapping: Mapping, keys: Iterable[str]) -> list[str]:
    """Keys that no metric was made of and that are not known to be something else, each with the nearest known name."""
    used = {named.key for named in mapping.metrics.values() if named} | {mapping.step.key, mapping.length}
    strange = [
        key
        for key in keys
        if own_name(key) is None and key not in used and key.removeprefix(PREFIX) not in KNOWN_UNUSED
    ]
    return [f"{key}{nearest(key, [*TRL, *METRICS])}" for key in strange]


def check_keys_exist(mapping: Mapping, keys: Iterable[str]) -> None:
    """Refuse keys that the mapping speaks of and that no log has. Raises `UserError` with the nearest one."""
    present = sorted(set(keys))
    stated = [(f"metrics.{ours}", named.key) for ours, named in mapping.metrics.items() if named is not None]
    stated += [("step.key", mapping.step.key)] if mapping.step.key else []
    stated += [("length", mapping.length)] if isinstance(mapping.length, str) else []
    for where, key in stated:
        if key not in present:
            raise UserError(
                f"mapping: {where}: no log has a key '{key}'{nearest(key, present)}; keys: {', '.join(present)}"
            )


def _check_target(key: str, named: Any) -> None:
    try:
        metric(key, "metrics")
    except UserError as error:
        raise ValueError(str(error)) from None
    if (
        key.startswith("eval/")
        and isinstance(named, dict)
        and str(named.get("unit", "")).endswith(("per token", "per sequence"))
    ):
        raise ValueError(f"metrics.{key}: a final measurement has no length to convert it with; give a factor")
