from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import write_table as write

from pipeline.data.corpus import load_corpus, read_preferences
from pipeline.data.prompt_set import text_episodes
from pipeline.data.prompts import make_prompts, opening
from pipeline.data.settings import DataConfig, LocalSettings
from pipeline.errors import UserError
from pipeline.models.tokenizers import train_tokenizer

ROWS = {"text": [f"Text number {i} is <br />good &amp; long." for i in range(30)], "label": [0, 1] * 15}


def local(path: Path) -> DataConfig:
    return DataConfig(source="local", local=LocalSettings(path=str(path)), train_prompts=4, heldout_prompts=2)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_every_format_gives_the_same_texts(tmp_path: Path, suffix: str) -> None:
    corpus = load_corpus(local(write(tmp_path / f"reviews{suffix}", ROWS)))
    assert len(corpus.heldout) == 3
    assert len(corpus.train) == 27
    assert not set(corpus.train) & set(corpus.heldout)
    assert "Text number 1 is good & long." in corpus.train


def test_a_folder_in_the_hub_layout_uses_its_own_test_split(tmp_path: Path) -> None:
    folder = tmp_path / "plain_text"
    folder.mkdir()
    useless = ["  ", None, ROWS["text"][0]]
    write(folder / "train-00000-of-00001.parquet", {"text": [*ROWS["text"], *useless]})
    write(folder / "test-00000-of-00001.parquet", {"text": ["Fresh.", ROWS["text"][0]], "label": [1, 0]})
    corpus = load_corpus(local(tmp_path))
    assert corpus.heldout == ["Fresh."]  # the text of both splits is no held-out text
    assert len(corpus.train) == len(set(corpus.train)) == 30
    assert "35 rows read, left out: 2 empty, 1 repeated, 1 in both splits;" in corpus.note


def test_rows_sorted_by_label_are_shuffled_the_same_way_every_time(tmp_path: Path) -> None:
    rows = {"text": [f"Text {i}." for i in range(200)], "label": ["neg"] * 100 + ["pos"] * 100}
    cfg = local(write(tmp_path / "x.csv", rows)).model_copy(update={"sft_texts": 50})
    one, two, other = load_corpus(cfg), load_corpus(cfg), load_corpus(cfg.model_copy(update={"seed": 1}))
    assert one == two
    assert one.train != other.train
    assert 10 < sum(int(text[5:-1]) >= 100 for text in one.train) < 40


def test_order_and_repetitions_do_not_change_what_is_held_out_and_an_added_row_little(tmp_path: Path) -> None:
    def heldout(texts: list[str]) -> set[str]:
        return set(load_corpus(local(write(tmp_path / "x.csv", {"text": texts, "label": [0] * len(texts)}))).heldout)

    texts = [f"Text {i}." for i in range(60)]
    before = heldout(texts[:40])
    assert heldout([*texts[39::-1], *texts[:20]]) == before
    for n in range(41, 61):
        after = heldout(texts[:n])
        assert len(before - after) <= 1
        before = after


