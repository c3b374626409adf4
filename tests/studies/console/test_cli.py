from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from light_study import Write
from typer.testing import CliRunner

from ablate import app
from pipeline.config.loading import load_config
from pipeline.run.layout import Layout
from studies.console import cli
from studies.execution.hand import Inline
from studies.execution.study import run_study
from studies.hints import command

ROOT = Path(__file__).parents[3]


def ablate(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", str(ROOT / "ablate.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    names = re.findall(r"^  ([a-z-]+)  ", done.stdout.partition("Commands:")[2], re.MULTILINE)
    assert " ".join(sorted(names)) == (
        "compare export falsify findings import new-study plan publish report run score serve study sync ui work"
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {"torch", "transformers", "mlflow", "optuna", "pandas", "numpy", "scipy", "seaborn", "pydantic"}
    assert "typer" in imported
    assert not imported & heavy


def test_hints_are_commands_that_work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert [command("ui"), command("study", "mine", "t4")] == ["make ui", "make study STUDY=mine PROFILE=t4"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").write_text("ui:\n\techo another project\n")
    assert [command("ui"), command("study", "mine", "t4")] == ["ablate ui", "ablate study mine --profile t4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["falsify"], "Missing argument"),
        (["study", "kl_ablaton"], "ablate: no study 'kl_ablaton'; did you mean 'kl_ablation'?"),
        (["study", "kl_ablation", "--executor", "proceses"], "did you mean 'processes'?"),
        (["sync", "kl_ablation"], "has no finished trial to send"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = ablate(*arguments, *(["--out", str(tmp_path)] if len(arguments) > 1 else []))
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1 or len(arguments) == 1
    assert done.stdout == ""


@pytest.mark.usefixtures("no_mlflow")
def test_falsify_exits_with_the_verdict(write_study: Write, layout: Layout) -> None:
    from rich.console import Console

    study = write_study()
    out = ["--out", str(layout.root)]
    before = ablate("falsify", study.source, *out)
    assert before.exit_code == 3
    assert "NOT TESTED (4 NOT TESTED)" in before.stdout
    assert "has never been run here" in before.stdout
    layout.root.mkdir(parents=True)
    with Path(os.devnull).open("w") as nowhere:
        run_study(study, layout, None, {"train.steps": 64}, Inline, 1, Console(file=nowhere), trials="fake_trial")
    survived = ablate("falsify", study.source, *out)
    assert survived.exit_code == 0, survived.stdout
    assert "4 SURVIVED" in survived.stdout
    lower = write_study(Path(study.source).read_text().replace("threshold: 0.5", "threshold: 0.1"))
    refuted = ablate("falsify", lower.source, *out, "--json")
    assert refuted.exit_code == 1
    judged = json.loads(refuted.stdout)["verdicts"]
    assert [(v["arm"], v["seed"], v["outcome"], v["step"]) for v in judged][::2] == [
        ("weak", 0, "FALSIFIED", 16), ("strong", 0, "SURVIVED", None),
    ]  # fmt: skip
    stale = ablate("falsify", lower.source, *out, "--set", "optimiser.lr=0.01", "--json")
    assert (stale.exit_code, "another configuration" in stale.stdout) == (3, True)


@pytest.mark.parametrize(("device", "processes", "jobs"), [("cuda", 1, 4), ("auto", 3, 1)])
def test_default_jobs_divide_the_gpus(monkeypatch: pytest.MonkeyPatch, device: str, processes: int, jobs: int) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    rows = {"train.batch_size": 192, "train.num_mini_batches": 4}
    config = load_config("tiny", {"runtime.device": device, "runtime.processes": processes, **rows})
    assert cli.default_jobs(config) == jobs


def test_default_jobs_divide_the_cores() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for settings, jobs in (({"runtime.threads": 1}, cores), ({"runtime.threads": cores * 2}, 1)):
        assert cli.default_jobs(load_config("tiny", settings)) == jobs


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = ablate("ui", "--port", str(port), "--out", str(tmp_path))
    assert done.exit_code == 2
    assert f"port {port} on 127.0.0.1 cannot be used" in done.stderr
