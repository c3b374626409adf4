"""Sources of texts, and their cut into prompts: the section `data`, and a section for each source."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import COMMIT, Fraction, Positive, Section, Seed, Tokens, refuse
from pipeline.config.effects import Chosen, absent

MEASURED_TEXTS = 256
"""Held-out texts, as far as there are any, on which the perplexity of policy and reference is measured."""
MOST_PROMPT_TOKENS = 128
"""Longer prompts are passed over: one of them would widen its whole batch."""


class BuiltinSettings(Section):
    """Reviews by our own grammar."""

    insults: Fraction = Field(
        0.0,
        description=(
            "share of the reviews that end with an insult; above 0 the judge `auto` is helpful, to which an insult is"
            " an opinion like others, and harmless counts them"
        ),
    )


class LocalSettings(Section):
    """A file or folder of the user's."""

    path: str | None = Field(None, description="file or folder of parquet, CSV or JSONL with the column `text`")


class HubSettings(Section):
    """A data set of the hub."""

    name: str | None = Field(None, description="id of the data set")
    revision: str | None = Field(None, description="commit of the data set, 40 hexadecimal digits")


class DataConfig(Section):
    """Sources of texts, and their cut into prompts."""

    source: Literal["builtin", "local", "hub"] = Field(
        "builtin",
        description="builtin: reviews from a grammar; local: a file or folder; hub: a data set of the Hugging Face hub",
    )
    builtin: Annotated[BuiltinSettings, Chosen("source")] = BuiltinSettings()
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
    prompt_length: tuple[Tokens, Tokens] = Field(
        (3, 8), description="a prompt is the first k units of a text, k uniform in this range"
    )
    prompt_unit: Literal["words", "tokens"] = Field("words", description="tokens are the policy's")
    vocab_size: Annotated[Positive, Field(le=2**20), absent("model.base")] = Field(
        700, description="size of the BPE vocabulary, when the tokenizer is trained here"
    )
    seed: Seed = Field(0, description="seed of the texts and of their split into prompts")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        low, high = self.prompt_length
        refuse({
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
