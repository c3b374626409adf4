"""A trial that is killed and run again, on the card.

On a CPU the two are equal bit for bit. A card adds up some sums in the order in which threads arrive; torch's
deterministic kernels are asked for here where it has any. Whether bits are equal is recorded. Demanded is that the same
records are there at the end, and that those up to the first update after the checkpoint agree: within 1 % in fp32, 5 %
in fp16, where a rounding may flip a token.
"""

from __future__ import annotations

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: cuBLAS is deterministic only with it

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, choose, furthest, trial
from tinytrial import CONTROLS, Killed, Killer, trainer

from pipeline.run.metrics_log import merged
from pipeline.training.given import Outcome

pytestmark = pytest.mark.gpu
APART = {"fp32": 0.01, "fp16": 0.05}
PATIENCE = 120.0
Rows = dict[int, dict[str, float]]


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def finished(folder: Path, knobs: dict[str, Any]) -> tuple[Outcome, Rows, dict[str, torch.Tensor]]:
    one = trainer(folder, device=DEVICE, **knobs)
    outcome = one.run()
    return (
        outcome,
        merged(folder / "metrics.jsonl"),
        {name: tensor.cpu() for name, tensor in one.actor.state_dict().items()},
    )


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("precision", APART)
@pytest.mark.parametrize("control", ["fixed", "adaptive", "guard", "target", "separate", "lora"])
def test_a_killed_trial_goes_on_where_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    control: str,
    precision: str,
    record_property: pytest.RecordProperty,
) -> None:
    choose(monkeypatch, precision)
    knobs = CONTROLS[control]
    whole, wanted, weights = finished(tmp_path / "whole", knobs)
    with pytest.raises(Killed):
        trainer(tmp_path / "cut", Killer(after=3), device=DEVICE, **knobs).run()
    outcome, found, again = finished(tmp_path / "cut", knobs)
    assert (outcome.status, outcome.steps, outcome.updates) == (whole.status, whole.steps, whole.updates)
    assert found.keys() == wanted.keys()
    # Killed after its third update, with a checkpoint after the second: step 8 is the first record of the third.
    resumed = [step for step in wanted if step <= 12]
    assert (
        furthest({step: wanted[step] for step in resumed}, {step: found[step] for step in resumed}) < APART[precision]
    )
    same = found == wanted and all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    record_property(
        "equal bit for bit", "yes" if same else f"no, metrics differ by at most {furthest(wanted, found):.2g}"
    )


CHILD = """
import sys
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from gpu.hardware import trial
trial(Path(sys.argv[2]), train__steps=160, runtime__checkpoint_updates=2)
"""


def test_a_process_that_is_killed_leaves_what_the_next_one_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: pytest.RecordProperty
) -> None:
    choose(monkeypatch, "fp32")
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parents[1]), str(tmp_path / "cut")]
    child = subprocess.Popen(command, env=os.environ, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)
    waited = time.monotonic() + PATIENCE
    try:
        while (
            len(list((tmp_path / "cut").rglob("update_*.pt"))) < 2
            and child.poll() is None
            and time.monotonic() < waited
        ):
            time.sleep(0.02)
        assert child.poll() is None, "the trial ended before it could be killed"
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    again = trial(tmp_path / "cut", train__steps=160, runtime__checkpoint_updates=2)
    whole = trial(tmp_path / "whole", train__steps=160, runtime__checkpoint_updates=2)
    found, wanted = (merged(one.artifacts["train"].path / "metrics.jsonl") for one in (again, whole))
    assert (again.status, again.steps) == (whole.status, whole.steps) == ("complete", 160)
    assert found.keys() == wanted.keys()
    first = min(wanted)
    assert furthest({first: wanted[first]}, {first: found[first]}) < APART["fp32"]
    same = found == wanted
    record_property(
        "equal bit for bit", "yes" if same else f"no, metrics differ by at most {furthest(wanted, found):.2g}"
    )
