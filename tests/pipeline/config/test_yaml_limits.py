from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.config.loading import parse_set
from pipeline.config.yaml_files import line_of, read_value, read_yaml
from pipeline.config.yaml_limits import LONGEST_KEY, LONGEST_TEXT, MOST_BYTES, MOST_ENTRIES, MOST_LEVELS, PlainDumper
from pipeline.errors import UserError

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


def refusal(tmp_path: Path, content: str | bytes) -> str:
    """What is said of a file, behind its path."""
    path = tmp_path / "x.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as refused:
        read_yaml(path)
    assert line_of(path, ("a", 0)) in (None, 1)
    return str(refused.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (BOMB, ", line 5: more than 20,000 keys and values, those behind aliases counted"),
        ("a: &a [*a]", ", line 1: the alias '*a' is part of itself"),
        ("a: &a {b: {c: *a}}", ", line 1: the alias '*a' is part of itself"),
        ("a: *b", ", line 1: not valid YAML: found undefined alias"),
        ("a: " + "[" * 3_000, f", line 1: nested too deeply: more than {MOST_LEVELS} levels"),
        ("a:\n  " + "- " * 3_000, f", line 2: nested too deeply: more than {MOST_LEVELS} levels"),
        ("a: " + "{b: " * 3_000, f", line 1: nested too deeply: more than {MOST_LEVELS} levels"),
        ("".join(f"k{n}: 1\n" for n in range(20_000)), ", line 10000: more than 20,000 keys and values"),
        ("a: [" + "1, " * 20_000 + "1]", ", line 1: more than 20,000 keys and values"),
        ("a: 1\nb: !!int 'x'", ", line 2: the tag '!!int' is not read; leave it out"),
        ("a: !!timestamp x", ", line 1: the tag '!!timestamp' is not read"),
        ("a: !!float abc", ", line 1: the tag '!!float' is not read"),
        ("a: !!set {b}", ", line 1: the tag '!!set' is not read"),
        ("a: !own x", ", line 1: the tag '!own' is not read"),
        ("a: !!python/object/apply:os.system [id]", ", line 1: the tag '!!python/object/apply:os.system' is not read"),
        ("a: " + "9" * 5_000, ", line 1: '999"),
        ("a: 9223372036854775808", ", line 1: 9223372036854775808 is beyond 64 bits"),
        ("a: 0x" + "f" * 4_000, ", line 1: 0xfff"),
        ("a: 0b", None),
        ('a: "\\e[31m"', r", line 1: '\x1b[31m' holds the control character \x1b"),
        ('a: "\\ud800"', r", line 1: '\ud800' holds the control character \ud800"),
        ('"\\a": 1', r", line 1: '\x07' holds the control character \x07"),
        ('a: "\\u202e"', r", line 1: '\u202e' holds the control character \u202e"),
        ('a: "\\U99999999"', ": not valid YAML: Python int too large"),
        ("a: " + "x" * (LONGEST_TEXT + 1), ", line 1: a text of 20,001 characters; at most 20,000 are read"),
        ("? " + "k" * (LONGEST_KEY + 1) + "\n: 1", ", line 1: the key 'kkk"),
        ("null: 1", ", line 1: a key must be a text or a number"),
        ("? [a]\n: 1", ", line 1: a key must be a text or a number"),
        ("a: 1\na: 2", ", line 2: not valid YAML: key 'a' is written twice"),
        ("1: 1\n1.0: 2", ", line 2: not valid YAML: key '1.0' is written twice"),
        ("a: 1".encode("utf-16"), ": not valid YAML: "),
        ("a: \x00", ": not valid YAML: unacceptable character"),
        ("#" * (MOST_BYTES + 1), ": cannot be read: it has 1 MiB, and at most 1 MiB are read"),
    ],
)  # fmt: skip
def test_yaml_beyond_the_limits_is_refused_at_its_line(tmp_path: Path, content: str | bytes, says: str | None) -> None:
    if says is None:
        path = tmp_path / "x.yaml"
        path.write_text(str(content))
        assert read_yaml(path) == {"a": "0b"}
    else:
        assert refusal(tmp_path, content).startswith(says)


def test_yaml_within_the_limits_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    levels = MOST_LEVELS - 1
    entries = (MOST_ENTRIES - 2 * levels - 40) // 2
    path.write_text(
        f"\ufeffdeep: {'[' * (levels - 1)}1{']' * (levels - 1)}\n"
        f"many: [{'1, ' * entries}1]\nalso: &a [1, 2]\nagain: *a\n"
        f"date: 2026-02-30\nis: =\ntext: !!str 5\nlast: 9223372036854775807\n"
        f"long: {'x' * LONGEST_TEXT}\nlines: |\n  a\n  b\n"
    )
    found = read_yaml(path)
    assert found["also"] == found["again"] == [1, 2]
    assert (found["date"], found["is"], found["text"], found["last"]) == ("2026-02-30", "=", "5", 2**63 - 1)
    assert found["lines"] == "a\nb\n"


def test_settings_have_the_same_limits() -> None:
    assert read_value("[1, 0.5, null, 2026-01-01]") == [1, 0.5, None, "2026-01-01"]
    refused_values = {
        "!!int x": "the tag '!!int' is not read",
        "[" * 3_000: "nested too deeply",
        "{": "is not a YAML value",
    }
    for value, says in refused_values.items():
        with pytest.raises(UserError, match=says):
            parse_set([f"kl.beta={value}"])
    with pytest.raises(UserError) as refused:
        parse_set(["\x1b]0;title\x07"])
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", ["1e-5", "1E5", "-2.5e3", "+1e3", ".5e3", "5.e-1"])
def test_a_plain_number_with_an_exponent_is_a_number_and_a_quoted_one_a_text(text: str) -> None:
    assert read_value(text) == float(text)
    assert read_value(f"'{text}'") == text
    assert read_value(yaml.dump([text], Dumper=PlainDumper)) == [text]
    assert read_value(f"{{{text}: 0}}") == {text: 0}, "an arm's name is a text"


@pytest.mark.parametrize("text", ["e5", "1e", "1e-5x", "12345678901234567890e12345678901234567890", "beta_1e5"])
def test_what_only_resembles_one_is_a_text(text: str) -> None:
    assert read_value(text) == text
