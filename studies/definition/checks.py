"""Checks of a study beyond pydantic's: its parts against each other, and its values against the profile.

All such faults are reported at once, each with file, line, key, value and what is allowed.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.effects import inert, value_at
from pipeline.config.loading import MOST_FAULTS, ConfigFault, check_key, load_config, profile_names, read_config
from pipeline.config.names import nearest
from pipeline.config.trial import TrialConfig
from pipeline.config.yaml_files import Where, line_of
from pipeline.errors import UserError
from pipeline.run.layout import safe
from studies.definition.arms import BASELINE
from studies.definition.falsifier import EXACT_KL, Falsifier
from studies.definition.fields import EVALUATION, FIXED, check_comparable, kept_apart
from studies.definition.hypotheses import Hypothesis, expression
from studies.definition.schema import IMPORTED, KINDS, Study
from studies.definition.space import Constraint
from studies.definition.trainer import TRAINER
from studies.definition.trainer import faults as trainer_faults

CONFIRM = "confirm-"
"""Prefix of the arms of a confirmation, followed by a rank."""
MOST_TRIALS = 10_000
IDLE = "has no effect"
SMOKE, STEPS = "smoke", "train.steps"
SIZES = (
    STEPS, "critic.warmup_steps", "critic.pretraining_steps", "reward.learned.pairs", "reward.calibration_samples",
    "evaluate.prompts", "evaluate.reference_draws",
)  # fmt: skip
"""Keys that cost time and can stand in an arm: on `SMOKE` they shrink as the profile does."""
FEWEST = 8
"""No size shrinks below this, so that means, intervals and calibrations of samples exist."""
PAIRS_CHECKED = 500
"""Pairs of values that are tried of a search space; with more, a fault may be found only when the search proposes
it."""


def check(study: Study) -> list[ConfigFault]:
    """Return the faults of a study whose shape is right, `MOST_FAULTS` faults at most."""
    return list(itertools.islice(_faults(study), MOST_FAULTS))


def fault_lines(source: str, faults: Iterable[ConfigFault]) -> str:
    """One line per fault, with file and line; faults of ``--set`` are in no file."""
    lines = (
        fault.text if fault.text.startswith("--set") else f"{_at(source, fault.where)}: {fault.text}"
        for fault in faults
    )
    return "\n".join(dict.fromkeys(lines))


def check_overrides(study: Study, overrides: Mapping[str, Any]) -> None:
    """Refuse ``--set`` keys that are unknown, that seeds own, or that could have no effect on this study."""
    if overrides and study.foreign:
        how = f"change `parameters` in {study.source}" if study.trainer else "its trials were imported"
        raise UserError(f"--set: it cannot be used with {study.name}: {how}")
    faults = [f"--set: {fault}" for key in overrides if (fault := _override_fault(study, key))]
    if overrides and not faults:
        faults = [f"--set: {fault.text}" for fault in _space(study, overrides)]
    if faults:
        raise UserError("\n".join(faults))


def arm_names(study: Study) -> list[str]:
    """The names that falsifiers can apply to; those of a confirmation are known before the search is."""
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


def built(study: Study, profile: str, below: Mapping[str, Any]) -> tuple[dict[str, TrialConfig], list[ConfigFault]]:
    """The configuration of every arm, with ``--set`` (`below`) under it; and all faults of the others. Two arms that
    are the same trial are one: their effect of exactly 0 would look like a finding."""
    configs: dict[str, TrialConfig] = {}
    by_text: dict[str, list[tuple[str, Where]]] = {}
    arms = study.arm_overrides()
    for arm, own in arms.items():
        own = shrunk(own, study.profile) if profile == SMOKE != study.profile else own
        config, found = read_config(profile, own, below)
        if config is not None:
            configs[arm] = config
        for fault in found:
            by_text.setdefault(fault.text, []).append((arm, fault.where))
        if len(by_text) > MOST_FAULTS:
            break
    faults = list(_idle_everywhere(study, profile, below, configs))
    for text, places in by_text.items():
        arm, where = places[0]
        if below and len(places) == len(arms):  # the study's file alone has been checked
            faults.append(ConfigFault((), f"--set: {text}"))
            continue
        more = f" (and in {len(places) - 1} more arm{'s' * (len(places) > 2)})" if len(places) > 1 else ""
        if study.kind == "grid" and IDLE in text:
            more += "; a grid runs every combination: list the ones you want under arms instead"
        where = (study.kind, arm, *where) if study.kind == "arms" else (study.kind, *where)
        faults.append(ConfigFault(where, f"{study.kind}.{arm}{' with --set' if below else ''}: {text}{more}"))
    first: dict[str, str] = {}
    for arm, config in configs.items():
        twin = first.setdefault(config.digest(), arm)
        if twin != arm:
            text = f"arms '{twin}' and '{arm}' are the same trial on profile '{profile}'; keep one"
            faults.append(ConfigFault((study.kind, arm), text))
    return configs, faults


def _idle_everywhere(
    study: Study, profile: str, below: Mapping[str, Any], configs: Mapping[str, TrialConfig]
) -> Iterator[ConfigFault]:
    """Keys of ``--set`` that have no effect in any arm, nor anywhere in a search space."""
    arms, space = study.arm_overrides(), study.search.space if study.search else {}
    points = [{name: end} for name, dimension in space.items() for end in dimension.ends] if below else []
    reached = [one for point in points if (one := read_config(profile, {}, {**below, **point})[0]) is not None]
    for key in below:
        places = [config for arm, config in configs.items() if key not in arms[arm]]
        if places and all(inert(config, key) for config in (*places, *reached)):
            without, _ = read_config(profile, {}, {name: value for name, value in below.items() if name != key})
            if without is None or value_at(without, key) != value_at(places[0], key):  # else --set changes nothing
                yield ConfigFault((), f"--set: {inert(places[0], key)}")


def _at(source: str, where: Where) -> str:
    line = line_of(Path(source), where) if source else None
    return f"{source}, line {line}" if line else source


def _fault(text: str, *where: str | int) -> ConfigFault:
    return ConfigFault(where, f"{'.'.join(map(str, where))}: {text}")


def _override_fault(study: Study, key: str) -> str | None:
    fixed = {**FIXED, **kept_apart(study.vary)}
    if key in fixed:
        return f"'{key}' {fixed[key]}; change {study.source}"
    try:
        check_key(key)
    except UserError as error:
        return str(error)
    varied = [*(study.factors or {}), *(study.search.space if study.search else {})]
    if key in varied or all(key in own for own in study.arm_overrides().values()):
        return f"'{key}' is what {study.name} varies, so it would have no effect; edit {study.source} instead"
    return None


def _faults(study: Study) -> Iterator[ConfigFault]:
    given = [kind for kind in KINDS if getattr(study, kind) is not None]
    if len(given) > 1:
        yield _fault(f"both {given[0]} and {given[1]} are given; keep one of them", given[1])
    elif not given or not getattr(study, given[0]):
        forms = "arms (name: {dotted key: value}), grid or factors (dotted key: [values]), or a search"
        yield ConfigFault(tuple(given), f"no arms: give at least one under {forms}")
    elif unknown := [key for pair in study.interactions for key in pair if key not in (study.factors or {})]:
        factors = list(study.factors or {})
        hint = f"{nearest(unknown[0], factors)}; factors: {', '.join(factors) or 'none'}"
        yield _fault(f"'{unknown[0]}' is not a factor{hint}", "interactions")
    else:
        try:
            arms = arm_names(study)
        except ValueError as error:
            yield _fault(str(error), study.kind)
        else:
            yield from _of_arms(study, arms)


def _of_arms(study: Study, arms: Sequence[str]) -> Iterator[ConfigFault]:
    trials = len(study.arm_overrides()) * len(study.seeds)
    if trials > MOST_TRIALS:
        yield _fault(f"{trials:,} trials ({len(arms):,} arms); at most {MOST_TRIALS:,} are planned", "seeds")
        return
    yield from _seeds(study)
    profiles = [TRAINER] if study.trainer else [IMPORTED] if study.imported else profile_names()
    if study.profile not in profiles:
        hint = f"{nearest(study.profile, profiles)}; there are: {', '.join(profiles)}"
        yield _fault(f"no profile '{study.profile}'{hint}", "profile")
    elif not study.foreign:
        yield from _knobs(study)
    yield from (_fault(text, *where) for where, text in trainer_faults(study))
    yield from _names(study)
    yield from _aims(study)
    yield from _methods(study, arms)
    yield from _hypotheses(study, arms)
    for index, falsifier in enumerate(study.falsifiers):
        yield from _falsifier(study, index, falsifier, arms)


def _seeds(study: Study) -> Iterator[ConfigFault]:
    """Seeds of searches and confirmations against the study's own."""
    search = study.search
    if study.foreign and study.vary:
        yield _fault("it names links of our own chain, and another program trains; leave it out", "vary")
    if search and len(study.seeds) > 1:
        why = f"a search trains on one seed, {len(study.seeds)} are given"
        yield _fault(f"{why}; fresh ones go under search.confirm.seeds", "seeds")
    if search and search.confirm.top > search.trials:
        text = f"{search.confirm.top} is more than the {search.trials} trials of the search"
        yield _fault(text, "search", "confirm", "top")
    if study.confirm and study.kind in ("search", IMPORTED):
        go = "under search.confirm" if search else "nowhere: the trials were run elsewhere"
        yield _fault(f"of a study of kind {study.kind} fresh seeds go {go}", "confirm")
    own = {("confirm", "seeds"): study.confirm, ("search", "confirm", "seeds"): search and search.confirm}
    for where, confirm in own.items():
        if confirm and (used := sorted({*study.seeds} & {*confirm.seeds})):
            text = f"{used[0]} is {'the seed of the search' if search else 'a seed of the study'}; give fresh ones"
            yield _fault(text, *where)


