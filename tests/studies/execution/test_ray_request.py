from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.runtime import RuntimeConfig
from pipeline.errors import UserError
from pipeline.resources.machine import GIB
from studies.execution.ray_request import RayOptions, Request, in_all, read_options, request_of, times

SMALL, LARGE = {"CPU": 1.0, "memory": 4.0 * GIB}, {"CPU": 8.0, "GPU": 2.0, "memory": 64.0 * GIB, "a100": 2.0}


@pytest.mark.parametrize(
    ("runtime", "options", "sees_gpu", "wanted"),
    [
        ({"device": "cpu", "threads": 3}, {}, True, Request(3)),
        ({"device": "auto", "threads": 1}, {}, False, Request(1)),
        ({"device": "auto", "threads": 2}, {}, True, Request(2, 1)),
        ({"device": "cuda", "threads": 2, "processes": 2}, {}, True, Request(4, 2)),
        ({"device": "auto", "threads": 2}, {"gpus": 0.5, "cpus": 0.5}, True, Request(0.5, 0.5)),
        ({"device": "auto", "threads": 2}, {"gpus": 0.0}, False, Request(2)),
        (
            {"device": "auto", "threads": 1},
            {"memory_gib": 2.5, "resources": {"a100": 1.0}},
            True,
            Request(1, 1, 2.5 * GIB, {"a100": 1}),
        ),
    ],
)
def test_what_a_trial_asks_for(
    runtime: dict[str, Any], options: dict[str, Any], sees_gpu: bool, wanted: Request
) -> None:
    assert request_of(RuntimeConfig(**runtime), RayOptions(**options), sees_gpu) == wanted


@pytest.mark.parametrize(
    ("runtime", "gpus", "sees_gpu", "words"),
    [
        ({"device": "cpu"}, 1.0, True, "gpus = 1: runtime.device is cpu; use gpus: 0"),
        ({"device": "auto"}, 1.0, False, "gpus = 1: this machine has none, and it plans the trials; use gpus: 0, or"),
        ({"device": "auto"}, 0.0, True, "gpus = 0: the trial computes on 1 of them .*; use 1, or a part of one"),
        ({"device": "cuda", "processes": 2}, 0.5, True, r"gpus = 0\.5: the trial computes on 2 of them .*; use 2$"),
        ({"device": "cuda"}, 2.0, True, "gpus = 2: the trial uses one .*; use 1, or a part of one such as 0.5"),
    ],
)
def test_gpus_that_a_trial_could_not_use(runtime: dict[str, Any], gpus: float, sees_gpu: bool, words: str) -> None:
    with pytest.raises(UserError, match=words):
        request_of(RuntimeConfig(**runtime), RayOptions(gpus=gpus), sees_gpu)


@pytest.mark.parametrize(
    ("request_", "node", "count"),
    [
        (Request(1), SMALL, 1),
        (Request(2), SMALL, 0),
        (Request(1), LARGE, 8),
        (Request(3), LARGE, 2),
        (Request(1, 1), LARGE, 2),
        (Request(1, 0.1), LARGE, 8),
        (Request(0.1, 0.1), {"CPU": 9.0, "GPU": 0.3}, 3),  # 0.3 / 0.1 is less than 3
        (Request(1, 1), SMALL, 0),
        (Request(1, 0, 32 * GIB), LARGE, 2),
        (Request(1, 0, 5 * GIB), SMALL, 0),
        (Request(1, 0, 0, {"a100": 1}), LARGE, 2),
        (Request(1, 0, 0, {"a100": 1}), SMALL, 0),
    ],
)
def test_how_many_trials_a_node_has_room_for(request_: Request, node: dict[str, float], count: int) -> None:
    assert times(request_, node) == count


def test_clusters_in_words() -> None:
    assert in_all([SMALL]) == "1 node: (1 CPU, 0 GPU, 4.0 GiB)"
    own = {"node:10.0.0.1": 1.0, "node:__internal_head__": 1.0, "object_store_memory": 1e9}
    whole = in_all([SMALL, {**LARGE, **own}, {**SMALL, **own}])
    assert whole == "3 nodes: 2 x (1 CPU, 0 GPU, 4.0 GiB), (8 CPU, 2 GPU, 2 a100, 64.0 GiB)"
    assert in_all([]) == "no nodes"
    assert str(Request(2, 0.5, 3 * GIB, {"a100": 1})) == "2 CPU, 0.5 GPU, 3.0 GiB, 1 a100"
    assert str(Request(1)) == "1 CPU"


def test_options_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ray.yaml"
    path.write_text("gpus: 0.5\ncpus: 2\nmemory_gib: 8\nresources: {a100: 1}\nautoscaling: true\n")
    assert read_options(path) == RayOptions(gpus=0.5, cpus=2, memory_gib=8, resources={"a100": 1.0}, autoscaling=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu: 1", "line 1: gpu: no such option; did you mean 'gpus'?; there are: cpus, gpus, memory_gib, resources"),
        ("cpus: 1\ngpus: -1", "line 2: gpus: input should be greater than or equal to 0"),
        ("cpus: 0", "line 1: cpus: input should be greater than or equal to 0.0001"),
        ("gpus: many", "line 1: gpus: input should be a valid number"),
        ("gpus: .inf", "line 1: gpus: input should be"),
        ("autoscaling: 1", "line 1: autoscaling: input should be a valid boolean"),
        ("resources: {a100: 0}", "line 1: resources.a100: input should be greater than or equal to 0.0001"),
        ("resources: [a100]", "line 1: resources: input should be a valid dictionary"),
        ("", "the file is empty"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "ray.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as said:
        read_options(path)
    assert words in str(said.value)
    assert str(path) in str(said.value)
