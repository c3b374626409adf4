"""No locked version is older than the one that mended an advisory in SECURITY.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

HOME = Path(__file__).parents[2]
ROW = re.compile(r"^\| (CVE-\d{4}-\d+) \| (\S+) \| (\S+) \| (\S+) \|$", re.MULTILINE)
ADVISORIES = ROW.findall((HOME / "SECURITY.md").read_text("utf-8"))
PINS = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(
        r"^([\w.-]+)==([^\s;]+)", (HOME / "constraints.txt").read_text("utf-8"), re.MULTILINE
    )
}


def test_the_table_is_read() -> None:
    assert len(ADVISORIES) >= 13
    assert {package for _, package, _, _ in ADVISORIES} >= {"transformers", "torch", "mlflow", "ray"}


@pytest.mark.parametrize(("advisory", "package", "mended", "here"), ADVISORIES)
def test_the_locked_version_is_mended(advisory: str, package: str, mended: str, here: str) -> None:
    locked = PINS[canonicalize_name(package)]
    assert locked == Version(here), f"{advisory}: SECURITY.md says {here}, constraints.txt {locked}"
    assert locked >= Version(mended), advisory
