"""Settings of the kinds `classifier` and `ocr`: the sections of these names of a reward or a judge."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.config.base import NonNegative, Section


class ClassifierSettings(Section):
    """The model of the kind `classifier`; the score is the log-odds of a label."""

    model: str | None = Field(
        None, description="hub id or local folder of a sequence-classification model with its tokenizer"
    )
    revision: str | None = Field(None, description="commit of a hub id, 40 hexadecimal digits")
    label: str | None = Field(None, description="the model's name of the output that is wanted; none: its only one")


class OcrSettings(Section):
    """The image of a text. The score depends on the text and on these alone."""

    size: Annotated[int, Field(ge=8, le=96)] = Field(24, description="size of the font, DejaVu Sans [pixels]")
    blur: NonNegative = Field(0.0, description="standard deviation of a Gaussian blur [pixels]")
    noise: Annotated[float, Field(ge=0.0, le=255.0)] = Field(
        0.0, description="standard deviation of Gaussian noise [grey levels; paper is 255, ink is 0]"
    )
    rotation: Annotated[float, Field(ge=0.0, le=45.0)] = Field(
        0.0, description="largest angle [degrees]; each text has its own, uniform between minus and plus this"
    )
