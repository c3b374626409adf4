"""What only a CPU gains from: harmless where the C library lacks it, and never entered by a run on a card."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import smoke
from tinynets import UNEVEN

from pipeline.models import process
from pipeline.models.packing import Packing, attend
from pipeline.models.policy import Episodes
from pipeline.models.sampling import inverse_cdf
from pipeline.run.layout import Layout
from studies.definition.schema import single
from studies.execution.agenda import Agenda
from studies.execution.hand import Hand
from studies.execution.started import Started


@pytest.mark.parametrize("windows", [True, False], ids=["no handle of the program", "no mallopt"])
def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch, windows: bool) -> None:
    def library(name: Any) -> object:
        if windows:
            raise TypeError("bad argument type for built-in operation")
        return object()

    monkeypatch.setattr(ctypes, "CDLL", library)
    process.settle(smoke().runtime)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the file can be used."""

    class Closed:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"entered: {name}")

    for module in ("models.sampling", "models.packing", "models.policy", "models.process"):
        monkeypatch.setattr(f"pipeline.{module}.cpu", Closed())


META = torch.device("meta")
"""Tensors without numbers, on a device that is not the CPU: the stand-in for a card."""


@pytest.mark.usefixtures("closed")
def test_a_run_on_a_card_does_not_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    process.settle(smoke(runtime__device="cuda").runtime)
    logits = torch.empty(4, 5000, device=META)
    assert inverse_cdf(logits, torch.empty(4, device=META)).shape == (4,)
    query = torch.empty(1, 2, 6, 8, device=META)
    places = Packing(2, 3, torch.empty(6, dtype=torch.long, device=META), torch.empty(0, dtype=torch.long, device=META))
    out, _ = attend(torch.nn.Identity(), query, query, query, None, packing=places)
    assert out.shape == (1, 6, 2, 8)
    card = Episodes(UNEVEN.query_responses, UNEVEN.query_mask, UNEVEN.response_mask, UNEVEN.ended.to(META))
    assert [len(rows) for rows in card.length_buckets(4)] == [4, 1]


@pytest.mark.usefixtures("closed")
def test_a_run_on_a_cpu_does() -> None:
    for enter in (lambda: process.settle(smoke().runtime), lambda: UNEVEN.length_buckets(4)):
        with pytest.raises(AssertionError, match="entered"):
            enter()


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


def test_reading_the_file_does_not_import_torch() -> None:
    code = "import sys, pipeline.models.cpu; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3]).returncode == 0
