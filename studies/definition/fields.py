"""Kinds of values that recur in a study file, each checked where it stands, and the keys that seeds set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from pipeline.config.base import Seed, distinct
from pipeline.config.loading import check_key
from pipeline.config.names import either, meant, nearest
from pipeline.config.presets import NAME, SHORT, spelled_out
from pipeline.errors import UserError
from pipeline.run.metrics import METRICS, known

MOST_SEEDS = 1_000
EVALUATION, COST = "eval/", "cost/"
"""Heads of the metrics that exist once per trial, after training: of its evaluation, and of its cost."""
PENALISED = ("objective/rlhf_reward", "objective/non_score_reward")
"""Metrics whose definition differs between arms of different beta."""
SEED_KEY, STOP_KEY = "train.seed", "train.stop"
FIXED = {
    SEED_KEY: "is set by the study's seeds, so that arms stay paired",
    STOP_KEY: "is set by falsifiers with `stop: true`, and by search.prune",
}
"""Keys that no study may change -> the part that sets them."""
Link = Literal["labels", "reward", "sft"]
LINKS: Mapping[Link, str] = {"labels": "reward.learned.pairs_seed", "reward": "reward.seed", "sft": "sft.seed"}
"""Parts of the chain before training that a seed can vary as well, and the key of their seed."""
WORDS: Mapping[Link, str] = {"labels": "preference labels", "reward": "reward model", "sft": "reference policy (SFT)"}


def kept_apart(vary: Iterable[Link]) -> dict[str, str]:
    """Keys that arms may not set, since the study's seeds do."""
    return {LINKS[link]: f"is set by the study's seeds, which vary the {WORDS[link]} (vary: {link})" for link in vary}


def _listed(seeds: Any) -> Any:
    """A single number is answered with the list that is meant."""
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        meant_seeds = list(range(min(max(seeds, 1), 9)))
        raise ValueError(f"{seeds} is a single number; give a list of seeds, for example seeds: {meant_seeds}")
    return seeds


def _of_trainer(info: ValidationInfo) -> bool:
    """Return whether the keys are parameters of the study's own trainer, which `studies.definition.trainer` checks."""
    return "name" in info.data and bool(info.data.get("trainer", "was refused"))


def in_full(knobs: Any, info: ValidationInfo) -> Any:
    """`algorithm` is short for `algorithm.name`."""
    try:
        return spelled_out(knobs) if isinstance(knobs, Mapping) and not _of_trainer(info) else knobs
    except UserError as error:
        raise ValueError(str(error)) from None


def _checked_knob(key: str, info: ValidationInfo) -> str:
    if _of_trainer(info):
        return key
    key = NAME if key == SHORT else key
    if key in FIXED:
        raise ValueError(f"'{key}' {FIXED[key]}")
    try:
        check_key(key)
    except UserError as error:
        raise ValueError(str(error)) from None
    return key


def _listed_metric(name: str) -> str:
    if known(name):
        return name
    listed = [key for key in METRICS if key.startswith(f"{name.partition('/')[0]}/")] or [*METRICS]
    same = meant(name.rpartition("/")[2], listed, "/")
    raise ValueError(f"no metric '{name}'{f'; did you mean {either(same)}?' if same else nearest(name, listed)}")


def check_comparable(metric: str) -> str:
    """Refuse a metric that means something else in each arm. Raises `ValueError`."""
    if metric in PENALISED:
        raise ValueError(
            f"'{metric}' holds each arm's own KL penalty, so arms of different beta would be compared on different"
            " objectives; use objective/scores"
        )
    return metric


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
"""Name of a claim; it becomes a column of tables and part of keys in MLflow."""
Seeds = Annotated[
    tuple[Seed, ...], Field(min_length=1, max_length=MOST_SEEDS), AfterValidator(distinct), BeforeValidator(_listed)
]
Knob = Annotated[str, AfterValidator(_checked_knob)]
"""A dotted key of the configuration, or a parameter of a trainer."""
Knobs = Annotated[dict[Knob, Any], BeforeValidator(in_full)]
"""Changes of an arm: {dotted key: value}."""
Levels = Annotated[dict[Knob, Annotated[list[Any], Field(min_length=1)]], BeforeValidator(in_full)]
"""Values of each of several knobs."""
MetricName = Annotated[str, AfterValidator(_listed_metric)]
Comparable = Annotated[MetricName, AfterValidator(check_comparable)]
"""A metric by which arms are compared."""
