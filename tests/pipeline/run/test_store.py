from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers import flip_bit

from pipeline.errors import Damaged
from pipeline.run import store as artifacts
from pipeline.run.layout import StudyFolder, replacing, sealed, writable
from pipeline.run.metrics import MetricsLog, merged, to_parquet
from pipeline.run.store import MANIFEST, Store, inside


def fill(text: str = "hello") -> Any:
    def make(out: Path) -> dict[str, Any]:
        (out / "data.txt").write_text(text)
        (out / "log").mkdir(exist_ok=True)
        (out / "log" / "time.txt").write_text(str(time.perf_counter_ns()))
        return {"n": 1}

    return make


def test_an_artifact_is_built_once_and_found_again(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []

    def make(out: Path) -> dict[str, Any]:
        calls.append(out)
        return dict(fill()(out))

    first = store.build("sft", "k1", {"stage": "sft"}, make, resumable=False)
    second = store.build("sft", "k1", {"stage": "sft"}, make, resumable=False)
    assert len(calls) == 1
    assert (first.digest, first.meta, first.path) == (second.digest, {"n": 1}, tmp_path / "sft" / "k1")
    assert Store(tmp_path).find("sft", "k1") == first


def test_what_another_machine_has_just_published_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where this machine has cached that it was not there, as clients of NFS do until they open the folder."""
    store = Store(tmp_path)
    built = store.build("sft", "k1", {}, fill(), resumable=False)
    remembered = {built.path}
    exists, open_ = Path.exists, os.open

    def cached(path: Path, **options: Any) -> bool:
        return path not in remembered and exists(path, **options)

    def ask(path: Any, *arguments: Any, **options: Any) -> int:
        remembered.difference_update({one for one in remembered if one.parent == Path(path)})
        return open_(path, *arguments, **options)

    monkeypatch.setattr(Path, "exists", cached)
    monkeypatch.setattr(os, "open", ask)
    assert store.find("sft", "k1") == built
    assert store.find("sft", "k2") is None
    assert store.find("never", "k1") is None


def test_the_digest_depends_on_files_but_not_on_logs(tmp_path: Path) -> None:
    a = Store(tmp_path / "a").build("s", "k", {}, fill("x"), resumable=False)
    b = Store(tmp_path / "b").build("s", "k", {}, fill("x"), resumable=False)
    c = Store(tmp_path / "c").build("s", "k", {}, fill("y"), resumable=False)
    assert (a.path / "log" / "time.txt").read_text() != (b.path / "log" / "time.txt").read_text()
    assert a.digest == b.digest != c.digest


@pytest.mark.parametrize("harm", ["change", "remove", "add", "manifest", "manifest meta"])
def test_damage_is_reported_set_aside_and_rebuilt(tmp_path: Path, harm: str) -> None:
    path = Store(tmp_path).build("sft", "k", {}, fill(), resumable=False).path
    if harm == "change":
        (path / "data.txt").write_text("HELLO")
    elif harm == "remove":
        (path / "data.txt").unlink()
    elif harm == "add":
        (path / "more.txt").write_text("x")
    elif harm == "manifest":
        (path / MANIFEST).write_text("{")
    else:
        manifest = json.loads((path / MANIFEST).read_text())
        manifest["meta"]["n"] = 2
        (path / MANIFEST).write_text(json.dumps(manifest))
    told: list[str] = []
    store = Store(tmp_path, told.append)
    with pytest.raises(Damaged):
        store.find("sft", "k")
    assert path.is_dir()  # looking changes nothing
    assert store.build("sft", "k", {}, fill(), resumable=False).meta == {"n": 1}
    assert len(told) == 1
    assert "damaged" in told[0]
    assert (tmp_path / "sft" / ".damaged" / "k-1").is_dir()
    assert store.find("sft", "k") is not None


def with_weights(out: Path) -> dict[str, Any]:
    (out / "policy").mkdir()
    (out / "policy" / "model.safetensors").write_bytes(b"weights")
    return dict(fill()(out))


@pytest.mark.parametrize("harm", [False, True])
def test_an_artifact_that_is_built_again_keeps_the_time_of_the_first(tmp_path: Path, harm: bool) -> None:
    store = Store(tmp_path)
    first = store.build("sft", "k", {}, fill(), resumable=False)
    if harm:
        (first.path / "data.txt").write_text("y")
    again = store.build("sft", "k", {}, fill("z"), resumable=False, final=lambda artifact: False)
    assert again.digest != first.digest
    assert again.finished == first.finished
    assert store.build("sft", "other", {}, fill(), resumable=False).finished > first.finished  # type: ignore[operator]


def test_weights_that_nobody_reads_are_known_by_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    found = store.build("train", "k", {}, with_weights, resumable=False)
    weights, read = found.path / "policy" / "model.safetensors", []
    artifacts._file_digest.cache_clear()
    with monkeypatch.context() as watched:
        watched.setattr(
            artifacts, "file_digest", lambda path, digest=artifacts.file_digest: read.append(path.name) or digest(path)
        )
        assert store.find("train", "k", weights=False) == found
        assert "data.txt" in read
        assert weights.name not in read
        assert store.find("train", "k") == found
        assert weights.name in read

    state = weights.stat()
    flip_bit(weights)
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    artifacts._file_digest.cache_clear()  # as in another process
    assert store.find("train", "k", weights=False) == found
    with pytest.raises(Damaged, match=r"model\.safetensors"):
        store.find("train", "k")
    with pytest.raises(Damaged, match=r"model\.safetensors"):  # found by one who read them, it is no secret any more
        store.find("train", "k", weights=False)


def test_a_resumable_stage_finds_its_work_and_another_starts_clean(tmp_path: Path) -> None:
    def broken(out: Path) -> dict[str, Any]:
        (out / "half.txt").write_text("half")
        raise RuntimeError("boom")

    for resumable in (True, False):
        store = Store(tmp_path / str(resumable))
        with pytest.raises(RuntimeError, match="boom"):
            store.build("s", "k", {}, broken, resumable=resumable)
        assert store.find("s", "k") is None
        seen: list[bool] = []

        def again(out: Path, seen: list[bool] = seen) -> dict[str, Any]:
            seen.append((out / "half.txt").exists())
            return {}

        store.build("s", "k", {}, again, resumable=resumable)
        assert seen == [resumable]


def test_parallel_builders_build_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def slow(out: Path) -> dict[str, Any]:
        calls.append(1)
        time.sleep(0.2)
        return {}

    threads = [
        threading.Thread(target=lambda: Store(tmp_path).build("s", "k", {}, slow, resumable=False)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_a_kill_while_a_file_is_replaced_changes_no_digest(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from pipeline.run.store import Store
os.fsync = lambda file: os._exit(9)
Store(Path(sys.argv[1])).build("s", "k", {}, lambda out: {"n": 1}, resumable=True)
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    store, whole = Store(tmp_path), Store(tmp_path / "whole")
    assert list(store.partial("s", "k").glob(".manifest.json.*"))
    built, undisturbed = (one.build("s", "k", {}, fill(), resumable=True) for one in (store, whole))
    assert built.digest == undisturbed.digest


def test_a_kill_between_two_artifacts_brings_the_older_one_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.build("s", "k", {}, fill(), resumable=False)
    (tmp_path / "s" / ".replaced").mkdir()
    first.path.rename(tmp_path / "s" / ".replaced" / "k")
    assert store.build("s", "k", {}, pytest.fail, resumable=False) == first
    assert first.path.is_dir()


def test_only_the_output_root_itself_may_link_to_another_disk(tmp_path: Path) -> None:
    root, disk = tmp_path / "out", tmp_path / "disk"
    (disk / "train").mkdir(parents=True)
    root.mkdir()
    (root / "store").symlink_to(disk)
    (disk / "train" / "elsewhere").symlink_to("/etc")
    assert inside(root, "store/train/key") == root / "store" / "train" / "key"
    for name in ("", "/etc", "../out/store", "store/../../etc", "store/../studies", "store/train/elsewhere"):
        with pytest.raises(Damaged, match="leaves the output folder"):
            inside(root, name)


def test_files_are_private_and_old_folders_keep_their_mode(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(os.umask, os.umask(0)))  # a user whose files are readable by all
    (tmp_path / "shared").mkdir(mode=0o775)
    for folder, wanted in ((tmp_path / "above" / "out", 0o700), (tmp_path / "shared", 0o775)):
        writable(folder)
        assert folder.stat().st_mode & 0o777 == wanted
    with replacing(tmp_path / "record.json") as beside:
        assert beside.stat().st_mode & 0o777 == 0o600
        beside.write_text("{}")


RECORD: dict[str, Any] = {
    "study": "s", "profile": "tiny", "arm": "a", "seed": 0, "config": {}, "config_digest": "0", "status": "complete",
    "steps": 32, "stages": {}, "summary": {}, "cost": {}, "environment": {}, "finished": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (sealed({**RECORD, "mood": "good"}), "mood: Extra inputs are not permitted"),
        (json.dumps(RECORD), "checksum differs"),
        (None, "it is a pipe"),
    ],
)
def test_a_record_that_is_not_as_it_was_written_is_damaged(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "a.json"
    if text is None:
        os.mkfifo(path)  # is not opened: that would never end
    else:
        path.write_text(text)
    with pytest.raises(Damaged, match=words):
        StudyFolder(tmp_path, tmp_path).read(path)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_rows_are_canonical_lines_with_exact_floats(log: Path) -> None:
    with MetricsLog(log) as metrics:
        metrics.append(16, {"policy/entropy": 0.1 + 0.2, "objective/kl": np.float32(0.1)})
        assert metrics.offset > 0
    row = json.loads(log.read_text())
    assert row == {"step": 16, "policy/entropy": 0.1 + 0.2, "objective/kl": float(np.float32(0.1))}
    assert list(row) == sorted(row)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_refused_and_leave_no_trace(log: Path, value: float) -> None:
    with MetricsLog(log) as metrics:
        with pytest.raises(ValueError, match=r"not finite at step 3: objective/kl"):
            metrics.append(3, {"objective/kl": value, "objective/gold": 1.0})
        assert metrics.offset == 0
    assert log.read_bytes() == b""


def test_resume_cuts_what_the_checkpoint_does_not_know(log: Path) -> None:
    with MetricsLog(log) as metrics:
        metrics.append(1, {"objective/kl": 1.0})
        offset = metrics.offset
        metrics.append(2, {"objective/kl": 2.0})
    uninterrupted = log.read_bytes()
    with log.open("ab") as file:
        file.write(b'{"step": 3, "objec')
    with MetricsLog(log, offset) as metrics:
        assert metrics.offset == offset
        assert [*merged(log)] == [1]
        metrics.append(2, {"objective/kl": 2.0})
    assert log.read_bytes() == uninterrupted


def test_resume_refuses_another_file(log: Path) -> None:
    with MetricsLog(log) as metrics:
        metrics.append(1, {"objective/kl": 1.0})
        offset = metrics.offset
    for wrong in (offset + 1, offset - 1):
        with pytest.raises(ValueError, match="the checkpoint is of another file"):
            MetricsLog(log, wrong)
    assert log.stat().st_size == offset
    MetricsLog(log, 0).close()
    assert log.stat().st_size == 0
    with pytest.raises(ValueError, match="another file"):
        MetricsLog(log, 5)


def test_reading_leaves_out_half_a_line_and_names_a_damaged_one(log: Path) -> None:
    log.write_text('{"step":1,"objective/kl":1.0}\n{"step":2,"obj')
    assert merged(log) == {1: {"objective/kl": 1.0}}
    log.write_text('{"step":1,"objective/kl":1.0}\nnonsense\n')
    with pytest.raises(ValueError, match="line 2: not a row"):
        merged(log)
    log.write_text("")
    assert merged(log) == {}


def test_parquet_is_merged_by_step(log: Path, tmp_path: Path) -> None:
    with MetricsLog(log) as metrics:
        metrics.append(16, {"policy/entropy": 1.0})
        metrics.append(16, {"objective/kl": 2.0})
        metrics.append(0, {"objective/kl": 0.0})
        metrics.append(16, {"objective/kl": 3.0})
    assert merged(log) == {0: {"objective/kl": 0.0}, 16: {"policy/entropy": 1.0, "objective/kl": 3.0}}
    to_parquet(log, tmp_path / "m.parquet")
    frame = pd.read_parquet(tmp_path / "m.parquet")
    assert list(frame.columns) == ["step", "objective/kl", "policy/entropy"]
    assert [str(kind) for kind in frame.dtypes] == ["int64", "float64", "float64"]
    assert frame["step"].tolist() == [0, 16]
    assert frame["objective/kl"].tolist() == [0.0, 3.0]
    assert math.isnan(frame["policy/entropy"][0])
    assert pq.read_table(tmp_path / "m.parquet")["policy/entropy"].null_count == 0
