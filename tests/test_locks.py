from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LINUX = {
    "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
    "python_version": "3.11", "python_full_version": "3.11.9",
}  # fmt: skip
"""The environment for which constraints.txt lists everything."""
NOT_LOCKED = ("torch", "ray", "msgpack")
"""Torch differs with the machine; the others belong to the extra `ray`, which no target installs."""


def versions(path: str) -> dict[str, str]:
    """Versions that a list installs on Linux; in a lock, each entry must have a SHA-256 sum."""
    sums, found = r"(\n +--hash=sha256:[0-9a-f]{64})", {}
    for entry in re.split(r"\n(?=\S)", (ROOT / path).read_text("utf-8").replace(" \\\n", "\n").rstrip()):
        assert re.fullmatch(f"#.*|.+{sums}{'{0}' if path == 'constraints.txt' else '+'}", entry), entry
        one = None if entry.startswith("#") else Requirement(entry.partition("\n")[0])
        if one and (one.marker is None or one.marker.evaluate(LINUX)):
            found[canonicalize_name(one.name)] = str(one.specifier).removeprefix("==")
    return found


def test_the_locks_hold_what_is_needed_and_what_the_constraints_name_and_every_version_is_mended() -> None:
    constraints, run, dev = (versions(path) for path in ("constraints.txt", "locks/run.txt", "locks/dev.txt"))
    assert not run.keys() & dev.keys()
    assert {name: one for name, one in constraints.items() if name not in NOT_LOCKED} == run | dev, "make lock"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras, torch = project["project"]["optional-dependencies"], {"torch": constraints["torch"]}
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for lines, known in ((needed, run | torch), (extras["dev"] + extras["bench"] + extras["ocr"], run | dev | torch)):
        for one in map(Requirement, lines):
            assert one.specifier.contains(known[canonicalize_name(one.name)]), one
    advisories = re.findall(
        r"(?m)^\| (CVE\S+) \| (\S+) \| (\S+) \| (\S+) \|$", (ROOT / "SECURITY.md").read_text("utf-8")
    )
    assert {package for _, package, _, _ in advisories} >= {"transformers", "torch", "mlflow", "ray"}
    for advisory, package, mended, here in advisories:
        assert constraints[canonicalize_name(package)] == here, f"{advisory}: SECURITY.md names {here}"
        assert Version(here) >= Version(mended), advisory
