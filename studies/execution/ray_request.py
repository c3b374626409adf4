"""What a trial asks of a Ray cluster, and whether that is there. Knows nothing of Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.config.names import nearest
from pipeline.config.runtime import RuntimeConfig
from pipeline.config.yaml_files import line_of, read_yaml
from pipeline.errors import UserError
from pipeline.resources.machine import GIB

LEAST = 1e-4
"""Ray counts in steps of this size."""
ROUNDING = 1e-6
Amount = Annotated[float, Field(ge=LEAST, le=1e6)]


class RayOptions(BaseModel):
    """What to ask for each trial; read from a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    cpus: float | None = Field(None, ge=LEAST, le=4096, description="default: runtime.threads x runtime.processes")
    gpus: float | None = Field(None, ge=0, le=64, description="default: 1 a process; 0.5: two trials on one card")
    memory_gib: float = Field(0.0, ge=0, le=65536, description="reserved for a trial; 0: Ray is not told")
    resources: dict[str, Amount] = Field({}, description="custom resources of nodes, such as {a100: 1}")
    autoscaling: bool = Field(False, description="wait for a node that is large enough, where there is none")


def read_options(path: Path) -> RayOptions:
    """The options in a YAML file. Raises `UserError`, with a line for every fault."""
    content = read_yaml(path)
    try:
        return RayOptions.model_validate(content)
    except ValidationError as error:
        faults = [(tuple(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
    known = list(RayOptions.model_fields)
    lines = list[str]()
    for where, why in faults:
        line, key = line_of(path, where), ".".join(where)
        place = f"{path}, line {line}" if line else str(path)
        unknown = where[0] not in known
        hint = f"no such option{nearest(where[0], known)}; there are: {', '.join(known)}" if unknown else why.lower()
        lines.append(f"{place}: {key}: {hint}")
    raise UserError("\n".join(lines)) from None


@dataclass(frozen=True)
class Request:
    """Of one trial, or what is there: CPUs, GPUs, bytes of memory, and custom resources by name."""

    cpus: float
    gpus: float = 0.0
    memory: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def amounts(self) -> dict[str, float]:
        """By the names that Ray gives them."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory, **self.resources}

    def __str__(self) -> str:
        return amounts_in_words({name: value for name, value in self.amounts.items() if value})


def request_of(runtime: RuntimeConfig, options: RayOptions, sees_gpu: bool) -> Request:
    """What a trial asks for; `sees_gpu`: whether the driver's machine has a card, by which stages are planned.

    Raises `UserError` for GPUs that the trial could not use.
    """
    on_card = runtime.device == "cuda" or (runtime.device == "auto" and sees_gpu)
    gpus = float(runtime.processes if on_card else 0) if options.gpus is None else options.gpus
    if gpus and not on_card:
        why = "runtime.device is cpu" if runtime.device == "cpu" else "this machine has none, and it plans the trials"
        raise UserError(f"gpus = {gpus:g}: {why}; use gpus: 0, or a GPU: run the command on a node that has one")
    if on_card and (gpus == 0 or (gpus != runtime.processes and runtime.processes > 1)):
        raise UserError(
            f"gpus = {gpus:g}: the trial computes on {runtime.processes} of them (runtime.processes);"
            f" use {runtime.processes}{'' if runtime.processes > 1 else ', or a part of one such as 0.5'}"
        )
    if gpus > 1 and gpus != runtime.processes:
        raise UserError(f"gpus = {gpus:g}: the trial uses one (runtime.processes); use 1, or a part of one such as 0.5")
    cpus = float(runtime.threads * runtime.processes) if options.cpus is None else options.cpus
    return Request(cpus, gpus, options.memory_gib * GIB, options.resources)


def times(request: Request, there: Mapping[str, float]) -> int:
    """How many of these requests the resources of a node meet at once."""
    wanted = {name: value for name, value in request.amounts.items() if value}
    return min(math.floor(there.get(name, 0.0) / value + ROUNDING) for name, value in wanted.items())


def in_all(nodes: Sequence[Mapping[str, float]]) -> str:
    """The nodes of a cluster in words, equal ones counted."""
    each = [amounts_in_words(_told(node)) for node in nodes]
    counted = [f"{each.count(one)} x ({one})" if each.count(one) > 1 else f"({one})" for one in dict.fromkeys(each)]
    return f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}: {', '.join(counted)}" if nodes else "no nodes"


def amounts_in_words(amounts: Mapping[str, float]) -> str:
    """Such as ``2 CPU, 1 GPU``; memory in GiB."""
    return ", ".join(
        f"{value / GIB:.1f} GiB" if name == "memory" else f"{value:g} {name}" for name, value in amounts.items()
    )


def _told(node: Mapping[str, float]) -> dict[str, float]:
    """CPUs, GPUs, memory and custom resources; Ray's own labels are left out."""
    own = {name: value for name, value in node.items() if not name.startswith(("node:", "object_store", "memory"))}
    return {"CPU": node.get("CPU", 0.0), "GPU": node.get("GPU", 0.0), **own, "memory": node.get("memory", 0.0)}
