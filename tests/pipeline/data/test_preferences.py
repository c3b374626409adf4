"""Files of pairs and rankings: what is read, what is left out, and what is refused with its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tables import write

from pipeline.data.preferences import read_preferences
from pipeline.data.prompt_set import text_episodes
from pipeline.errors import UserError
from pipeline.models.tokenizers import train_tokenizer

KEY = "reward.preferences"
TEXTS = [" good.", " bad.", " fine."]


def pairs(n: int) -> pd.DataFrame:
    return pd.DataFrame({"prompt": [f"Film {i} was" for i in range(n)], "chosen": " good.", "rejected": " bad."})


def row(**changes: Any) -> dict[str, Any]:
    return {"prompt": "Film was", "completions": TEXTS, "ranks": [1, 3, 2], **changes}


def rankings(n: int) -> pd.DataFrame:
    return pd.DataFrame([row(prompt=f"Film {i} was") for i in range(n)])


def jsonl(path: Path, table: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in table))
    return path


@pytest.mark.parametrize(("suffix", "ranked"), [("parquet", 2), ("jsonl", 2), ("csv", 2), ("parquet", 3), ("jsonl", 3)])
def test_every_format_gives_the_same_texts_best_first(tmp_path: Path, suffix: str, ranked: int) -> None:
    frame = pairs(30) if ranked == 2 else rankings(30)
    found, note = read_preferences(write(tmp_path / f"preferences.{suffix}", frame), KEY, ranked)
    assert len(found) == 30
    assert int(found["heldout"].sum()) == 3
    best_first = (" good.", " bad.") if ranked == 2 else (" good.", " fine.", " bad.")
    assert set(map(tuple, found["completions"])) == {best_first}, "the space between prompt and completion stays"
    assert "30 rows read, 0 left out" in note


def test_useless_rows_are_left_out_and_no_prompt_is_on_both_sides(tmp_path: Path) -> None:
    useless = [pairs(3), pairs(2).assign(rejected=" good."), pairs(2).assign(chosen=None)]
    path = write(tmp_path / "pairs.parquet", pd.concat([pairs(30), pairs(30).assign(chosen=" fine."), *useless]))
    found, note = read_preferences(path, KEY)
    assert len(found) == 60
    assert "67 rows read, 7 left out" in note
    assert not set(found[found["heldout"]]["prompt"]) & set(found[~found["heldout"]]["prompt"])
    same = [row(prompt=f"Film {i} was", completions=[" good.", " good. ", " x"]) for i in range(2)]
    table = pd.concat([rankings(20), rankings(3), pd.DataFrame(same)])
    found, note = read_preferences(write(tmp_path / "r.parquet", table), KEY, 3)
    assert (len(found), found["heldout"].sum()) == (20, 2)
    assert "25 rows read, 5 left out" in note


def test_a_folder_keeps_its_own_test_split_and_ranks_may_be_whole_floats(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [row(prompt=f"Film {i} was", ranks=[2.0, 1.0, 3.0]) for i in range(5)])
    write(tmp_path / "test.jsonl", rankings(7)[4:])
    found, _ = read_preferences(tmp_path, KEY, 3)
    assert found.loc[found["heldout"], "prompt"].tolist() == ["Film 4 was", "Film 5 was", "Film 6 was"]
    assert found.loc[~found["heldout"], "prompt"].tolist() == [f"Film {i} was" for i in range(4)]
    assert found["completions"][0] == [" bad.", " good.", " fine."]


def test_white_space_at_the_seam(tmp_path: Path) -> None:
    seams = {
        "prompt": ["It was ", "It  was", "", "Great<br />it"],
        "chosen": ["good", "\n\ngood", " Good.", "self"],
        "rejected": ["x"] * 4,
    }
    write(tmp_path / "train.parquet", pd.DataFrame(seams))
    write(tmp_path / "test.parquet", pairs(3))
    found, _ = read_preferences(tmp_path, KEY)
    kept = found[~found["heldout"]]
    whole = [prompt + texts[0] for prompt, texts in zip(kept["prompt"], kept["completions"], strict=True)]
    assert whole == ["It was good", "It was good", "Good.", "Great itself"]


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
        jsonl(tmp_path / "test.jsonl", [row(prompt="", completions=[" new.", " y.", " z."])])
    found, _ = read_preferences(tmp_path if folder else tmp_path / "train.jsonl", KEY, 3)
    held, kept = found[found["heldout"]], found[~found["heldout"]]
    assert not set(held["completions"].explode()) & set(kept["completions"].explode())
    sizes = held.groupby("group").size().tolist()
    assert sizes == [1] if folder else len(sizes) == 2 and set(sizes) <= {3, 4}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"completions": TEXTS[:2]}, r"completions must be a list of 3 texts \(reward.learned.ranked\)"),
        ({"completions": [" good.", None, " bad."]}, "a completion is empty or no text"),
        ({"ranks": [1, 2, 2]}, r"ranks \[1, 2, 2\] must be the numbers from 1 \(best\) to 3, each once"),
        ({"ranks": [1, 2.5, 3]}, r"ranks \[1, 2.5, 3\] must be"),
        ({"ranks": [True, 2, 3]}, r"ranks \[True, 2, 3\] must be"),
        ({"ranks": None}, "ranks None must be"),
        ({"prompt": None}, "the prompt is no text"),
    ],
)
def test_bad_rankings_are_refused_with_their_rows(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = jsonl(tmp_path / "r.jsonl", [*[row(**changes)] * 5, row()])
    with pytest.raises(UserError, match=rf"r\.jsonl, row 1: {says}.*; and 2 more rows$") as error:
        read_preferences(path, KEY, 3)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("absent.parquet", None, "reward.preferences = .*absent.parquet': there is no such file"),
        ("x.csv", "prompt,choosen,rejected\na,b,c\n", "no column 'chosen'; did you mean 'choosen'.*needed are prompt"),
        ("x.csv", "prompt,chosen,rejected\na,b,b\n", "1 rows leave 0 pairs to train on and 0 held out"),
        ("x.jsonl", "\n[]\n", "line 2 is list and no object"),
        ("x.jsonl", '\n\n{"prompt": "a"\n', "cannot be read as jsonl: line 3: Expecting ',' delimiter"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=says) as error:
        read_preferences(tmp_path / name, KEY)
    assert "\n" not in str(error.value)


def test_texts_as_episodes() -> None:
    tokenizer = train_tokenizer(["abc"], 258)  # every byte is a token
    end = tokenizer.eos_token_id

    def of(prompt: str, completion: str, most: int) -> tuple[str, str, bool, bool]:
        episodes = text_episodes(tokenizer, ["xyz", prompt], ["w", completion], most, torch.device("cpu"))
        query = episodes.query_responses[1, : episodes.context_length][episodes.query_mask[1]]
        response = episodes.responses[1][episodes.response_mask[1]]
        assert bool(episodes.ended[1]) == (int(response[-1]) == end)
        return (
            tokenizer.decode(query),
            tokenizer.decode(response[response != end]),
            bool(episodes.ended[1]),
            len(query) + len(response) <= most,
        )

    assert of("ab", "cd", 10) == ("ab", "cd", True, True)
    assert of("", "cd", 10) == ("c", "d", True, True)
    assert of("ab", "cdefgh", 6) == ("ab", "cdef", False, True)
    assert of("abcdefgh", "ij", 6) == ("fgh", "ij", True, True)
    assert of("abcdefgh", "ijkl", 6) == ("fgh", "ijk", False, True)
