from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from pipeline import named_files
from pipeline.errors import UserError
from pipeline.named_files import below, is_file, is_folder, leaves, place, require_file
from pipeline.wording import LINE, brief, control_character, cut, printable, shown

LONG = "a" * 300


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("content")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "endless").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("folder", "it is a folder, and a file is needed"),
        ("pipe", "it is a pipe, and a file is needed"),
        ("endless", "it is a device, and a file is needed"),
        ("dangling", "No such file or directory"),
        ("loop", "Too many levels of symbolic links"),
        (LONG, "File name too long"),
        ("a\x00b", "its name holds a null character"),
    ],
)
def test_what_is_no_file_is_refused_before_it_is_opened(odd: Path, name: str, why: str) -> None:
    with pytest.raises(UserError, match=f"^data.local.path: cannot be read: {why}"):
        require_file(odd / name, "data.local.path")
    assert not is_file(odd / name)
    assert is_folder(odd / name) == (name == "folder")


def test_files_have_a_limit(odd: Path) -> None:
    require_file(odd / "link", "x", most=7)
    with pytest.raises(UserError, match=r"^x: cannot be read: it has 7 bytes, and at most 6 are read"):
        require_file(odd / "link", "x", most=6)


def test_links_out_of_a_folder_are_known(odd: Path) -> None:
    found = {path.name: leaves(path, odd) for path in odd.iterdir()}
    assert found == {"file": False, "folder": False, "link": False, "pipe": False, "out": True, "dangling": True,
                     "loop": True, "endless": True}  # fmt: skip


def test_a_snapshot_of_the_hubs_cache_may_link_to_its_blobs_alone(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "datasets--imdb" / "snapshots" / "e6281661", tmp_path / "datasets--imdb" / "blobs"
    snapshot.mkdir(parents=True)
    (tmp_path / "other").write_text("x")
    (snapshot / "train.csv").symlink_to("../../blobs/2b3c")
    (snapshot / "test.csv").symlink_to("../../../other")
    assert leaves(snapshot / "train.csv", snapshot)
    blobs.mkdir()
    (blobs / "2b3c").write_text("x")
    assert not leaves(snapshot / "train.csv", snapshot)
    assert leaves(snapshot / "test.csv", snapshot)


def test_a_folder_with_too_much_below_it_is_refused(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [path.name for path in below(odd, "x")] == sorted(path.name for path in odd.iterdir())
    monkeypatch.setattr(named_files, "MOST_ENTRIES", 7)
    with pytest.raises(UserError, match=r"^x: more than 7 files lie below it"):
        below(odd, "x")


def test_a_home_that_nobody_has_is_refused() -> None:
    assert place("~/x") == Path.home() / "x"
    with pytest.raises(UserError, match="'~nobody_here/x': there is no user of this name"):
        place("~nobody_here/x")


@pytest.mark.parametrize(
    "character", [*map(chr, range(0x20)), "\x7f", "\x85", "\x9b", "\u202e", "\u2066", "\u2028", "\ud800"]
)
def test_what_a_terminal_obeys_is_escaped(character: str) -> None:
    text = printable(f"a{character}b")
    assert text == (f"a{character}b" if character in "\n\t" else f"a{ascii(character)[1:-1]}b")
    assert "\n" not in shown(f"a{character}b")
    assert (control_character(f"a{character}b") is None) == (character in "\n\t")


def test_no_control_character_of_unicode_is_left_out() -> None:
    steering = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cs", "Zl", "Zp")]
    assert all(control_character(one, allowed="") for one in steering)


def test_a_long_value_keeps_both_ends() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("a" * 500 + "z" * 500, 100) == "a" * 67 + " ... " + "z" * 28
    assert len(cut("a" * 1000, 100)) == 100


def test_a_message_has_five_lines_at_most() -> None:
    assert brief("\n".join("abcde")) == "\n".join("abcde")
    assert brief("\n".join("abcdef")) == "a\nb\nc\nd\nand 2 more"
    assert len(brief("x" * 10**6)) == LINE
