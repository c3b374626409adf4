from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import fake_trial
import pytest
import tinytrial
import torch
from helpers import flip_bit
from light_study import Write, go, results
from safetensors import SafetensorError
from typer.testing import CliRunner

import reports.pages.report
from ablate import app
from pipeline.run.layout import Layout, StudyFolder
from pipeline.training import checkpoint
from studies.faults import DiskFull, is_disk_full
from studies.tracking import runs, store, sync

STUDY = """
question: Does it move?
hypothesis: It does.
refuted_if: It does not.
profile: smoke
baseline: base
seeds: [0]
arms: {base: {}}
falsifiers:
  - {name: drift, claim: it stays, metric: objective/kl_per_token, op: ">", threshold: 1.0e-9, before_step: 32}
"""
FALSIFIED, FAULT = 1, 4
READERS = ("falsify", "report", "export", "sync", "plan")


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "flipped bit": flip_bit,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "empty mapping": lambda path: path.write_text("{}"),
    "list": lambda path: path.write_text("[]"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}
FILES = {
    "record": ("studies/moves/smoke/trials/*.json", {"falsify", "report", "export", "sync", "plan"}),
    "study.json": ("studies/moves/smoke/study.json", {"falsify", "report", "sync", "plan"}),
    "series": ("store/train/KEY/metrics.parquet", {"falsify", "report", "sync"}),
    "weights": ("store/train/KEY/policy/model.safetensors", {"export"}),
    "train manifest": ("store/train/KEY/manifest.json", {"falsify", "report", "export", "sync"}),
    "evaluation": ("store/evaluate/KEY/prompts.parquet", {"report", "export"}),
    "samples": ("store/evaluate/KEY/samples.parquet", {"report", "sync"}),
    "evaluate manifest": ("store/evaluate/KEY/manifest.json", {"report", "export", "sync"}),
    "tokenizer": ("store/prompts/KEY/tokenizer/tokenizer.json", {"export"}),
}
"""Files to damage, and the commands that read them."""
SAMPLE = [
    ("record", "flipped bit"), ("record", "folder"), ("study.json", "list"), ("series", "zeros"),
    ("evaluation", "flipped bit"), ("weights", "flipped bit"), ("train manifest", "empty mapping"),
    ("evaluate manifest", "deep"), ("tokenizer", "cut"),
]  # fmt: skip


