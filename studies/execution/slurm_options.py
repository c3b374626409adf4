"""What a trial asks of SLURM: from its caps, and from a YAML file with options of ``sbatch``."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from pipeline.config.names import nearest
from pipeline.config.trial import TrialConfig
from pipeline.config.yaml_files import line_of, read_yaml
from pipeline.errors import UserError

RESERVED = {
    "array": "each trial is a job of its own",
    "clusters": "jobs are looked for on one cluster",
    "job-name": "the program names the jobs and knows them by it",
    "open-mode": "a trial's log is appended to",
    "output": "a trial's output goes to its log",
    "error": "a trial's output goes to its log",
    "signal": "the program needs the warning before the time limit",
    "requeue": "a trial is requeued at its time limit and after preemption",
    "no-requeue": "a trial is requeued at its time limit and after preemption",
    "nodes": "a trial runs on one node",
    "ntasks": "a trial is one task, which starts its own processes",
    "ntasks-per-node": "a trial is one task, which starts its own processes",
    **dict.fromkeys(
        ("wrap", "parsable", "wait", "input", "chdir", "test-only", "help", "usage", "version"), "the program sets it"
    ),
}
"""Options of sbatch that a file cannot set, and why."""
INSTEAD = {
    "mem": ("mem-per-cpu", "mem-per-gpu"),
    "cpus-per-task": ("cpus-per-gpu",),
    "gres": ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"),
}
"""Options that take the place of what the caps ask for."""
HEADROOM, EXTRA_GIB = 1.25, 1.0
"""Host memory beyond caps.memory_gib, so that the cap is reached before SLURM kills: a factor, and for each process."""
STARTUP_MINUTES = 30
"""Of the time limit, beyond the hours of training that the caps allow."""
LEAD_SHARE, LEAST_LEAD, MOST_LEAD = 0.1, 30, 300
"""How long before its time limit a trial is warned: a share of the limit, within bounds in seconds."""
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")


@dataclass(frozen=True)
class SlurmOptions:
    """Options of the user's, by their names in sbatch. None leaves an option out that a trial would have."""

    values: Mapping[str, str | None] = field(default_factory=dict)

    def asked(self, config: TrialConfig, gpus: int) -> list[str]:
        """What sbatch is called with for a trial that uses so many GPUs."""
        whole: dict[str, str | None] = {**wanted(config, gpus), **self.values}
        for name, others in INSTEAD.items():
            if name not in self.values and any(self.values.get(other) is not None for other in others):
                whole[name] = None
        return [f"--{name}={value}" if value else f"--{name}" for name, value in whole.items() if value is not None]

    def lead_seconds(self, config: TrialConfig) -> int:
        """How long before its time limit a trial is warned."""
        limit = seconds_of(self.values.get("time", wanted(config, 0)["time"]))
        return MOST_LEAD if limit is None else int(max(LEAST_LEAD, min(MOST_LEAD, LEAD_SHARE * limit)))


def wanted(config: TrialConfig, gpus: int) -> dict[str, str]:
    """What the caps of a trial come to."""
    processes = config.runtime.processes
    memory = processes * (HEADROOM * config.caps.memory_gib + EXTRA_GIB)
    cores = {"cpus-per-task": str(processes * config.runtime.threads)}
    time = {"time": str(math.ceil(60 * config.caps.wall_clock_h) + STARTUP_MINUTES)}
    return {**cores, "mem": f"{math.ceil(memory * 1024)}M", **time} | ({"gres": f"gpu:{gpus}"} if gpus else {})


def seconds_of(time: str | None) -> float | None:
    """Seconds of a time limit as sbatch reads it; None for one without end.

    >>> [seconds_of(time) for time in ("90", "1:30", "1:30:00", "2-12", "1-0:30")]
    [5400.0, 90.0, 5400.0, 216000.0, 88200.0]
    """
    match = _TIME.fullmatch(time or "")
    if match is None:
        return None
    parts = [float(part) for part in match["clock"].split(":")]
    if match["days"] is not None:
        scales: tuple[int, ...] = (3600, 60, 1)
    else:
        scales = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(parts)]
    days = 86400 * float(match["days"] or 0)
    return days + sum(part * scale for part, scale in zip(parts, scales, strict=False))


def read_options(path: Path, known: Collection[str]) -> SlurmOptions:
    """The options in a YAML file; `known` are those of the sbatch at hand.

    ``true`` is an option without a value, ``false`` leaves one out, and a list is joined by commas. Raises `UserError`.
    """
    content = read_yaml(path)
    written = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)  # as strings: YAML takes 1:30:00 for 5400
    faults, values = list[str](), dict[str, str | None]()
    for key, value in content.items():
        fault = _fault(key, value, known)
        if fault:
            line = line_of(path, (key,))
            faults.append(f"{path}{'' if line is None else f', line {line}'}: {fault}")
        elif isinstance(value, bool):
            values[key] = "" if value else None
        else:
            values[key] = ",".join(written[key]) if isinstance(value, list) else written[key]
    if faults:
        raise UserError("\n".join(faults))
    return SlurmOptions(values)


def _fault(key: object, value: object, known: Collection[str]) -> str | None:
    if not isinstance(key, str) or (key not in known and key not in RESERVED):
        return f"'{key}' is no option of sbatch{nearest(str(key), set(known) - RESERVED.keys())}"
    if key in RESERVED:
        return f"'{key}' cannot be set: {RESERVED[key]}"
    parts = value if isinstance(value, list) and value else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        return f"'{key}' must be a text, a number, true, false or a list of them"
    if any(isinstance(part, str) and (not part or not part.isprintable()) for part in parts):
        return f"'{key}' must be printable and not empty"
    return None


def options_in(usage: str) -> set[str]:
    """The long options that ``sbatch --help`` lists.

    >>> sorted(options_in("  -A, --account=name   charge\\n      --mem=MB  memory (--mem >= --x)\\n  -H, --hold  wait"))
    ['account', 'hold', 'mem']
    """
    return set(re.findall(r"^ +(?:-\w,? +)?--([a-z][a-z-]+)", usage, re.MULTILINE))
