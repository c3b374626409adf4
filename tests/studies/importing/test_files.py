"""Which file is which trial, and what a file says: every form there is, and every way to get it wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from trl_logs import rows, write

from pipeline.errors import UserError
from studies.importing.files import LogFile, find_files
from studies.importing.logs import find_logs
from studies.importing.mapping import MappingFile
from studies.importing.rows import read_log


def find_sources(folder: Path, pattern: str | None = None) -> list[LogFile]:
    return find_files(folder, pattern)[0]


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        write(folder / name, rows(updates=1), state=name.endswith("trainer_state.json"))
    return folder


@pytest.mark.parametrize(
    ("name", "arm", "seed"),
    [
        ("beta_0.05/seed_3.jsonl", "beta_0.05", 3),
        ("beta_0.05-seed3.csv", "beta_0.05", 3),
        ("beta_0.05_seed=3.json", "beta_0.05", 3),
        ("beta_0.05.SEED-03.json", "beta_0.05", 3),
        ("seed_3/beta_0.05.jsonl", "beta_0.05", 3),
        ("beta_0.05/3.csv", "beta_0.05", 3),
        ("kl/beta_0.05/seed3.csv", "kl-beta_0.05", 3),
        ("seed3.csv", "runs", 3),
        ("beta_0.05/seed_3/trainer_state.json", "beta_0.05", 3),
        ("beta_0.05-seed3/checkpoint-500/trainer_state.json", "beta_0.05", 3),
    ],
)
def test_arm_and_seed_stand_in_the_path(tmp_path: Path, name: str, arm: str, seed: int) -> None:
    (source,) = find_sources(touch(tmp_path / "runs", name))
    assert (source.trial, source.name) == ((arm, seed), name)


def test_order_is_that_of_people(tmp_path: Path) -> None:
    found = find_sources(
        touch(tmp_path, "a10-seed0.csv", "a2-seed10.csv", "a2-seed9.csv", "b0.2-seed0.csv", "b0.05-seed0.csv")
    )
    assert [one.trial for one in found] == [("a2", 9), ("a2", 10), ("a10", 0), ("b0.05", 0), ("b0.2", 0)]


def test_a_trainers_folder_is_one_trial_of_its_newest_state(tmp_path: Path) -> None:
    run = "beta/seed_0"
    touch(
        tmp_path,
        f"{run}/checkpoint-90/trainer_state.json",
        f"{run}/checkpoint-500/trainer_state.json",
        f"{run}/config.json",
    )
    assert [one.name for one in find_sources(tmp_path)] == [f"{run}/checkpoint-500/trainer_state.json"]
    touch(tmp_path, f"{run}/trainer_state.json")
    assert [one.name for one in find_sources(tmp_path)] == [f"{run}/trainer_state.json"]


def test_hidden_and_other_files_are_no_logs(tmp_path: Path) -> None:
    touch(tmp_path, "a-seed0.csv", ".cache/b-seed0.csv", ".c-seed0.csv")
    (tmp_path / "weights-seed0.pkl").write_bytes(b"\x80\x04.")
    assert [one.trial for one in find_sources(tmp_path)] == [("a", 0)]


def test_pattern_replaces_the_rule(tmp_path: Path) -> None:
    touch(tmp_path, "run3/beta 0.05/log.csv".replace(" ", "_"))
    (source,) = find_sources(tmp_path, "run{seed}/{arm}/log")
    assert source.trial == ("beta_0.05", 3)
    with pytest.raises(UserError, match=r"does not fit the mapping's pattern 'x\{seed\}/\{arm\}'"):
        find_logs(tmp_path, MappingFile(files="x{seed}/{arm}"))
    with pytest.raises(UserError, match=r"must hold \{arm\} and \{seed\} once each"):
        find_sources(tmp_path, "run{seed}")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("log.csv",), "'log.csv' tells no arm and seed; name it ARM/seed_N"),
        (("a-seed1.csv", "a/seed_1.jsonl"), "'a/seed_1.jsonl' and 'a-seed1.csv' are both arm 'a' seed 1"),
        (("a-seed1.csv", "A-seed2.csv"), "the arms 'A' and 'a' differ only in case"),
        (("a b-seed1.csv",), "'a b-seed1.csv': arm: the name 'a b' cannot be used"),
        (("-x-seed1.csv",), "arm: the name '-x' cannot be used"),
    ],
)
def test_names_that_tell_too_little_or_too_much(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        find_logs(touch(tmp_path, *names), MappingFile())
    assert "\n" not in str(caught.value)


def test_nothing_to_import(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no \.jsonl, \.json, \.csv, \.parquet file in it"):
        find_sources(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        find_sources(tmp_path / "none")


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    outside = write(tmp_path / "secret.csv", rows(updates=1))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a-seed0.csv").symlink_to(outside)
    with pytest.raises(UserError, match=r"'a-seed0\.csv' is a link that leaves the folder"):
        find_sources(tmp_path / "in")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "trainer_state.json"])
def test_every_form_says_the_same(tmp_path: Path, name: str) -> None:
    made = rows(updates=3)
    read, cut = read_log(write(tmp_path / name, made, state=name.startswith("trainer")))
    assert cut is None
    assert [{key: float(value) for key, value in row.values.items()} for row in read] == made


def test_rows_know_their_lines(tmp_path: Path) -> None:
    listed = tmp_path / "a.json"
    listed.write_text('[\n {"step": 1},\n\n {"step": 2, "x":\n 3},\n {"step": 3}\n]')
    assert [row.line for row in read_log(listed)[0]] == [2, 4, 6]
    state = tmp_path / "trainer_state.json"
    state.write_text('{"a": {"log_history": 1},\n "log_history":\n [{"step": 1},\n {"step": 2}], "z": 0}')
    assert [row.line for row in read_log(state)[0]] == [3, 4]
    lines = tmp_path / "a.jsonl"
    lines.write_text('\n{"step": 1}\n\n{"step": 2}\n')
    assert [row.line for row in read_log(lines)[0]] == [2, 4]
    table = tmp_path / "a.csv"
    table.write_text('step,note\n1,"two\nlines"\n2,\n')
    assert [(row.line, row.values) for row in read_log(table)[0]] == [
        (3, {"step": "1", "note": "two\nlines"}),
        (4, {"step": "2"}),
    ]


def test_an_unfinished_last_line_is_told_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "obj')
    read, cut = read_log(path)
    assert [row.values["step"] for row in read] == [1, 2]
    assert cut == 3


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"step": 1}\nnonsense\n{"step": 2}\n', "line 2: not JSON"),
        ("a.jsonl", '{"step": 1}\n[1]\n', "line 2: a mapping of names to numbers is expected, this is a list"),
        ("a.jsonl", '{"step": 1, "step": 2}\n', "line 1: not JSON .the name 'step' stands twice"),
        ("a.jsonl", "\n", "holds no row"),
        ("a.json", "[]", "holds no row"),
        ("a.json", '[{"step": 1}\n {"step": 2}]', "line 2: not JSON .',' or ']' expected"),
        ("a.json", '[{"step": 1},\n', "line 2: not JSON"),
        ("a.json", '{"step": [1, 2]}', "a mapping without 'log_history'"),
        ("a.json", "17", "a list of mappings"),
        ("a.json", '[{"step": 1},\n 5]', "line 2: a mapping of names to numbers is expected, this is a int"),
        ("a.json", '[{"a":' * 20_000, "nested too deeply"),
        ("a.csv", "step,step\n1,2\n", "line 1: the column 'step' stands twice"),
        ("a.csv", "step,x\n1,2,3\n", "line 2: 3 cells under 2 column names"),
        ("a.csv", 'step,x\n1,"2\n', "not CSV"),
        ("a.csv", "step,x\n", "holds no row"),
        ("a.jsonl", "\udcff", "not a text in UTF-8 .byte 0"),
    ],
)
def test_damage_is_one_line_with_its_place(tmp_path: Path, name: str, content: str, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=words) as caught:
        read_log(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_log(tmp_path / "a.csv")