def _names(study: Study) -> Iterator[ConfigFault]:
    """Names of arms that files can have, and a baseline among them."""
    arms, name = list(study.arm_overrides()), study.baseline
    if study.kind in ("factors", "search") and name != BASELINE:
        yield _fault(f"'{name}': with {study.kind} it is the profile itself; leave the key out", "baseline")
    elif name not in arms:
        given = "baseline" in study.model_fields_set
        hint = nearest(name, arms) if given else "; say which one is, with `baseline: NAME`"
        yield _fault(f"'{name}' is not an arm{hint}; arms: {', '.join(arms)}", "baseline")
    folded: dict[str, str] = {}
    for arm in arms:
        try:
            safe(arm)
        except UserError as error:
            yield ConfigFault((study.kind, arm), f"arms: {error}")
        twin = folded.setdefault(arm.lower(), arm)
        if twin != arm:
            text = f"arms '{twin}' and '{arm}' differ only in case; some file systems cannot tell them apart"
            yield ConfigFault((study.kind, arm), text)


def _knobs(study: Study) -> Iterator[ConfigFault]:
    """Keys and values of all arms, and of a search's space."""
    fixed = kept_apart(study.vary)
    for arm, own in study.arm_overrides().items():
        for key in (key for key in fixed if key in own):
            yield ConfigFault((study.kind, arm, key), f"{study.kind}.{arm}: '{key}' {fixed[key]}")
    yield from built(study, study.profile, {})[1]
    yield from _space(study, {})


