"""Texts as Ray 2.60 wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.execution.file_executor import Ended
from studies.execution.ray_words import died_with_node, first_line, in_words, last_line

HEAD = """The actor died unexpectedly before finishing this task.
\tclass_name: Worker
\tactor_id: 36792672a9e1fa14c812905301000000
\tpid: 32414
\tname: 1f:/out/jobs/weak__seed0
\tnamespace: ablate
\tip: 10.0.0.7
"""
NODE = """The actor died because its node has died. Node Id: f2f02034351b450e6a96402dedf3c6dcb501f405e83b0e7c5178e9a7
\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats
The actor never ran - it was cancelled before it started running."""
KILLED = """The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: \
Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was \
killed by SIGKILL by OOM killer due to memory pressure, (2) ray stop --force was called, or (3) the worker crashed \
unexpectedly due to SIGSEGV or another unexpected error."""
LEFT = """The actor is dead because its worker process has died. Worker exit type: INTENDED_USER_EXIT Worker exit \
detail: Worker exits by an user request. Worker exits with an exit code 0. exit_actor() is called."""
BOUND = """The task is not schedulable: The node specified via NodeAffinitySchedulingStrategy doesn't exist any more \
or is infeasible, and soft=False was specified. lease_id=0300000001000000, name=look"""
BY_HAND = "The actor is dead because it was killed by `ray.kill`."
MEMORY = """The actor is dead because its worker process has died. Worker exit type: NODE_OUT_OF_MEMORY Worker exit \
detail: Task was killed due to the node running low on memory."""
MADE = """The actor died because of an error raised in its creation task, \x1b[36mray::Worker.__init__()\x1b[39m
  File "/srv/ablate/studies/execution/ray_worker.py", line 45, in __init__
"""


class ActorDiedError(Exception):
    preempted = False
    actor_init_failed = False


class InitFailed(ActorDiedError):
    actor_init_failed = True


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (
            ActorDiedError(HEAD + KILLED),
            Ended("the worker's process on 10.0.0.7 was killed or crashed (often: out of memory)"),
        ),
        (ActorDiedError(HEAD + LEFT), Ended("the worker ended without a result")),
        (ActorDiedError(HEAD + BY_HAND), Ended("its Ray actor was killed from outside", interrupted=True)),
        (ActorDiedError(HEAD + MEMORY), Ended("Ray killed the worker on 10.0.0.7: the node ran out of memory")),
        (
            InitFailed(MADE + "ModuleNotFoundError: No module named 'pydantic'"),
            Ended("it could not start on a node of the cluster: ModuleNotFoundError: No module named 'pydantic'"),
        ),
        (
            InitFailed(MADE + "studies.execution.ray_worker.NotHere: /out is not there (/ is); mount it"),
            Ended("it could not start on a node of the cluster: /out is not there (/ is); mount it"),
        ),
        (
            InitFailed(MADE + "studies.execution.ray_worker.NoOutcome: 130"),
            Ended("the worker ended with exit code 130 and no result"),
        ),
        (ActorDiedError("a new way to end"), Ended("Ray lost the worker: ActorDiedError: a new way to end")),
        (ActorDiedError(), Ended("Ray lost the worker: ActorDiedError")),
    ],
)
def test_how_a_worker_ended(error: Exception, ended: Ended, tmp_path: Path) -> None:
    assert not died_with_node(error)
    assert in_words(error, tmp_path) == ended


def test_a_look_at_a_node_that_died_meanwhile_is_no_fault_of_the_node() -> None:
    assert died_with_node(Exception(BOUND))


def test_a_full_disk_is_known_by_its_exit_code(tmp_path: Path) -> None:
    ended = in_words(InitFailed(MADE + "studies.execution.ray_worker.NoOutcome: 74"), tmp_path)
    assert ended.disk_full
    assert "full" in ended.reason


def test_a_node_that_dies_or_is_taken_back() -> None:
    assert in_words(ActorDiedError(HEAD + NODE), Path()) == Ended("its node 10.0.0.7 died or was taken back", lost=True)
    taken = ActorDiedError("drained")
    taken.preempted = True  # type: ignore[misc]
    assert died_with_node(taken)
    assert in_words(taken, Path()) == Ended("its node died or was taken back", lost=True)


def test_lines() -> None:
    assert first_line(ValueError("\n  one \ntwo")) == "ValueError: one"
    assert last_line(ValueError("one\n two \n")) == "two"
    assert last_line(ValueError()) == "ValueError"
