"""Sources of texts, and their cut into prompts: the section `data`, and a section for each source."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import COMMIT, Fraction, Positive, Section, Seed, Tokens, refuse
from pipeline.config.effects import Chosen, absent, setting

MEASURED_TEXTS = 256
"""Held-out texts, as far as there are any, on which the perplexity of policy and reference is measured."""
MOST_PROMPT_TOKENS = 128
"""Longer prompts are passed over: one of them would widen its whole batch."""

OPENINGS = setting("data.source", "builtin", "local", "hub")
"""Prompts are openings of the texts."""


Clauses = Annotated[int, Field(ge=6, le=20)]
"""Long reviews can have six clauses without a noun, and there are 20 nouns."""


class BuiltinSettings(Section):
    """Reviews by our own grammar."""

    insults: Fraction = Field(
        0.0,
        description=(
            "share of the reviews that end with an insult; above 0 the judge `auto` is helpful, to which an insult is"
            " an opinion like others, and harmless counts them"
        ),
    )
    clauses: tuple[Clauses, Clauses] | None = Field(
        None, description="smallest and largest number of clauses of a review, without an insult; none: three to five"
    )


class LocalSettings(Section):
    """A file or folder of the user's."""

    path: str | None = Field(None, description="file or folder of parquet, CSV or JSONL with the column `text`")


class HubSettings(Section):
    """A data set of the hub."""

    name: str | None = Field(None, description="id of the data set")
    revision: str | None = Field(None, description="commit of the data set, 40 hexadecimal digits")


class ChainsSettings(Section):
    """Products in a finite group (`pipeline.data.chains`)."""

    group: Literal["z10", "s3", "s4", "s5"] = Field(
        "s3", description="z10: numbers modulo 10; s3, s4, s5: permutations of 3, 4 or 5 things, whose order counts"
    )
    lengths: tuple[Annotated[int, Field(ge=2, le=30)], Annotated[int, Field(ge=2, le=30)]] = Field(
        (2, 8), description="elements of a chain, uniform in this range"
    )
    long: Fraction = Field(0.5, description="share of the demonstrations with a working; the others answer at once")
    wrong_steps: Fraction = Field(0.03, description="probability that a step of a demonstrated working is wrong")


def longest_response(k: int) -> int:
    """Tokens of a working of k elements with its answer and EOS: k - 1 steps of four words, and three more.

    >>> longest_response(8)
    31
    """
    return 4 * (k - 1) + 3


class DataConfig(Section):
    """Sources of texts, and their cut into prompts."""

    source: Literal["builtin", "chains", "local", "hub"] = Field(
        "builtin",
        description=(
            "builtin: reviews from a grammar; chains: products in a finite group, whose answers can be checked; local:"
            " a file or folder; hub: a data set of the Hugging Face hub"
        ),
    )
    builtin: Annotated[BuiltinSettings, Chosen("source")] = BuiltinSettings()
    chains: Annotated[ChainsSettings, Chosen("source")] = ChainsSettings()
    local: Annotated[LocalSettings, Chosen("source")] = LocalSettings()
    hub: Annotated[HubSettings, Chosen("source")] = HubSettings()
    sft_texts: Positive = Field(20_000, description="texts for supervised fine-tuning")
    train_prompts: Positive = Field(4_096, description="prompts for reward modelling and training")
    heldout_prompts: Positive = Field(
        1_024,
        description=(
            "prompts for evaluation, from held-out texts; none is a training prompt; a search needs twice"
            " evaluate.prompts"
        ),
    )
    prompt_length: Annotated[tuple[Tokens, Tokens], OPENINGS] = Field(
        (3, 8), description="a prompt is the first k units of a text, k uniform in this range"
    )
    prompt_unit: Annotated[Literal["words", "tokens"], OPENINGS] = Field("words", description="tokens are the policy's")
    vocab_size: Annotated[Positive, Field(le=2**20), OPENINGS, absent("model.base")] = Field(
        700, description="size of the BPE vocabulary, when the tokenizer is trained here"
    )
    seed: Seed = Field(0, description="seed of the texts and of their split into prompts")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        low, high = self.prompt_length
        fewest, most = self.builtin.clauses or (1, 1)
        refuse({
            f"builtin.clauses: the range {[fewest, most]} is empty; give [smallest, largest]": fewest > most,
            f"prompt_length: the range {[low, high]} is empty; give [smallest, largest]": low > high,
            f"prompt_length {[low, high]} goes beyond {MOST_PROMPT_TOKENS} tokens; give shorter ones": (
                self.prompt_unit == "tokens" and high > MOST_PROMPT_TOKENS
            ),
            "source 'local' needs data.local.path; set it to a file or folder with the column text": (
                self.source == "local" and not self.local.path
            ),
            "source 'hub' needs data.hub.name; set it, for example to stanfordnlp/imdb": (
                self.source == "hub" and not self.hub.name
            ),
            f"hub.revision {self.hub.revision!r} does not pin '{self.hub.name}': set data.hub.revision to a commit, 40"
            " hexadecimal digits": self.source == "hub" and not COMMIT.fullmatch(self.hub.revision or ""),
        })  # fmt: skip
        return self
