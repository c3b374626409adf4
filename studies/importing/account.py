"""What an import took under which name, and what it left and why: no series goes without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from studies.importing.mapping import Named
from studies.importing.naming import Reading


@dataclass(frozen=True)
class Share:
    """One trial's part of the account."""

    arm: str
    seed: int
    taken: dict[str, Named]
    """Ours -> theirs."""
    ignored: dict[str, str]
    """Theirs -> why."""
    reading: Reading | None
    """None of outcomes by prompt."""


def account(shares: Sequence[Share], files: dict[str, str]) -> list[str]:
    """Lines for people: the x-axes, every metric with the key it was taken from, every key that was left, every file
    that was not read."""
    series = [share for share in shares if share.reading is not None]
    prompts = [share for share in shares if share.reading is None]
    return [
        *_axes(series),
        *_taken("Taken (metric: from)", series),
        *_taken("Taken by prompt (column: from)", prompts),
        *_left(shares),
        *(["Files not read:"] if files else []),
        *(f"  {name}: {why}" for name, why in files.items()),
    ]


def _axes(shares: Sequence[Share]) -> list[str]:
    lines: dict[str, list[Share]] = {}
    for share in shares:
        read = share.reading
        assert read is not None
        program = f"names of {read.program.name}; " if read.program else ""
        guess = " (assumed; if it counts updates, give --steps-per-update N)" if read.assumed else ""
        counted = f" of {read.per} gradient steps" if read.counts == "updates" else ""
        text = f"Read as: {program}x-axis '{read.axis}' counts {read.counts.replace('_', ' ')}{counted}{guess}"
        lines.setdefault(text, []).append(share)
    return [text + _where(own, shares) for text, own in lines.items()]


def _taken(title: str, shares: Sequence[Share]) -> list[str]:
    lines: dict[str, list[Share]] = {}
    for share in shares:
        for ours, named in share.taken.items():
            lines.setdefault(f"  {ours}: {_formula(named)}", []).append(share)
    return [title + ":", *(text + _where(own, shares) for text, own in lines.items())] if lines else []


def _formula(named: Named) -> str:
    text = named.key + (f" [{named.unit}]" if named.unit else "")
    if named.subtract and named.factor == -1.0:
        return f"{named.subtract:g} - {text}"
    text = f"({text} - {named.subtract:g})" if named.subtract else text
    return f"{named.factor:g} x {text}" if named.factor != 1.0 else text


def _left(shares: Sequence[Share]) -> list[str]:
    """Keys of one reason stand on one line; one that another trial could use stands there with its trials."""
    reasons: dict[tuple[str, str], list[str]] = {}
    keys: dict[tuple[str, str], list[Share]] = {}
    for share in shares:
        for key, why in share.ignored.items():
            keys.setdefault((key, why), []).append(share)
    for (key, why), own in keys.items():
        reasons.setdefault((why, _where(own, shares)), []).append(key)
    lines = [f"  {', '.join(found)}{where}: {why}" for (why, where), found in reasons.items()]
    return ["Ignored:", *lines] if lines else []


def _where(own: Sequence[Share], all_of: Sequence[Share]) -> str:
    """Of which trials a line speaks; nothing where of all."""
    if len(own) == len(all_of):
        return ""
    whole = {arm for arm in {share.arm for share in own} if _of(own, arm) == _of(all_of, arm)}
    arms = list(dict.fromkeys(share.arm for share in own if share.arm in whole))
    rest = [f"{share.arm} seed {share.seed}" for share in own if share.arm not in whole]
    named = [*([f"arm{'s' * (len(arms) > 1)} {', '.join(arms)}"] if arms else []), *rest]
    more = f" and {len(named) - 6} more" if len(named) > 6 else ""
    return f" ({', '.join(named[:6])}{more})"


def _of(shares: Sequence[Share], arm: str) -> int:
    return sum(share.arm == arm for share in shares)
