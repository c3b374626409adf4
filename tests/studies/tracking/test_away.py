"""A server that is away, hangs or fails: training and report do not wait, and what is said is short and safe."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow_servers import Proxy, free_port, proxy_to
from rich.console import Console

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.definition.schema import Study
from studies.execution import executors
from studies.execution.driver import run_study
from studies.tracking import study_runs
from studies.tracking.post import Post
from studies.tracking.study_runs import StudySinks
from studies.tracking.trial_run import public
from studies.tracking.ui import elsewhere, serve

VARIABLE = "MLFLOW_TRACKING_URI"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with proxy_to() as proxy:
        yield proxy


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def go(study: Study, layout: Layout, after: Callable[[], None] = lambda: None) -> str:
    text = io.StringIO()
    run_study(
        study,
        layout,
        None,
        {"train.steps": 64},
        executors.executor("inline"),
        1,
        Console(file=text, width=400),
        trials="fake_trial",
        after=lambda folder: after(),
    )
    return text.getvalue()


@pytest.mark.usefixtures("hurried")
def test_neither_training_nor_the_report_waits_for_an_answer(
    proxy: Proxy, write_study: Callable[..., Study], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers nothing before the report is drawn: whoever waited for it would wait for the whole minute."""
    drawn, outwaited = threading.Event(), list[bool]()

    def hang(method: str, path: str) -> int:
        outwaited.append(drawn.wait(60))
        return 500

    proxy.before = hang
    monkeypatch.setenv(VARIABLE, proxy.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "100")

    def draw() -> None:
        deadline = time.monotonic() + 60
        while not proxy.requests and time.monotonic() < deadline:  # of its thread, which may still import MLflow
            time.sleep(0.01)
        drawn.set()

    said = go(write_study(), layout, draw)
    assert outwaited
    assert all(outwaited)
    assert len(layout.study("small", "tiny").records()) == 4
    assert "`ablate sync` sends it later" in said


@pytest.mark.usefixtures("hurried")
def test_a_server_that_fails_is_told_once_without_the_password(
    proxy: Proxy, write_study: Callable[..., Study], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.before = lambda method, path: 500
    monkeypatch.setenv(VARIABLE, proxy.uri.replace("//", "//me:secret@"))
    said = go(write_study(), layout)
    assert 1 <= said.count("MLflow did not take") <= 2  # in the background, and by the last attempt
    assert "secret" not in said
    files = [path for path in layout.root.rglob("*") if path.is_file()]
    assert not [path for path in files if b"secret" in path.read_bytes()]


@pytest.mark.usefixtures("hurried")
def test_an_interruption_does_not_wait_for_a_server_that_hangs(
    proxy: Proxy, write_study: Callable[..., Study], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, said = threading.Event(), list[str]()
    proxy.before = lambda method, path: int(release.wait(60)) or 500
    monkeypatch.setenv(VARIABLE, proxy.uri)
    monkeypatch.setattr(study_runs, "PATIENCE_S", 0.3)
    layout.root.mkdir(parents=True)
    sinks = StudySinks(write_study(), "tiny", layout, layout.study("small", "tiny"), {}, said.append)
    sinks.open()
    began = time.monotonic()
    sinks.close("interrupted")
    took = time.monotonic() - began
    release.set()
    assert took < 30
    assert said == ["MLflow did not hear of the interruption; the next call, or `ablate sync`, goes on there"]


def test_actions_are_carried_out_in_order_whatever_they_raise() -> None:
    post, done, gate = Post(), list[object](), threading.Event()
    assert post.wait()
    post.put(lambda: (gate.wait(), done.append(threading.current_thread().name)))
    post.put(lambda: 1 / 0)
    post.put(lambda: done.append(2))
    assert not post.wait(0.01)
    assert done == []
    gate.set()
    assert post.wait()
    assert done == ["mlflow post", 2]


def test_what_has_not_begun_is_dropped() -> None:
    post, done, began, gate = Post(), list[int](), threading.Event(), threading.Event()
    post.put(lambda: (began.set(), gate.wait()))
    began.wait()
    post.put(lambda: done.append(1))
    post.drop()
    post.put(lambda: done.append(2))
    gate.set()
    assert post.wait()
    assert done == [2]
    post.end()


def test_addresses_lose_names_and_passwords() -> None:
    assert public("API request to https://me:a@b@host:1/x failed") == "API request to https://host:1/x failed"
    assert public("http://host:5000/a?x=me@there") == "http://host:5000/a?x=me@there"


@pytest.mark.usefixtures("hurried")
def test_the_ui_starts_no_server_beside_another(proxy: Proxy, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"http://me:secret@127.0.0.1:{free_port()}")
    with pytest.raises(UserError, match=r"server at http://127\S+ \(MLFLOW_TRACKING_URI\) does not answer") as told:
        serve(layout, 5000)
    assert "secret" not in str(told.value)
    assert not layout.root.exists()
    with pytest.raises(UserError, match="which is no server's address; serve it with: mlflow server"):
        elsewhere("postgresql://me:secret@host/db")


def test_a_folder_keeps_its_origin(write_study: Callable[..., Study], layout: Layout) -> None:
    study, folder = write_study(), layout.study("small", "tiny")
    first, second = (StudySinks(study, "tiny", layout, folder, {}, print)._origin() for _ in range(2))
    assert first == second
    Path(folder.path / "origin.txt").write_text("x' OR 1")
    assert StudySinks(study, "tiny", layout, folder, {}, print)._origin() not in (first, "x' OR 1")
