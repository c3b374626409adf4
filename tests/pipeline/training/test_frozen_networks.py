"""Trials whose frozen networks are held in half precision, or are off the card while they are not asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder
from tinytrial import CONTROLS, Killed, Killer, model, preset, run, score, trainer
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.loading import freeze
from pipeline.models.offload import Offload
from pipeline.models.process import check_devices
from pipeline.models.quantization import HalfLinear
from pipeline.run.metrics_log import merged
from pipeline.training.judging import Offloaded

CPU = torch.device("cpu")


class Card(Offload):
    """Networks that say NaN while they are away, so that nobody can ask them then unseen."""

    def __init__(self, networks: list[Any]) -> None:
        self.visits = 0
        super().__init__(networks, CPU, torch.clone)

    def _arrive(self) -> None:
        self.visits += 1
        super()._arrive()

    def _on_card(self, waiting: Tensor) -> Tensor:
        return waiting.clone()

    def _leave(self) -> None:
        for tensor, waiting in self._homes:
            tensor.data = torch.full_like(waiting, math.nan) if waiting.is_floating_point() else waiting


@pytest.mark.parametrize(
    "setting", ["fixed", "separate", "remax", "replayed targets", "dpo", "in the loss", "rounded reference"]
)
def test_a_reference_that_is_off_the_card_changes_no_byte(tmp_path: Path, setting: str) -> None:
    knobs = {**CONTROLS[setting], "train__steps": 8}
    outcome, rows, state = run(tmp_path / "there", **knobs)
    one = trainer(tmp_path / "away", offload=Card, **knobs)
    assert one.run() == outcome
    assert merged(tmp_path / "away" / "metrics.jsonl") == rows
    assert all(torch.equal(tensor, state[name]) for name, tensor in one.actor.state_dict().items())
    assert one.rollout_context.offloaded is not None
    card: Any = one.rollout_context.offloaded.reference
    # Greedy responses and stored pairs are measured apart from the rollout, and replayed states one by one.
    visits = card.visits / outcome.updates
    assert visits > 2 if setting == "replayed targets" else visits == (2 if setting in {"remax", "dpo"} else 1)


def test_it_is_there_while_a_rollout_is_scored_and_away_while_one_is_sampled_and_learned_from(tmp_path: Path) -> None:
    one = trainer(tmp_path, offload=Card, train__steps=8)
    lm: Any = one.rollout_context.reference
    there = dict[str, bool]()
    timed = one.ledger.timed

    @contextmanager
    def noted(phase: str) -> Iterator[None]:
        there[phase] = not bool(lm.get_input_embeddings().weight.isnan().any())
        with timed(phase):
            yield

    one.ledger.timed = noted  # type: ignore[method-assign]
    one.rollout_context = replace(one.rollout_context, timed=noted)
    one._one_update()
    assert (there["generate"], there["train"]) == (False, False)
    there.clear()
    one._rollout()
    assert bool(lm.get_input_embeddings().weight.isnan().any())


def test_gradients_make_room_for_what_comes_back_and_stay_where_nothing_does(tmp_path: Path) -> None:
    for name, offload in (("there", None), ("away", Card)):
        one = trainer(tmp_path / name, offload=offload)
        one._one_update()
        assert any(weight.grad is not None for weight in one.actor.parameters()) == (offload is None)


def test_rewards_are_there_while_they_score_and_the_reference_is_not(tmp_path: Path) -> None:
    one = trainer(tmp_path, offload=Card)
    lm: Any = one.rollout_context.reference
    scorer = freeze(model())
    context = replace(one.rollout_context, offloaded=Offloaded(one.rollout_context.offloaded.reference, Card([scorer])))  # type: ignore[union-attr]
    seen = list[tuple[bool, bool]]()

    def look(episodes: Any, rows: Any) -> Any:
        seen.append(tuple(bool(one.get_input_embeddings().weight.isnan().any()) for one in (scorer, lm)))  # type: ignore[arg-type]
        return score(episodes, rows)

    one.rollout_context = replace(context, score=look)
    one._rollout()
    assert set(seen) == {(False, True)}
    assert bool(scorer.get_input_embeddings().weight.isnan().any())


def test_what_is_off_the_card_is_no_memory_of_training(tmp_path: Path) -> None:
    plain, away = trainer(tmp_path / "plain"), trainer(tmp_path / "away", offload=Card)
    plain._one_update()
    away._one_update()
    reference: Any = plain.rollout_context.reference
    held = sum(one.nbytes for one in (*reference.parameters(), *reference.buffers()))
    assert plain.state_bytes() - away.state_bytes() == held


@pytest.mark.parametrize("held", ["fp16", "bf16"])
def test_a_rounded_reference_is_the_policys_start_but_for_rounding(tmp_path: Path, held: str) -> None:
    _, base, _ = run(tmp_path / "base", train__steps=4)
    one = trainer(tmp_path / held, train__steps=4, train__frozen_dtype=held)
    assert any(isinstance(module, HalfLinear) for module in one.rollout_context.reference.modules())
    one.run()
    rows = merged(tmp_path / held / "metrics.jsonl")
    assert base[0]["objective/kl_exact_per_token"] == 0.0
    assert 1e-10 < rows[0]["objective/kl_exact_per_token"] < {"fp16": 1e-6, "bf16": 1e-4}[held]
    same = ("objective/entropy", "objective/length", "objective/scores", "objective/gold")
    assert {name: rows[0][name] for name in same} == {name: base[0][name] for name in same}, "the policy is not rounded"


def test_rounding_that_shows_as_kl_is_said_once_with_its_size(tmp_path: Path) -> None:
    watch = Recorder()
    one = trainer(tmp_path, watch, train__steps=8, train__frozen_dtype="bf16")
    with torch.no_grad():
        for module in one.rollout_context.reference.modules():  # type: ignore[attr-defined]
            if isinstance(module, HalfLinear):
                module.weight.mul_(1.1)
    one.run()
    said = [line for line in watch.warnings if "frozen_dtype" in line]
    assert len(said) == 1
    assert said[0].startswith("train.frozen_dtype = bf16: before the first step the policy is 0.00")
    silent = Recorder()
    run(tmp_path / "small", reporter=silent, train__steps=8, train__frozen_dtype="fp16")
    assert not [line for line in silent.warnings if "frozen_dtype" in line]


def test_a_killed_trial_with_a_rounded_reference_that_is_off_the_card_goes_on_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    knobs: dict[str, Any] = {"train__frozen_dtype": "fp16", "offload": Card}
    _, rows, state = run(tmp_path / "whole", **knobs)
    with pytest.raises(Killed):
        run(tmp_path / "killed", reporter=Killer(after=3), **knobs)
    _, again, ended = run(tmp_path / "killed", **knobs)
    assert again == rows
    assert all(torch.equal(state[name], tensor) for name, tensor in ended.items())


def test_on_a_cpu_there_is_no_card_to_leave() -> None:
    from helpers import trial_config

    runtime = trial_config(runtime__device="cpu", runtime__offload_reference=True).runtime
    with pytest.raises(UserError, match=r"runtime\.offload_reference = true: the trial runs on a CPU, and there is no"):
        check_devices(runtime)


def test_the_reference_of_stored_pairs_is_not_rounded() -> None:
    from helpers import trial_config

    with pytest.raises(ValueError, match=r"use fp32, and runtime\.offload_reference to save memory"):
        trial_config(**preset("dpo"), train__frozen_dtype="fp16")
