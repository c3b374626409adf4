"""What pydantic cannot see in a study: names, keys and values against the profile, the metrics and each other.

A file is checked as a whole and all its faults are reported at once, each with file, line, key, value and what is
allowed. Unknown keys come first: a misspelt knob explains many a fault behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline.config.effects import inert, value_at
from pipeline.config.loading import check_key, profile_names, read_config
from pipeline.config.messages import ConfigFault
from pipeline.config.names import meant, nearest
from pipeline.config.trial import TrialConfig
from pipeline.config.yaml_files import Where, line_of
from pipeline.errors import UserError
from pipeline.run.layout import safe
from pipeline.run.metrics import METRICS, known, metric
from studies.definition.arms import BASELINE
from studies.definition.schema import FIGURES, IMPORTED, SEED_KEY, STOP_KEY, Study

CONFIRM = "confirm-"
"""Followed by a rank: the arms of a confirmation."""
FIXED = {
    SEED_KEY: "is set by the study's seeds, so that arms stay paired",
    STOP_KEY: "is set by falsifiers with `stop: true`, and by search.prune",
}
"""Keys that a study may not change, and who does."""
IDLE = "has no effect"
PAIRS_CHECKED = 500
"""Pairs of values that are tried of a search space; with more, a fault may be found only when the search proposes
it."""


def check(study: Study) -> list[ConfigFault]:
    """Everything that is wrong with a study whose shape is right."""
    try:
        study.arm_overrides()
    except UserError as error:
        return [ConfigFault((study.kind,), str(error))]
    found = list(_profile(study))
    if study.kind == IMPORTED:  # a series counts as well: by its end
        return [
            *found,
            *_names(study),
            *_metric(study.objective.metric, ("objective", "metric"), None),
            *_claims(study),
        ]
    if not found:
        found += _knobs(study)
    misnamed = study.kind in ("grid", "factors") and any("unknown key" in fault.text for fault in found)
    found += [] if misnamed else _names(study)  # such arms are named after their keys
    return [*found, *_aims(study), *_claims(study)]


def check_names(content: Mapping[str, Any]) -> list[ConfigFault]:
    """The knobs and metrics in a file whose shape is wrong elsewhere, so that all its faults come at once."""
    spaces: dict[tuple[str, ...], Any] = {(kind,): content.get(kind) for kind in ("grid", "factors")}
    spaces |= {("arms", arm): overrides for arm, overrides in _mapping(content.get("arms")).items()}
    spaces["search", "space"] = _mapping(content.get("search")).get("space")
    found = [
        ConfigFault((*where, key), f"{'.'.join(where)}: {text}")
        for where, keys in spaces.items()
        for key in map(str, _mapping(keys))
        if (text := _key_fault(key))
    ]
    claims = content.get("falsifiers")
    for index, claim in enumerate(claims if isinstance(claims, list) else []):
        name = _mapping(claim).get("metric")
        found += _metric(name, ("falsifiers", index, "metric"), False) if isinstance(name, str) else []
    arms = list(map(str, _mapping(content.get("arms"))))
    if arms:
        found += _baseline(str(content["baseline"]), arms) if "baseline" in content else []
        for index, claim in enumerate(claims if isinstance(claims, list) else []):
            patterns = _mapping(claim).get("arms")
            found += _patterns(
                index, [one for one in patterns if isinstance(one, str)] if isinstance(patterns, list) else [], arms
            )
    return found


def told(source: str, faults: Iterable[ConfigFault]) -> str:
    """One line per fault, with file and line; what is wrong with ``--set`` is in no file."""
    lines = (
        fault.text if fault.text.startswith("--set") else f"{_at(source, fault.where)}: {fault.text}"
        for fault in faults
    )
    return "\n".join(dict.fromkeys(lines))


def check_overrides(study: Study, overrides: Mapping[str, Any]) -> None:
    """Refuse ``--set`` keys that are unknown, that seeds own, or that could have no effect on this study."""
    if overrides and study.kind == IMPORTED:
        raise UserError(f"--set: {study.name} was imported; its trials cannot be changed here")
    faults = [f"--set: {fault}" for key in overrides if (fault := _override_fault(study, key))]
    if faults:
        raise UserError("\n".join(faults))


def arm_names(study: Study) -> list[str]:
    """The names that falsifiers can speak of; those of a confirmation are known before the search is."""
    ranks = range(1, study.search.confirm.top + 1) if study.search else ()
    return [*study.arm_overrides(), *(f"{CONFIRM}{rank}" for rank in ranks)]


def built(
    study: Study, profile: str, below: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, TrialConfig], list[ConfigFault]]:
    """The configuration of every arm, with `below` changed under it and ``extra[arm]`` over it; and all faults of the
    others."""
    configs: dict[str, TrialConfig] = {}
    found: dict[tuple[Where, str], list[str]] = {}
    for arm, own in study.arm_overrides().items():
        config, faults = read_config(profile, {**own, **extra.get(arm, {})}, below)
        if config is not None:
            configs[arm] = config
        for fault in faults:
            where = ("arms", arm, *fault.where) if study.kind == "arms" else (study.kind, *fault.where)
            found.setdefault((where, fault.text), []).append(arm)
    faults = [*_of_all_arms(study, profile, below, found), *_idle_everywhere(study, profile, below, configs)]
    for (where, text), arms in found.items():
        more = f" (and in {len(arms) - 1} more arm{'s' * (len(arms) > 2)})" if len(arms) > 1 else ""
        if study.kind == "grid" and IDLE in text:
            more += "; a grid runs every combination: list the ones you want under arms instead"
        faults.append(ConfigFault(where, f"{study.kind}.{arms[0]}{' with --set' if below else ''}: {text}{more}"))
    return configs, faults


def _of_all_arms(
    study: Study, profile: str, below: Mapping[str, Any], found: dict[tuple[Where, str], list[str]]
) -> list[ConfigFault]:
    """What is wrong with ``--set`` whatever an arm changes; taken out of `found`."""
    own = [fault.text for fault in read_config(profile, {}, below)[1]] if below else []
    count = len(study.arm_overrides())
    told_of = [text for text in own if sum(len(arms) for (_, one), arms in found.items() if one == text) == count]
    for one in [one for one in found if one[1] in told_of]:
        del found[one]
    return [ConfigFault((), f"--set: {text}") for text in told_of]


def _idle_everywhere(
    study: Study, profile: str, below: Mapping[str, Any], configs: Mapping[str, TrialConfig]
) -> list[ConfigFault]:
    """Keys of ``--set`` that have no effect in any arm, nor anywhere in a search space."""
    arms, found = study.arm_overrides(), []
    space = study.search.space if study.search else {}
    points = [{name: end} for name, dimension in space.items() for end in dimension.ends]
    for key in below:
        places = [config for arm, config in configs.items() if key not in arms[arm]]
        if not places or not all(inert(config, key) for config in places):
            continue
        without, _ = read_config(profile, {}, {name: value for name, value in below.items() if name != key})
        if without is not None and value_at(without, key) == value_at(places[0], key):
            continue  # it says what is so anyway
        reached = [
            config for point in points if (config := read_config(profile, {}, {**below, **point})[0]) is not None
        ]
        if all(inert(config, key) for config in reached):
            found.append(ConfigFault((), f"--set: {inert(places[0], key)}"))
    return found


def _at(source: str, where: Where) -> str:
    line = line_of(Path(source), where) if source else None
    return f"{source}, line {line}" if line else source


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _key_fault(key: str) -> str | None:
    if key in FIXED:
        return f"'{key}' {FIXED[key]}"
    try:
        check_key(key)
    except UserError as error:
        return str(error)
    return None


def _override_fault(study: Study, key: str) -> str | None:
    if key == SEED_KEY:
        return f"'{SEED_KEY}' comes from the study's seeds; change `seeds` in {study.source}"
    if key == STOP_KEY:
        return f"'{STOP_KEY}' comes from falsifiers with `stop: true` and from search.prune; change {study.source}"
    if fault := _key_fault(key):
        return fault
    if key in [*(study.factors or {}), *(study.search.space if study.search else {})]:
        return f"'{key}' is what {study.name} varies; edit {study.source} instead"
    if all(key in own for own in study.arm_overrides().values()):
        return f"'{key}' would have no effect: every arm of {study.name} sets it; edit {study.source} instead"
    return None


def _profile(study: Study) -> Iterator[ConfigFault]:
    if study.kind == IMPORTED:
        if study.profile != IMPORTED:
            yield ConfigFault(
                ("profile",), f"profile: imported trials have none, '{study.profile}' is given; leave the key out"
            )
    elif study.profile not in profile_names():
        hint = nearest(study.profile, profile_names())
        yield ConfigFault(
            ("profile",), f"profile: no profile '{study.profile}'{hint}; there are: {', '.join(profile_names())}"
        )


def _names(study: Study) -> Iterator[ConfigFault]:
    arms = list(study.arm_overrides())
    if study.kind in ("factors", "search") and study.baseline != BASELINE:
        yield ConfigFault(
            ("baseline",), f"baseline '{study.baseline}': with {study.kind} it is the profile itself; leave the key out"
        )
    else:
        yield from _baseline(study.baseline, arms, "baseline" in study.model_fields_set)
    folded: dict[str, str] = {}
    for arm in arms:
        try:
            safe(arm)
        except UserError as error:
            yield ConfigFault((study.kind, arm), f"arms: {error}")
        twin = folded.setdefault(arm.lower(), arm)
        if twin != arm:
            yield ConfigFault(
                (study.kind, arm),
                f"arms '{twin}' and '{arm}' differ only in case; some file systems cannot tell them apart",
            )


def _knobs(study: Study) -> Iterator[ConfigFault]:
    """Keys and values of all arms, and of a search's space."""
    arms = study.arm_overrides()
    for arm, own in arms.items():
        for key in sorted(FIXED.keys() & own.keys()):
            yield ConfigFault((study.kind, arm, key), f"{study.kind}.{arm}: '{key}' {FIXED[key]}")
    configs, faults = built(study, study.profile, {}, {})
    yield from faults
    digests: dict[str, str] = {}
    for arm, config in configs.items():
        twin = digests.setdefault(config.digest(), arm)
        if twin == arm:
            continue
        if study.factors and twin == BASELINE:
            key, value = next(iter(arms[arm].items()))
            own_value = f"the baseline's own value on profile '{study.profile}'"
            yield ConfigFault(("factors", key), f"factors.{key}: {value} is {own_value}; leave it out")
        else:
            yield ConfigFault(
                (study.kind, arm),
                f"arms '{twin}' and '{arm}' are the same trial on profile '{study.profile}'; keep one",
            )
    yield from _space(study)