def test_control_characters_and_broken_surrogates_do_not_survive(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = [f'{{"text": "It \\u0096 number {i} \\u0085 \\ud83d was\\u0000 fine", "label": 1}}\n' for i in range(20)]
    path.write_text("".join(lines))
    corpus = load_corpus(local(path))
    texts = corpus.train + corpus.heldout
    assert "It – number 3 … was fine" in texts
    assert all(text.isprintable() for text in texts)


PAIRS = "prompt,chosen,rejected"
BAD_TEXTS = [
    ("absent.parquet", None, "there is no such file"),
    ("x.txt", "hello", "the format must be one of parquet, csv, jsonl"),
    ("x.parquet", "no parquet", "cannot be read as parquet"),
    ("x.csv", "review,label\na,1\n", "x.csv: no column 'text'; its columns are review, label; needed are text"),
    ("x.csv", "texts,label\na,1\n", "did you mean 'texts'?"),
    ("x.csv", "text,label\ncaf\udce9,1\n", "x.csv: is not UTF-8 (byte 0xe9); convert it, for example with: iconv"),
    ("x.jsonl", "{broken", "cannot be read as jsonl"),
    ("x.csv", "text,label\na,1\n", "more texts are needed"),
]
BAD_PAIRS = [
    ("absent.parquet", None, "absent.parquet': there is no such file"),
    ("x.csv", "prompt,choosen,rejected\na,b,c\n", "no column 'chosen'; did you mean 'choosen'"),
    ("x.csv", f"{PAIRS}\na,b,b\n", "x.csv': 1 rows leave 0 pairs to train on and 0 held out"),
    ("x.jsonl", "\n[]\n", "line 2 is list and no object"),
    ("x.jsonl", '\n\n{"prompt": "a"\n', "cannot be read as jsonl: line 3: Expecting ',' delimiter"),
]


@pytest.mark.parametrize(("name", "content", "says"), [*BAD_TEXTS, *BAD_PAIRS])
def test_bad_data_is_one_clear_line(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    pairs_alone = (name, content, says) in BAD_PAIRS
    with pytest.raises(UserError) as error:
        read_preferences(path, KEY) if pairs_alone else load_corpus(local(path))
    assert says in str(error.value)
    assert str(path) in str(error.value) or "more texts are needed" in says
    assert "\n" not in str(error.value)


def test_prompts_are_openings_distinct_and_disjoint() -> None:
    texts = [f"one two three four five {i} seven eight nine" for i in range(50)]
    tokenizer = train_tokenizer(texts, 300)

    def make(texts: list[str], n: int, taken: frozenset[str] = frozenset(), **keys: Any) -> list[str]:
        return make_prompts(
            texts, n, DataConfig(**{"prompt_length": (6, 7), **keys}), tokenizer, np.random.default_rng(0), taken
        )

    train = make(texts, 20)
    heldout = make(texts[::-1], 20, frozenset(train))
    assert len(set(train)) == 20
    assert not set(train) & set(heldout)
    assert all(any(text.startswith(prompt + " ") for text in texts) for prompt in train)
    assert {len(prompt.split()) for prompt in train} == {6, 7}
    assert len(make(texts, 51, prompt_length=(6, 6))) == 50, "what there is"
    with pytest.raises(UserError, match="none of 50 texts gives a new prompt of 9 to 9 words"):
        make(texts, 51, prompt_length=(9, 9))


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_no_prompt_is_longer_than_allowed_in_tokens(unit: str) -> None:
    texts = [f"{'x' * (12 * i)} ü漢字🎬 and {i} more words follow here" for i in range(1, 40)]
    tokenizer = train_tokenizer(["and more words follow here"], 270)
    cfg = DataConfig(prompt_unit=unit, prompt_length=(2, 6))  # type: ignore[arg-type]
    found = make_prompts(texts, 4, cfg, tokenizer, np.random.default_rng(0), frozenset())
    lengths = {len(tokenizer(prompt)["input_ids"]) for prompt in found}
    assert max(lengths) <= (128 if unit == "words" else 6)
    assert all(any(text.startswith(prompt) and text != prompt for text in texts) for prompt in found)
    if unit == "tokens":
        assert min(lengths) >= 2


def test_a_prompt_of_k_tokens_never_ends_inside_a_character() -> None:
    tokenizer = train_tokenizer(["abc"], 258)  # every byte is a token
    assert tokenizer.decode(tokenizer("ü漢字 🎬\n\tgood")["input_ids"]) == "ü漢字 🎬\n\tgood"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    cuts = [("a🎬b c", 1, "a"), ("a🎬b c", 2, None), ("a🎬b c", 5, "a🎬"), ("abc", 2, "ab"), ("ab", 2, None)]
    assert [opening(text, k, "tokens", tokenizer) for text, k, _ in cuts] == [prompt for *_, prompt in cuts]


KEY = "reward.preferences"


def pairs(n: int) -> pd.DataFrame:
    return pd.DataFrame({"prompt": [f"Film {i} was" for i in range(n)], "chosen": " good.", "rejected": " bad."})


def test_useless_rows_are_left_out_and_no_prompt_is_on_both_sides(tmp_path: Path) -> None:
    useless = [pairs(3), pairs(2).assign(rejected=" good."), pairs(2).assign(chosen=None)]
    path = write(tmp_path / "pairs.parquet", pd.concat([pairs(30), pairs(30).assign(chosen=" fine."), *useless]))
    found, note = read_preferences(path, KEY)
    assert (len(found), int(found["heldout"].sum())) == (60, 6)
    assert set(zip(found["chosen"], found["rejected"], strict=True)) == {
        (best, " bad.") for best in (" good.", " fine.")
    }
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
    for split, chosen, rejected in (("train", ["a", "b"], ["c", "d"]), ("test", ["x", "e"], ["d", "f"])):
        write(tmp_path / f"{split}.parquet", pd.DataFrame({"prompt": "", "chosen": chosen, "rejected": rejected}))
    assert read_preferences(tmp_path, KEY)[0]["chosen"].tolist() == ["a", "b", "e"], "no text is on both sides"


def test_texts_as_episodes() -> None:
    tokenizer = train_tokenizer(["abc"], 258)  # every byte is a token
    end = tokenizer.eos_token_id

    def of(prompt: str, completion: str, most: int) -> tuple[str, str, bool]:
        episodes = text_episodes(tokenizer, ["xyz", prompt], ["w", completion], most, torch.device("cpu"))
        query = episodes.query_responses[1, : episodes.context_length][episodes.query_mask[1]]
        response = episodes.responses[1][episodes.response_mask[1]]
        assert bool(episodes.ended[1]) == (int(response[-1]) == end)
        assert len(query) + len(response) <= most
        return tokenizer.decode(query), tokenizer.decode(response[response != end]), bool(episodes.ended[1])

    assert of("ab", "cd", 10) == ("ab", "cd", True)
    assert of("", "cd", 10) == ("c", "d", True)
    assert of("ab", "cdefgh", 6) == ("ab", "cdef", False)
    assert of("abcdefgh", "ij", 6) == ("fgh", "ij", True)
    assert of("abcdefgh", "ijkl", 6) == ("fgh", "ijk", False)
