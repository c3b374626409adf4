from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from studies.execution import ray_tasks
from studies.execution.ray_tasks import RayOptions, read_options, request_of


def test_a_hand_asks_for_what_the_largest_trial_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    small, wide = load_config("smoke"), load_config("smoke", {"runtime.threads": 3})
    assert request_of([small, wide], RayOptions()) == {"CPU": 3.0}
    assert request_of([small], RayOptions(cpus=0.5, memory_gib=2)) == {"CPU": 0.5, "memory": 2 * 2**30}
    with pytest.raises(UserError, match=r"gpus = 1: the trials compute on the CPU of this machine; use gpus: 0"):
        request_of([small], RayOptions(gpus=1))
    monkeypatch.setattr(ray_tasks, "gpu_visible", lambda: True)
    card = load_config("tiny", {"runtime.device": "cuda", "runtime.processes": 2})
    assert request_of([card], RayOptions())["GPU"] == 2.0
    assert request_of([card], RayOptions(gpus=0.5))["GPU"] == 0.5


def test_faults_of_options_have_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "ray.yaml"
    file.write_text("cpus: 2\ngpu: 1\nmemory_gib: -1\n")
    with pytest.raises(UserError) as raised:
        read_options(file)
    assert "ray.yaml, line 2: unknown key 'gpu'; did you mean 'gpus'?" in str(raised.value)
    assert "ray.yaml, line 3: memory_gib = -1: must be greater than or equal to 0" in str(raised.value)
    assert read_options(None) == RayOptions()


def test_a_cluster_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match="needs the address of a cluster in RAY_ADDRESS"):
        ray_tasks._connected()
