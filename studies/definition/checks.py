"""What pydantic cannot see in a study: names, keys and values against the profile, the metrics and each other.

A file is checked as a whole and all its faults are reported at once, each with file, line, key, value and what is
allowed. Unknown keys come first: a misspelt knob explains many a fault behind it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline.config.effects import inert, value_at
from pipeline.config.loading import check_key, load_config, profile_names, read_config
from pipeline.config.messages import MOST_FAULTS, ConfigFault
from pipeline.config.names import meant, nearest
from pipeline.config.trial import TrialConfig
from pipeline.config.yaml_files import Where, line_of
from pipeline.errors import UserError
from pipeline.run.layout import safe
from pipeline.run.metrics import METRICS, known, metric
from studies.definition.arms import BASELINE
from studies.definition.falsifier import EVALUATION, EXACT_KL, Falsifier, mismatches
from studies.definition.replicates import SEED_KEY, kept_apart
from studies.definition.schema import FIGURES, IMPORTED, STOP_KEY, Study

CONFIRM = "confirm-"
"""Followed by a rank: the arms of a confirmation."""
FIXED = {
    SEED_KEY: "is set by the study's seeds, so that arms stay paired",
    STOP_KEY: "is set by falsifiers with `stop: true`, and by search.prune",
}
"""Keys that no study may change, and who does; `_fixed` adds those that a study's own seeds change."""
IDLE = "has no effect"
PENALISED = ("objective/rlhf_reward", "objective/non_score_reward")
"""Metrics whose definition differs between arms of different beta."""
SMOKE, STEPS = "smoke", "train.steps"
SIZES = (
    STEPS, "critic.warmup_steps", "critic.pretraining_steps", "reward.pairs", "reward.calibration_samples",
    "evaluate.prompts", "evaluate.reference_draws",
)  # fmt: skip
"""What costs time and can stand in an arm: on `SMOKE` it shrinks as the profile does."""
FEWEST = 8
"""No size shrinks below this, so that means, intervals and calibrations of samples exist."""
PAIRS_CHECKED = 500
"""Pairs of values that are tried of a search space; with more, a fault may be found only when the search proposes
it."""


def check(study: Study) -> list[ConfigFault]:
    """What is wrong with a study whose shape is right, `MOST_FAULTS` faults at most."""
    return list(itertools.islice(_faults(study), MOST_FAULTS))


def _faults(study: Study) -> Iterator[ConfigFault]:
    try:
        study.arm_overrides()
    except UserError as error:
        yield ConfigFault((study.kind,), str(error))
        return
    faults = list(_profile(study))
    if study.kind == IMPORTED:  # a series counts as well: by its end
        yield from faults
        yield from _names(study)
        yield from _metric(study.objective.metric, ("objective", "metric"), compared=True)
    else:
        if not faults:
            faults += _knobs(study)
        yield from faults
        misnamed = study.kind in ("grid", "factors") and any("unknown key" in fault.text for fault in faults)
        yield from () if misnamed else _names(study)  # such arms are named after their keys
        yield from _aims(study)
    yield from _methods(study)
    yield from _claims(study)


def check_names(content: Mapping[str, Any]) -> list[ConfigFault]:
    """The knobs and metrics in a file whose shape is wrong elsewhere, so that its faults come at once, `MOST_FAULTS` at
    most."""
    return list(itertools.islice(_misnamed(content), MOST_FAULTS))