def _space(study: Study, below: Mapping[str, Any]) -> Iterator[ConfigFault]:
    """Check both ends of every range, and every value, alone and beside each other, on the profile with `below`
    changed: each must make a valid trial."""
    if study.search is None:
        return
    fixed = kept_apart(study.vary)
    for key in (key for key in fixed if key in study.search.space):
        yield ConfigFault(("search", "space", key), f"search.space: '{key}' {fixed[key]}")
    points = [(key, end) for key, dimension in study.search.space.items() if key not in fixed for end in dimension.ends]
    wrong: set[str] = set()
    for key, end in points:
        for fault in read_config(study.profile, {key: end}, below)[1]:
            wrong.add(key)
            yield ConfigFault(("search", "space", key), f"search.space: {fault.text}")
    sound = [(key, end) for key, end in points if key not in wrong]
    pairs = (dict(pair) for pair in itertools.combinations(sound, 2) if pair[0][0] != pair[1][0])
    for pair in itertools.islice(pairs, PAIRS_CHECKED):
        for fault in read_config(study.profile, pair, below)[1]:
            words = ", ".join(f"{key}={end}" for key, end in pair.items())
            yield ConfigFault(("search", "space", *fault.where[:1]), f"search.space: with {words}: {fault.text}")


def _aims(study: Study) -> Iterator[ConfigFault]:
    """Check that metrics compared or bounded are evaluated; of imported trials, the end of a series counts too."""
    search = study.search
    aims: dict[Where, str] = {("objective", "metric"): study.objective.metric}
    lists: dict[Where, Sequence[Constraint]] = {("constraints",): study.constraints}
    if search is not None:
        lists |= {("search", "constraints"): search.constraints}
        aims |= {("search", "objectives", n, "metric"): one.metric for n, one in enumerate(search.objectives)}
        if study.constraints:
            yield _fault("of a search they stand under search.constraints", "constraints")
    aims |= {(*where, n, "metric"): one.metric for where, many in lists.items() for n, one in enumerate(many)}
    for where, metric in aims.items():
        if study.foreign:
            try:
                check_comparable(metric)
            except ValueError as error:
                yield _fault(str(error), *where)
        elif not metric.startswith(EVALUATION):
            text = f"{'.'.join(map(str, where))} '{metric}' is a series; name a metric of the evaluation (eval/...)"
            yield ConfigFault(where, text)


