from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from studies.execution import status as module
from studies.execution.status import StatusFile, read_status


def test_a_status_shows_how_far_a_trial_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, written = tmp_path / "status" / "a.json", list[int]()
    assert read_status(path) is None
    file = StatusFile(path, "weak seed 0", False, lambda: written.append(1))
    file.stage("sft", "building", "key")
    file.stage("sft", "built", "key")
    file.follow(tmp_path / "metrics.jsonl")
    file.progress("train", 32, 64, "resumed")
    for step in range(1000):
        file.progress("train", step, 1000)
        file.metrics(step, {"policy/entropy": float(step)})
    assert len(written) < 10
    file.warn("odd")
    found = read_status(path)
    assert found is not None
    assert (found.stages["sft"][0], found.stage, found.done, found.total) == ("built", "train", 999, 1000)
    assert (found.resumed, found.values, found.warnings) == (32, {"policy/entropy": 999.0}, ["odd"])
    file.end("complete")
    assert json.loads(path.read_text())["outcome"] == "complete"
    monkeypatch.setattr(module, "write_atomic", Mock(side_effect=OSError(28, "No space left on device")))
    file.end("failed", "a full disk keeps it from nothing")
