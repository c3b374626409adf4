"""Files of rankings: what is read, what is left out, and what is told with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.data.preferences import read_rankings
from pipeline.errors import UserError

KEY = "reward.preferences"
TEXTS = [" good.", " bad.", " fine."]


def row(**changes: Any) -> dict[str, Any]:
    return {"prompt": "Film was", "completions": TEXTS, "ranks": [1, 3, 2], **changes}


def rows(n: int) -> list[dict[str, Any]]:
    return [row(prompt=f"Film {i} was") for i in range(n)]


def jsonl(path: Path, table: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in table))
    return path


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_texts_come_best_first_whatever_the_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rankings.{suffix}"
    pd.DataFrame(rows(30)).to_parquet(path) if suffix == "parquet" else jsonl(path, rows(30))
    found, note = read_rankings(path, KEY, 3)
    assert len(found) == 30
    assert int(found["heldout"].sum()) == 3
    assert set(map(tuple, found["completions"])) == {(" good.", " fine.", " bad.")}
    assert "30 rows read, 0 left out" in note


def test_ranks_may_be_whole_floats_and_a_folder_keeps_its_test_split(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [row(prompt=f"Film {i} was", ranks=[2.0, 1.0, 3.0]) for i in range(5)])
    jsonl(tmp_path / "test.jsonl", rows(7)[4:])
    found, _ = read_rankings(tmp_path, KEY, 3)
    assert found.loc[found["heldout"], "prompt"].tolist() == ["Film 4 was", "Film 5 was", "Film 6 was"]
    assert found.loc[~found["heldout"], "prompt"].tolist() == [f"Film {i} was" for i in range(4)]
    assert found["completions"][0] == [" bad.", " good.", " fine."]


def test_equal_texts_and_repetitions_are_left_out(tmp_path: Path) -> None:
    same = [row(prompt=f"Film {i} was", completions=[" good.", " good. ", " x"]) for i in range(2)]
    found, note = read_rankings(jsonl(tmp_path / "r.jsonl", [*rows(20), *rows(3), *same]), KEY, 3)
    assert (len(found), found["heldout"].sum()) == (20, 2)
    assert "25 rows read, 5 left out" in note


@pytest.mark.parametrize("folder", [False, True])
def test_answers_without_a_prompt_are_on_one_side_in_whatever_order_they_are_ranked(
    tmp_path: Path, folder: bool
) -> None:
    orders = [[1, 2, 3], [2, 1, 3], [3, 2, 1]]
    table = [
        row(prompt="", completions=[f" {word} {i}." for word in ("good", "bad", "fine")], ranks=order)
        for i in range(20)
        for order in orders
    ]
    # A text links two rankings; a common one of two prompts does not.
    table.append(row(prompt="", completions=[" new.", " newer.", " fine 0."]))
    jsonl(tmp_path / "train.jsonl", table)
    if folder:
        jsonl(tmp_path / "test.jsonl", [row(prompt="", completions=[" new.", " y.", " z."]), *rows(3)])
    found, _ = read_rankings(tmp_path if folder else tmp_path / "train.jsonl", KEY, 3)
    held, kept = found[found["heldout"]], found[~found["heldout"]]
    assert not set(held["completions"].explode()) & set(kept.loc[kept["prompt"] == "", "completions"].explode())
    assert len(held) + len(kept) == 61
    sizes = held.groupby("group").size().tolist()
    assert sizes == [1] * 4 if folder else len(sizes) == 2 and set(sizes) <= {3, 4}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"completions": TEXTS[:2]}, "2 completions, and reward.learned.ranked is 3"),
        ({"ranks": [1, 2, 3, 4]}, "4 ranks, and reward.learned.ranked is 3"),
        ({"ranks": [1, 2, 2]}, r"ranks \[1, 2, 2\] must be the numbers from 1 \(best\) to 3, each once"),
        ({"ranks": [0, 1, 2]}, r"ranks \[0, 1, 2\] must be"),
        ({"ranks": [1, 2.5, 3]}, r"ranks \[1, 2.5, 3\] must be"),
        ({"ranks": [True, 2, 3]}, r"ranks \[True, 2, 3\] must be"),
        ({"ranks": [1, "2", 3]}, r"ranks \[1, '2', 3\] must be"),
        ({"ranks": None}, "ranks is missing and no list"),
        ({"completions": " good."}, "completions is str and no list"),
        ({"completions": [" good.", "  ", " bad."]}, "completion 2 is empty"),
        ({"completions": [" good.", " bad.", 7]}, "completion 3 is int and no text"),
        ({"completions": [" good.", None, " bad."]}, "completion 2 is missing and no text"),
        ({"prompt": None}, "the prompt is missing and no text"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = jsonl(tmp_path / "r.jsonl", [*rows(4), row(**changes), *rows(20)])
    with pytest.raises(UserError, match=rf"r\.jsonl, line 5: {says}$|r\.jsonl, line 5: {says}") as error:
        read_rankings(path, KEY, 3)
    assert "\n" not in str(error.value)


def test_several_bad_rows_are_counted(tmp_path: Path) -> None:
    table = [*rows(2), *[row(ranks=[1, 1, 1])] * 5]
    says = "row 3: .*row 4: .*row 5: .*; and 2 more rows$"
    pd.DataFrame(table).to_parquet(tmp_path / "r.parquet")
    with pytest.raises(UserError, match=says):
        read_rankings(tmp_path / "r.parquet", KEY, 3)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("r.csv", "prompt,completions,ranks\n", "CSV holds no lists; use parquet or JSONL"),
        (
            "r.jsonl",
            '{"prompt": "a", "completion": [], "ranks": []}\n',
            "line 1: no column 'completions'; did you mean",
        ),
        ("r.jsonl", "\n[]\n", "line 2 is list and no object"),
        ("r.jsonl", '\n\n{"prompt": "a"\n', "cannot be read as jsonl: line 3, column 15: Expecting ',' delimiter"),
        ("r.jsonl", "", "0 rows leave 0 rankings to train on and 0 held out"),
        ("absent.jsonl", None, "there is no such file"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=says) as error:
        read_rankings(tmp_path / name, KEY, 3)
    assert "\n" not in str(error.value)
