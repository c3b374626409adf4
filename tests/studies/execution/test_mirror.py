"""A copy of the outputs on another disk: complete, in an order that a cut cannot spoil, and no burden for the study."""

from __future__ import annotations

import errno
import shutil
import time
from pathlib import Path

import pytest
from helpers import Recorder, smoke

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from pipeline.training import checkpoint
from pipeline.trial import run_trial
from studies.execution import mirror as module
from studies.execution.mirror import INDEX, Mirror, mirrored


def write(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def tree(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and path.name != INDEX
    }


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "drive").mkdir()
    return tmp_path / "outputs", tmp_path / "drive"


def silent(message: str) -> None:
    raise AssertionError(message)


WHOLE = (
    "store/sft/ab/manifest.json",
    "store/sft/ab/model/w.safetensors",
    "studies/s/tiny/trials/a__seed0.json",
)
LEFT = (
    "mlflow.db",
    "store/sft/.locks/ab",
    "store/sft/.damaged/ab/x",
    "studies/s/tiny/optuna.db",
    "studies/s/tiny/.driver.lock",
    "studies/s/tiny/mlflow/a__seed0.json",
    "studies/s/tiny/jobs/a__seed0/job.json",
    "store/train/.partial/cd/checkpoints/.writing",
)


def test_a_study_may_be_called_as_a_folder_that_stays(places: tuple[Path, Path]) -> None:
    root, drive = places
    write(root, "studies/jobs/mlflow/study.json", "studies/jobs/mlflow/jobs/a__seed0/job.json")
    Mirror(root, drive, silent).save()
    assert tree(drive).keys() == {"studies/jobs/mlflow/study.json"}


def test_what_is_copied_comes_back_with_its_times_and_databases_and_locks_stay(places: tuple[Path, Path]) -> None:
    root, drive = places
    write(root, *WHOLE, *LEFT)
    assert Mirror(root, drive, silent).save() == 3
    assert tree(drive).keys() == set(WHOLE)
    times = {name: (root / name).stat().st_mtime_ns for name in WHOLE}
    shutil.rmtree(root)
    again = Mirror(root, drive, silent)
    assert again.restore() == 3
    assert tree(root) == tree(drive)
    assert {name: (root / name).stat().st_mtime_ns for name in WHOLE} == times, "by which the store knows weights"
    assert again.save() == 0


def test_times_come_from_the_index_where_the_drive_keeps_its_own(places: tuple[Path, Path]) -> None:
    root, drive = places
    write(root, *WHOLE)
    Mirror(root, drive, silent).save()
    time_here = (root / WHOLE[1]).stat().st_mtime_ns
    (drive / WHOLE[1]).touch()
    shutil.rmtree(root)
    Mirror(root, drive, silent).restore()
    assert (root / WHOLE[1]).stat().st_mtime_ns == time_here


def test_only_what_has_changed_is_copied_again_and_what_is_gone_goes(places: tuple[Path, Path]) -> None:
    root, drive = places
    write(root, *WHOLE)
    mirror = Mirror(root, drive, silent)
    mirror.save()
    write(root, WHOLE[2], text="longer")
    shutil.rmtree(root / "store")
    write(drive, "store/of/another/file", "photo.jpg")
    assert mirror.save() == 1
    assert tree(drive) == {WHOLE[2]: "longer", "store/of/another/file": "x", "photo.jpg": "x"}


def test_of_a_running_trial_the_newest_checkpoint_is_kept(places: tuple[Path, Path]) -> None:
    root, drive = places
    at = "store/train/.partial/cd"
    write(
        root, f"{at}/metrics.jsonl", f"{at}/checkpoints/update_00000001.a.pt", f"{at}/checkpoints/update_00000002.b.pt"
    )
    mirror = Mirror(root, drive, silent)
    mirror.save()
    assert tree(drive).keys() == {f"{at}/metrics.jsonl", f"{at}/checkpoints/update_00000002.b.pt"}
    write(root, f"{at}/checkpoints/update_00000003.c.pt")
    mirror.save()
    assert tree(drive).keys() == {f"{at}/metrics.jsonl", f"{at}/checkpoints/update_00000003.c.pt"}


