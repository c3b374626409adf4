from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "studies" / "colab.ipynb"
STUDY = """
question: Does the notebook run?
profile: smoke
baseline: weak
seeds: [93, 94]
arms:
  weak: {kl.beta: 0.05}
  strong: {kl.beta: 0.2}
"""


def notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def with_values(content: Any, values: Mapping[str, str]) -> Any:
    """The notebook with other values at the top of its cells; each name must be assigned exactly once."""
    for name, value in values.items():
        line, found = re.compile(rf"^{re.escape(name)} = .*$", re.MULTILINE), 0
        for cell in content.cells:
            cell.source, times = line.subn(lambda _, to=f"{name} = {value}": to, cell.source)
            found += times
        assert found == 1, name
    return content


def texts(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def shown(cell: Any, kind: str) -> list[str]:
    return [output.data[kind] for output in cell.outputs if kind in output.get("data", {})]


def test_it_is_a_valid_notebook_without_outputs() -> None:
    content = notebook()
    nbformat.validate(content)
    code = [cell for cell in content.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert all(len(cell.source.splitlines()) < 20 for cell in content.cells), "the logic is in the commands"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
def test_it_runs_and_goes_on_from_the_drive_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command, study = tmp_path / "environment" / "bin" / "ablate", tmp_path / "mine.yaml"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "ablate.py"}" "$@"\n')
    command.chmod(0o755)
    study.write_text(STUDY)
    found = []
    for machine in ("one", "two"):
        values = {
            "REPOSITORY": repr(str(ROOT)),
            "ENVIRONMENT": repr(str(tmp_path / "environment")),
            "OUTPUTS": repr(str(tmp_path / machine / "outputs")),
            "DRIVE": repr(str(tmp_path / "drive")),
            "STUDY, PROFILE, SETTINGS": repr((str(study), "smoke", "--set train.steps=8 --executor inline")),
        }
        content = with_values(notebook(), values)
        NotebookClient(content, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
        nbformat.validate(content)
        found.append([cell for cell in content.cells if cell.cell_type == "code"])
    (_, look, _, run, show), (_, _, _, again, same) = found
    assert "h on a T4" in texts(look)
    assert "reward    built in" in texts(run)
    assert "already recorded: 4 of 4 trials" in texts(again)
    assert "built in" not in texts(again)
    figures = shown(show, "image/png")
    assert len(figures) > 3
    assert figures == shown(same, "image/png")
    assert "<iframe srcdoc=" in shown(show, "text/html")[-1]
    copied = {path.name for path in (tmp_path / "drive").rglob("*")}
    assert "manifest.json" in copied
    assert not {name for name in copied if name.endswith(".db") or name.startswith("mlflow")}
