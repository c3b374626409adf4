"""A trial that is killed and run again, on the card.

On a CPU the two are equal bit for bit. A card adds up some sums in the order in which threads arrive; torch's
deterministic kernels are asked for here where it has any. Whether bits are equal is recorded. Demanded is that the same
records are there at the end, and that those up to the first update after the checkpoint agree: within 1 % in fp32, 5 %
in fp16, where a rounding may flip a token.
"""

from __future__ import annotations

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: cuBLAS is deterministic only with it

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, choose, first, furthest, series, trial
from tinytrial import CONTROLS, Killed, Killer, trainer

from pipeline.run.metrics_log import merged

pytestmark = pytest.mark.gpu
APART = {"fp32": 0.01, "fp16": 0.05}
STEPS = {"train__steps": 160, "runtime__checkpoint_updates": 2}
CHILD = f"""
import sys
from pathlib import Path
from gpu.hardware import trial
trial(Path(sys.argv[1]), **{STEPS})
"""


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def finished(folder: Path, knobs: dict[str, Any]) -> Any:
    one = trainer(folder, device=DEVICE, **knobs)
    outcome = one.run()
    weights = {name: tensor.cpu() for name, tensor in one.actor.state_dict().items()}
    return (outcome.status, outcome.steps, outcome.updates), merged(folder / "metrics.jsonl"), weights


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("precision", APART)
@pytest.mark.parametrize("control", ["fixed", "adaptive", "guard", "target", "separate", "lora"])
def test_a_killed_trial_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: str, precision: str, record_property: Any
) -> None:
    choose(monkeypatch, precision)
    end, wanted, weights = finished(tmp_path / "whole", CONTROLS[control])
    with pytest.raises(Killed):
        trainer(tmp_path / "cut", Killer(after=3), device=DEVICE, **CONTROLS[control]).run()
    end_again, found, again = finished(tmp_path / "cut", CONTROLS[control])
    assert end_again == end
    assert found.keys() == wanted.keys()
    # Killed after its third update, with a checkpoint after the second: step 8 is the first record of the third.
    resumed = [step for step in wanted if step <= 12]
    assert furthest({n: wanted[n] for n in resumed}, {n: found[n] for n in resumed}) < APART[precision]
    equal = found == wanted and all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    record_property("equal bit for bit", "yes" if equal else f"no, by at most {furthest(wanted, found):.2g}")


def test_a_process_that_is_killed_leaves_what_the_next_one_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    choose(monkeypatch, "fp32")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "cut")], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while child.poll() is None and time.monotonic() < deadline and len(list(tmp_path.rglob("update_*.pt"))) < 2:
        time.sleep(0.02)
    ended = child.poll()
    child.kill()
    child.wait()
    assert ended is None, "the trial ended before it could be killed"
    again, whole = (trial(tmp_path / name, **STEPS) for name in ("cut", "whole"))
    assert (again.status, again.steps) == (whole.status, whole.steps) == ("complete", 160)
    found, wanted = series(again), series(whole)
    assert found.keys() == wanted.keys()
    assert furthest(first(whole), first(again)) < APART["fp32"]
    record_property("equal bit for bit", "yes" if found == wanted else f"no, by at most {furthest(wanted, found):.2g}")
