"""Settings of the kind `classifier`: the section `classifier` of a reward or a judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.config.base import Section
from pipeline.config.names import nearest
from pipeline.errors import UserError
from pipeline.named_files import UNREADABLE, first_line, require_file, state


class ClassifierSettings(Section):
    """The model of the kind `classifier`, and which of its outputs is the score."""

    model: str | None = Field(
        None, description="hub id or local folder of a sequence-classification model with its tokenizer"
    )
    revision: str | None = Field(None, description="commit of a hub id, 40 hexadecimal digits")
    label: str | None = Field(None, description="the model's name of the output that is wanted; none: its only one")
    output: Literal["log_odds", "logit"] = Field("log_odds", description="log-odds of the label, or its logit as it is")


MOST_CONFIG = 2**20
"""Bytes of a model's config.json; a list of a million labels is none that anybody reads."""


def check_classifier(key: str, name: str, label: str | None) -> None:
    """Refuse a folder whose configuration is of another kind of model, or that does not know the label; loads nothing.

    Of what is on the hub this is found out when it is loaded. Raises `UserError`.
    """
    file = Path(name) / "config.json"
    if state(file) is None:
        return
    require_file(file, f"{key} = '{name}': config.json", MOST_CONFIG)
    try:
        content = json.loads(file.read_text("utf-8"))
        kinds = [str(kind) for kind in content.get("architectures") or []]
        names = {int(index): str(title) for index, title in (content.get("id2label") or {}).items()}
    except (*UNREADABLE, AttributeError) as error:
        raise UserError(f"{key} = '{name}': config.json is not that of a model ({first_line(error)})") from None
    if kinds and not any("ForSequenceClassification" in kind for kind in kinds):
        raise UserError(f"{key} = '{name}' is no sequence classifier but {', '.join(kinds)}")
    if names:
        label_index(names, label, key.rpartition(".")[0] + ".label")


def label_index(names: dict[int, str], label: str | None, key: str) -> int:
    """The output of a label. Raises `UserError` with the labels that there are."""
    if label is None and len(names) == 1:
        return next(iter(names))
    known = {str(name): index for index, name in names.items()}
    if label is None or label not in known:
        raise UserError(
            f"{key} = {label!r}: the model's labels are {', '.join(known)}{nearest(label or '', list(known))}"
        )
    return known[label]
