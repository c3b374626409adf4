"""What only a CPU gains from: harmless where the C library lacks it, and never entered by a run on a card."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.run.layout import Layout
from studies.definition.schema import single
from studies.execution.agenda import Agenda
from studies.execution.hand import Hand
from studies.execution.started import Started


@pytest.mark.parametrize(("device", "pages"), [("cpu", True), ("cuda", False)])
def test_only_trials_on_a_cpu_are_started_with_huge_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, pages: bool
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # so that it is put back afterwards
    monkeypatch.delenv("GLIBC_TUNABLES")
    study, layout = single("smoke", {"runtime.device": device}, 0), Layout(tmp_path)
    run = Started(study, "smoke", {}, layout, layout.study("single", "smoke"))
    Hand(run, Agenda(run), 1, lambda text, style: None)
    assert ("GLIBC_TUNABLES" in os.environ) == pages
