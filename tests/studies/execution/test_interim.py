"""Looks at a running study: one at a time, what they print is passed on, and none outlives the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from light_study import wait_for

from studies.execution.interim import HEAD, Interim

LOOKER = """
import sys, time, pathlib
seconds, code = (pathlib.Path(sys.argv[1]) / "how").read_text().split()
time.sleep(float(seconds))
print("seen")
sys.exit(int(code))
"""


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Interim, list[str], Path]:
    (tmp_path / "looker.py").write_text(LOOKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said: list[str] = []
    return Interim("looker", tmp_path, said.append), said, tmp_path / "how"


def ended(looks: Interim) -> bool:
    looks.poll()
    return looks._process is None


def test_looks_are_printed_in_turn_and_those_between_are_left_out(looks: tuple[Interim, list[str], Path]) -> None:
    interim, said, how = looks
    how.write_text("0.3 0")
    for _ in range(3):
        interim.look()
    wait_for(lambda: ended(interim), 20)
    assert said == [f"{HEAD}seen"] * 2
    how.write_text("0 4")
    interim.look()
    wait_for(lambda: ended(interim), 20)
    assert len(said) == 2, "a look that fails is silent"


def test_closing_ends_what_is_under_way(looks: tuple[Interim, list[str], Path]) -> None:
    interim, said, how = looks
    how.write_text("60 0")
    interim.look()
    process = interim._process
    assert process is not None
    interim.close()
    assert process.poll() is not None
    assert said == []
