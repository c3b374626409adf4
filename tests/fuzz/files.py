"""Tables, logs and folders of classifiers, sound and broken."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import trl_logs
from fuzz.making import NAMES, mutated_bytes, no_file, quoted

Row = Mapping[str, Any]
FORMATS = ("csv", "jsonl", "parquet")
_JSON = (
    "NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "9" * 5000, "-1", "0", "true", "null", "[]", "{}", '""',
    "[" * 3_000, "[" * 3_000 + "]" * 3_000, '{"a":' * 3_000, '"\\ud800"', '"\\u0000"', '"\\u001b[31m"', "'x'",
    "{'a': 1}", '{"a": 1, "a": 2}', "[1, 2", '"' + "x" * 100_000 + '"', "[" + "0," * 20_000 + "0]", '"1e5"', '" 3 "',
    '"nan"', '"\\ud83d"', "0x10", "01", "1.", ".5", "--1", "",
)  # fmt: skip


VALUES = (
    None, True, 0, -1, 0.5, 2**63, 10**40, 10**5000, float("nan"), float("inf"), -1e308, 1e-320, [], {}, [1], [[1]],
    {"a": 1}, "x" * 100_000, b"\xff",
)  # fmt: skip


def texts(rng: random.Random) -> list[Row]:
    return [
        {"text": f"A {_word(rng)} film, review {n}.", "label": rng.choice(("0", "1"))}
        for n in range(rng.choice((3, 30)))
    ]


def pairs(rng: random.Random) -> list[Row]:
    return [
        {"prompt": f"A film {n}", "chosen": f" is {_word(rng)}.", "rejected": f" was {_word(rng)} and {n}."}
        for n in range(rng.choice((3, 30)))
    ]


def rankings(rng: random.Random) -> list[Row]:
    return [
        {
            "prompt": f"A film {n}",
            "completions": [f" is {_word(rng)} {k}." for k in range(3)],
            "ranks": rng.sample((1, 2, 3), 3),
        }
        for n in range(rng.choice((3, 30)))
    ]


def completions(rng: random.Random) -> list[Row]:
    return [{"prompt": f"A film {n}", "completion": f" is {_word(rng)}."} for n in range(rng.choice((1, 5)))]


def outcomes(rng: random.Random) -> list[Row]:
    return [
        {"prompt_id": n, "win": rng.choice((0, 1)), "kl": 0.1 * n, "policy_gold": 0.5, "reference_gold": 0.1}
        for n in range(5)
    ]


def log(rng: random.Random) -> list[Row]:
    return trl_logs.rows(beta=rng.choice((0.05, 0.2)), seed=rng.randrange(3), updates=rng.choice((1, 3)))


def _word(rng: random.Random) -> str:
    return rng.choice(("great", "dull", "slow", "fine", "lovely", "bad"))


def write_table(rng: random.Random, path: Path, rows: Sequence[Row]) -> None:
    """The rows in the format of the path's ending, with something wrong more often than not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _changed(rng, rows) if rng.random() < 0.5 else rows
    try:
        data = {".csv": _csv, ".jsonl": _jsonl, ".json": _list, ".parquet": _parquet}[path.suffix](rng, rows)
    except (
        ValueError,
        TypeError,
        OverflowError,
        NotImplementedError,
    ):  # what pyarrow or UTF-8 cannot hold is not written
        data = b""
    path.write_bytes(mutated_bytes(rng, data) if rng.random() < 0.5 else data)


def _changed(rng: random.Random, rows: Sequence[Row]) -> list[Row]:
    """Rows with a strange value, a strange name, a column too few or too many."""
    found, at = [dict(row) for row in rows], rng.randrange(len(rows))
    name = rng.choice(list(found[at]))
    value = rng.choice((*NAMES, *VALUES))
    match rng.randrange(5):
        case 0:
            found[at][name] = value
        case 1:
            for row in found:
                row[name] = value
        case 2:
            for row in found:
                row[rng.choice(NAMES)] = row.pop(name, None)
        case 3:
            for row in found:
                row.pop(name, None)
        case _:
            found = found * rng.choice((1, 2, 50))
    return found


def _csv(rng: random.Random, rows: Sequence[Row]) -> bytes:
    file = io.StringIO(newline="")
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.writer(file, delimiter=rng.choice((",", ",", ",", ";", "\t")))
    table.writerow(names * rng.choice((1, 1, 1, 1, 2)))
    for row in rows:
        table.writerow([_shown(row.get(name, "")) for name in names] * rng.choice((1, 1, 1, 1, 1, 2)))
    return file.getvalue().encode("utf-8", "surrogatepass")


def _shown(value: Any) -> Any:
    return f"1{'0' * 5000}" if isinstance(value, int) and value > 10**4000 else value


