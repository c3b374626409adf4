"""A study that was started with a lower priority lets programs of other terminals go first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from studies.execution.priority import GROUP

CODE = """
import os
from pathlib import Path
from studies.execution.priority import GROUP, give_way
before = os.getsid(0)
give_way()
print(os.getsid(0) != before, (GROUP.read_text().split() or ["0"])[-1])
"""
"""The kernel writes nothing of a process whose session has no group of its own, as the first of a container."""


@pytest.mark.skipif(not GROUP.exists(), reason="this kernel has no autogroups")
@pytest.mark.parametrize(("nice", "expected"), [([], ["False", "0"]), (["nice", "-n", "7"], ["True", "7"])])
def test_a_lower_priority_becomes_that_of_its_own_session(nice: list[str], expected: list[str]) -> None:
    """Of a child that leads no group, as a worker is one."""
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CODE!r}], check=True)"
    done = subprocess.run([*nice, sys.executable, "-c", child], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == expected[0]
    if nice:
        assert done.stdout.split() == expected