def _space(study: Study) -> Iterator[ConfigFault]:
    """Both ends of every range, and every value, must make a valid trial by themselves and beside each other."""
    if study.search is None:
        return
    fixed = sorted(FIXED.keys() & study.search.space.keys())
    for key in fixed:
        yield ConfigFault(("search", "space", key), f"search.space: '{key}' {FIXED[key]}")
    points = [(key, end) for key, dimension in study.search.space.items() if key not in fixed for end in dimension.ends]
    wrong: set[str] = set()
    for key, end in points:
        for fault in read_config(study.profile, {key: end}, {})[1]:
            wrong.add(key)
            yield ConfigFault(("search", "space", key), f"search.space: {fault.text}")
    pairs = [
        dict(pair)
        for pair in itertools.combinations(points, 2)
        if pair[0][0] != pair[1][0] and not wrong & {pair[0][0], pair[1][0]}
    ]
    for pair in pairs[:PAIRS_CHECKED]:
        for fault in read_config(study.profile, pair, {})[1]:
            words = ", ".join(f"{key}={end}" for key, end in pair.items())
            yield ConfigFault(("search", "space", *fault.where[:1]), f"search.space: with {words}: {fault.text}")


def _aims(study: Study) -> Iterator[ConfigFault]:
    yield from _metric(study.objective.metric, ("objective", "metric"), True)
    if study.search is not None:
        for index, objective in enumerate(study.search.objectives):
            yield from _metric(objective.metric, ("search", "objectives", index, "metric"), True)
        for index, constraint in enumerate(study.search.constraints):
            yield from _metric(constraint.metric, ("search", "constraints", index, "metric"), True)


