from __future__ import annotations

import unicodedata

import pytest

from pipeline.wording import LINE, brief, control_character, cut, printable, shown


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
