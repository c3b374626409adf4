"""What is refused, and which changes are named that would fit."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.forecast.advice import Forecast, changed, check_budget, knobs, predict, remedy, variants

SEPARATE = {"critic.kind": "separate"}
QUANTISED = {"adapter.kind": "lora", "adapter.quantize": "4bit", "caps.memory_gib": 9.0}


def t4(**changes: Any) -> TrialConfig:
    return load_config("t4", {key.replace("__", "."): value for key, value in changes.items()})


def forecast(config: TrialConfig) -> Forecast:
    found = predict(config)
    assert found is not None
    return found


@pytest.mark.parametrize("profile", ["smoke", "tiny", "t4", "t4-256"])
def test_every_shipped_profile_is_predicted_to_fit(profile: str) -> None:
    assert forecast(load_config(profile)).fits
    check_budget(load_config(profile), "fits")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (SEPARATE, r"^X cannot fit: 21\.3 GiB predicted in stage train \(optimiser 6\.9, .*, \.\.\.\), caps\.memory_gib"
                   r" = 14\.6; 3\.16 h predicted on a T4, caps\.wall_clock_h = 2\.5\. .*critic\.kind=shared \(13\.3 "),
        ({"train.steps": 6_000}, r"^X cannot fit: 3\.95 h predicted on a T4, caps.wall_clock_h = 2\.5\. .*train.steps"),
        ({"caps.memory_gib": 0.5}, r"No single knob makes it fit, nor all of them together: take a smaller base"),
        (QUANTISED, r"GiB predicted in stage sft \(optimiser"),  # which trains all weights, whatever PPO trains
        ({"algorithm": "trpo"}, r"cannot fit"),
    ],
    ids=["both", "time", "nothing helps", "another stage", "TRPO"],
)  # fmt: skip
def test_a_trial_that_cannot_fit_is_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        check_budget(load_config("t4", changes), "X")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("changes", [
    {**SEPARATE, "caps.memory_gib": 40.0, "caps.wall_clock_h": 20.0},
    {"model.base": "someone/unknown"},
])  # fmt: skip
def test_what_fits_or_is_not_known_is_let_through(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check_budget(load_config("t4", changes), "rich")


@pytest.mark.parametrize(
    ("card", "visible", "refused"),
    [
        ("auto", "NVIDIA H100 80GB HBM3", False),
        ("auto", "Tesla T4", True),
        ("auto", None, True),
        ("t4", "NVIDIA H100 80GB HBM3", True),
    ],
)
def test_a_t4s_roofline_refuses_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, card: str, visible: str | None, refused: bool
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible is not None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: visible)
    assert forecast(t4(train__steps=6_000, caps__card=card)).fits is not refused
    assert not forecast(t4(critic__kind="separate", caps__card=card)).fits, "the allocator holds memory on any card"


ADVISED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "separate critic": (SEPARATE, ["critic.kind"]),
    "8-bit critic": (
        {**SEPARATE, "caps.memory_gib": 16.0, "caps.wall_clock_h": 4.0},
        ["critic.adapter", "critic.kind", "adapter.kind", "adapter.kind"],
    ),
    "time": ({"train.steps": 6_000}, ["train.steps"]),
    "rows": (
        {"runtime.micro_batch_size": 64, "runtime.gradient_checkpointing": False, "caps.wall_clock_h": 10.0},
        ["runtime.micro_batch_size", "runtime.gradient_checkpointing", "adapter.kind", "adapter.kind"],
    ),
}


@pytest.mark.parametrize("case", ADVISED)
def test_each_knob_makes_the_trial_fit_and_takes_the_mildest_setting(case: str) -> None:
    changes, keys = ADVISED[case]
    config = load_config("t4", changes)
    found = knobs(config)
    named = [next(iter(knob)) for knob, _ in found]
    assert [key for key in keys if key in named] == keys
    assert sorted(named, key=named.index) == named
    for knob, with_it in found:
        again = forecast(changed(config, dict(knob)))
        assert again.fits
        assert (again.total_gib, again.t4_hours) == (with_it.total_gib, with_it.t4_hours)
        assert f"({again.total_gib:.1f} GiB, {again.t4_hours:.2f} h)" in remedy(config)
    for key in ("runtime.micro_batch_size", "train.steps"):
        if key in keys:
            (value,) = (knob[key] for knob, _ in found if key in knob)
            milder = 2 * value if key.startswith("runtime") else value + config.train.steps_per_update
            assert not forecast(changed(config, {key: milder})).fits


def test_where_no_single_knob_is_enough_several_are_named_together() -> None:
    config = t4(critic__kind="separate", train__response_length=100, caps__memory_gib=11.0)
    ((changes, found),) = knobs(config)
    assert found.fits
    assert len(changes) > 2
    load_config("t4", {"critic.kind": "separate", **changes})  # nothing in it is without effect


def test_fewer_steps_are_advised_in_whole_rounds() -> None:
    found = knobs(t4(reward__learned__rounds=2, train__steps=6_000, caps__memory_gib=20.0))
    (steps,) = (changes["train.steps"] for changes, _ in found if "train.steps" in changes)
    assert steps % 8 == 0


def test_the_ways_to_train_are_those_of_the_algorithm_and_ordered_as_they_must_be() -> None:
    found = {name: one for name, one in variants(t4()).items() if one is not None}
    falling = [
        "full, separate critic",
        "full, separate 8-bit critic with LoRA",
        "full, shared critic",
        "LoRA on 4 bits, separate 8-bit critic with LoRA",
        "LoRA, shared critic",
        "LoRA on 4 bits, shared critic",
    ]
    memory = [found[name].stage_gib("train") for name in falling]
    assert memory == sorted(set(memory), reverse=True)
    assert [name for name in falling[:3] if found[name].fits] == ["full, shared critic"]
    assert list(variants(t4(algorithm="rloo"))) == ["full, no critic", "LoRA, no critic", "LoRA on 4 bits, no critic"]
    natural = list(variants(t4(algorithm="trpo")))
    assert natural[:2] == ["full, separate critic", "full, separate 8-bit critic with LoRA"]
    assert not any("4 bits" in name or "shared" in name for name in natural)
