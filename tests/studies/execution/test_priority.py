"""A study that was started with a lower priority lets programs of other terminals go first."""

from __future__ import annotations

import os
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
@pytest.mark.parametrize("added", [0, 7])
def test_a_lower_priority_becomes_that_of_its_own_session(added: int) -> None:
    """Of a child that leads no group, as a worker is one; the tests may themselves run with a lower priority."""
    priority = min(os.nice(0) + added, 19)
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CODE!r}], check=True)"
    command = ["nice", "-n", str(added), sys.executable, "-c", child]
    moved, group = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert moved == str(priority > 0)
    if priority > 0:
        assert group == str(priority)
