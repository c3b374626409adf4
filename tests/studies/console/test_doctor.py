"""The first look at a machine: each fact by itself, and the command as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from pipeline.config.loading import load_config, profile_names
from pipeline.resources import diagnosis
from pipeline.resources.diagnosis import Finding
from pipeline.run.layout import Layout
from studies.console import doctor


def test_requirements_are_the_projects_and_those_that_are_not_met_are_named() -> None:
    wanted = [Requirement(line) for line in ("pytest>=1", "pytest>=999", "no-such-package-here>=2")]
    first, second = diagnosis.unmet(wanted)
    assert first.startswith("pytest is ")
    assert first.endswith("must be >=999")
    assert second == "no-such-package-here is not installed"
    needed, extras = diagnosis.requirements()
    assert {"torch", "transformers", "mlflow", "optuna"} <= {one.name for one in needed}
    assert set(diagnosis.EXTRAS) <= set(extras)
    assert "rapidocr" in {one.name for one in extras["ocr"]} - {one.name for one in needed}


def test_a_package_that_lacks_stops_the_look_and_an_extra_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = [Requirement("no-such-package-here")]
    monkeypatch.setattr(doctor, "cause_of_absence", lambda *_: "")
    monkeypatch.setattr(diagnosis, "requirements", lambda: (absent, {}))
    found = doctor.examine(Layout(tmp_path))
    assert [finding.what for finding in found if finding.state == "missing"] == ["packages"]
    assert not [finding for finding in found if finding.what.startswith("profile")]
    monkeypatch.setattr(diagnosis, "requirements", lambda: ([], {"ocr": absent}))
    by_name = {finding.what: finding for finding in diagnosis.packages()}
    assert (by_name["extra ocr"].state, by_name["extra ocr"].advice) == ("note", "pip install '.[ocr]'")
    assert by_name["extra quantize"].state == "ok"


def test_a_containers_limit_counts_and_the_machines_own_word_for_none_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit, none = tmp_path / "limit", tmp_path / "none"
    limit.write_text(f"{2**30}\n")
    none.write_text("max\n")
    monkeypatch.setattr(diagnosis, "CGROUP_LIMITS", (none, tmp_path / "absent", limit))
    assert "1.0 GiB of memory (limited by a container" in diagnosis.memory().found
    monkeypatch.setattr(diagnosis, "CGROUP_LIMITS", (none, tmp_path / "absent"))
    assert "limited" not in diagnosis.memory().found


def test_profiles_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available", lambda *_: False)
    monkeypatch.setattr(doctor, "gpu_visible", lambda: False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert list(doctor.lacks(load_config("tiny", {}))) == []
    no_card, base, data = doctor.lacks(load_config("t4", {}))
    assert no_card == "no card"
    assert base.startswith("Qwen/Qwen1.5-0.5B is not in the cache")
    assert data.startswith("stanfordnlp/imdb is not in the cache")
    (yours,) = doctor.lacks(load_config("t4-rehearsal", {}))
    assert yours.startswith("data.local.path and model.base are yours to give")
    found = doctor.profile_finding("t4")
    assert found.state == "note"
    assert "13.34 GiB of memory" in found.found
    assert "on a T4 (predicted)" in found.found


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("note", 0), ("missing", 2)])
def test_the_exit_code_is_for_scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, code: int) -> None:
    import ablate

    monkeypatch.setattr(doctor, "examine", lambda layout: [Finding("disk", state, "x")])  # type: ignore[arg-type]
    assert CliRunner().invoke(ablate.app, ["doctor", "--out", str(tmp_path)]).exit_code == code


def test_the_whole_look_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = doctor.examine(Layout(tmp_path / "out"))
    assert {finding.what for finding in found} >= {"Python", "packages", "torch", "processor", "disk", "hub"}
    assert [f.what for f in found if f.what.startswith("profile")] == [f"profile {name}" for name in profile_names()]
    assert not [finding for finding in found if finding.state == "missing"]
    assert not (tmp_path / "out").exists()
