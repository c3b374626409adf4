"""Perplexity on held-out texts: against a plain loop in float64, and what does not change it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from tinytrial import EOS, VOCAB, model

from pipeline.models import cpu
from pipeline.models.loading import freeze
from pipeline.models.out_of_memory import Room
from pipeline.models.texts import LARGEST, encode, perplexity, text_nats


def rows() -> list[list[int]]:
    """Texts of 2 to 24 tokens, out of order, more than a CPU takes at once."""
    stream = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 24, (2 * cpu.BUCKET + 5,), generator=stream).tolist()
    return [[*torch.randint(2, VOCAB, (length,), generator=stream).tolist(), EOS] for length in lengths]


def by_hand(network: Any, texts: list[list[int]]) -> list[float]:
    """-log π of the tokens after the first, text by text and token by token, without padding, in float64."""
    precise, found = copy.deepcopy(network).double(), []
    for text in texts:
        nats = 0.0
        for place in range(1, len(text)):
            logits = precise(input_ids=torch.tensor([text[:place]])).logits[0, -1]
            nats -= float(torch.log_softmax(logits, 0)[text[place]])
        found.append(nats)
    return found


@torch.no_grad()
def test_it_is_that_of_a_plain_loop_in_float64() -> None:
    network, texts = freeze(model()), rows()
    nats = by_hand(network, texts)
    assert text_nats(network, texts, Room("", 512)).tolist() == pytest.approx(nats, rel=1e-5)
    tokens = sum(len(text) - 1 for text in texts)
    assert perplexity(network, texts, Room("", 512)) == pytest.approx(math.exp(sum(nats) / tokens), rel=1e-5)


def test_a_network_that_knows_nothing_has_that_of_its_vocabulary_and_a_collapsed_one_a_finite_one() -> None:
    network = model()
    with torch.no_grad():
        network.get_output_embeddings().weight.zero_()
    assert perplexity(freeze(network), rows(), Room("", 512)) == pytest.approx(VOCAB)
    sure = model()
    with torch.no_grad():
        sure.get_output_embeddings().weight.mul_(1e6)
    assert perplexity(freeze(sure), rows(), Room("", 512)) == math.exp(LARGEST)


class Words:
    """One token a word, its length; EOS is 0."""

    eos_token_id = 0

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        assert not add_special_tokens
        return {"input_ids": [[len(word) for word in text.split()] for text in texts]}


def test_texts_are_cut_and_end_where_they_are_whole() -> None:
    assert encode(Words(), ["a bb ccc dddd", "a bb", "ccc"], 3) == [[1, 2, 3], [1, 2, 0], [3, 0]]
    assert encode(Words(), ["a bb ccc dddd", "a bb"], 5) == [[1, 2, 3, 4, 0], [1, 2, 0]]