def _metric(name: str, where: Where, evaluated: bool | None) -> Iterator[ConfigFault]:
    """A metric of the evaluation, or else a series; None: either."""
    key = ".".join(map(str, where))
    listed = [one for one in METRICS if evaluated is None or one.startswith("eval/") == evaluated]
    if not known(name):
        same = meant(name.rpartition("/")[2], listed, "/")
        hint = f"; did you mean '{same[0]}'?" if same else nearest(name, listed)
        yield ConfigFault(where, f"{key}: no metric '{name}'{hint}")
    elif evaluated is True and not metric(name).key.startswith("eval/"):
        yield ConfigFault(where, f"{key} '{name}' is a series; name a metric of the evaluation (eval/...)")
    elif evaluated is False and metric(name).key.startswith("eval/"):
        yield ConfigFault(where, f"{key}: '{name}' is measured once, after training; name a series that has steps")


def _baseline(name: str, arms: Sequence[str], given: bool = True) -> Iterator[ConfigFault]:
    if name not in arms:
        hint = nearest(name, arms) if given else "; say which one is, with `baseline: NAME`"
        yield ConfigFault(("baseline",), f"baseline '{name}' is not an arm{hint}; arms: {', '.join(arms)}")


def _patterns(index: int, patterns: Iterable[str], arms: Sequence[str]) -> Iterator[ConfigFault]:
    """Of a falsifier: names and patterns of arms that are there."""
    for pattern in patterns:
        if not any(fnmatchcase(arm, pattern) for arm in arms):
            hint = f"no arm is named '{pattern}'{nearest(pattern, arms)}; arms: {', '.join(arms)}"
            yield ConfigFault(("falsifiers", index, "arms"), f"falsifiers.{index}.arms: {hint}")


def _claims(study: Study) -> Iterator[ConfigFault]:
    """Falsifiers and figures."""
    arms = arm_names(study)
    names = [falsifier.name for falsifier in study.falsifiers]
    for index, falsifier in enumerate(study.falsifiers):
        where = f"falsifiers.{index}"
        if falsifier.name in names[:index]:
            yield ConfigFault(
                ("falsifiers", index, "name"), f"{where}.name: '{falsifier.name}' is the name of two falsifiers"
            )
        yield from _metric(falsifier.metric, ("falsifiers", index, "metric"), False)
        yield from _patterns(index, falsifier.arms, arms)
    for index, name in enumerate(study.figures or ()):
        if name not in FIGURES:
            hint = nearest(name, FIGURES)
            yield ConfigFault(("figures", index), f"figures: no figure '{name}'{hint}; there are: {', '.join(FIGURES)}")
