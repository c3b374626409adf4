"""The precision that a device allows, in every stage; half precision on a CPU stands in for that of a card."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, smoke
from safetensors.torch import load_file
from tinytrial import Killed, Killer, model, trainer

from pipeline.config.networks import SftConfig
from pipeline.errors import UserError
from pipeline.models import precision
from pipeline.models.out_of_memory import MemoryFull, Room
from pipeline.models.precision import execution, mixed_precision
from pipeline.rewards import learned
from pipeline.run.layout import Layout
from pipeline.training import language_model
from pipeline.training.supervised import Supervised
from pipeline.trial import run_trial

CPU = torch.device("cpu")
TEXTS = [[row, *range(2, 2 + row % 5 + 3), 1] for row in range(2, 18)]


@pytest.mark.parametrize(
    ("capability", "asked", "wanted"),
    [
        ((7, 5), "", "fp16"), ((8, 0), "", "bf16"), ((9, 0), "", "bf16"),
        ((9, 0), "fp32", "fp32"), ((9, 0), "fp16", "fp16"), ((9, 0), "bf16", "bf16"),
        ((7, 5), "half", r"'half': must be one of fp32, fp16, bf16"), ((7, 5), "bf16", "below 8.0; use fp16 or fp32"),
    ],
)  # fmt: skip
def test_a_card_gets_what_it_can_do_or_what_is_asked_for_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], asked: str, wanted: str
) -> None:
    class Card:
        name, major, minor, total_memory = "A card", *capability, 16 * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    monkeypatch.setenv(precision.CHOICE, asked)
    card = torch.device("cuda")
    if wanted not in precision.DTYPES:
        with pytest.raises(UserError, match=wanted):
            mixed_precision(card)
        return
    assert mixed_precision(card) == wanted
    said = execution(card, 2, 3)
    why = "asked for by ABLATE_PRECISION" if asked else f"compute capability {capability[0]}.{capability[1]}"
    assert why in said["precision"]
    assert ("scaler" in said["precision"]) == (wanted == "fp16")
    assert (said["device"], said["threads"], said["processes"]) == ("A card, 16.0 GiB", "2", "3")


def trained(checkpointing: bool = False) -> Any:
    network = model()
    language_model.fit(
        network, TEXTS, SftConfig(steps=6, batch_size=8, max_tokens=8, lr=1e-2), Recorder(), checkpointing
    )
    return network


@torch.no_grad()
def furthest(one: Any, other: Any) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_recomputing_and_fewer_texts_at_once_change_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = trained()
    assert furthest(model(), wanted) > 1e-3
    assert furthest(trained(checkpointing=True), wanted) < 1e-4
    monkeypatch.setattr(language_model, "text_rows", lambda *_: 3)
    assert furthest(trained(), wanted) < 1e-4


def test_a_reference_that_not_even_one_text_fits_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise MemoryFull("out of memory with a single episode at once (sft.batch_size came down to 1)")

    monkeypatch.setattr(importlib.import_module("pipeline.stages.sft"), "fit", full)
    with pytest.raises(UserError, match=r"sft\.batch_size came down to 1"):
        run_trial(smoke(sft__lr=2e-2), Layout(tmp_path), Recorder(), until="sft")


def test_an_overflow_in_fp16_skips_the_step_and_lowers_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "mixed_precision", lambda _: "fp16")
    network = torch.nn.Linear(4, 1)
    steps = Supervised(network, [], 0.0, Room("sft.batch_size", 2), False)
    before, scale = copy.deepcopy(network), steps.steps.scaler.get_scale()
    steps.step(0.1, 2, lambda part: network(torch.full((2, 4), 60_000.0)).float().sum() * 1e30)
    assert furthest(network, before) == 0.0
    assert steps.steps.scaler.get_scale() == scale / 2
    for _ in range(20):  # until the scale is one that fits
        steps.step(0.1, 2, lambda part: network(torch.ones(2, 4)).float().sum())
    assert furthest(network, before) > 0.01
    assert 0 < steps.steps.scaler.get_scale() < scale
    assert all(one.dtype == torch.float32 for one in network.parameters())


@pytest.fixture
def half(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Half precision in every stage, on the CPU."""
    monkeypatch.setattr(precision, "mixed_precision", lambda _: request.param)
    return str(request.param)


@pytest.mark.parametrize("half", ["fp16"], indirect=True)
def test_a_stop_by_target_kl_leaves_the_scale_as_it_was(tmp_path: Path, half: str) -> None:
    """The gradient of the step that is refused is dropped: it is neither counted as a sound one nor as an overflow."""
    one = trainer(tmp_path, algorithm__target_kl=1e-9)
    outcome = one.run()
    assert outcome.steps == outcome.updates == 6
    scaler = one.state.steps.scaler.state_dict()
    assert (scaler["scale"], scaler["_growth_tracker"]) == (2.0**16, 6)


@pytest.mark.parametrize("half", ["fp16"], indirect=True)
def test_the_scaler_resumes_in_the_middle_of_its_search(tmp_path: Path, half: str) -> None:
    """Begin at a scale where gradients overflow: steps are skipped, the scale falls, and a resume goes on at the scale
    it had."""

    def started(folder: str, reporter: Recorder | None = None) -> Any:
        one = trainer(tmp_path / folder, reporter=reporter, runtime__checkpoint_updates=1)
        one.state.steps.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=3)
        return one

    whole = started("whole")
    outcome = whole.run()
    assert outcome.status == "complete"
    assert whole.state.steps.scaler.get_scale() < 2.0**40
    with pytest.raises(Killed):
        started("cut", Killer(2)).run()
    again = started("cut")
    assert again.run() == outcome
    assert again.state.steps.state()["scaler"] == whole.state.steps.state()["scaler"]
    assert furthest(again.actor, whole.actor) == 0.0


@pytest.mark.parametrize("half", ["bf16", "fp16"], indirect=True)
def test_a_whole_trial_in_half_precision_keeps_fp32_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, half: str
) -> None:
    seen: dict[str, set[torch.dtype]] = {}

    def look(module: Any, function: str) -> None:
        real = getattr(module, function)

        def looked(*args: Any, **kwargs: Any) -> Any:
            dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
            seen.setdefault(f"{module.__name__}.{function}", set()).add(dtype)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, function, looked)

    places = {"training.language_model": "text_states", "models.sampling": "inverse_cdf", "stages.evaluate": "drift"}
    for module, function in places.items():
        look(importlib.import_module(f"pipeline.{module}"), function)
    look(learned, "states")
    done = run_trial(smoke(sft__steps=30, train__steps=8, evaluate__prompts=16), Layout(tmp_path), Recorder())
    assert done.status == "complete"
    assert len(seen) == 4
    assert set().union(*seen.values()) == {precision.DTYPES[half]}
    weights = load_file(done.artifacts["train"].path / "policy" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert 0 <= done.summary["eval/kl_per_token"] < 1.0