def test_what_a_file_speaks_of_is_copied_before_it(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root, drive = places
    at, copied = "store/train/.partial/cd", list[str]()
    write(root, f"{at}/checkpoints/update_00000001.a.pt", f"{at}/metrics.jsonl", *WHOLE)
    plain = module._copy

    def noting(source: Path, target: Path, state: list[int]) -> None:
        copied.append(source.relative_to(root).as_posix())
        plain(source, target, state)

    monkeypatch.setattr(module, "_copy", noting)
    Mirror(root, drive, silent).save()
    assert copied.index(f"{at}/metrics.jsonl") < copied.index(f"{at}/checkpoints/update_00000001.a.pt")
    assert copied.index(WHOLE[1]) < copied.index(WHOLE[0]) < copied.index(WHOLE[2])


def test_a_stage_whose_copy_was_cut_is_not_taken_back(places: tuple[Path, Path]) -> None:
    root, drive = places
    write(drive, WHOLE[1], WHOLE[2])
    assert Mirror(root, drive, silent).restore() == 1
    assert tree(root).keys() == {WHOLE[2]}


def test_what_is_here_wins_and_stages_are_never_mixed(places: tuple[Path, Path]) -> None:
    root, drive = places
    at = "store/train/.partial/cd"
    write(drive, f"{at}/checkpoints/update_00000009.a.pt", f"{at}/metrics.jsonl", *WHOLE, text="there")
    write(root, f"{at}/metrics.jsonl", WHOLE[2], text="here")
    mirror = Mirror(root, drive, silent)
    mirror.restore()
    assert tree(root) == {f"{at}/metrics.jsonl": "here", WHOLE[2]: "here", WHOLE[0]: "there", WHOLE[1]: "there"}
    mirror.save()
    assert tree(drive) == tree(root)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": ["x", 2]}'])
def test_a_damaged_index_costs_one_more_copy(places: tuple[Path, Path], text: str) -> None:
    root, drive = places
    write(root, *WHOLE)
    Mirror(root, drive, silent).save()
    (drive / INDEX).write_text(text)
    again = Mirror(root, drive, silent)
    again.restore()
    assert again.save() == 3
    assert tree(drive) == tree(root)


def test_a_full_drive_is_told_once_and_tried_again(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root, drive = places
    write(root, *WHOLE)
    told = list[str]()

    def full(source: Path, target: Path) -> None:
        target.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    mirror = Mirror(root, drive, told.append)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        assert (mirror.save(), mirror.save()) == (0, 0)
    assert told == [f"the copy in {drive} is behind: No space left on device"]
    assert tree(drive) == {}
    assert mirror.save() == 3


def test_a_stage_whose_way_back_was_cut_is_no_loss(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not here is deleted from the copy, so a stage must never be here in part."""
    root, drive = places
    at = "store/train/.partial/cd"
    names = (*WHOLE, f"{at}/metrics.jsonl", f"{at}/checkpoints/update_00000001.a.pt")
    write(root, *names)
    Mirror(root, drive, silent).save()
    plain = module._copy
    for cut in range(len(names)):
        shutil.rmtree(root)
        left = [cut]

        def dying(source: Path, target: Path, state: list[int], left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            plain(source, target, state)

        with monkeypatch.context() as patched:
            patched.setattr(module, "_copy", dying)
            with pytest.raises(KeyboardInterrupt):
                Mirror(root, drive, silent).restore()
        again = Mirror(root, drive, silent)
        again.restore()
        again.save()
        assert tree(root).keys() == tree(drive).keys() == set(names), cut


def test_what_a_cut_copy_left_on_the_drive_is_removed(places: tuple[Path, Path]) -> None:
    root, drive = places
    write(root, *WHOLE)
    Mirror(root, drive, silent).save()
    at = "store/train/.partial/cd/checkpoints"
    write(drive, f"{at}/.update_00000001.a.pt.copying", f"{at}/.mine")
    Mirror(root, drive, silent).restore()
    assert tree(drive).keys() == {*WHOLE, f"{at}/.mine"}


def test_a_drive_with_room_for_one_checkpoint_gets_the_newest(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, drive = places
    first, second = (f"store/train/.partial/cd/checkpoints/update_0000000{at}.a.pt" for at in (1, 2))
    plain = shutil.copyfile

    def small(source: Path, target: Path) -> None:
        if any(drive.rglob("update_*.pt")):
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(source, target)

    write(root, first)
    mirror = Mirror(root, drive, silent)
    assert mirror.save() == 1
    write(root, second)
    monkeypatch.setattr(shutil, "copyfile", small)
    assert mirror.save() == 1
    assert tree(drive).keys() == {second}


def test_it_copies_while_the_study_runs_and_once_more_when_it_fails(places: tuple[Path, Path]) -> None:
    root, drive = places

    def study() -> None:
        with mirrored(root, drive, silent, every_s=0.01):
            write(root, WHOLE[2])
            for _ in range(500):
                if (drive / WHOLE[2]).exists():
                    break
                time.sleep(0.01)
            assert (drive / WHOLE[2]).exists()
            write(root, "studies/s/tiny/study.json")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study()
    assert tree(drive) == tree(root)


def test_no_folder_is_no_copy_and_one_within_the_outputs_is_refused(places: tuple[Path, Path]) -> None:
    root, _ = places
    with mirrored(root, None, silent):
        write(root, *WHOLE)
    link = root.parent / "link"
    link.symlink_to(root / "store")
    for inside in (root / "copy", root.parent, root, link, link / "copy"):
        with pytest.raises(UserError, match="must not lie within each other"), mirrored(root, inside, silent):
            pass


def test_a_folder_that_cannot_be_made_is_named(places: tuple[Path, Path]) -> None:
    root, drive = places
    drive.rmdir()
    drive.write_text("a file")
    with pytest.raises(UserError, match=f"--mirror {drive}: "), mirrored(root, drive, silent):
        pass


def test_a_drive_that_is_not_mounted_is_not_made_on_the_machines_own_disk(places: tuple[Path, Path]) -> None:
    root, drive = places
    drive.rmdir()
    write(root, *WHOLE)
    copy, told = drive / "ablate", list[str]()
    with pytest.raises(UserError, match=f"--mirror {copy}: No such file"), mirrored(root, copy, silent):
        pass
    drive.mkdir()
    mirror = Mirror(root, copy, told.append)
    mirror.restore()
    assert mirror.save() == len(WHOLE)
    shutil.rmtree(drive)
    write(root, "studies/s/tiny/study.json")
    assert (mirror.save(), drive.exists()) == (0, False)
    assert told == [f"the copy in {copy} is behind: the folder is no longer there"]


@pytest.mark.slow
def test_a_trial_goes_on_from_the_copy_of_its_newest_checkpoint(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, drive = places
    config = smoke(sft__steps=4, train__steps=32, evaluate__prompts=16, runtime__checkpoint_updates=1)
    plain, saved = checkpoint.save, list[int]()

    def saving(folder: Path, update: int, state: dict[str, object]) -> int:
        written = plain(folder, update, state)
        if root in folder.parents:
            saved.append(update)
            if len(saved) == 2:  # the session is cut here, as far as the copy knows
                Mirror(root, drive, silent).save()
        return written

    monkeypatch.setattr(checkpoint, "save", saving)
    whole = run_trial(config, Layout(root), Recorder())
    assert len(saved) > 2
    elsewhere = tmp_path / "elsewhere"
    assert Mirror(elsewhere, drive, silent).restore() > 10
    assert [path.name.split(".")[0] for path in elsewhere.rglob("update_*.pt")] == [f"update_{saved[1]:08d}"]
    resumed = run_trial(config, Layout(elsewhere), Recorder())
    assert {name: one.digest for name, one in resumed.artifacts.items()} == {
        name: one.digest for name, one in whole.artifacts.items()
    }
