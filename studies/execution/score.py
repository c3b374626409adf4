"""Score a file of prompts and completions with the reward or the judge of a trial, or with a ready one."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from pipeline.config.loading import validate
from pipeline.config.names import nearest
from pipeline.config.trial import TrialConfig
from pipeline.data.files import FORMATS, numbered_lines, readable, require
from pipeline.data.prompt_set import text_episodes
from pipeline.errors import UserError
from pipeline.models.loading import device_of
from pipeline.models.out_of_memory import MemoryFull, Room
from pipeline.models.policy import Episodes
from pipeline.models.tokenizers import load_tokenizer
from pipeline.named_files import is_folder, require_file
from pipeline.named_files import place as in_full
from pipeline.rewards.base import Completions
from pipeline.rewards.kinds import SCORING, TRAINED
from pipeline.rewards.scorers import judge_of, read_opponents, ready, reward_of
from pipeline.rewards.settings import PartConfig
from pipeline.run.layout import Layout
from pipeline.wording import shown
from studies.execution.export import beside
from studies.execution.recorded import artifact, find_trial

ROWS = 256
"""Texts scored between two reports of progress."""
AT_ONCE = 64
"""Rows in memory together, at most."""
NEEDED = ("prompt", "completion")
FIELD = 2**31 - 1
"""Characters in a field of a CSV file, at most: a long text is no fault."""
Row = dict[str, Any]
Scores = Mapping[str, Tensor]
"""Scores (n,) by their part of the column's name; the score itself under the empty name."""


@dataclass(frozen=True)
class Scorer:
    """A scorer of texts: (prompts, completions) -> scores, from the texts alone."""

    score: Callable[[Sequence[str], Sequence[str]], Scores]
    fits: Callable[[str, str], str | None] = lambda prompt, completion: None
    """Reason why a text cannot be scored as a whole, or None."""


