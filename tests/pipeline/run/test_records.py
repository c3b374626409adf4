"""Records of trials on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import Damaged
from pipeline.run.layout import read_record, sealed

RECORD: dict[str, Any] = {
    "study": "s",
    "profile": "tiny",
    "arm": "a",
    "seed": 0,
    "config": {},
    "config_digest": "0",
    "status": "complete",
    "steps": 32,
    "stages": {},
    "summary": {},
    "cost": {},
    "environment": {},
    "finished": "2026-01-01T00:00:00+00:00",
}


def test_a_record_with_an_unknown_field_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(sealed({**RECORD, "mood": "good"}))
    with pytest.raises(Damaged, match="mood: Extra inputs are not permitted"):
        read_record(tmp_path / "a.json")


def test_a_record_without_its_digest_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(RECORD))
    with pytest.raises(Damaged, match="checksum differs"):
        read_record(tmp_path / "a.json")


def test_a_pipe_in_the_place_of_a_record_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(Damaged, match="it is a pipe"):
        read_record(tmp_path / "a.json")
