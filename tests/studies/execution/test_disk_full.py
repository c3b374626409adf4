"""A full disk ends a command with one line, loses nothing that was finished, and the same command then continues
exactly."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_trial
import pytest
import tinytrial
import torch
from light_study import Write, go, results
from safetensors import SafetensorError

from pipeline.run.layout import Layout, StudyFolder
from pipeline.training import checkpoint
from studies.faults import DiskFull, is_disk_full

STUDY = "question: q\nhypothesis: h\nrefuted_if: r\nprofile: smoke\nbaseline: base\nseeds: [0]\narms: {base: {}}\n"
FAULT = 4
KIB = 1024


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
