"""Perplexity on held-out texts: against a plain loop in float64, and what does not change it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tinytrial import EOS, VOCAB, model

from pipeline.models.loading import freeze
from pipeline.models.out_of_memory import BUCKET, Room
from pipeline.models.texts import LARGEST, encode, perplexity, text_nats


def rows() -> list[list[int]]:
    """Texts of 2 to 24 tokens, out of order, more than a CPU takes at once."""
    stream = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 24, (2 * BUCKET + 5,), generator=stream).tolist()
    return [[*torch.randint(2, VOCAB, (length,), generator=stream).tolist(), EOS] for length in lengths]


@torch.no_grad()
def test_it_is_that_of_a_plain_loop_in_float64() -> None:
    """-log π of the tokens after the first, text by text and token by token, without padding."""
    network, texts = freeze(model()), rows()
    precise, nats = copy.deepcopy(network).double(), list[float]()
    for text in texts:
        tables = (precise(input_ids=torch.tensor([text[:n]])).logits[0, -1] for n in range(1, len(text)))
        nats.append(-sum(float(torch.log_softmax(one, 0)[text[n]]) for n, one in enumerate(tables, 1)))
    assert text_nats(network, texts, Room("", 512)).tolist() == pytest.approx(nats, rel=1e-5)
    tokens = sum(len(text) - 1 for text in texts)
    assert perplexity(network, texts, Room("", 512)) == pytest.approx(math.exp(sum(nats) / tokens), rel=1e-5)


@pytest.mark.parametrize(("factor", "wanted"), [(0.0, VOCAB), (1e6, math.exp(LARGEST))])
def test_a_network_without_knowledge_has_that_of_its_vocabulary_and_a_collapsed_one_a_finite_one(
    factor: float, wanted: float
) -> None:
    network = model()
    network.get_output_embeddings().weight.data.mul_(factor)
    assert perplexity(freeze(network), rows(), Room("", 512)) == pytest.approx(wanted)


class Words:
    """One token a word, its length; EOS is 0."""

    eos_token_id = 0

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        assert not add_special_tokens
        return {"input_ids": [[len(word) for word in text.split()] for text in texts]}


def test_texts_are_cut_and_end_where_they_are_whole() -> None:
    assert encode(Words(), ["a bb ccc dddd", "a bb", "ccc"], 3) == [[1, 2, 3], [1, 2, 0], [3, 0]]
    assert encode(Words(), ["a bb ccc dddd", "a bb"], 5) == [[1, 2, 3, 4, 0], [1, 2, 0]]
