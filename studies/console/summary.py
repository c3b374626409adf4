"""Tables for the terminal: the end of a study, verdicts, and the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.run.layout import TrialRecord
from studies.claims.badges import Standing
from studies.claims.falsifiers import OUTCOMES, Verdict, overall
from studies.claims.symptoms import ArmHealth
from studies.console.cli import say
from studies.definition.design import Cell
from studies.definition.schema import Study

OUTCOME_STYLES = {
    "SURVIVED": "green", "FALSIFIED": "red", "NOT TESTED": "yellow",
    "SUPPORTED": "green", "REFUTED": "red", "UNDECIDED": "yellow",
}  # fmt: skip


def table(*titles: str, left: Collection[int] = (0,)) -> Table:
    """An empty table; columns that are not `left`, nor the last, hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for index, title in enumerate(titles):
        made.add_column(Text(title), justify="left" if index in left or index == len(titles) - 1 else "right")
    return made


def study_table(
    study: Study, plan: Sequence[Cell], records: Sequence[TrialRecord], intervals: Mapping[str, Mapping[str, str]]
) -> Table:
    """One row per arm: the report's estimates where it has them, else means over evaluated seeds, and how its trials
    ended."""
    columns = {
        "eval/win_rate": "win rate", "eval/gold": "gold [points]", "eval/proxy": "proxy [std]",
        "eval/kl_per_token": "KL [nats/token]",
    }  # fmt: skip
    if study.foreign:  # in the units of its logs
        known = [key for key in columns if any(key in own for own in intervals.values())]
        columns = {key: key for key in (study.objective.metric, *known)}
    shown = table("arm", "seeds", *columns.values(), "trials")
    for arm in study.arm_overrides():
        own = [record for record in records if record.arm == arm]
        judged = [record for record in own if next(iter(columns)) in record.summary | record.ends]
        values = [intervals.get(arm, {}).get(key) or _mean(judged, key) for key in columns]
        counts = Counter[str](record.status for record in own)
        expected = sum(cell.arm == arm for cell in plan)
        if len(own) < expected:
            counts["missing"] = expected - len(own)
        name = f"{arm} (baseline)" if arm == study.baseline else arm
        ended = ", ".join(f"{count} {status}" for status, count in counts.items())
        shown.add_row(*map(Text, (name, str(len(judged)), *values, ended)))
    return shown


def claim_table(verdicts: Sequence[Verdict]) -> Table:
    """One row per falsifier: its verdict, its trials by outcome, and for FALSIFIED and NOT TESTED the arms and the
    reason of one trial."""
    shown = table("falsifier", "verdict", "trials", "arms", left=(0, 1, 2))
    for name in dict.fromkeys(verdict.name for verdict in verdicts):
        judged = [verdict for verdict in verdicts if verdict.name == name]
        by_arm = Counter(verdict.arm for verdict in judged)
        outcomes = {outcome: [one for one in judged if one.outcome == outcome] for outcome in OUTCOMES}
        details = [
            ", ".join(f"{arm} {n}/{by_arm[arm]}" for arm, n in Counter(one.arm for one in those).items())
            + f" {outcome}, such as seed {those[0].seed} of {those[0].arm}: {those[0].reason}"
            for outcome, those in outcomes.items()
            if those and outcome != "SURVIVED"
        ]
        trials = ", ".join(f"{len(those)} {outcome}" for outcome, those in outcomes.items() if those)
        outcome = overall(judged)
        shown.add_row(Text(name), Text(outcome, OUTCOME_STYLES[outcome]), Text(trials), Text("; ".join(details)))
    return shown


def print_hypotheses(console: Console, claims: Standing, found: Mapping[str, Any]) -> None:
    """The verdict on each hypothesis with its badge, and on the study; `found`: as the report has them."""
    say(console, f"Hypothesis: {claims.hypothesis}")
    for one in found.get("hypotheses") or ():
        rest = "; ".join(filter(None, [one["condition"], one["found"], one["reason"], str(one["badge"])]))
        line = Text.assemble(f"{one['name']}: ", (one["outcome"], OUTCOME_STYLES[one["outcome"]]), f"; {rest}")
        console.print(line, soft_wrap=True)
    for claim in claims.withdrawn:
        say(console, f"withdrawn claim: {claim}", "yellow")
    if "verdict" in found:
        say(console, str(found["verdict"]), "bold")
    console.print()


def print_verdicts(console: Console, study: Study, verdicts: Sequence[Verdict], claims: Standing) -> None:
    """The claims with their badges, their verdicts, and that of the study."""
    if not study.falsifiers:
        console.print(Text(f"{study.name} has no falsifiers", style="yellow"))
        return
    for falsifier in study.falsifiers:
        badge = claims.falsifiers[falsifier.name]
        claim = f'{falsifier.name}: claim "{falsifier.claim}", refuted by {falsifier.condition}; {badge}'
        say(console, claim)
    console.print(claim_table(verdicts))
    console.print(Text(f"every trial: ablate falsify {study.name} --json", style="dim"))
    outcome = overall(verdicts)
    counts = Counter(verdict.outcome for verdict in verdicts)
    detail = ", ".join(f"{count} {name}" for name, count in counts.items())
    console.print(Text(f"{outcome} ({detail})", style=f"bold {OUTCOME_STYLES[outcome]}"))


def print_health(console: Console, arms: Sequence[ArmHealth]) -> None:
    """Print how many judged trials left a healthy band or diverged, by arm; each symptom was shown as it appeared."""
    judged, ill = sum(one.judged for one in arms), [one for one in arms if one.ill]
    if judged:
        which = ", ".join(f"{one.arm} ({one.ill} of {one.judged})" for one in ill)
        text = f"unhealthy in {which}; the report names the series" if ill else "ok"
        say(console, f"Health of {judged} judged trials: {text}\n", "yellow" if ill else "")


def print_study(
    console: Console,
    study: Study,
    plan: Sequence[Cell],
    records: Sequence[TrialRecord],
    intervals: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """The end of a study; `intervals`: the report's estimates in words, by arm and metric."""
    console.print()
    console.print(study_table(study, plan, records, intervals or {}))
    note = "Means with 95 % intervals over seeds and prompts, as in the report." if intervals else "Means over seeds."
    console.print(Text(note, style="dim"))
    console.print()


def _mean(records: Sequence[TrialRecord], key: str) -> str:
    values = [record.summary[key] for record in records if key in record.summary]
    return f"{math.fsum(values) / len(values):.4f}" if values else "-"
