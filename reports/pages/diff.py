"""Two versions of a study: what changed in its design, code and environment, and by how much in its results."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from pipeline.run.layout import TrialRecord
from pipeline.run.metrics import METRICS
from reports.findings.changes import COMPARED, Change, changes_of
from reports.findings.machines import PROCESSOR, UNKNOWN, Machines
from reports.pages.noise import noise_part
from reports.pages.page import Page, Part
from reports.records.versions import MISSING, Version
from reports.tables.cells import DASH, columns, sample, shown, shown_difference, size
from reports.tables.table import Head, Table, TableCell
from reports.text.words import counted, listed, name, number, p_value, signed
from studies.claims.falsifiers import OUTCOMES

TEXTS = (
    "question",
    "hypothesis",
    "refuted_if",
    "profile",
    "baseline",
    "seeds",
    "objective",
    "grid",
    "factors",
    "interactions",
    "search",
)
SHARED = ("prompts", "judge", "sft", "reward", "reference", "values")
COSTS = {
    "steps": "gradient steps",
    "wall_s": "s",
    "generated_tokens": "tokens",
    "peak_memory_gib": "GiB",
    "state_gib": "GiB",
    "t4_s": "s on a T4, modelled",
}
LISTED = 6
Rows = list[tuple[str, str, str, str]]


def changes(old: Version, new: Version) -> Page:
    """The page of what changed from `old` to `new`."""
    result_changes = changes_of(old, new)
    design, code = design_changes(old, new), code_changes(old, new)
    return Page(
        title=f"{new.name}: two versions" if old.name == new.name else f"{old.name} and {new.name}: what changed",
        eyebrow=(
            f"Old: {old.folder.path} ({counted(len(old.records), 'trial')}, {old.digest}) · "
            f"New: {new.folder.path} ({counted(len(new.records), 'trial')}, {new.digest})"
        ),
        lead=_lead(old, new, result_changes, len(design), len(code)),
        caveats=tuple(_caveats(old, new, result_changes)),
        parts=(
            Part(
                "results",
                "By how much results changed",
                () if result_changes else ("No arm was evaluated in both.",),
                _results_tables(result_changes),
            ),
            noise_part(Machines(old, new)),
            _part("design", "What changed in the design", design),
            _part("code", "What changed in code and environment", code),
            Part("claims", "What became of the claims", *_claims(old, new)),
            Part("trials", "Trials and their cost", (), (_trials_table(old, new),)),
        ),
    )


def _part(key: str, title: str, rows: Rows) -> Part:
    return Part(key, title, (), (_change_table(key, title, rows),)) if rows else Part(key, title, ("Nothing.",))


def design_changes(old: Version, new: Version) -> Rows:
    """(what, of which arms, old value, new value): the study's text, arms, falsifiers, and every resolved key."""
    rows: Rows = [
        (key, "", _word(old.study.get(key)), _word(new.study.get(key)))
        for key in TEXTS
        if old.study.get(key) != new.study.get(key)
    ]
    if old.started.get("overrides") != new.started.get("overrides"):
        rows.append(("--set", "", _word(old.started.get("overrides")), _word(new.started.get("overrides"))))
    rows += [(f"arm {arm}", arm, "ran", MISSING) for arm in old.arms if arm not in new.arms]
    rows += [(f"arm {arm}", arm, MISSING, "ran") for arm in new.arms if arm not in old.arms]
    rows += _stated(old, new, "hypotheses", "hypothesis") + _stated(old, new, "falsifiers", "falsifier")
    return rows + _keys(old, new)


def _stated(old: Version, new: Version, kind: str, noun: str) -> Rows:
    """Hypotheses or falsifiers that differ, by name."""
    claims = [{claim["name"]: _word(claim) for claim in version.study.get(kind) or []} for version in (old, new)]
    return [
        (f"{noun} {claim}", "", claims[0].get(claim, MISSING), claims[1].get(claim, MISSING))
        for claim in dict.fromkeys([*claims[0], *claims[1]])
        if claims[0].get(claim) != claims[1].get(claim)
    ]


def _keys(old: Version, new: Version) -> Rows:
    """Resolved keys that differ in arms of the same name, arms with the same change in one row."""
    arms = [arm for arm in new.arms if arm in old.arms]
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for arm in arms:
        first, second = old.settings[arm], new.settings[arm]
        for key in dict.fromkeys([*first, *second]):
            if first.get(key, MISSING) != second.get(key, MISSING):
                grouped.setdefault((key, first.get(key, MISSING), second.get(key, MISSING)), []).append(arm)
    return [
        (key, "all arms" if len(own) == len(arms) else ", ".join(own), a, b)
        for (key, a, b), own in sorted(grouped.items())
    ]