def score_file(
    path: Path,
    reward: str,
    target: Path | None,
    layout: Layout,
    judge: str | None = None,
    profile: str | None = None,
    label: str | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Write `path` again with the columns ``reward``, ``reward/<part>`` of a composite, and ``gold``.

    `reward`, `judge`: STUDY/ARM/SEED (its training reward, its judge), a ready kind, or the folder of a sequence
    classifier, whose output is `label`. The result has the format of `path` and appears in one step, or not at all.
    Raises `UserError` for a row that cannot be scored, and for a target that is there.
    """
    path = in_full(path)
    target = in_full(target or path.with_name(f"{path.stem}.scored{path.suffix}"))
    if target.suffix != path.suffix:
        raise UserError(f"{target}: the result has the format of {path.name}; name a {path.suffix} file")
    if target.exists():
        raise UserError(f"{target}: is there already and is not overwritten; name another file with --to")
    rows, device = read_sheet(path), device_of("auto")
    named = {"reward": reward} | ({} if judge is None else {"gold": judge})
    if label is not None and not any(_is_folder(name) for name in named.values()):
        raise UserError(f"--label '{label}': it chooses an output of a classifier, and no folder of one is named")
    keys = {"reward": "--reward", "gold": "--judge"}
    scorers = {column: scorer_of(keys[column], name, layout, profile, label, device) for column, name in named.items()}
    for place, row in rows.items():
        if taken := [name for name in row if name.partition("/")[0] in scorers]:
            raise UserError(
                f"{path}: it has a column '{taken[0]}' already, which is not overwritten; rename or drop it"
            )
        for scorer in scorers.values():
            if why := scorer.fits(row["prompt"], row["completion"]):
                raise UserError(f"{place}: {why}")
    columns: dict[str, list[float]] = {}
    for name, scorer in scorers.items():
        columns |= _scored(path, name, scorer, rows, say)
    with beside(target) as file:
        write_sheet(path, list(rows.values()), columns, file)
    return target


def scorer_of(
    key: str, name: str, layout: Layout, profile: str | None, label: str | None, device: torch.device
) -> Scorer:
    """The scorer that the option `key` names. Raises `UserError` with the names that exist."""
    if name in SCORING and name != "classifier":
        return _ready(key, {"kind": name}, device)
    if _is_folder(name):
        folder = str(in_full(name))
        return _ready(key, {"kind": "classifier", "classifier": {"model": folder, "label": label}}, device)
    if name.count("/") == 2 and not name.startswith((".", "/")):
        return _of_trial(key, name, layout, profile, device)
    kinds = [kind for kind in SCORING if kind != "classifier"]
    raise UserError(
        f"{key} '{name}': name a trial as STUDY/ARM/SEED, {' or '.join(kinds)}, or a folder with a sequence"
        f" classifier{nearest(name, kinds)}"
    )


def _is_folder(name: str) -> bool:
    return name not in SCORING and is_folder(in_full(name))


def _ready(key: str, settings: dict[str, Any], device: torch.device) -> Scorer:
    spec = validate(PartConfig, settings, f"{key} '{settings['kind']}'")
    scorer = ready(key, spec, device, Room(f"{key} (texts at once)", AT_ONCE))
    return Scorer(lambda prompts, texts: {"": scorer(Completions(_no_tokens(len(texts)), prompts, texts))})


def _of_trial(key: str, run: str, layout: Layout, profile: str | None, device: torch.device) -> Scorer:
    """The calibrated training reward of a trial, or its judge."""
    record = find_trial(run, layout, profile)
    config, folder = TrialConfig.model_validate(record.config), layout.study(record.study, record.profile)
    room = Room(f"{key} (texts at once)", AT_ONCE)
    if key == "--judge":
        made = artifact(folder, record, "judge") if config.needs_judge else None
        judge = judge_of(config.gold, device, room, made)
        return Scorer(lambda prompts, texts: {"": judge(Completions(_no_tokens(len(texts)), prompts, texts))})
    made = artifact(folder, record, "reward")
    proxy = reward_of(made, device, room)
    tokenizer = load_tokenizer(artifact(folder, record, "prompts").path / "tokenizer")
    learned = [part.raw for name, part in proxy.parts.items() if made.meta["parts"][name]["spec"]["kind"] in TRAINED]
    positions = [network.config.max_position_embeddings for part in learned for network in part.networks]
    most = min(positions, default=None)
    compared = made.meta.get("against", "none") != "none"
    known = {prompt for table in read_opponents(made.path).values() for prompt in table} if compared else set[str]()

    def score(prompts: Sequence[str], texts: Sequence[str]) -> Scores:
        episodes = text_episodes(tokenizer, prompts, texts, most or 2**30, device)
        total, parts = proxy.explained(Completions(episodes, prompts, texts))
        return {"": total, **parts}

    def fits(prompt: str, text: str) -> str | None:
        if compared and prompt not in known:
            return (
                "its reward compares an answer with the reference's (reward.against), and there are none to the prompt"
                f" {prompt!r}; opponents are drawn for the training and the held-out prompts of the trial alone"
            )
        rows = tokenizer([prompt, text], add_special_tokens=False)["input_ids"]
        tokens = sum(map(len, rows)) + 1
        return None if most is None or tokens <= most else f"{tokens} tokens, and the reward model reads {most}"

    return Scorer(score, fits)


def _scored(
    path: Path, name: str, scorer: Scorer, rows: Mapping[str, Row], say: Callable[[str], None]
) -> dict[str, list[float]]:
    """The columns that a scorer adds. Raises `UserError` for a score that is not finite, or for too little memory."""
    places, columns = list(rows), dict[str, list[float]]()
    for start in range(0, len(rows), ROWS):
        block = places[start : start + ROWS]
        try:
            found = scorer.score([rows[one]["prompt"] for one in block], [rows[one]["completion"] for one in block])
        except MemoryFull as error:
            raise UserError(f"{path}: {error}") from None
        for part, values in found.items():
            column = columns.setdefault(f"{name}/{part}" if part else name, [])
            for place, value in zip(block, values.double().tolist(), strict=True):
                if not math.isfinite(value):
                    raise UserError(f"{place}: the {name} of this row is {value}, which is no finite number")
                column.append(value)
        say(f"{name}: {start + len(block):,} of {len(rows):,} rows")
    return columns


def _no_tokens(n: int) -> Episodes:
    """Episodes of scorers that read texts and no tokens."""
    ones = torch.ones(n, 1, dtype=torch.bool)
    return Episodes(torch.zeros(n, 2, dtype=torch.long), ones, ones, ones.squeeze(1))


def read_sheet(path: Path) -> dict[str, Row]:
    """The rows of a file, read by its suffix, by the file and place of each. Raises `UserError` with the line of the
    first row that cannot be used."""
    require_file(path, str(path))
    if path.suffix[1:] not in FORMATS:
        raise UserError(f"{path}: the format must be one of {', '.join(FORMATS)}")
    with readable(path):
        numbered = {"parquet": _parquet, "csv": _csv, "jsonl": numbered_lines}[path.suffix[1:]](path)
        word = "row" if path.suffix == ".parquet" else "line"
        rows = {f"{path}, {word} {number}": row for number, row in numbered}
    if not rows:
        raise UserError(f"{path}: it has no rows")
    for place, row in rows.items():
        _check(row, place)
    return rows


def write_sheet(path: Path, rows: Sequence[Row], columns: Mapping[str, Sequence[float]], target: Path) -> None:
    """Write the rows of `path` to `target`, with columns added; the others as they were read."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        for name, values in columns.items():
            table = table.append_column(name, pa.array(values, pa.float64()))
        pq.write_table(table, target)
        return
    added = [dict(zip(columns, more, strict=True)) for more in zip(*columns.values(), strict=True)]
    wider = [{**row, **more} for row, more in zip(rows, added, strict=True)]
    with target.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            writer = csv.DictWriter(file, list(wider[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(wider)
        else:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in wider)


def _check(row: Row, place: str) -> None:
    """Refuse a row without two texts, or with half of a surrogate pair, which no file can hold. Raises `UserError`."""
    require(NEEDED, list(row), place)
    for name in NEEDED:
        if not isinstance(row[name], str):
            raise UserError(f"{place}: {name} is {shown(json.dumps(row[name], default=str))}, not a text")
    if not (row["prompt"] + row["completion"]).strip():
        raise UserError(f"{place}: prompt and completion are empty")
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise UserError(f"{place}: it holds half of a surrogate pair; repair the text") from None


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    """Rows and their last lines. Raises `ValueError` for a row with more or fewer cells than the header."""
    csv.field_size_limit(FIELD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        if len({*(names := reader.fieldnames or [])}) < len(names):
            raise ValueError(f"two columns have one name: {', '.join(names)}")
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has not as many cells as there are columns")
            yield reader.line_num, row


def _parquet(path: Path) -> Iterator[tuple[int, Row]]:
    yield from enumerate(pq.read_table(path).to_pylist(), 1)