def _misnamed(content: Mapping[str, Any]) -> Iterator[ConfigFault]:
    spaces: dict[tuple[str, ...], Any] = {(kind,): content.get(kind) for kind in ("grid", "factors")}
    spaces |= {("arms", arm): overrides for arm, overrides in _mapping(content.get("arms")).items()}
    spaces["search", "space"] = _mapping(content.get("search")).get("space")
    for where, keys in spaces.items():
        for key in map(str, _mapping(keys)):
            if text := _key_fault(key):
                yield ConfigFault((*where, key), f"{'.'.join(map(str, where))}: {text}")
    claims = content.get("falsifiers")
    for index, claim in enumerate(claims if isinstance(claims, list) else []):
        name = _mapping(claim).get("metric")
        yield from _metric(name, ("falsifiers", index, "metric")) if isinstance(name, str) else ()
    parts = content.get("hypotheses")
    for index, part in enumerate(parts if isinstance(parts, list) else []):
        name = _mapping(part).get("metric")
        yield from _metric(name, ("hypotheses", index, "metric")) if isinstance(name, str) else ()
    arms = list(map(str, _mapping(content.get("arms"))))
    if arms:
        yield from _baseline(str(content["baseline"]), arms) if "baseline" in content else ()
        for index, claim in enumerate(claims if isinstance(claims, list) else []):
            patterns = _mapping(claim).get("arms")
            named = [pattern for pattern in patterns if isinstance(pattern, str)] if isinstance(patterns, list) else []
            yield from _patterns(index, named, arms)


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
    if overrides and not faults:
        faults = [f"--set: {fault.text}" for fault in _space(study, overrides)]
    if faults:
        raise UserError("\n".join(faults))


def arm_names(study: Study) -> list[str]:
    """The names that falsifiers can speak of; those of a confirmation are known before the search is."""
    ranks = range(1, study.search.confirm.top + 1) if study.search else ()
    return [*study.arm_overrides(), *(f"{CONFIRM}{rank}" for rank in ranks)]


def shrunk(own: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """An arm's `SIZES` on the profile `smoke`, divided by the ratio of `profile`'s gradient steps to those of `smoke`,
    but not below `FEWEST`; gradient steps are rounded to whole updates."""
    smoke = load_config(SMOKE).train
    ratio = max(load_config(profile).train.steps / smoke.steps, 1)
    sizes = {key: max(round(value / ratio), min(value, FEWEST)) for key, value in own.items() if key in SIZES and value}
    update = math.prod(own.get(f"train.{key}", getattr(smoke, key)) for key in ("num_epochs", "num_mini_batches"))
    if STEPS in sizes:
        sizes[STEPS] = max(round(sizes[STEPS] / update), 1) * update
    return {**own, **sizes}


def built(
    study: Study, profile: str, below: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, TrialConfig], list[ConfigFault]]:
    """The configuration of every arm, with `below` changed under it and ``extra[arm]`` over it; and all faults of the
    others."""
    configs: dict[str, TrialConfig] = {}
    by_fault: dict[tuple[Where, str], list[str]] = {}
    for arm, own in study.arm_overrides().items():
        own = shrunk(own, study.profile) if profile == SMOKE != study.profile else own
        config, faults = read_config(profile, {**own, **extra.get(arm, {})}, below)
        if config is not None:
            configs[arm] = config
        for fault in faults:
            where = ("arms", arm, *fault.where) if study.kind == "arms" else (study.kind, *fault.where)
            by_fault.setdefault((where, fault.text), []).append(arm)
        if len(by_fault) > MOST_FAULTS:
            break
    faults = [*_of_all_arms(study, profile, below, by_fault), *_idle_everywhere(study, profile, below, configs)]
    for (where, text), arms in by_fault.items():
        more = f" (and in {len(arms) - 1} more arm{'s' * (len(arms) > 2)})" if len(arms) > 1 else ""
        if study.kind == "grid" and IDLE in text:
            more += "; a grid runs every combination: list the ones you want under arms instead"
        faults.append(ConfigFault(where, f"{study.kind}.{arms[0]}{' with --set' if below else ''}: {text}{more}"))
    return configs, faults


def _of_all_arms(
    study: Study, profile: str, below: Mapping[str, Any], by_fault: dict[tuple[Where, str], list[str]]
) -> list[ConfigFault]:
    """What is wrong with ``--set`` whatever an arm changes; taken out of `by_fault`."""
    own = [fault.text for fault in read_config(profile, {}, below)[1]] if below else []
    count = len(study.arm_overrides())
    told_of = [
        text
        for text in own
        if sum(len(arms) for (_, fault_text), arms in by_fault.items() if fault_text == text) == count
    ]
    for key in [key for key in by_fault if key[1] in told_of]:
        del by_fault[key]
    return [ConfigFault((), f"--set: {text}") for text in told_of]


