"""What checkpoints cost: how large they are, how often they are written, and that neither decides a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tinytrial import Killed, Killer, run, trainer

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.forecast.advice import Forecast, check_disk, predict
from pipeline.resources.ledger import Ledger
from pipeline.resources.machine import GIB
from pipeline.training import checkpoint

COLLAPSING: dict[str, Any] = {"train__min_entropy": 3.0, "optimiser__lr": 3e-2}


def test_a_checkpoint_holds_the_weights_once_and_their_two_moments(tmp_path: Path) -> None:
    one = trainer(tmp_path, train__steps=240, runtime={"checkpoint_updates": 1})
    one.run()
    newest = checkpoint.checkpoints(tmp_path / "checkpoints")[-1]
    state = torch.load(newest, weights_only=True)
    assert list(state["actor"]) == [name for name, _ in one.state.trained()]
    weights = 12 * one.trained_size
    tensors = sum(
        sum(tensor.nbytes for tensor in moments.values()) for moments in state["steps"]["optimiser"]["state"].values()
    )
    assert sum(tensor.nbytes for tensor in state["actor"].values()) + tensors == pytest.approx(weights, rel=0.01)
    assert weights < newest.stat().st_size < weights + 80_000  # metadata of the archive, samples, series


def test_the_name_of_a_checkpoint_is_the_digest_of_its_file(tmp_path: Path) -> None:
    size = checkpoint.save(tmp_path, 3, {"x": torch.arange(100_000.0), "y": torch.ones(3)})
    (path,) = checkpoint.checkpoints(tmp_path)
    assert path.name == f"update_00000003.{checkpoint._digest(path)}.pt"
    assert path.stat().st_size == size


def test_checkpoints_are_not_read_back_to_be_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> str:
        raise AssertionError(f"{path} is read back")

    monkeypatch.setattr(checkpoint, "_digest", read)
    run(tmp_path)
    assert checkpoint.checkpoints(tmp_path / "checkpoints")


@pytest.mark.parametrize(("share", "names"), [(1e-9, [0]), (None, [4, 5])])
def test_checkpoints_take_no_more_than_their_share_of_the_time(
    tmp_path: Path, share: float | None, names: list[int]
) -> None:
    outcome, _, _ = run(tmp_path, runtime={"checkpoint_updates": 1, "checkpoint_share": share})
    assert outcome.status == "complete"
    assert [path.name.split(".")[0] for path in checkpoint.checkpoints(tmp_path / "checkpoints")] == [
        f"update_{n:08d}" for n in names
    ]


@pytest.mark.parametrize("runtime", [{"checkpoint_share": 1e-9}, {"checkpoint_updates": 1}, {"checkpoint_updates": 3}])
@pytest.mark.parametrize(
    "knobs", [COLLAPSING, {**COLLAPSING, "kl__control": "adaptive", "kl__horizon": 20.0, "optimiser__guard": True}]
)
def test_the_weights_kept_after_a_divergence_are_those_of_the_last_healthy_rollout(
    tmp_path: Path, knobs: dict[str, Any], runtime: dict[str, Any]
) -> None:
    """They are trained again from a checkpoint, however old it is; here they are compared with those of a trial that
    ends there."""
    outcome, rows, state = run(tmp_path / "a", runtime=runtime, **knobs)
    kept = int(str(outcome.reason).rpartition(" ")[2])
    assert (outcome.status, kept) == ("diverged", outcome.steps - 4)
    assert kept > 0
    seen: list[dict[str, torch.Tensor]] = []
    one = trainer(tmp_path / "b", **knobs)
    look = one._look

    def remember(rollout: Any) -> None:
        look(rollout)
        seen.append({name: tensor.clone() for name, tensor in one.actor.state_dict().items()})

    one._look = remember  # type: ignore[method-assign]
    again = one.run()
    assert again == outcome
    assert all(torch.equal(state[name], tensor) for name, tensor in seen[-1].items())
    assert max(rows) == outcome.steps


def test_weights_that_cannot_be_trained_again_for_lack_of_memory_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    one = trainer(tmp_path, runtime={"checkpoint_share": 1e-9}, **COLLAPSING)
    start = {name: tensor.clone() for name, tensor in one.actor.state_dict().items()}
    rewind = one._rewind

    def short_of_memory() -> int:
        one.rollout_context.room.rows = 1
        one._rollout = lambda: one.rollout_context.room.fit(full)  # type: ignore[method-assign]
        return rewind()

    def full(rows: int) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    one._rewind = short_of_memory  # type: ignore[method-assign]
    outcome = one.run()
    assert outcome.status == "diverged"
    assert str(outcome.reason).endswith("the policy kept is that of step 0")
    assert all(torch.equal(start[name], tensor) for name, tensor in one.actor.state_dict().items())


def test_a_trial_killed_after_its_checkpoint_diverges_to_the_same_weights(tmp_path: Path) -> None:
    knobs = {**COLLAPSING, "runtime": {"checkpoint_updates": 1}}
    whole, _, state = run(tmp_path / "whole", **knobs)
    for after in range(1, whole.updates + 1):
        with pytest.raises(Killed):
            trainer(tmp_path / f"cut{after}", reporter=Killer(after), **knobs).run()
        again, _, resumed = run(tmp_path / f"cut{after}", **knobs)
        assert again == whole
        assert all(torch.equal(state[name], resumed[name]) for name in state)


def test_the_ledger_counts_checkpoints_and_their_bytes(tmp_path: Path) -> None:
    one = trainer(tmp_path, runtime={"checkpoint_updates": 2})
    one.run()
    cost = one.ledger.cost()
    assert cost["checkpoints"] == 3
    sizes = [path.stat().st_size for path in checkpoint.checkpoints(tmp_path / "checkpoints")]
    assert max(sizes) < cost["checkpoint_gib"] * GIB < 3 * max(sizes) + 1
    again = Ledger()
    again.load(one.ledger.state())
    assert again.cost()["checkpoints"] == 3


# --- the forecast --------------------------------------------------------------------------------------------


def t4(**changes: object) -> Forecast:
    found = predict(load_config("t4", {key.replace("__", "."): value for key, value in changes.items()}))
    assert found is not None
    return found


def test_the_forecast_counts_checkpoints_in_bytes_and_time() -> None:
    found = t4()
    one = 12 * found.trained / GIB
    assert one == pytest.approx(5.2, abs=0.1)
    assert found.disk == pytest.approx({"checkpoints": 3 * one, "policy": 4 * found.parameters / GIB})
    assert found.hours["checkpoint"] <= 0.02 * sum(found.hours.values())
    often = t4(runtime__checkpoint_share=None)
    assert often.hours["checkpoint"] == pytest.approx(750 // 25 * one * GIB / 200e6 / 3600)
    assert often.t4_hours > found.t4_hours
    assert t4(adapter__kind="lora").disk["checkpoints"] < 0.5


def test_a_disk_that_is_too_small_is_refused_or_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    from collections import namedtuple

    configs = [load_config("t4", {"train.seed": seed}) for seed in range(8)]
    found = predict(configs[0])
    assert found is not None
    disk = namedtuple("disk", "total used free")

    def free(gib: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: disk(0, 0, gib * GIB))

    free(found.disk_gib - 1)
    with pytest.raises(UserError, match=r"a trial needs 17\.\d GiB of disk .* GiB free; use another --out"):
        check_disk(configs, 1, tmp_path)
    free(found.disk_gib + 1)
    assert "8 trials need up to 32.8" in str(check_disk(configs, 1, tmp_path))
    free(1000)
    assert check_disk(configs, 1, tmp_path) is None
