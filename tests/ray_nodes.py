"""A real Ray cluster on this machine: a head and nodes of one CPU each, which can be killed and added.

Ray starts nodes in the main thread alone, and its sockets have names of at most 107 characters.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from helpers import kill

OBJECTS = 80 * 2**20
"""Bytes of a node's object store: the least that Ray takes."""
TRIES = 4
"""A node that a busy machine does not start within Ray's 30 s is tried again so often."""


class TooBusy(Exception):
    """The machine is too busy to start a node in time."""


class RayNodes:
    """A cluster; a new one can take the place of one that has lost its head."""

    def __init__(self, nodes: int = 2) -> None:
        self._count, self._clusters, self.nodes = nodes, list[Any](), list[Any]()
        self._folders = list[Path]()

    def start(self) -> None:
        from ray.cluster_utils import Cluster

        self._folders.append(Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp")))
        os.environ |= {"RAY_TMPDIR": str(self._folders[-1]), "RAY_USAGE_STATS_ENABLED": "0"}
        head = _of_one_cpu(include_dashboard=False)
        self._clusters.append(_patiently(lambda: Cluster(initialize_head=True, head_node_args=head)))
        os.environ["RAY_ADDRESS"], self.nodes = str(self._clusters[-1].address), []
        for _ in range(self._count):
            self.add()

    def add(self, **more: Any) -> Any:
        self.nodes.append(_patiently(lambda: self._clusters[-1].add_node(**_of_one_cpu(**more))))
        return self.nodes[-1]

    def lose(self, node: Any) -> None:
        self.nodes.remove(node)
        self._clusters[-1].remove_node(node, allow_graceful=False)

    def lose_head(self) -> None:
        """SIGKILL for all processes of the head; the other nodes notice it after a minute."""
        self._clusters[-1].head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    def stop(self) -> None:
        for cluster in self._clusters:
            with suppress(Exception):  # what was killed is missing
                cluster.shutdown()
        for folder in self._folders:
            kill(_processes_that_name(folder))
            shutil.rmtree(folder, ignore_errors=True)
        self._clusters.clear()


@contextmanager
def ray_nodes(nodes: int = 2) -> Iterator[RayNodes]:
    before = {name: os.environ.pop(name, None) for name in ("RAY_ADDRESS", "RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED")}
    cluster = RayNodes(nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {name: value} if value is not None else {}


def _of_one_cpu(**more: Any) -> dict[str, Any]:
    return {"num_cpus": 1, "object_store_memory": OBJECTS, **more}


def _patiently(start: Callable[[], Any]) -> Any:
    for _ in range(TRIES):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    raise TooBusy("Ray: this machine is too busy to start a node within 30 s")


def _processes_that_name(folder: Path) -> Iterator[psutil.Process]:
    """Yield processes with the path in their command line or environment, but for this one."""
    for one in psutil.process_iter(["environ", "cmdline"]):
        words = [*(one.info["environ"] or {}).values(), *(one.info["cmdline"] or [])]
        if one.pid != os.getpid() and any(str(folder) in word for word in words):
            yield one
