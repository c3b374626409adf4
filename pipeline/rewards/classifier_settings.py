"""Settings of the kind `classifier`: the section `classifier` of a reward or a judge."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.base import Section


class ClassifierSettings(Section):
    """The model of the kind `classifier`; the score is the log-odds of a label."""

    model: str | None = Field(
        None, description="hub id or local folder of a sequence-classification model with its tokenizer"
    )
    revision: str | None = Field(None, description="commit of a hub id, 40 hexadecimal digits")
    label: str | None = Field(None, description="the model's name of the output that is wanted; none: its only one")