class Finished:
    """A finished study in a folder of its own, and the command line on it."""

    def __init__(self, root: Path, file: Path) -> None:
        self.root, self.out, self.study_file = root, root / "out", file

    def run(self, command: str, *more: str) -> Any:
        named = ["moves/base/0", str(self.root / "exported")] if command == "export" else [str(self.study_file)]
        return CliRunner().invoke(app, [command, *named, "--out", str(self.out), *more])

    def study(self) -> Any:
        return self.run("study", "--executor", "inline")

    def file(self, name: str) -> Path:
        """The one that the study's trial refers to; the store of the session may hold artifacts of other tests."""
        pattern = FILES[name][0]
        if pattern.startswith("store/"):
            pattern = pattern.replace("KEY", self.keys[pattern.split("/")[1]])
        (found,) = self.out.glob(pattern)
        return found

    @cached_property
    def keys(self) -> dict[str, str]:
        """The artifacts of the trial by stage."""
        record = Layout(self.out).study("moves", "smoke").record("base", 0)
        assert record is not None
        return {stage: ref.key for stage, ref in record.stages.items()}


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures, whose drawing takes seconds, and an MLflow that takes everything."""
    monkeypatch.setattr(reports.pages.report, "draw", lambda *_: iter(()))
    monkeypatch.setattr(store, "connect", lambda layout: MagicMock())
    monkeypatch.setattr(store, "experiment_of", lambda client, study, layout: ("1", study))
    monkeypatch.setattr(runs.Runs, "open", lambda self, key, *_: self.states.update({key: runs.Run("1", 0)}))
    monkeypatch.setattr(runs.Runs, "save", lambda self: None)


@pytest.fixture(scope="module")
def pristine(smoke_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root = tmp_path_factory.mktemp("pristine")
    finished = Finished(root, root / "moves.yaml")
    shutil.copytree(smoke_layout.store, finished.out / "store")
    finished.study_file.write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "_send", lambda *_: None)
        done = finished.study()
    assert done.exit_code == 0, done.output
    return finished


@pytest.fixture
def finished(pristine: Finished, tmp_path: Path) -> Finished:
    shutil.copytree(pristine.out, tmp_path / "copy" / "out")
    return Finished(tmp_path / "copy", pristine.study_file)


@pytest.mark.parametrize(("name", "how"), SAMPLE)
def test_readers_name_a_damaged_file_and_change_no_verdict(finished: Finished, name: str, how: str) -> None:
    file = finished.file(name)
    DAMAGE[how](file)
    before = None if file.is_dir() else file.read_bytes()
    for command in READERS:
        done = finished.run(command)
        if command in FILES[name][1]:
            assert done.exit_code == FAULT, (command, done.output, done.exception)
            (line,) = done.output.strip().splitlines()
            assert str(file) in line
            assert "again" in line, "the message names the repair"
        else:
            assert done.exit_code == (FALSIFIED if command == "falsify" else 0), (command, done.output)
        shutil.rmtree(finished.root / "exported", ignore_errors=True)
    assert before == (None if file.is_dir() else file.read_bytes()), "a reader changes nothing"


@pytest.mark.parametrize(
    ("name", "how"), [("record", "flipped bit"), ("record", "folder"), ("study.json", "folder"), ("samples", "cut")]
)
def test_a_study_makes_again_what_was_damaged(finished: Finished, name: str, how: str) -> None:
    file = finished.file(name)
    DAMAGE[how](file)
    done = finished.study()
    assert done.exit_code == 0, (done.output, done.exception)
    (line,) = [line for line in done.output.splitlines() if "set aside" in line]
    assert file.name in line
    assert any(path.parent.name == ".damaged" for path in finished.out.rglob("*")), "nothing damaged is deleted"
    assert file.is_file()
    assert finished.run("falsify").exit_code == FALSIFIED
    assert "set aside" not in finished.study().output


def full(name: str | None = None) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (full(), True),
        (OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device"), True),  # pyarrow
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), True),
        (caused(RuntimeError("inline_container.cc:672 . unexpected pos 704"), full()), True),  # torch
        (caused(ValueError("commit"), Exception("database or disk is full")), True),  # Optuna
        (OSError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("unexpected pos 704 vs 598"), False),
    ],
)
def test_a_full_disk_is_known_by_what_each_library_raises(error: Exception, is_full: bool) -> None:
    assert is_disk_full(error) == is_full


def nth(function: Callable[..., Any], n: int) -> Callable[..., Any]:
    """The function, whose n-th call finds the disk full."""
    calls = iter(range(1, 10**6))

    def call(*arguments: Any, **more: Any) -> Any:
        if next(calls) == n:
            raise full()
        return function(*arguments, **more)

    return call


@pytest.mark.usefixtures("no_mlflow")
@pytest.mark.parametrize(
    ("module", "name", "n"),
    [(fake_trial, "to_parquet", 2), (fake_trial, "write_json", 2), (StudyFolder, "write", 2)],
)
def test_a_study_stops_at_once_and_the_same_command_ends_it(
    write_study: Write, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, n: int
) -> None:
    whole, _ = go(write_study(), Layout(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(module, name, nth(getattr(module, name), n))
        with pytest.raises((DiskFull, OSError)) as stopped:
            go(write_study(), layout)
    assert is_disk_full(stopped.value) or isinstance(stopped.value, DiskFull)
    trained = fake_trial.calls(layout)
    assert len(trained) == len(set(trained)), "no trial is tried again on a full disk"
    done, _ = go(write_study(), layout)
    assert results(done, layout) == results(whole, Layout(tmp_path / "whole"))


@pytest.mark.parametrize(("save", "kept"), [(1, 0), (3, 2)])
def test_half_a_checkpoint_is_removed_and_the_trial_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: int, kept: int
) -> None:
    _, rows, weights = tinytrial.run(tmp_path / "whole")
    stopped = tinytrial.trainer(tmp_path / "full")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.torch, "save", nth(torch.save, save))
        with pytest.raises(OSError, match="No space left"):
            stopped.run()
    with pytest.raises(ValueError, match="closed"):
        stopped.checkpoints.log.flush()
    left = [path.name for path in (tmp_path / "full" / "checkpoints").iterdir()]
    assert len(left) == kept
    assert all(name.startswith("update_") for name in left)
    _, again, same = tinytrial.run(tmp_path / "full")
    assert again == rows
    assert all(torch.equal(weights[name], same[name]) for name in weights)
