"""Setup installs what was tested: every version of `constraints.txt`, by the SHA-256 sums in `locks/`, and none that is
older than the one that mended an advisory in SECURITY.md."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
HERE = {
    "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
    "platform_python_implementation": "CPython", "implementation_name": "cpython", "python_version": "3.11",
    "python_full_version": "3.11.9",
}  # fmt: skip
"""The environment for which `constraints.txt` lists everything."""
NOT_LOCKED = ("torch", "ray", "msgpack")
"""Torch differs with the machine; the others belong to the extra `ray`, which no target installs."""
ADVISORY = re.compile(r"^\| (CVE-\d{4}-\d+) \| (\S+) \| (\S+) \| (\S+) \|$", re.MULTILINE)


def versions(path: str) -> dict[str, str]:
    """Versions that a list installs on Linux; in a lock, each entry must have a SHA-256 sum."""
    found = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / path).read_text("utf-8")):
        line, *sums = entry.replace(" \\", "").strip().split("\n")
        if not line.startswith("#"):
            assert path == "constraints.txt" or sums
            assert all(re.fullmatch(r" *--hash=sha256:[0-9a-f]{64}", one) for one in sums), entry
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate(HERE):
                found[canonicalize_name(one.name)] = str(one.specifier).removeprefix("==")
    return found


CONSTRAINTS, RUN, DEV = (versions(path) for path in ("constraints.txt", "locks/run.txt", "locks/dev.txt"))


def test_the_lists_and_the_constraints_name_the_same_versions() -> None:
    assert not RUN.keys() & DEV.keys()
    assert {name: one for name, one in CONSTRAINTS.items() if name not in NOT_LOCKED} == RUN | DEV, "make lock"


def test_the_lists_hold_what_the_project_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras, torch = project["project"]["optional-dependencies"], {"torch": CONSTRAINTS["torch"]}
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    more = [line for extra in ("dev", "bench", "ocr") for line in extras[extra]]
    for lines, known in ((needed, RUN | torch), (more, RUN | DEV | torch)):
        for one in map(Requirement, lines):
            assert one.specifier.contains(known[canonicalize_name(one.name)]), one


def test_the_locked_versions_are_mended() -> None:
    advisories = ADVISORY.findall((ROOT / "SECURITY.md").read_text("utf-8"))
    assert {package for _, package, _, _ in advisories} >= {"transformers", "torch", "mlflow", "ray"}
    for advisory, package, mended, here in advisories:
        assert CONSTRAINTS[canonicalize_name(package)] == here, f"{advisory}: SECURITY.md names {here}"
        assert Version(here) >= Version(mended), advisory
