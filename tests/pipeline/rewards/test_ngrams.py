"""The trigram model of real texts, against probabilities that were worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.rewards.ngrams import LARGEST_VOCABULARY, NGrams

END, A, B = 0, 1, 2
TEXTS = [[A, B], [A, A]]


@pytest.fixture(scope="module")
def model() -> NGrams:
    return NGrams.fit(TEXTS, 3, END)


def test_probabilities_by_hand(model: NGrams) -> None:
    # Tokens before: N(end) = 2, N(a) = 2, N(b) = 1. P(end) = P(a) = (1.25 + 0.75) / 5, P(b) = (0.25 + 0.75) / 5.
    # P(a | end) = 0.25 + 0.75 x 0.4 = 0.55; P(a | end end) = (1.25 + 0.75 x 0.55) / 2.
    # P(b | a) = (0.25 + 0.75 x 3 x 0.2) / 3; P(b | end a) = (0.25 + 0.75 x 2 x P(b | a)) / 2.
    assert model.probabilities([A, B]) == pytest.approx([0.83125, 0.3])
    assert model.probabilities([A, A], 1) == pytest.approx([0.4125])
    assert model.probabilities([A, END], 1) == pytest.approx([0.2875]), "the end of a text is predicted, too"
    assert model.probabilities([B, B, END], 2) == pytest.approx([0.55]), (
        "a context never seen gives way to a shorter one"
    )


def test_probabilities_sum_to_1_with_random_texts_and_tokens_never_seen() -> None:
    rng = np.random.default_rng(0)
    model = NGrams.fit([rng.integers(1, 20, size=n).tolist() for n in (30, 5, 12, 50)], 25, END)
    for context in rng.integers(0, 25, size=(20, 2)).tolist():
        assert sum(model.probabilities([*context, token], 2)[0] for token in range(25)) == pytest.approx(1.0, abs=1e-12)


def test_the_order_of_the_texts_and_the_file_change_nothing(model: NGrams, tmp_path: Path) -> None:
    model.save(tmp_path / "one.safetensors")
    NGrams.fit(reversed(TEXTS), 3, END).save(tmp_path / "two.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    row = [A, B, B, A, END]
    assert NGrams.load(tmp_path / "one.safetensors").probabilities(row).tolist() == model.probabilities(row).tolist()


def test_tokens_of_a_large_vocabulary_are_not_confused() -> None:
    last = LARGEST_VOCABULARY - 1
    model = NGrams.fit([[last, last - 1, last]], LARGEST_VOCABULARY, END)
    assert model.probabilities([last, last - 1, last], 2)[0] > 0.25
    assert model.probabilities([last, last, last], 2)[0] < 0.25
    with pytest.raises(UserError, match=r"a vocabulary of 2,097,152 tokens is too large; use judge\.kind: lexicon"):
        NGrams.fit(TEXTS, LARGEST_VOCABULARY + 1, END)
