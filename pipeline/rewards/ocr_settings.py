"""How the kind `ocr` draws a completion and what reads it: the section `ocr` of a reward or a judge."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from pipeline.config.base import NonNegative, Section, Seed, Tokens


class OcrSettings(Section):
    """The image of a text and the two networks that read it. The score depends on the text and on these alone."""

    font: str | None = Field(
        None, description="path of a TrueType or OpenType font; none: DejaVu Sans, which comes with matplotlib"
    )
    size: Annotated[int, Field(ge=8, le=96)] = Field(24, description="of the font [pixels]")
    blur: NonNegative = Field(0.0, description="standard deviation of a Gaussian blur [pixels]")
    noise: Annotated[float, Field(ge=0.0, le=255.0)] = Field(
        0.0, description="standard deviation of Gaussian noise [grey levels; paper is 255, ink is 0]"
    )
    rotation: Annotated[float, Field(ge=0.0, le=45.0)] = Field(
        0.0, description="largest angle [degrees]; each text has its own, uniform between minus and plus this"
    )
    seed: Seed = Field(0, description="of noise and angles, together with a hash of the text")
    columns: Annotated[Tokens, Field(ge=8)] = Field(
        48, description="most characters of a line; longer texts are wrapped"
    )
    characters: Annotated[Tokens, Field(ge=8)] = Field(
        480, description="most characters that are drawn; each character beyond them counts as one error"
    )
    detector: str | None = Field(
        None, description="path of a PP-OCR detector in ONNX; none: the small one that comes with rapidocr"
    )
    recogniser: str | None = Field(
        None, description="path of a PP-OCR recogniser in ONNX; none: the small one that comes with rapidocr"
    )

    @property
    def files(self) -> dict[str, str]:
        """The files that it names, by key."""
        named = {key: getattr(self, key) for key in ("font", "detector", "recogniser")}
        return {key: path for key, path in named.items() if path is not None}

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.seed and not (self.noise or self.rotation):
            raise ValueError(
                f"seed {self.seed} has no effect while noise and rotation are 0; set one of them, or leave seed out"
            )
        return self
