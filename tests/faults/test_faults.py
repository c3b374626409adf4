"""Each fault a few times, and that a loss is seen where there is one."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faults.kinds import FAULTS
from faults.run import Whole, _unexplained, run, whole
from faults.scene import Ending, copied, identity, series_differ
from ray_nodes import TooBusy

pytestmark = pytest.mark.slow
TIMES = 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("faults")
    yield whole(folder)
    shutil.rmtree(folder)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost(name: str, undisturbed: Whole) -> None:
    if why := FAULTS[name].lacks():
        pytest.skip(why)
    try:
        came = [run(name, number, 1, undisturbed) for number in range(TIMES)]
    except TooBusy as busy:
        pytest.skip(str(busy))
    assert [one.lost for one in came] == [""] * TIMES, [(one.lost, one.told) for one in came]


@pytest.mark.timeout(900)
def test_a_loss_is_seen(undisturbed: Whole) -> None:
    other = replace(undisturbed, identity=undisturbed.identity | {"weak__seed0.json": "0"})
    assert "weak__seed0.json" in run("command killed", 0, 1, other).lost


def test_what_is_compared_is_all_that_counts(undisturbed: Whole, tmp_path: Path) -> None:
    root = copied(undisturbed.folder.parent / "whole" / "out", tmp_path / "out")
    assert identity(root) == undisturbed.identity
    model = next(root.glob("store/train/*/policy/model.safetensors"))
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    (record,) = root.glob("studies/small/smoke/trials/none*.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"steps": 191}))
    differing = {name for name, digest in identity(root).items() if undisturbed.identity[name] != digest}
    assert differing == {model.relative_to(root).as_posix(), record.name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "delete from metrics where rowid = (select max(rowid) from metrics where key = 'policy/lr')",
            "1 records missing",
        ),
        (
            "insert into metrics select key, value, timestamp + 1, run_uuid, step, is_nan from metrics"
            " where key = 'policy/lr' limit 1",
            "1 too many",
        ),
        ("update runs set lifecycle_stage = 'deleted'", "0 runs"),
    ],
)
def test_a_record_that_is_missing_or_double_in_mlflow_is_seen(
    change: str, said: str, undisturbed: Whole, tmp_path: Path
) -> None:
    root = copied(undisturbed.folder.parent / "whole" / "out", tmp_path / "out")
    assert not list(series_differ(root))
    with sqlite3.connect(root / "mlflow.db") as database:
        database.execute(change)
    assert any(said in one for one in series_differ(root))


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        (Ending(0, ""), ""),
        (Ending(-11, "odd"), "exit code -11: odd"),
        (Ending(4, "ablate: the disk is full"), ""),
        (Ending(-9, ""), ""),
        (Ending(None, "working"), "it hung: working"),
        (Ending(1, "odd"), "exit code 1: odd"),
        (Ending(4, "Traceback (most recent call last)\nKeyError"), "a traceback: KeyError"),
    ],
)
def test_an_end_without_a_word_is_a_loss(ending: Ending, why: str) -> None:
    assert _unexplained(ending) == why
    assert _unexplained(ending, crash=True) == ("" if ending.code == -11 else why)
