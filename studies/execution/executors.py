"""Where the hands of a study work, by name."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.names import nearest
from pipeline.errors import UserError
from studies.execution.hand import Hand, Inline
from studies.execution.study import Hire

LOCAL = ("processes", "inline")
"""Each trial in a child of this process; one trial after the other in this process, for debuggers."""
CLUSTERS = ("slurm", "ray")
"""Jobs of SLURM, or tasks on a Ray cluster, that each take trials."""
CLUSTER_JOBS = 32
"""Hands on a cluster, unless ``--jobs`` says how many."""


def executor(name: str, jobs: int, options: Path | None = None) -> Hire:
    """What hires `jobs` hands of a name, with the options of a cluster in a file. Raises `UserError` with the names
    that exist."""
    names = [*LOCAL, *CLUSTERS]
    if name not in names:
        raise UserError(f"no executor '{name}'{nearest(name, names)}; there are: {', '.join(names)}")
    if options is not None and name in LOCAL:
        raise UserError(f"--cluster {options}: the executor '{name}' has no options; those of {', '.join(CLUSTERS)} do")
    if name == "slurm":
        from studies.execution.slurm import Slurm, read_options

        given = read_options(options)
        return lambda run, agenda, say: Slurm(run, agenda, jobs, given, say)
    if name == "ray":
        from studies.execution.ray_tasks import Ray
        from studies.execution.ray_tasks import read_options as read_ray_options

        asked = read_ray_options(options)
        return lambda run, agenda, say: Ray(run, agenda, jobs, asked, say)
    if name == "inline":
        return Inline
    return lambda run, agenda, say: Hand(run, agenda, jobs, say)
