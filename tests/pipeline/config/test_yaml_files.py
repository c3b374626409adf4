from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.config.loading import parse_set
from pipeline.config.yaml_files import MOST_BYTES, PlainDumper, line_of, read_value, read_yaml
from pipeline.errors import UserError


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("b: 1\na: &a [x]\nc: [*a, *a]", ", line 2: anchors and aliases ('a') are not read"),
        ("a: " + "[" * 3_000, ": not valid YAML: "),
        ("a: 1\nb: !!int 'x'", ", line 2: the tag '!!int' is not read; leave it out"),
        ("a: !!python/object/apply:os.system [id]", ", line 1: the tag '!!python/object/apply:os.system' is not read"),
        ("a: 0x" + "f" * 4_000, ", line 1: 0xfff"),
        ("a: 9223372036854775808", ", line 1: 9223372036854775808 is beyond 64 bits"),
        ('a: "\\e[31m"', r", line 1: '\x1b[31m' holds the control character \x1b"),
        ('"\\a": 1', r", line 1: '\x07' holds the control character \x07"),
        ('a: "\\U99999999"', ": not valid YAML: Python int too large"),
        ("null: 1", ", line 1: a key must be a text or a number"),
        ("? [a]\n: 1", ", line 1: a key must be a text or a number"),
        ("a: 1\na: 2", ", line 2: not valid YAML: key 'a' is written twice"),
        ("a: 1".encode("utf-16"), ": not valid YAML: "),
        ("a:\n\tb: 1\n", ", line 2: not valid YAML: found character '\\t' that cannot start any token"),
        ("a: what: why\n", ", line 1: not valid YAML: mapping values are not allowed here"),
        ("# nothing yet\n", ": the file is empty"),
        ("- 1\n", ": must be a mapping"),
        ("#" * (MOST_BYTES + 1), ": cannot be read: it has 1,048,577 bytes, and at most 1,048,576 are read"),
    ],
)  # fmt: skip
def test_yaml_that_is_not_plain_is_refused_at_its_line(tmp_path: Path, content: str | bytes, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as refused:
        read_yaml(path)
    assert line_of(path, ("a", 0)) in (None, 1)
    assert str(refused.value).removeprefix(str(path)).startswith(says)


def test_plain_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("\ufeffdate: 2026-02-30\nis: =\ntext: !!str 5\nlast: 9223372036854775807\nlines: |\n  a\n  b\n")
    assert read_yaml(path) == {"date": "2026-02-30", "is": "=", "text": "5", "last": 2**63 - 1, "lines": "a\nb\n"}


def test_settings_have_the_same_limits() -> None:
    assert read_value("[1, 0.5, null, 2026-01-01]") == [1, 0.5, None, "2026-01-01"]
    for value, says in {"!!int x": "the tag '!!int' is not read", "{": "is not a YAML value"}.items():
        with pytest.raises(UserError, match=says):
            parse_set([f"kl.beta={value}"])
    with pytest.raises(UserError) as refused:
        parse_set(["\x1b]0;title\x07"])
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", ["1e-5", "1E5", "-2.5e3", ".5e3"])
def test_a_plain_number_with_an_exponent_is_a_number_and_a_quoted_one_a_text(text: str) -> None:
    assert read_value(text) == float(text)
    assert read_value(f"'{text}'") == text
    assert read_value(yaml.dump([text], Dumper=PlainDumper)) == [text]
    assert read_value(f"{{{text}: 0}}") == {text: 0}, "an arm's name is a text"


@pytest.mark.parametrize("text", ["e5", "1e", "1e-5x", "12345678901234567890e12345678901234567890"])
def test_what_only_resembles_one_is_a_text(text: str) -> None:
    assert read_value(text) == text
