from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import fake_trial
import pytest
from synthetic import record_study

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.run.layout import Layout
from pipeline.run.progress import LEFT
from studies.definition.schema import load_study
from studies.execution import ray_tasks, slurm
from studies.execution.ray_tasks import request_of
from studies.execution.slurm import wanted


def test_a_job_of_slurm_has_room_for_the_largest_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    small = load_config("smoke")
    large = load_config("smoke", {"runtime.threads": 4, "caps.wall_clock_h": 5.0, "caps.memory_gib": 8.0})
    found = wanted([small, large])
    memory = max(one.caps.memory_gib for one in (small, large))
    assert (found["cpus-per-task"], found["time"], found["mem"]) == ("4", "330", f"{int(1024 * (1.25 * memory + 1))}M")
    monkeypatch.setattr(slurm, "gpu_visible", lambda: True)
    assert wanted([load_config("tiny", {"runtime.device": "cuda", "runtime.processes": 2})])["gres"] == "gpu:2"


SLOW = """
import signal, sys, time
time.sleep(1)  # as an interpreter on a busy machine
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
time.sleep(60)
"""


def test_a_warning_that_comes_before_the_hand_can_hear_it_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@" > "$0.asked"; kill -KILL $PPID\n')
    (tmp_path / "scontrol").chmod(0o755)
    command = shlex.join([sys.executable, "-c", SLOW])
    script = slurm.SCRIPT.format(exports="kill -USR1 $$", command=command, left=LEFT)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["sh"], input=script, text=True, timeout=50, env={"PATH": path, "SLURM_JOB_ID": "7"})
    assert (tmp_path / "scontrol.asked").read_text() == "requeue 7\n"


def test_a_task_of_ray_has_room_for_the_largest_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    small, wide = load_config("smoke"), load_config("smoke", {"runtime.threads": 3})
    assert request_of([small, wide]) == {"CPU": 3, "GPU": 0}
    monkeypatch.setattr(ray_tasks, "gpu_visible", lambda: True)
    card = load_config("tiny", {"runtime.device": "cuda", "runtime.processes": 2, "runtime.threads": 3})
    assert request_of([card]) == {"CPU": 6, "GPU": 2}


def test_options_of_sbatch_are_taken_as_they_are_written_and_the_programs_own_refused(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("account: lab\ntime: 1:30:00\nexclusive: true\nmem: false\nconstraint: [a100, h100]\n")
    given = {"account": "lab", "time": "1:30:00", "exclusive": "", "mem": None, "constraint": "a100,h100"}
    assert slurm.read_options(file) == given
    assert slurm.read_options(None) == {}
    file.write_text("account: lab\narray: 1-4\n")
    with pytest.raises(UserError, match=r"cluster\.yaml, line 2: 'array' cannot be given"):
        slurm.read_options(file)


STUDY = fake_trial.SHORT.replace("baseline: weak", "baseline: weak\nprofile: smoke\nfigures: []")
HEAVY = ("torch", "transformers", "datasets", "mlflow", "optuna", "pandas", "matplotlib", "scipy", "seaborn", "jinja2")
SCRIPT = """
import json, sys
import ablate
sys.argv = {arguments!r}
try:
    ablate.main()
except SystemExit as end:
    code = end.code or 0
else:
    code = 0
print(json.dumps([code, sorted(set({heavy!r}) & set(sys.modules))]))
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    source = tmp_path / "idle.yaml"
    source.write_text(STUDY)
    record_study(load_study(source), Layout.at(tmp_path / "out"), steps=32, prompts=4)
    return source


def command(*arguments: str) -> tuple[int, list[str], str]:
    script = SCRIPT.format(arguments=["ablate", *arguments], heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *output, last = done.stdout.splitlines()
    code, modules = json.loads(last)
    return code, modules, "\n".join(output)


@pytest.mark.slow
def test_a_rerun_with_nothing_to_do_imports_nothing_that_works(recorded: Path) -> None:
    out = ("--out", str(recorded.parent / "out"))
    code, modules, output = command("study", str(recorded), *out)
    assert (code, {"optuna", "mlflow"} <= {*modules}) == (0, True), output  # neither had the records yet
    report = recorded.parent / "out" / "studies" / "idle" / "smoke" / "report" / "index.html"
    made = report.stat().st_mtime_ns

    assert command("study", str(recorded), *out)[:2] == (0, [])
    assert report.stat().st_mtime_ns == made
    code, modules, output = command("plan", str(recorded), *out)
    assert (code, modules) == (0, [])
    assert "Nothing will run: all 2 trials are cached" in output
    assert command("falsify", str(recorded), *out)[1] == []

    report.unlink()
    (recorded.parent / "out" / "studies" / "idle" / "smoke" / "optuna.db").unlink()
    assert {"optuna", "jinja2"} <= {*command("study", str(recorded), *out)[1]}
