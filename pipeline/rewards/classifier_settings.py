"""Settings of the kind `classifier`: the section `classifier` of a reward or a judge."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config.base import Section


class ClassifierSettings(Section):
    """The model of the kind `classifier`, and which of its outputs is the score."""

    model: str | None = Field(
        None, description="hub id or local folder of a sequence-classification model with its tokenizer"
    )
    revision: str | None = Field(None, description="commit of a hub id, 40 hexadecimal digits")
    label: str | None = Field(None, description="the model's name of the output that is wanted; none: its only one")
    output: Literal["log_odds", "logit"] = Field("log_odds", description="log-odds of the label, or its logit as it is")
