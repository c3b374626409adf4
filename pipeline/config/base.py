"""What all sections of the configuration are made of: immutability and kinds of numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
StrictlyPositive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of all sections: immutable, and a misspelt key is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")
