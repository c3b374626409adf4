"""What pydantic cannot see in a study: names, keys and values against the profile, the metrics and each other.

Every function raises `UserError` with the file, the key, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from pipeline.config import check_key, load_config, nearest, profile_names
from pipeline.errors import UserError
from pipeline.layout import safe
from pipeline.metrics import metric
from studies.arms import BASELINE
from studies.schema import IMPORTED, SEED_KEY, STOP_KEY, Study

CONFIRM = "confirm-"
"""Followed by a rank: the arms of a confirmation."""


def check(study: Study) -> None:
    """Everything, in the order in which a reader of the file would want to know."""
    _check_profile(study)
    _check_names(study)
    where = f"{study.source}: objective.metric"
    if study.kind == IMPORTED:
        metric(study.objective.metric, where)  # a series counts as well: by its end
    else:
        _check_arms(study)
        _check_search(study)
        _check_objective(study.objective.metric, where)
    _check_falsifiers(study)


def check_overrides(study: Study, overrides: Mapping[str, Any]) -> None:
    """Refuse ``--set`` keys that are unknown, that seeds own, or that could have no effect on this study."""
    if overrides and study.kind == IMPORTED:
        raise UserError(f"--set: {study.name} was imported; its trials cannot be changed here")
    arms = study.arm_overrides()
    varied = [*(study.factors or {}), *(study.search.space if study.search else {})]
    for key in overrides:
        check_key(key, "--set")
        if key == SEED_KEY:
            raise UserError(f"--set: '{SEED_KEY}' comes from the study's seeds; change `seeds` in {study.source}")
        if key == STOP_KEY:
            raise UserError(f"--set: '{STOP_KEY}' comes from falsifiers with `stop: true` and from search.prune; change {study.source}")
        if key in varied:
            raise UserError(f"--set: '{key}' is what {study.name} varies; edit {study.source} instead")
        if all(key in own for own in arms.values()):
            raise UserError(f"--set: '{key}' would have no effect: every arm of {study.name} sets it; edit {study.source} instead")


def arm_names(study: Study) -> list[str]:
    """The names that falsifiers can speak of; those of a confirmation are known before the search is."""
    ranks = range(1, study.search.confirm.top + 1) if study.search else ()
    return [*study.arm_overrides(), *(f"{CONFIRM}{rank}" for rank in ranks)]


def _check_profile(study: Study) -> None:
    if study.kind == IMPORTED:
        if study.profile != IMPORTED:
            raise UserError(f"{study.source}: profile: imported trials have none, '{study.profile}' is given; leave the key out")
    elif study.profile not in profile_names():
        hint = nearest(study.profile, profile_names())
        raise UserError(f"{study.source}: profile: no profile '{study.profile}'{hint}; there are: {', '.join(profile_names())}")


def _check_names(study: Study) -> None:
    try:
        arms = list(study.arm_overrides())
    except UserError as error:
        raise UserError(f"{study.source}: {error}") from None
    if study.kind in ("factors", "search") and study.baseline != BASELINE:
        raise UserError(f"{study.source}: baseline '{study.baseline}': with {study.kind} it is the profile itself; leave the key out")
    if study.baseline not in arms:
        raise UserError(
            f"{study.source}: baseline '{study.baseline}' is not an arm{nearest(study.baseline, arms)}; arms: {', '.join(arms)}"
        )
    folded: dict[str, str] = {}
    for arm in arms:
        try:
            safe(arm)
        except UserError as error:
            raise UserError(f"{study.source}: arms: {error}") from None
        twin = folded.setdefault(arm.lower(), arm)
        if twin != arm:
            raise UserError(f"{study.source}: arms '{twin}' and '{arm}' differ only in case; some file systems cannot tell them apart")


def _check_arms(study: Study) -> None:
    digests: dict[str, str] = {}
    for arm, overrides in study.arm_overrides().items():
        where = f"{study.source}: {study.kind}.{arm}"
        _check_keys(overrides, where)
        twin = digests.setdefault(load_config(study.profile, overrides, where).digest(), arm)
        if twin == arm:
            continue
        if study.factors and twin == BASELINE:
            key, value = next(iter(overrides.items()))
            own = f"the baseline's own value on profile '{study.profile}'"
            raise UserError(f"{study.source}: factors.{key}: {value} is {own}; leave it out")
        raise UserError(f"{study.source}: arms '{twin}' and '{arm}' are the same trial on profile '{study.profile}'; keep one")


def _check_keys(keys: Mapping[str, Any], where: str) -> None:
    if SEED_KEY in keys:
        raise UserError(f"{where}: '{SEED_KEY}' is set by the study's seeds, so that arms stay paired")
    if STOP_KEY in keys:
        raise UserError(f"{where}: '{STOP_KEY}' is set by falsifiers with `stop: true`, and by search.prune")


def _check_search(study: Study) -> None:
    """Both ends of every range, and every value, must make a valid trial by themselves."""
    search = study.search
    if search is None:
        return
    where = f"{study.source}: search.space"
    _check_keys(search.space, where)
    for key, dimension in search.space.items():
        for value in dimension.ends:
            load_config(study.profile, {key: value}, where)
    for index, objective in enumerate(search.objectives):
        _check_objective(objective.metric, f"{study.source}: search.objectives.{index}.metric")
    for index, constraint in enumerate(search.constraints):
        _check_objective(constraint.metric, f"{study.source}: search.constraints.{index}.metric")


def _check_objective(name: str, where: str) -> None:
    if not metric(name, where).key.startswith("eval/"):
        raise UserError(f"{where} '{name}' is a series; name a metric of the evaluation (eval/...)")


def _check_falsifiers(study: Study) -> None:
    arms = arm_names(study)
    names = [falsifier.name for falsifier in study.falsifiers]
    for index, falsifier in enumerate(study.falsifiers):
        where = f"{study.source}: falsifiers.{index}"
        if names.count(falsifier.name) > 1:
            raise UserError(f"{where}.name: '{falsifier.name}' is the name of two falsifiers")
        if metric(falsifier.metric, f"{where}.metric").key.startswith("eval/"):
            raise UserError(f"{where}.metric: '{falsifier.metric}' is measured once, after training; name a series that has steps")
        for pattern in falsifier.arms:
            if not any(fnmatchcase(arm, pattern) for arm in arms):
                raise UserError(f"{where}.arms: no arm is named '{pattern}'{nearest(pattern, arms)}; arms: {', '.join(arms)}")