def _idle_everywhere(
    study: Study, profile: str, below: Mapping[str, Any], configs: Mapping[str, TrialConfig]
) -> list[ConfigFault]:
    """Keys of ``--set`` that have no effect in any arm, nor anywhere in a search space."""
    arms, faults = study.arm_overrides(), []
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
            faults.append(ConfigFault((), f"--set: {inert(places[0], key)}"))
    return faults


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


def _fixed(study: Study) -> dict[str, str]:
    return {**FIXED, **kept_apart(study.vary)}


def _override_fault(study: Study, key: str) -> str | None:
    if key == SEED_KEY:
        return f"'{SEED_KEY}' comes from the study's seeds; change `seeds` in {study.source}"
    if key == STOP_KEY:
        return f"'{STOP_KEY}' comes from falsifiers with `stop: true` and from search.prune; change {study.source}"
    if fault := _key_fault(key):
        return fault
    if key in _fixed(study):
        return f"'{key}' {_fixed(study)[key]}"
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
        for key in sorted(_fixed(study).keys() & own.keys()):
            yield ConfigFault((study.kind, arm, key), f"{study.kind}.{arm}: '{key}' {_fixed(study)[key]}")
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
    yield from _space(study, {})


def _space(study: Study, below: Mapping[str, Any]) -> Iterator[ConfigFault]:
    """Both ends of every range, and every value, must make a valid trial by themselves and beside each other, on the
    profile with `below` changed."""
    if study.search is None:
        return
    fixed = sorted(_fixed(study).keys() & study.search.space.keys())
    for key in fixed:
        yield ConfigFault(("search", "space", key), f"search.space: '{key}' {_fixed(study)[key]}")
    points = [(key, end) for key, dimension in study.search.space.items() if key not in fixed for end in dimension.ends]
    wrong: set[str] = set()
    for key, end in points:
        for fault in read_config(study.profile, {key: end}, below)[1]:
            wrong.add(key)
            yield ConfigFault(("search", "space", key), f"search.space: {fault.text}")
    pairs = [
        dict(pair)
        for pair in itertools.combinations(points, 2)
        if pair[0][0] != pair[1][0] and not wrong & {pair[0][0], pair[1][0]}
    ]
    for pair in pairs[:PAIRS_CHECKED]:
        for fault in read_config(study.profile, pair, below)[1]:
            words = ", ".join(f"{key}={end}" for key, end in pair.items())
            yield ConfigFault(("search", "space", *fault.where[:1]), f"search.space: with {words}: {fault.text}")


def _aims(study: Study) -> Iterator[ConfigFault]:
    yield from _metric(study.objective.metric, ("objective", "metric"), True)
    for index, constraint in enumerate(study.constraints):
        yield from _metric(constraint.metric, ("constraints", index, "metric"), True)
    if study.search is not None:
        for index, objective in enumerate(study.search.objectives):
            yield from _metric(objective.metric, ("search", "objectives", index, "metric"), True)
        for index, constraint in enumerate(study.search.constraints):
            yield from _metric(constraint.metric, ("search", "constraints", index, "metric"), True)


def _metric(name: str, where: Where, evaluated: bool = False, *, compared: bool = False) -> Iterator[ConfigFault]:
    """A metric of the list; `evaluated`: one of the evaluation, no series; `compared`: between arms."""
    key = ".".join(map(str, where))
    listed = [metric_name for metric_name in METRICS if not evaluated or metric_name.startswith(EVALUATION)]
    if not known(name):
        same = meant(name.rpartition("/")[2], listed, "/")
        hint = f"; did you mean '{same[0]}'?" if same else nearest(name, listed)
        yield ConfigFault(where, f"{key}: no metric '{name}'{hint}")
    elif evaluated and not metric(name).key.startswith(EVALUATION):
        yield ConfigFault(where, f"{key} '{name}' is a series; name a metric of the evaluation (eval/...)")
    elif compared and name in PENALISED:
        text = (
            f"{key}: '{name}' holds each arm's own KL penalty, so arms of different beta would be compared on different"
            " objectives; use objective/scores"
        )
        yield ConfigFault(where, text)


