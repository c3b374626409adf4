"""What has not changed is not drawn again; what has changed, is damaged or is gone is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.run.layout import StudyFolder
from reports.figures import style
from reports.pages import fresh
from reports.pages.fresh import current_report
from reports.pages.report import render_report
from studies.definition.schema import Study, load_study

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

FEW = "figures: [win_rate, kl]\n"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the figures that are drawn from here on."""
    names: list[str] = []
    save = style.save

    def note(figure: object, stem: Path, title: str, origin: object) -> None:
        names.append(stem.name)
        save(figure, stem, title, origin)  # type: ignore[arg-type]

    monkeypatch.setattr(style, "save", note)
    return names


@pytest.fixture
def small(build: Builder, tmp_path: Path) -> Built:
    return build(tmp_path, seeds=(0,), prompts=4, steps=64, diverged=(), budget=(), missing=(), extra=FEW)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def times(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_nothing_is_drawn_twice_and_what_is_damaged_is_drawn_again(small: Built, drawn: list[str]) -> None:
    page = current_report(small.folder, small.study)
    first, made = contents(page.parent), times(page.parent)
    assert drawn == ["win_rate", "kl"]
    assert current_report(small.folder, small.study) == page
    assert times(page.parent) == made

    picture = page.parent / "figures" / "kl.png"
    picture.write_bytes(picture.read_bytes()[:-1] + b"x")
    drawn.clear()
    current_report(small.folder, small.study)
    assert drawn == ["win_rate", "kl"]
    assert contents(page.parent) == first

    page.unlink()
    current_report(small.folder, small.study)
    assert contents(page.parent) == first

    (page.parent / "figures" / "stray.svg").write_text("of nobody")
    current_report(small.folder, small.study)
    assert contents(page.parent) == first

    render_report(small.folder, small.study)
    assert contents(page.parent) == first


def touch_record(folder: StudyFolder, study: Study) -> Study:
    path = folder.trial_file("beta_0.2", 0)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "steps": record["steps"] - 1}))
    return study


def touch_table(folder: StudyFolder, study: Study) -> Study:
    """One bit of one file that the report reads, its time and size as before."""
    import os

    stage = json.loads(folder.trial_file("beta_0.2", 0).read_text())["stages"]["train"]["path"]
    path = folder.root / stage / "metrics.parquet"
    state, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    return study


def touch_study(folder: StudyFolder, study: Study) -> Study:
    file = Path(study.source)
    file.write_text(file.read_text().replace("How does the KL", "How far does the KL"))
    return load_study(file)


@pytest.mark.parametrize("touch", [touch_record, touch_table, touch_study])
def test_what_a_report_is_made_from_is_read_not_looked_up(small: Built, touch: object) -> None:
    before = fresh.made_from(small.folder, small.study)
    assert fresh.made_from(small.folder, small.study) == before
    study = touch(small.folder, small.study)  # type: ignore[operator]
    assert fresh.made_from(small.folder, study) != before


def test_another_version_of_our_code_or_of_a_library_draws_again(small: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fresh.made_from(small.folder, small.study)
    monkeypatch.setattr(fresh, "version", lambda name: "0.0")
    other = fresh.made_from(small.folder, small.study)
    assert other != before
    monkeypatch.setattr(fresh, "CODE", ("reports",))
    assert fresh.made_from(small.folder, small.study) != other


def test_weights_are_not_read(small: Built) -> None:
    before = fresh.made_from(small.folder, small.study)
    stage = json.loads(small.folder.trial_file("beta_0.2", 0).read_text())["stages"]["train"]["path"]
    (small.folder.root / stage / "model.safetensors").write_bytes(b"gigabytes")
    assert fresh.made_from(small.folder, small.study) == before


def test_a_report_that_stands_imports_nothing_that_draws(small: Built) -> None:
    current_report(small.folder, small.study)
    code = (
        "import sys; from reports import console\n"
        f"console.report({small.study.source!r}, None, {str(small.layout.root)!r})\n"
        "print({'matplotlib', 'pandas', 'numpy', 'scipy', 'jinja2', 'pyarrow', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