def _lines(rng: random.Random, rows: Sequence[Row]) -> list[str]:
    lines = [json.dumps({name: _json(value) for name, value in row.items()}) for row in rows]
    if rng.random() < 0.4:
        at = rng.randrange(len(lines))
        name = quoted(rng.choice(("text", "step", "prompt", "objective/kl", "ranks", *NAMES)))
        bad = rng.choice(_JSON)
        lines[at] = rng.choice(
            (bad, lines[at][:-1] + f", {name}: {bad}}}", f"{{{name}: {bad}}}", lines[at][: len(lines[at]) // 2])
        )
    return lines


def _json(value: Any) -> Any:
    return (
        value.hex()
        if isinstance(value, bytes)
        else float("inf")
        if isinstance(value, int) and value > 10**4000
        else value
    )


def _jsonl(rng: random.Random, rows: Sequence[Row]) -> bytes:
    return "".join(f"{line}\n" for line in _lines(rng, rows)).encode()


def _list(rng: random.Random, rows: Sequence[Row]) -> bytes:
    text = f"[{', '.join(_lines(rng, rows))}]"
    return (
        f'{{"best": null, "log_history": {text}, "x": {rng.choice(_JSON)}}}' if rng.random() < 0.4 else text
    ).encode()


def _parquet(rng: random.Random, rows: Sequence[Row]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if rng.random() < 0.1:
        return many_rows()
    table = pa.Table.from_pylist([dict(row) for row in rows])
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=rng.choice(("snappy", "none", "gzip")))
    data: bytes = sink.getvalue().to_pybytes()
    if rng.random() < 0.5:  # the footer holds the schema and the numbers of rows
        at = len(data) - 8 - rng.randrange(min(400, len(data) - 8))
        return data[:at] + rng.randbytes(rng.choice((1, 4))) + data[at + 4 :]
    return data


@cache
def many_rows() -> bytes:
    """A table of 12 million equal rows, in a few kilobytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.nulls(12_000_000, pa.string())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(dict.fromkeys(("text", "label", "prompt", "completion", "step"), column)), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def table_or_worse(rng: random.Random, folder: Path, stem: str, rows: Sequence[Row]) -> str:
    """A file, a folder of files, or something else; its path as it is given."""
    name = f"{stem}.{rng.choice(FORMATS)}"
    roll = rng.random()
    if roll < 0.5:
        write_table(rng, folder / name, rows)
        return name
    if roll < 0.6:
        no_file(rng, folder / name)
        return name
    if roll < 0.65:
        return rng.choice((*NAMES, "/", "/dev/zero", "/dev/stdin", "/proc/self/mem", "/etc", f"{name}/x")).replace(
            "\x00", "\\0"
        )
    write_table(rng, folder / "tables" / f"train.{rng.choice(FORMATS)}", rows)
    if rng.random() < 0.5:
        write_table(rng, folder / "tables" / f"test.{rng.choice(FORMATS)}", rows)
    if rng.random() < 0.6:
        no_file(
            rng,
            folder
            / "tables"
            / rng.choice(("train-2.csv", "test-2.jsonl", "train-3.parquet", "deep/train.csv", "other")),
        )
    if rng.random() < 0.2:
        (folder / "tables" / "again").symlink_to("..")
    return "tables"


@cache
def _classifier() -> dict[str, bytes]:
    """The files of a small sequence classifier."""
    import tempfile

    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    torch.manual_seed(0)
    words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "A", "film", "is", "great", "dull", "."])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=64, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1}, pad_token_id=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        BertForSequenceClassification(config).save_pretrained(place)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(place)
        return {path.name: path.read_bytes() for path in Path(place).iterdir()}


def sound_classifier(folder: Path) -> None:
    """A folder of a classifier that can be used."""
    folder.mkdir(parents=True)
    for name, data in _classifier().items():
        (folder / name).write_bytes(data)


def write_classifier(rng: random.Random, folder: Path) -> None:
    """A folder of a classifier with one or two of its files broken."""
    folder.mkdir(parents=True)
    contents = dict(_classifier())
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        name = rng.choice(list(contents))
        if name.endswith(".json") and rng.random() < 0.7:
            contents[name] = _broken_json(rng, contents[name])
        elif rng.random() < 0.3:
            del contents[name]
        else:
            contents[name] = mutated_bytes(rng, contents[name])
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    if rng.random() < 0.2:
        name = rng.choice([*_classifier(), "pytorch_model.bin", "added_tokens.json"])
        (folder / name).unlink(missing_ok=True)
        no_file(rng, folder / name)


def _broken_json(rng: random.Random, data: bytes) -> bytes:
    """One value of a JSON mapping replaced by something else."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):  # it is broken already
        return mutated_bytes(rng, data)
    at: Any = content
    while True:
        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.5:
            at = at[key]
            continue
        at[key] = "@@"
        break
    return (
        json.dumps(content)
        .replace('"@@"', rng.choice((*_JSON, "1000000000", "1000000", quoted(rng.choice(NAMES)))))
        .encode()
    )
