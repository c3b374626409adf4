"""Perplexity on held-out texts: against a plain loop in float64, and what does not change it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke
from tinytrial import EOS, VOCAB, model

from pipeline.models import cpu
from pipeline.models.loading import freeze, load_snapshot
from pipeline.models.out_of_memory import Room
from pipeline.models.texts import LARGEST, encode, perplexity, text_nats
from pipeline.models.tokenizers import load_tokenizer
from pipeline.run.layout import Layout
from pipeline.run.outcome import TrialOutcome
from pipeline.trial import plan_trial, run_trial


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


def test_batches_padding_and_order_change_nothing() -> None:
    network, texts = freeze(model()), rows()
    whole = text_nats(network, texts, Room("", 512))
    for most in (1, 3, 7):
        assert text_nats(network, texts, Room("", most)).tolist() == pytest.approx(whole.tolist(), rel=1e-5)
    assert text_nats(network, texts[::-1], Room("", 512)).tolist() == pytest.approx(whole.tolist()[::-1], rel=1e-5)
    alone = [float(text_nats(network, [text], Room("", 512))) for text in texts]
    assert alone == pytest.approx(whole.tolist(), rel=1e-5)


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


# --- in a trial ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcome(smoke_layout: Layout) -> TrialOutcome:
    return run_trial(smoke(), smoke_layout, Recorder())


def test_the_reference_has_what_sft_measured_of_it(outcome: TrialOutcome) -> None:
    """The profile holds out fewer texts than are asked for, so both measure all of them."""
    said = outcome.artifacts["sft"].meta["perplexity"]
    assert outcome.summary["eval/perplexity_texts_reference"] == pytest.approx(said, rel=1e-5)
    assert outcome.summary["eval/perplexity_texts"] != pytest.approx(said, rel=1e-3)


def test_a_policy_that_never_moved_has_that_of_its_reference(smoke_layout: Layout) -> None:
    for knobs in ({"optimiser__lr": 0.0}, {"algorithm": "best_of_n", "evaluate__best_of": 3}):
        found = run_trial(smoke(**knobs), smoke_layout, Recorder()).summary
        assert found["eval/perplexity_texts"] == found["eval/perplexity_texts_reference"]


def test_the_number_of_texts_acts_on_the_evaluation_alone(smoke_layout: Layout, outcome: TrialOutcome) -> None:
    config = smoke(evaluate__texts=5)
    plan = {one.stage: one for one in plan_trial(config, smoke_layout)}
    assert [name for name, one in plan.items() if not one.cached] == ["evaluate"]
    fewer = run_trial(config, smoke_layout, Recorder())
    for key in ("eval/perplexity_texts", "eval/perplexity_texts_reference"):
        assert fewer.summary[key] != outcome.summary[key]
    assert {key: value for key, value in fewer.summary.items() if "perplexity" not in key} == {
        key: value for key, value in outcome.summary.items() if "perplexity" not in key
    }
    folder = outcome.artifacts["prompts"].path
    first = pd.read_parquet(folder / "heldout_texts.parquet")["text"].tolist()[:5]
    assert not set(first) & set(pd.read_parquet(folder / "sft.parquet")["text"]), "nothing was trained on them"
    tokenizer = load_tokenizer(folder / "tokenizer")
    texts = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id][: config.sft.max_tokens] for text in first]
    policy = freeze(load_snapshot(fewer.artifacts["train"].path / "policy", torch.device("cpu")))
    with torch.no_grad():
        nats = sum(by_hand(policy, texts))
    assert fewer.summary["eval/perplexity_texts"] == pytest.approx(
        math.exp(nats / sum(len(text) - 1 for text in texts)), rel=1e-5
    )