def _hypotheses(study: Study, arms: Sequence[str]) -> Iterator[ConfigFault]:
    names = [falsifier.name for falsifier in study.falsifiers]
    for index, hypothesis in enumerate(study.hypotheses):
        where = f"hypotheses.{index}"
        if hypothesis.name in names:
            text = f"{where}.name: '{hypothesis.name}' is the name of two claims"
            yield ConfigFault(("hypotheses", index, "name"), text)
        names.append(hypothesis.name)
        yield from _metric(hypothesis.metric, ("hypotheses", index, "metric"), compared=True)
        key = "order" if hypothesis.order else "contrast"
        for arm in hypothesis.arms:
            if arm not in arms:
                hint = f"'{arm}' is not an arm{nearest(arm, arms)}; arms: {', '.join(arms)}"
                yield ConfigFault(("hypotheses", index, key), f"{where}.{key}: {hint}")


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


def _compared(index: int, falsifier: Falsifier, baseline: str, arms: Sequence[str]) -> Iterator[ConfigFault]:
    """Of a falsifier that is relative to the baseline: an arm beside the baseline."""
    named = [arm for arm in arms if any(fnmatchcase(arm, pattern) for pattern in falsifier.arms)]
    if named == [baseline] and falsifier.relative_to:
        text = f"only the baseline '{baseline}' is named, and it is not compared with itself; name another arm"
        yield ConfigFault(("falsifiers", index, "arms"), f"falsifiers.{index}.arms: {text}")


def _methods(study: Study) -> Iterator[ConfigFault]:
    """Arms that are there, each in one method, and the baseline in one of them."""
    if study.methods is None:
        return
    arms, seen = arm_names(study), dict[str, str]()
    for method, members in study.methods.items():
        where, key = ("methods", method), f"methods.{method}"
        if not members:
            yield ConfigFault(where, f"{key}: has no arms; name at least one")
        for arm in members:
            if arm not in arms:
                hint = f"no arm is named '{arm}'{nearest(arm, arms)}; arms: {', '.join(arms)}"
                yield ConfigFault(where, f"{key}: {hint}")
            elif arm in seen:
                both = "twice" if seen[arm] == method else f"and in methods.{seen[arm]}"
                yield ConfigFault(where, f"{key}: the arm '{arm}' is in it {both}; an arm belongs to one method")
            seen.setdefault(arm, method)
    if study.baseline in arms and study.baseline not in seen:
        text = f"methods: the baseline '{study.baseline}' is in none of them; add it to its method"
        yield ConfigFault(("methods",), text)


def _claims(study: Study) -> Iterator[ConfigFault]:
    """Hypotheses, falsifiers and figures."""
    arms = arm_names(study)
    yield from _hypotheses(study, arms)
    names = [falsifier.name for falsifier in study.falsifiers]
    for index, falsifier in enumerate(study.falsifiers):
        where = f"falsifiers.{index}"
        if falsifier.name in names[:index]:
            yield ConfigFault(
                ("falsifiers", index, "name"), f"{where}.name: '{falsifier.name}' is the name of two falsifiers"
            )
        compared = falsifier.relative_to is not None
        yield from _metric(falsifier.metric, ("falsifiers", index, "metric"), compared=compared)
        for key, text in mismatches(falsifier):
            yield ConfigFault(("falsifiers", index, key), f"{where}.{key}: {text}")
        if study.kind == IMPORTED and "metric" not in falsifier.model_fields_set:
            hint = f"the default, {EXACT_KL}, is rarely in logs of other programs; name a series that they hold"
            yield ConfigFault(("falsifiers", index), f"{where}.metric: is missing; {hint}")
        yield from _patterns(index, falsifier.arms, arms)
        yield from _compared(index, falsifier, study.baseline, arms)
    for index, name in enumerate(study.figures or ()):
        if name not in FIGURES:
            hint = nearest(name, FIGURES)
            yield ConfigFault(("figures", index), f"figures: no figure '{name}'{hint}; there are: {', '.join(FIGURES)}")
