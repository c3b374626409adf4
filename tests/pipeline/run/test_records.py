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
    "study": "s", "profile": "tiny", "arm": "a", "seed": 0, "config": {}, "config_digest": "0", "status": "complete",
    "steps": 32, "stages": {}, "summary": {}, "cost": {}, "environment": {}, "finished": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (sealed({**RECORD, "mood": "good"}), "mood: Extra inputs are not permitted"),
        (json.dumps(RECORD), "checksum differs"),
        (None, "it is a pipe"),
    ],
)
def test_a_record_that_is_not_as_it_was_written_is_damaged(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "a.json"
    if text is None:
        os.mkfifo(path)  # is not opened: that would never end
    else:
        path.write_text(text)
    with pytest.raises(Damaged, match=words):
        read_record(path)
