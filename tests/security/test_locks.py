"""Setup installs what was tested: every version of `constraints.txt`, by the SHA-256 sums in `locks/`, and none that is
older than the one that mended an advisory in SECURITY.md."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"^(?P<name>[^\s=\[]+)(?:\[[^]]+\])?==(?P<version>[^\s;]+)(?: ; (?P<marker>.+?))? \\$")
SUM = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")
HERE = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
    "python_version": "3.11",
    "python_full_version": "3.11.9",
}
"""The environment for which `constraints.txt` lists everything."""
NOT_ASKED = ("ray", "msgpack")
"""Packages of the extra `ray`, which neither `make study` nor `make test` installs."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def constraints() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def locked(name: str) -> dict[str, str]:
    """Versions that a list installs on Linux; each line must be an entry with at least one sum."""
    found: dict[str, str] = {}
    sums: dict[str, int] = {}
    entry = ""
    for line in (ROOT / "locks" / f"{name}.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        if match := ENTRY.match(line):
            entry = canonicalize_name(match["name"])
            sums[entry] = 0
            marker = match["marker"]
            if marker is None or Requirement(f"x ; {marker}").marker.evaluate(HERE):  # type: ignore[union-attr]
                found[entry] = match["version"]
        else:
            assert SUM.match(line), line
            sums[entry] += 1
    assert all(sums.values())
    return found


def test_the_lists_and_the_constraints_name_the_same_versions() -> None:
    run, dev, wanted = locked("run"), locked("dev"), constraints()
    assert not run.keys() & dev.keys()
    assert wanted.pop("torch")
    for name in NOT_ASKED:
        assert wanted.pop(name)
    assert run | dev == wanted, "make lock"


@pytest.mark.parametrize("extras", [(), ("dev", "bench", "ocr")])
def test_the_lists_hold_what_the_project_needs(extras: tuple[str, ...]) -> None:
    known = locked("run") | (locked("dev") if extras else {}) | {"torch": constraints()["torch"]}
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    wanted += [line for extra in extras for line in PROJECT["project"]["optional-dependencies"][extra]]
    for line in wanted:
        needed = Requirement(line)
        version = known.get(canonicalize_name(needed.name))
        assert version is not None, line
        assert needed.specifier.contains(version), (line, version)


ADVISORIES = re.findall(
    r"^\| (CVE-\d{4}-\d+) \| (\S+) \| (\S+) \| (\S+) \|$", (ROOT / "SECURITY.md").read_text("utf-8"), re.MULTILINE
)


def test_the_locked_versions_are_mended() -> None:
    assert {package for _, package, _, _ in ADVISORIES} >= {"transformers", "torch", "mlflow", "ray"}
    for advisory, package, mended, here in ADVISORIES:
        version = constraints()[canonicalize_name(package)]
        assert version == here, f"{advisory}: SECURITY.md says {here}, constraints.txt {version}"
        assert Version(version) >= Version(mended), advisory
