from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.config import DataConfig
from pipeline.data.corpus import check_source, clean, load_corpus
from pipeline.data.prompts import make_prompts
from pipeline.data.tokenizer import EOS, PAD, train_tokenizer
from pipeline.errors import UserError

ROWS = {"text": [f"Text number {i} is <br />good &amp; long." for i in range(30)], "label": [0, 1] * 15}


def write(path: Path, rows: dict[str, list[object]]) -> Path:
    frame = pd.DataFrame(rows)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path


def local(path: Path) -> DataConfig:
    return DataConfig(source="local", path=str(path), train_prompts=4, heldout_prompts=2)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_every_format_gives_the_same_texts(tmp_path: Path, suffix: str) -> None:
    corpus = load_corpus(local(write(tmp_path / f"reviews{suffix}", ROWS)))
    assert len(corpus.heldout) == 3
    assert len(corpus.train) == 27
    assert not set(corpus.train) & set(corpus.heldout)
    assert "Text number 1 is good & long." in corpus.train


def test_a_folder_in_the_hub_layout_uses_its_own_test_split(tmp_path: Path) -> None:
    (tmp_path / "plain_text").mkdir()
    write(tmp_path / "plain_text" / "train-00000-of-00001.parquet", ROWS)
    write(tmp_path / "plain_text" / "test-00000-of-00001.parquet", {"text": ["Fresh.", ROWS["text"][0]], "label": [1, 0]})
    corpus = load_corpus(local(tmp_path))
    assert corpus.heldout == ["Fresh.", clean(str(ROWS["text"][0]))]
    assert len(corpus.train) == 29  # the text of both splits is left out of training


def test_empty_repeated_and_missing_texts_are_left_out(tmp_path: Path) -> None:
    rows = {"text": ["A b c.", "A b c.", "  ", None, *[f"Text {i}." for i in range(20)]], "label": [0] * 24}
    corpus = load_corpus(local(write(tmp_path / "x.parquet", rows)))
    texts = corpus.train + corpus.heldout
    assert len(texts) == len(set(texts)) == 21
    assert "left out" in corpus.note


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("absent.parquet", None, "there is no such file"),
        ("x.txt", "hello", "the format must be one of parquet, csv, jsonl"),
        ("x.parquet", "no parquet", "cannot be read as parquet"),
        ("x.csv", "review,label\na,1\n", "column 'text' is missing; it has review, label"),
        ("x.csv", "text,lable\na,1\n", "did you mean 'lable'?"),
        ("x.jsonl", "{broken", "cannot be read as jsonl"),
        ("x.csv", "text,label\na,1\n", "more texts are needed"),
    ],
)
def test_bad_data_is_one_clear_line(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as error:
        load_corpus(local(path))
    assert says in str(error.value)
    assert str(path) in str(error.value) or "more texts are needed" in says
    assert "\n" not in str(error.value)


def test_an_absent_source_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        check_source(local(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no train\*\.parquet"):
        check_source(local(tmp_path / "empty"))


def test_a_hub_that_cannot_be_reached_is_one_clear_line() -> None:
    with pytest.raises(UserError) as error:
        load_corpus(DataConfig(source="hub", name="no-such-org/no-such-data"))
    message = str(error.value)
    assert "no-such-org/no-such-data" in message
    assert "data.source=local" in message
    assert "cache" in message
    assert "\n" not in message


def test_prompts_are_openings_distinct_and_disjoint() -> None:
    texts = [f"one two three four five {i} seven eight nine" for i in range(50)]
    train = make_prompts(texts, 20, (6, 7), np.random.default_rng(0))
    heldout = make_prompts(texts[::-1], 20, (6, 7), np.random.default_rng(1), frozenset(train))
    assert len(set(train)) == 20
    assert not set(train) & set(heldout)
    assert all(any(text.startswith(prompt + " ") for text in texts) for prompt in train)
    assert {len(prompt.split()) for prompt in train} == {6, 7}
    with pytest.raises(UserError, match="give only 50 distinct prompts"):
        make_prompts(texts, 51, (6, 6), np.random.default_rng(0))


def test_builtin_corpus_is_disjoint_and_knows_its_entropy() -> None:
    corpus = load_corpus(DataConfig(sft_texts=500, train_prompts=100, heldout_prompts=20))
    assert len(corpus.train) == 500
    assert not set(corpus.train) & set(corpus.heldout)
    assert corpus.heldout_nats is not None
    assert len(corpus.heldout_nats) == len(corpus.heldout)
    assert 20 < sum(corpus.heldout_nats) / len(corpus.heldout_nats) < 35


def test_the_tokenizer_is_total_reproducible_and_keeps_pad_apart() -> None:
    texts = ["The acting was good.", "The plot was really dull."] * 10
    one, two = train_tokenizer(texts, 300), train_tokenizer(texts, 300)
    assert one.backend_tokenizer.to_str() == two.backend_tokenizer.to_str()
    assert one.pad_token_id != one.eos_token_id
    assert (one.pad_token, one.eos_token) == (PAD, EOS)
    for text in ("", "ü漢字 🎬", "The acting\nwas\tgood"):
        assert one.decode(one(text)["input_ids"]) == text


REAL = Path(os.environ.get("ABLATE_REAL_REVIEWS", Path(__file__).parents[3] / "shared" / "data" / "imdb"))


@pytest.mark.skipif(
    not REAL.exists(), reason="no real reviews at hand; set ABLATE_REAL_REVIEWS to a folder in the layout of stanfordnlp/imdb"
)
def test_real_reviews_load() -> None:
    corpus = load_corpus(DataConfig(source="local", path=str(REAL), train_prompts=1000, heldout_prompts=512))
    assert len(corpus.train) > 1000
    assert len(corpus.heldout) > 512
    assert not set(corpus.train) & set(corpus.heldout)
    assert not any("<br" in text for text in corpus.train)
