"""A study with nothing to do imports nothing that trains, plans, sends or draws."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fake_trial
import pytest
from synthetic import record_study

from pipeline.run.layout import Layout
from studies.definition.schema import load_study

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
