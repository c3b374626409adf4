from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from pipeline.data.cleaning import pair_labels
from pipeline.data.preferences import read_preferences
from pipeline.data.text_episodes import text_episodes
from pipeline.data.tokenizer import train_tokenizer
from pipeline.errors import UserError

KEY = "reward.preferences"


def rows(n: int) -> pd.DataFrame:
    return pd.DataFrame({"prompt": [f"Film {i} was" for i in range(n)], "chosen": " good.", "rejected": " bad."})


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_every_format_gives_the_same_pairs(tmp_path: Path, suffix: str) -> None:
    path, frame = tmp_path / f"pairs.{suffix}", rows(30)
    if suffix == "parquet":
        frame.to_parquet(path)
    elif suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False)
    pairs, note = read_preferences(path, KEY)
    assert len(pairs) == 30
    assert int(pairs["heldout"].sum()) == 3
    assert set(pairs["chosen"]) == {" good."}  # the space between prompt and completion stays
    assert "0 left out" in note


def test_useless_pairs_are_left_out_and_no_prompt_is_on_both_sides(tmp_path: Path) -> None:
    frame = pd.concat(
        [
            rows(30),
            rows(30).assign(chosen=" fine."),
            rows(3),
            rows(2).assign(rejected=" good."),
            rows(2).assign(chosen=None),
        ]
    )
    frame.to_parquet(tmp_path / "pairs.parquet")
    pairs, note = read_preferences(tmp_path / "pairs.parquet", KEY)
    assert len(pairs) == 60
    assert "67 rows read, 7 left out" in note
    assert not set(pairs[pairs["heldout"]]["prompt"]) & set(pairs[~pairs["heldout"]]["prompt"])


def test_completions_that_repeat_every_ten_prompts_are_on_both_sides(tmp_path: Path) -> None:
    rows(1_000).assign(chosen=[f" good {i % 10}." for i in range(1_000)]).to_parquet(tmp_path / "pairs.parquet")
    pairs, _ = read_preferences(tmp_path / "pairs.parquet", KEY)
    assert pairs.groupby("heldout")["chosen"].nunique().tolist() == [10, 10]


def test_a_folder_keeps_its_own_test_split(tmp_path: Path) -> None:
    rows(20).to_parquet(tmp_path / "train-00000-of-00001.parquet")
    rows(22).tail(5).to_parquet(tmp_path / "test-00000-of-00001.parquet")
    pairs, _ = read_preferences(tmp_path, KEY)
    assert pairs[pairs["heldout"]]["prompt"].tolist() == [f"Film {i} was" for i in range(17, 22)]
    assert len(pairs) == 22


def test_white_space_at_the_seam(tmp_path: Path) -> None:
    seams = {
        "prompt": ["It was ", "It  was", "", "Great<br />it"],
        "chosen": ["good", "\n\ngood", " Good.", "self"],
        "rejected": ["x"] * 4,
    }
    pd.DataFrame(seams).to_parquet(tmp_path / "train.parquet")
    rows(3).to_parquet(tmp_path / "test.parquet")
    pairs, _ = read_preferences(tmp_path, KEY)
    kept = pairs[~pairs["heldout"]]
    assert (kept["prompt"] + kept["chosen"]).tolist() == ["It was good", "It was good", "Good.", "Great itself"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("absent.parquet", None, "reward.preferences = .*absent.parquet': there is no such file"),
        (
            "x.csv",
            "prompt,choosen,rejected\na,b,c\n",
            "no column 'chosen'; did you mean 'choosen'.*needed are prompt, chosen, rejected",
        ),
        ("x.csv", "prompt,chosen,rejected\na,b,b\n", "1 rows leave 0 pairs to train on and 0 held out"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=says) as error:
        read_preferences(tmp_path / name, KEY)
    assert "\n" not in str(error.value)


def test_labels_become_pairs_of_positive_over_negative() -> None:
    pairs = pair_labels((["p1", "n1", "p2", "?", "p3"], [1, 0, 1, -1, 1]), (["n9", "p9"], [0, 1]), 0)
    train, heldout = pairs[~pairs["heldout"]], pairs[pairs["heldout"]]
    assert train["rejected"].tolist() == ["n1"]
    assert train["chosen"].iloc[0] in {"p1", "p2", "p3"}
    assert heldout[["chosen", "rejected"]].to_numpy().tolist() == [["p9", "n9"]]


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


def test_without_prompts_no_text_is_on_both_sides(tmp_path: Path) -> None:
    """Pairs without a prompt that share a text stay together, as do both orders of a pair."""
    pairs = [(f"text {i}.", f"other {i}.") for i in range(40)] + [(f"other {i}.", f"text {i}.") for i in range(40)]
    path = tmp_path / "pairs.jsonl"
    frame = pd.DataFrame([("", *pair) for pair in pairs], columns=["prompt", "chosen", "rejected"])
    frame.to_json(path, orient="records", lines=True)
    found, _ = read_preferences(path, KEY)
    sides = [set(half["chosen"]) | set(half["rejected"]) for _, half in found.groupby("heldout")]
    assert len(found) == 80
    assert not sides[0] & sides[1]
