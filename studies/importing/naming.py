"""Which key of a log is which metric of ours, and why every other key is left."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.config.names import nearest
from pipeline.run.metrics import METRICS, known
from studies.importing.mapping import MappingFile, Misfit, Named
from studies.importing.programs import PROGRAMS, TRL, Counts, Program, bare, detected, meaning_of, why_ignored

AXES: dict[str, Counts | None] = {
    "step": None, "global_step": None, "training/global_step": None, "_step": None, "steps": None, "iteration": None,
    "episode": "episodes",
}  # fmt: skip
"""Keys of an x-axis, and what they count where that is certain."""
OBVIOUS = {
    "objective/scores": ("reward", "rewards", "reward_mean", "mean_reward", "score", "scores", "proxy", "proxy_reward"),
    "objective/scores_std": ("reward_std", "std_reward"),
    "objective/gold": ("gold", "gold_reward", "gold_score"),
    "objective/length": ("length", "response_length", "completion_length", "mean_length"),
    "objective/eos_rate": ("eos_rate",),
    "objective/kl_coef": ("kl_coef", "beta"),
    "policy/lr": ("lr", "learning_rate"),
    "policy/grad_norm": ("grad_norm", "gradient_norm"),
    "policy/pg_clipfrac": ("clipfrac", "clip_fraction", "pg_clipfrac"),
    "policy/pg_loss": ("policy_loss", "pg_loss"),
    "value/vf_loss": ("value_loss", "vf_loss", "critic_loss"),
    "value/explained_variance": ("explained_variance",),
    "eval/win_rate": ("win_rate", "winrate"),
}
"""Of a program that is not known: what columns of these names mean."""
UNCERTAIN = {
    "kl": ("objective/kl_per_token", "objective/kl"),
    "kl_divergence": ("objective/kl_per_token", "objective/kl"),
    "mean_kl": ("objective/kl_per_token", "objective/kl"),
    "ref_kl": ("objective/kl_per_token", "objective/kl"),
    "entropy": ("policy/entropy", "objective/entropy"),
    "loss": ("policy/pg_loss", "value/vf_loss"),
    "approx_kl": ("policy/approxkl", "policy/approxkl_k3"),
}
"""Names that can mean either of these; which one, only the mapping can say."""


@dataclass(frozen=True)
class Reading:
    """How the keys of one log are read."""

    program: Program | None
    axis: str
    counts: Counts
    assumed: bool
    """Whether what the x-axis counts is a guess."""
    per: int | None
    """Gradient steps of an update."""
    named: dict[str, Named]
    """Ours -> theirs."""
    ignored: dict[str, str]
    """Their key -> why it is not taken."""


def reading(mapping: MappingFile, keys: Iterable[str], origin: str) -> Reading:
    """Every key of a log: what the mapping says of it, else its program, else TRL's and our own names, else what is
    obvious.

    Raises `Misfit` for a log without an x-axis or a known metric, or with two keys of one metric.
    """
    present = list(keys)
    program = PROGRAMS[mapping.program] if mapping.program else detected(present)
    named = {ours: name for ours, name in mapping.metrics.items() if name is not None and name.key in present}
    taken = {name.key for name in named.values()}
    ignored: dict[str, str] = {}
    axis, counts = axis_of(mapping, program, present, origin)
    reserved = {axis, mapping.length}
    order = [*program.names] if program else []
    for key in sorted(present, key=lambda one: order.index(bare(one)) if bare(one) in order else len(order)):
        if key in taken or key in reserved:
            continue
        found = _of_program(program, key) or _certain(key)
        if found is None:
            ignored[key] = _why(program, key)
        elif found.ours in mapping.metrics:
            other = mapping.metrics[found.ours]
            ignored[key] = f"the mapping takes {found.ours} from '{other.key}'" if other else "left out by the mapping"
        elif found.ours in named:
            if not found.of_program:
                raise Misfit(
                    f"{origin}: '{named[found.ours].key}' and '{key}' are both {found.ours}; say which under `metrics`"
                    " in the mapping"
                )
            ignored[key] = f"{found.ours} is taken from '{named[found.ours].key}'"
        else:
            named[found.ours] = found.named
    _guess(program, mapping, named, ignored)
    named |= _derived(mapping, named, present)
    if not named:
        raise Misfit(
            f"{origin}: none of its keys is a known metric ({', '.join(present[:8])}); name them under `metrics` in the"
            " mapping"
        )
    per = mapping.steps_per_update or (program.per if program else None)
    return Reading(program, axis, counts or "gradient_steps", counts is None, per, named, _without_axes(ignored))


@dataclass(frozen=True)
class _Found:
    ours: str
    named: Named
    of_program: bool


def _of_program(program: Program | None, key: str) -> _Found | None:
    meaning = meaning_of(program, bare(key)) if program else None
    if meaning is None:
        return None
    named = Named(key=key, subtract=meaning.subtract, factor=meaning.factor)
    return _Found(meaning.metric, named, True)


def _certain(key: str) -> _Found | None:
    """A name of TRL's PPO, a tracker or this project."""
    ours = TRL.get(bare(key)) or (bare(key) if known(bare(key)) else None)
    return _Found(ours, Named(key=key), False) if ours else None


