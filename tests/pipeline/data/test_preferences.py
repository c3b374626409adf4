"""Files of pairs: what is read, what is left out, and what is refused with its line; and texts as tokens."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from tables import write

from pipeline.data.preferences import read_preferences
from pipeline.data.prompt_set import text_episodes
from pipeline.errors import UserError
from pipeline.models.tokenizers import train_tokenizer

KEY = "reward.preferences"


def pairs(n: int) -> pd.DataFrame:
    return pd.DataFrame({"prompt": [f"Film {i} was" for i in range(n)], "chosen": " good.", "rejected": " bad."})


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_every_format_gives_the_same_texts(tmp_path: Path, suffix: str) -> None:
    found, note = read_preferences(write(tmp_path / f"preferences.{suffix}", pairs(30)), KEY)
    assert (len(found), int(found["heldout"].sum())) == (30, 3)
    assert set(zip(found["chosen"], found["rejected"], strict=True)) == {(" good.", " bad.")}, "the space stays"
    assert "30 rows read, 0 left out" in note


def test_useless_rows_are_left_out_and_no_prompt_is_on_both_sides(tmp_path: Path) -> None:
    useless = [pairs(3), pairs(2).assign(rejected=" good."), pairs(2).assign(chosen=None)]
    path = write(tmp_path / "pairs.parquet", pd.concat([pairs(30), pairs(30).assign(chosen=" fine."), *useless]))
    found, note = read_preferences(path, KEY)
    assert len(found) == 60
    assert "67 rows read, 7 left out" in note
    assert not set(found[found["heldout"]]["prompt"]) & set(found[~found["heldout"]]["prompt"])


def test_a_folder_keeps_its_own_test_split_and_white_space_at_the_seam(tmp_path: Path) -> None:
    seams = {
        "prompt": ["It was ", "It  was", "", "Great<br />it", "Film 1 was"],
        "chosen": ["good", "\n\ngood", " Good.", "self", " in both"],
        "rejected": ["x"] * 5,
    }
    write(tmp_path / "train.parquet", pd.DataFrame(seams))
    write(tmp_path / "test.parquet", pairs(3))
    found, _ = read_preferences(tmp_path, KEY)
    assert found.loc[found["heldout"], "prompt"].tolist() == [f"Film {i} was" for i in range(3)]
    kept = found[~found["heldout"]]
    assert (kept["prompt"] + kept["chosen"]).tolist() == ["It was good", "It was good", "Good.", "Great itself"]


def test_no_text_without_a_prompt_is_on_both_sides(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", pd.DataFrame({"prompt": "", "chosen": ["a", "b"], "rejected": ["c", "d"]}))
    write(tmp_path / "test.csv", pd.DataFrame({"prompt": "", "chosen": ["x", "e"], "rejected": ["d", "f"]}))
    found, note = read_preferences(tmp_path, KEY)
    assert found["chosen"].tolist() == ["a", "b", "e"]
    assert "4 rows read, 1 left out" in note


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
