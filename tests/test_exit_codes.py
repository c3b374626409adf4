from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import ablate
from pipeline.errors import BROKEN_PIPE, FAULT, USER_ERROR, Damaged, UserError
from studies.claims.falsifiers import EXIT_CODES


def ended(error: BaseException, out: Path) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    def command(out: str) -> None:
        raise error

    app.command()(ablate.guarded(command))
    return CliRunner().invoke(app, [str(out)])


def test_no_fault_has_the_code_of_a_verdict() -> None:
    assert not {FAULT, USER_ERROR, BROKEN_PIPE} & set(EXIT_CODES.values())


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UserError("optimiser.lr is too large"), USER_ERROR, "optimiser.lr is too large"),
        (Damaged(Path("/x/study.json"), "it is not JSON"), FAULT, "/x/study.json is damaged: it is not JSON"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x/gone"), FAULT, "'/x/gone'"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), FAULT, "invalid start byte"),
        (RuntimeError("first line\nsecond line"), FAULT, "RuntimeError: first line; details: "),
        (EOFError(), FAULT, "EOFError; details: "),
        (RecursionError("too deep"), FAULT, "too deep"),
    ],
)
def test_an_exception_ends_as_one_line(tmp_path: Path, error: Exception, code: int, says: str) -> None:
    done = ended(error, tmp_path)
    assert done.exit_code == code
    (line,) = done.stderr.splitlines()
    assert line.startswith("ablate: ")
    assert says in line
    assert done.stdout == ""


def test_the_traceback_of_the_unexpected_lies_in_a_private_log_under_the_output_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [ended(RuntimeError("boom"), tmp_path).stderr for _ in range(2)]
    logs = [Path(text.partition("details: ")[2].strip()) for text in texts]
    for log in logs:
        assert log.parent == tmp_path / "log"
        assert "raise error" in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o600
    assert sum(a != b for a, b in zip(logs[0].stem, logs[1].stem, strict=True)) > 2, "more than the time differs"
    assert "Traceback" not in texts[0]
    monkeypatch.setenv("ABLATE_TRACEBACK", "1")
    assert "Traceback" in ended(RuntimeError("boom"), tmp_path).stderr


def test_an_output_root_that_takes_no_log_does_not_hide_the_fault(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file stands in the way")
    done = ended(RuntimeError("boom"), tmp_path)
    assert done.exit_code == FAULT
    assert "RuntimeError: boom; set ABLATE_TRACEBACK=1" in done.stderr


@pytest.mark.parametrize("write", ["print", "rich"])
def test_a_closed_pipe_is_no_verdict(monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    from studies.console.cli import terminal

    reading, writing = os.pipe()
    os.close(reading)

    def command() -> None:
        say: Callable[[str], None] = print if write == "print" else terminal().print
        say("SURVIVED")

    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(SystemExit) as ended:
            ablate.guarded(command)()
    assert ended.value.code == BROKEN_PIPE