def _guess(program: Program | None, mapping: MappingFile, named: dict[str, Named], ignored: dict[str, str]) -> None:
    """Take columns whose meaning is plain, of a program that is not known; one that could mean two things is left."""
    if program is not None:
        return
    candidates: dict[str, list[str]] = {}
    for key in ignored:
        for ours, words in OBVIOUS.items():
            if plain(key) in words and ours not in mapping.metrics and ours not in named:
                candidates.setdefault(ours, []).append(key)
    for ours, keys in candidates.items():
        if len(keys) == 1:
            named[ours] = Named(key=keys[0])
            del ignored[keys[0]]
        else:
            for key in keys:
                ignored[key] = f"{' and '.join(keys)} could both be {ours}; say which in the mapping"


def suggestions(key: str) -> tuple[str, ...]:
    """Metrics that a key could mean, the likeliest first."""
    word = plain(key)
    obvious = tuple(ours for ours, words in OBVIOUS.items() if word in words)
    return obvious or UNCERTAIN.get(word, ())


def plain(key: str) -> str:
    """A key in small letters, with _ for everything else.

    >>> plain("train/Mean Reward")
    'mean_reward'
    """
    return re.sub(r"[^a-z0-9]+", "_", bare(key).lower()).strip("_")


def _why(program: Program | None, key: str) -> str:
    if program and (why := why_ignored(program, bare(key))):
        return why
    if program is None and (choices := suggestions(key)):
        units = " or ".join(f"{ours} ({METRICS[ours].unit})" for ours in choices)
        return f"could be {units}; say which in the mapping"
    return f"no metric of this name{nearest(key, [*TRL, *METRICS])}"


def _without_axes(ignored: dict[str, str]) -> dict[str, str]:
    return {key: "another count of the x-axis" if bare(key) in AXES else why for key, why in ignored.items()}


def axis_of(
    mapping: MappingFile, program: Program | None, keys: Sequence[str], origin: str
) -> tuple[str, Counts | None]:
    """The key of the x-axis and what it counts; None where nothing says that. Raises `Misfit`."""
    by_program = dict(program.axis) if program else {}
    candidates = [mapping.step.key] if mapping.step.key else [*by_program, *AXES]
    key = next((found for name in candidates for found in (name, f"train/{name}") if found in keys), None)
    if key is None:
        wanted = f"'{mapping.step.key}'" if mapping.step.key else "step, global_step or episode"
        raise Misfit(
            f"{origin}: no key {wanted} to place its rows by; name it in the mapping: step: {{key: ..., counts:"
            f" updates}}; keys: {', '.join(keys[:12])}"
        )
    counts = mapping.step.counts or by_program.get(bare(key)) or AXES.get(bare(key))
    return key, counts or ("updates" if mapping.steps_per_update else None)


def _derived(mapping: MappingFile, metrics: dict[str, Named], present: list[str]) -> dict[str, Named]:
    """What a stated length allows: the length itself where it was logged, and KL per token (both are sums over the same
    tokens)."""
    added: dict[str, Named] = {}
    if isinstance(mapping.length, str) and mapping.length in present:
        added["objective/length"] = Named(key=mapping.length)
    per_sequence = metrics.get("objective/kl")
    if mapping.length is not None and per_sequence is not None and per_sequence.subtract == 0:
        unit = per_sequence.unit or METRICS["objective/kl"].unit
        added["objective/kl_per_token"] = per_sequence.model_copy(update={"unit": unit})
    return {ours: named for ours, named in added.items() if ours not in metrics and ours not in mapping.metrics}
