"""What all sections of the configuration are made of: immutability, kinds of numbers, hints at the nearest name."""

from __future__ import annotations

import difflib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
StrictlyPositive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of all sections: immutable, and a misspelt key is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def nearest(name: str, names: list[str]) -> str:
    """A hint ``; did you mean 'x'?`` or nothing."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
