from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from studies.execution import slurm
from studies.execution.slurm import read_options, wanted


def test_a_job_asks_for_what_the_largest_trial_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    small = load_config("smoke")
    large = load_config("smoke", {"runtime.threads": 4, "caps.wall_clock_h": 5.0, "caps.memory_gib": 8.0})
    assert wanted([small, large])["cpus-per-task"] == "4"
    assert wanted([small, large])["time"] == "330"
    memory = max(one.caps.memory_gib for one in (small, large))
    assert wanted([small, large])["mem"] == f"{int(1024 * (1.25 * memory + 1))}M"
    monkeypatch.setattr(slurm, "gpu_visible", lambda: True)
    assert "gres" not in wanted([small])
    assert wanted([load_config("tiny", {"runtime.device": "cuda", "runtime.processes": 2})])["gres"] == "gpu:2"


def test_options_are_taken_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("account: lab\ntime: 1:30:00\nexclusive: true\nmem: false\nconstraint: [a100, h100]\n")
    assert read_options(file) == {
        "account": "lab",
        "time": "1:30:00",
        "exclusive": "",
        "mem": None,
        "constraint": "a100,h100",
    }
    assert read_options(None) == {}


def test_options_of_the_programs_own_are_refused_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("account: lab\narray: 1-4\n")
    with pytest.raises(UserError, match=r"cluster\.yaml, line 2: 'array' is set by the program"):
        read_options(file)


def test_a_machine_without_slurm_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no 'squeue' on this machine"):
        slurm._ask("squeue")