def code_changes(old: Version, new: Version) -> Rows:
    """(what, "", old, new): commit, versions, platform, and the keys of the shared stages, which hash their code and
    inputs."""
    rows: Rows = []
    environments = [
        _distinct(record.environment.items() for record in version.records.values()) for version in (old, new)
    ]
    stages = [_distinct(_shared_keys(record) for record in version.records.values()) for version in (old, new)]
    for first, second in (environments, stages):
        for key in dict.fromkeys([*first, *second]):
            if first.get(key) != second.get(key):
                absent = UNKNOWN if key in PROCESSOR else MISSING
                rows.append((key, "", first.get(key, absent), second.get(key, absent)))
    return rows


def _shared_keys(record: TrialRecord) -> list[tuple[str, str]]:
    return [(f"stage {stage}", record.stages[stage].key) for stage in SHARED if stage in record.stages]


def _distinct(items: Any) -> dict[str, str]:
    distinct: dict[str, dict[str, None]] = {}
    for pairs in items:
        for key, value in pairs:
            distinct.setdefault(str(key), {})[str(value)] = None
    return {key: ", ".join(sorted(values)) for key, values in distinct.items()}


def _change_table(table: str, title: str, rows: Rows) -> Table:
    heads = [
        Head("what", numeric=False),
        Head("arms", numeric=False),
        Head("old", numeric=False),
        Head("new", numeric=False),
    ]
    frame = pd.DataFrame(rows, columns=["what", "arms", "old", "new"])
    if not any(arms for _, arms, _, _ in rows):
        del heads[1]
    cells = tuple(tuple(TableCell(text) for i, text in enumerate(row) if i != 1 or len(heads) == 4) for row in rows)
    note = (
        f"{MISSING}: was not there. Keys are those of the resolved configuration; the seed of a trial is none of them."
    )
    return Table(table, title, note, tuple(heads), cells, frame)


def _results_tables(result_changes: list[Change]) -> tuple[Table, ...]:
    if not result_changes:
        return ()
    heads = (
        Head("arm", numeric=False), Head("metric", "unit", numeric=False), Head("old", "95 % interval"),
        Head("new", "95 % interval"),
        Head("new − old", "95 % interval"), Head("n", "seeds × prompts"), Head("pairs", numeric=False), Head("p, Holm"),
        Head("finding", numeric=False),
    )  # fmt: skip
    rows, data = [], []
    for change in result_changes:
        unit = METRICS[change.metric].unit
        rows.append(
            (
                TableCell(change.arm), TableCell(name(change.metric), unit),
                shown(change.old, change.metric), shown(change.new, change.metric),
                shown_difference(change.difference, change.metric) if change.difference else DASH,
                TableCell(size(change.difference)), TableCell(change.pairing), TableCell(p_value(change.p_holm)),
                TableCell(change.finding),
            )
        )  # fmt: skip
        data.append(
            {
                "arm": change.arm,
                "metric": change.metric,
                "unit": unit,
                **columns("old", change.old),
                **columns("new", change.new),
            }
            | {**columns("difference", change.difference), **sample(change.difference)}
            | {"pairing": change.pairing, "p": change.p, "p_holm": change.p_holm, "finding": change.finding}
        )
    note = (
        "Arms of both versions. Paired: the same seeds and the same prompts, whatever the completions; unpaired: two"
        " independent samples. Holm over the arms of one metric; a finding needs a corrected p below 0.05 and"
        " an interval without 0."
    )
    return (Table("results", "Results", note, heads, tuple(rows), pd.DataFrame(data)),)


def _claims(old: Version, new: Version) -> tuple[tuple[str, ...], tuple[Table, ...]]:
    first, second = old.verdicts(), new.verdicts()
    names = dict.fromkeys([*first, *second])
    if not names:
        return ("Neither version has a claim that can be judged.",), ()
    heads = (
        Head("claim", numeric=False),
        Head("arm", numeric=False),
        Head("old", "trials", numeric=False),
        Head("new", "trials", numeric=False),
    )
    rows, data = [], []
    for claim in names:
        tallies = [
            {arm: Counter(v.outcome for v in own if v.arm == arm) for arm in dict.fromkeys(v.arm for v in own)}
            for own in (first.get(claim, []), second.get(claim, []))
        ]
        for arm in dict.fromkeys([*tallies[0], *tallies[1]]):
            words = [
                ", ".join(f"{t[arm][o]} {o.lower()}" for o in OUTCOMES if t[arm][o]) if arm in t else MISSING
                for t in tallies
            ]
            rows.append((TableCell(claim), TableCell(arm), *[TableCell(word) for word in words]))
            data.append({"claim": claim, "arm": arm, "old": words[0], "new": words[1]})
    note = (
        "Each version's own claim on its own records; where the claim itself changed, the table of the design says so."
    )
    return (), (Table("claims", "Claims", note, heads, tuple(rows), pd.DataFrame(data)),)