def _unknown(arm: str, arms: Sequence[str], *where: str | int) -> Iterator[ConfigFault]:
    """A fault where no arm has a name."""
    if arm not in arms:
        yield _fault(f"no arm is named '{arm}'{nearest(arm, arms)}; arms: {', '.join(arms)}", *where)


def _methods(study: Study, arms: Sequence[str]) -> Iterator[ConfigFault]:
    """Arms that are there, each in one method, and the baseline in one of them."""
    seen: dict[str, str] = {}
    for method, members in (study.methods or {}).items():
        if not members:
            yield _fault("has no arms; name at least one", "methods", method)
        for arm in members:
            yield from _unknown(arm, arms, "methods", method)
            if arm in seen:
                both = f"the arm '{arm}' is in methods.{seen[arm]} already; an arm belongs to one method, once"
                yield _fault(both, "methods", method)
            seen.setdefault(arm, method)
    if study.methods is not None and study.baseline in arms and study.baseline not in seen:
        yield _fault(f"the baseline '{study.baseline}' is in none of them; add it to its method", "methods")


def _hypotheses(study: Study, arms: Sequence[str]) -> Iterator[ConfigFault]:
    names = [falsifier.name for falsifier in study.falsifiers]
    for index, hypothesis in enumerate(study.hypotheses):
        if hypothesis.name in names:
            yield _fault(f"'{hypothesis.name}' is the name of two claims", "hypotheses", index, "name")
        names.append(hypothesis.name)
        for arm in hypothesis.arms:
            yield from _unknown(arm, arms, "hypotheses", index, "order" if hypothesis.order else "contrast")
        if hypothesis.at_equal_kl:
            yield from _at_equal_kl(study, hypothesis, index)


def _at_equal_kl(study: Study, hypothesis: Hypothesis, index: int) -> Iterator[ConfigFault]:
    """Check that an arm of another method is held against the curve of the baseline's."""
    base, contrast, where = study.baseline, hypothesis.contrast or {}, ("hypotheses", index, "contrast")
    own = next((arms for arms in (study.methods or {}).values() if base in arms), ())
    if len(own) < 2:
        yield _fault(f"at equal KL needs `methods`, with at least two arms in that of the baseline '{base}'", *where)
    elif contrast.get(base) != -1:
        yield _fault(f"at equal KL with what is '{expression(contrast)}'? Write ARM - {base}, the baseline", *where)
    elif same := [arm for arm in contrast if arm != base and arm in own]:
        yield _fault(f"'{same[0]}' is an arm of the baseline's method, and is on its curve; name another", *where)


def _falsifier(study: Study, index: int, falsifier: Falsifier, arms: Sequence[str]) -> Iterator[ConfigFault]:
    if falsifier.name in [one.name for one in study.falsifiers[:index]]:
        yield _fault(f"'{falsifier.name}' is the name of two claims", "falsifiers", index, "name")
    if study.foreign and "metric" not in falsifier.model_fields_set:
        hint = f"the default, {EXACT_KL}, is rarely in logs of other programs; name a series that they hold"
        yield _fault(f"is missing; {hint}", "falsifiers", index, "metric")
    found = {pattern: fnmatch.filter(arms, pattern) for pattern in falsifier.arms}
    for pattern in (pattern for pattern, named in found.items() if not named):
        yield from _unknown(pattern, arms, "falsifiers", index, "arms")
    if falsifier.relative_to and {arm for named in found.values() for arm in named} == {study.baseline}:
        text = f"only the baseline '{study.baseline}' is named, and it is not compared with itself; name another arm"
        yield _fault(text, "falsifiers", index, "arms")
