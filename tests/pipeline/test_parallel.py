"""Two processes give what one gives, end cleanly, and fail as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, smoke

from pipeline.artifacts import Artifact
from pipeline.config import TrialConfig
from pipeline.errors import UserError
from pipeline.layout import Layout
from pipeline.models.loading import load_snapshot
from pipeline.reporter import Reporter
from pipeline.stages.launch import launch
from pipeline.tracking import merged
from pipeline.trial import run_trial


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [{}, {"ppo__critic": "separate", "ppo__kl_control": "adaptive", "ppo__whiten_rewards": True}])
def test_two_processes_give_the_losses_of_one(smoke_layout: Layout, tmp_path: Path, knobs: dict[str, Any]) -> None:
    import shutil

    found = {}
    for processes in (1, 2):
        layout = Layout(tmp_path / str(processes))
        for stage in ("prompts", "sft", "reward"):
            shutil.copytree(smoke_layout.store / stage, layout.store / stage)
        recorder = Recorder()
        outcome = run_trial(smoke(runtime__processes=processes, **knobs), layout, recorder)
        folder = outcome.artifacts["ppo"].path
        found[processes] = (merged(folder / "metrics.jsonl"), load_snapshot(folder / "policy", torch.device("cpu")).state_dict())
        assert outcome.status == "complete"
        assert recorder.steps
        assert not list(folder.glob(".rank*"))
    (one, weights), (two, again) = found[1], found[2]
    assert one.keys() == two.keys()
    for step, row in one.items():
        for key, value in row.items():
            assert two[step][key] == pytest.approx(value, rel=5e-3, abs=5e-4), (step, key)
    assert all(torch.allclose(again[name], tensor, atol=5e-4) for name, tensor in weights.items())


# --- what the launcher does with functions that behave badly: run in the children, found by name ---------------


def refuses(cfg: TrialConfig, out: Path, reporter: Reporter) -> None:
    raise UserError("ppo.batch_size: too small")


def breaks(cfg: TrialConfig, out: Path, reporter: Reporter) -> None:
    import os
    import time

    if os.environ["RANK"] == "1":
        raise ValueError("the second one broke")
    time.sleep(600)


def speaks(cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact) -> None:
    import os

    print("a library that prints")
    reporter.progress("ppo", 1, 2, "half")
    reporter.warn(f"{prompts.stage} {prompts.path.name}")
    (out / os.environ["RANK"]).write_text(json.dumps([os.environ["WORLD_SIZE"], cfg.profile]))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.mark.usefixtures("here")
def test_mistakes_of_the_user_come_back_as_such(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^ppo.batch_size: too small$"):
        launch("test_parallel:refuses", 2, smoke(), tmp_path, Recorder(), {})
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("here")
def test_when_one_process_breaks_all_end(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"process 1 of 2 ended with 1:(.|\n)*the second one broke"):
        launch("test_parallel:breaks", 2, smoke(), tmp_path, Recorder(), {})


@pytest.mark.usefixtures("here")
def test_only_the_first_process_speaks(tmp_path: Path) -> None:
    recorder, artifact = Recorder(), Artifact("prompts", "key", tmp_path / "store" / "key", "digest", {"n": 3})
    launch("test_parallel:speaks", 2, smoke(), tmp_path, recorder, {"prompts": artifact})
    assert recorder.warnings == ["prompts key"]
    assert [json.loads((tmp_path / rank).read_text()) for rank in ("0", "1")] == [["2", "smoke"]] * 2


def test_a_mini_batch_must_divide_by_the_processes() -> None:
    with pytest.raises(UserError, match=r"runtime.processes 3 does not divide a mini-batch of 8 episodes"):
        smoke(runtime__processes=3)