def _trials_table(old: Version, new: Version) -> Table:
    """Statuses and mean cost of an ended trial of each arm, old and new."""
    heads = [Head("arm", numeric=False), Head("trials, old", numeric=False), Head("trials, new", numeric=False)]
    present = [
        key
        for key in COSTS
        if any(key in record.cost or key == "steps" for v in (old, new) for record in v.records.values())
    ]
    heads += [
        Head(f"{key.removesuffix('_s').removesuffix('_gib').replace('_', ' ')}, old → new", COSTS[key])
        for key in present
    ]
    rows, data = [], []
    for arm in dict.fromkeys([*new.arms, *old.arms]):
        own = [[v.records[arm, seed] for seed in v.seeds(arm)] for v in (old, new)]
        statuses = [Counter(record.status for record in group) for group in own]
        said = [", ".join(f"{n} {status}" for status, n in sorted(tally.items())) or MISSING for tally in statuses]
        means = {key: [_mean([_spent(record, key) for record in group]) for group in own] for key in present}
        rows.append(
            (
                TableCell(arm),
                *map(TableCell, said),
                *[TableCell(f"{number(first)} → {number(second)}") for first, second in means.values()],
            )
        )
        spent = {
            f"{key}_{which}": mean
            for key, pair in means.items()
            for which, mean in zip(("old", "new"), pair, strict=True)
        }
        data.append({"arm": arm, "old": said[0], "new": said[1], **spent})
    note = "Means over the arm's recorded trials; measured, so no interval."
    return Table("trials", "Trials", note, tuple(heads), tuple(rows), pd.DataFrame(data))


def _spent(record: TrialRecord, key: str) -> float:
    return float(record.steps) if key == "steps" else float(record.cost.get(key, float("nan")))


def _mean(values: list[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else float("nan")


def _lead(old: Version, new: Version, result_changes: list[Change], design: int, code: int) -> str:
    objective = str((new.study.get("objective") or {}).get("metric", COMPARED[0]))
    said = f"{counted(design, 'change')} of the design, {counted(code, 'change')} of code and environment"
    own = [change for change in result_changes if change.metric == objective and change.difference is not None]
    if not own:
        return f"{said}. No arm was evaluated in both versions, so results cannot be compared."
    if all(change.finding == "identical" for change in own):
        where = " on the seeds that both evaluated" if _ended_otherwise(old, new) else ""
        return (
            f"{said}. On {name(objective)}, all {counted(len(own), 'common arm')} are identical to the last"
            f" digit{where}."
        )
    moved = [change for change in own if change.finding in ("higher", "lower")]
    if not moved:
        return f"{said}. On {name(objective)}, no change is shown in any of {counted(len(own), 'common arm')}."
    parts = [
        f"{change.arm} is {change.finding} by {signed(change.difference, objective)} ({size(change.difference)})"
        for change in moved
        if change.difference
    ]
    return (
        f"{said}. On {name(objective)}, {listed(parts)}; no change is shown in"
        f" {len(own) - len(moved)} of {len(own)} common arms."
    )


def _caveats(old: Version, new: Version, result_changes: list[Change]) -> list[str]:
    caveats = []
    if old.folder.path == new.folder.path:
        caveats.append("Both versions are the same folder.")
    if other := _ended_otherwise(old, new):
        more = f" and {len(other) - LISTED} more" if len(other) > LISTED else ""
        ended = f"{counted(len(other), 'trial')} of common arms ended otherwise: {'; '.join(other[:LISTED])}{more}."
        caveats.append(
            f"{ended} Old and new are means over what each version evaluated, differences over the seeds that both did."
        )
    lost = [change.arm for change in result_changes if change.pairing == "unpaired"]
    if lost:
        caveats.append(
            f"{listed(list(dict.fromkeys(lost)))} share no seed and prompt between the versions, so their differences"
            " are unpaired."
        )
    if any(row[0] == "stage reward" for row in code_changes(old, new)):
        caveats.append("The training reward differs between the versions: proxy rewards are not on one scale.")
    if any(row[0] == "stage sft" for row in code_changes(old, new)):
        caveats.append(
            "The reference differs between the versions: win rates and KL are measured against different models."
        )
    if old.common_noise != new.common_noise:
        which = "old" if old.common_noise else "new"
        caveats.append(
            f"The {which} version sampled policy and reference with the same random numbers, the other one"
            " independently: their win rates are different quantities."
        )
    return caveats


def _ended_otherwise(old: Version, new: Version) -> list[str]:
    """Trials of common arms whose status differs, or that only one version has, in words."""
    cells = sorted(cell for cell in {*old.records, *new.records} if cell[0] in old.arms and cell[0] in new.arms)
    status = {
        cell: [version.records[cell].status if cell in version.records else "not run" for version in (old, new)]
        for cell in cells
    }
    return [
        f"{arm} seed {seed} {before} → {after}" for (arm, seed), (before, after) in status.items() if before != after
    ]


def _word(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_word(item)}" for key, item in value.items() if item is not None) or MISSING
    return ", ".join(map(_word, value)) if isinstance(value, list) else str(value)
