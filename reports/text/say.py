"""Sentences from the templates beside this file: values and flags go in, plain text comes out."""

from __future__ import annotations

import re
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import Any

import jinja2

from pipeline.data.settings import MEASURED_TEXTS
from pipeline.rewards.kinds import GUARDED, KINDS, TRAINED
from pipeline.rewards.settings import FURTHER, OPPONENTS, is_judged
from reports.findings.bound import LEAST_EFFECTIVE
from reports.findings.pairs import LIKED, SMALL_EFFECT, SMALLEST
from reports.findings.recommendation import ONE_IN
from reports.statistics.hierarchical import LONE, SCALE
from reports.statistics.matched_kl import WIDEST
from reports.statistics.series import SMOOTH
from reports.statistics.two_level import ALPHA
from reports.text import words

LISTED = 5
"""Arms that are named with their numbers; of more, a sentence gives the range."""
_CONSTANTS = {
    "ALPHA": ALPHA, "FURTHER": FURTHER, "GUARDED": GUARDED, "KINDS": KINDS, "TRAINED": TRAINED,
    "LEAST_EFFECTIVE": LEAST_EFFECTIVE, "LIKED": LIKED, "LISTED": LISTED, "LONE": LONE,
    "MEASURED_TEXTS": MEASURED_TEXTS, "ONE_IN": ONE_IN, "OPPONENTS": OPPONENTS, "SCALE": SCALE, "SMALLEST": SMALLEST,
    "SMALL_EFFECT": SMALL_EFFECT, "SMOOTH": SMOOTH, "WIDEST": WIDEST,
}  # fmt: skip


@cache
def _environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # plain text; the page escapes it
        undefined=jinja2.StrictUndefined,
    )
    env.filters |= {key: one for key, one in vars(words).items() if isfunction(one)} | {"is_judged": is_judged}
    env.globals |= _CONSTANTS
    return env


def say(template: str, macro: str, *args: Any, **values: Any) -> str:
    """Render one macro of ``templates/<template>.j2`` as one line; empty where it does not apply."""
    lines = str(getattr(_environment().get_template(f"{template}.j2").module, macro)(*args, **values))
    # A template may break a line anywhere, but no space stands before a closing mark or after "(".
    text = re.sub(r"\s+([.,;:)\]])(?=[\s.,;:)]|$)", r"\1", " ".join(lines.split()))
    return text.replace("( ", "(")
