"""Where texts come from and how they become prompts: the section `data`."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Fraction, Positive, Section, Seed, Tokens

COMMIT = re.compile(r"[0-9a-f]{40}")


class DataConfig(Section):
    """Where texts come from and how they become prompts."""

    source: Literal["builtin", "local", "hub"] = Field(
        "builtin", description="our grammar, a local file or folder, or a hub data set"
    )
    path: str | None = Field(None, description="local: file or folder of parquet, CSV or JSONL with `text,label`")
    name: str | None = Field(None, description="hub: id of the data set")
    revision: str | None = Field(None, description="hub: commit of the data set, 40 hexadecimal digits")
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
    max_prompt_tokens: Tokens = Field(
        128, description="longer prompts are passed over: one of them would widen its whole batch"
    )
    insults: Fraction = Field(
        0.0,
        description=(
            "builtin: share of the reviews that end with an insult; above 0 the judge `auto` is helpful, to which an"
            " insult is an opinion like others, and harmless counts them"
        ),
    )
    vocab_size: Annotated[Positive, Field(le=2**20)] = Field(
        700, description="size of the BPE vocabulary, when the tokenizer is trained here"
    )
    seed: Seed = Field(0, description="of the texts and of their split into prompts")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.prompt_length[0] > self.prompt_length[1]:
            raise ValueError(f"prompt_length: the range {list(self.prompt_length)} is empty; give [smallest, largest]")
        if self.prompt_unit == "tokens" and self.prompt_length[1] > self.max_prompt_tokens:
            raise ValueError(
                f"prompt_length {list(self.prompt_length)} goes beyond max_prompt_tokens {self.max_prompt_tokens};"
                " raise the latter"
            )
        if self.source == "local" and not self.path:
            raise ValueError(
                "source is 'local' but path is not set; set data.path to a file or folder with columns text,label"
            )
        if self.source == "hub" and not self.name:
            raise ValueError("source is 'hub' but name is not set; set data.name, for example stanfordnlp/imdb")
        if self.source == "hub" and not COMMIT.fullmatch(self.revision or ""):
            raise ValueError(
                f"revision {self.revision!r} does not pin '{self.name}': set data.revision to a commit, 40 hexadecimal"
                " digits"
            )
        return self
