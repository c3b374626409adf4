"""What all sections of the configuration are made of: immutability and kinds of numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST = 10**12
"""No count is larger; tokens of the largest trainings are 10^13, and no trial here is one of these."""
Positive = Annotated[int, Field(gt=0, le=MOST)]
Width = Annotated[int, Field(gt=0, le=2**16)]
"""Of a network built here, which is then allocated."""
Layers = Annotated[int, Field(gt=0, le=1_000)]
Tokens = Annotated[int, Field(gt=0, le=2**17)]
"""In one text."""
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
StrictlyPositive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of all sections: immutable, and a misspelt key is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")
