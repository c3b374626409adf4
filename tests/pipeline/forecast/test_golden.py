"""Every number of the forecasts in `golden.json`, identities, measured peaks; refusals, advised changes, other bases.

After a change that is meant: PYTHONPATH=. python tests/pipeline/forecast/test_golden.py writes the numbers anew.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_check import measure

from pipeline.config.loading import PROFILES, load_config
from pipeline.errors import UserError
from pipeline.forecast.advice import Forecast, changed, check_budget, fitting_changes, predict, remedy
from pipeline.forecast.memory import measured
from pipeline.resources.machine import GIB
from studies.console.plan import FOUR_MODELS, parameters_of, total_line
from studies.definition.design import cells
from studies.definition.schema import load_study

FILE = Path(__file__).with_name("golden.json")
GOLDEN: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
FIGURES = ("stages", "hours", "other_hours", "trained")
LIBRARIES = "interpreter and libraries"


def forecast(profile: str, changes: dict[str, Any] | None = None) -> Forecast:
    found = predict(load_config(profile, changes or {}))
    assert found is not None
    return found


def figures(case: dict[str, Any]) -> dict[str, float]:
    """All numbers of a forecast by name; the libraries of a worker depend on the machine."""
    flat: dict[str, float] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                add(f"{name}, {key}", part)
        elif LIBRARIES not in name:
            flat[name] = value

    found = forecast(case["profile"], case["changes"])
    for name in FIGURES:
        add(name, getattr(found, name))
    return flat


@pytest.mark.parametrize("name", GOLDEN)
def test_every_number_of_a_forecast(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert figures(GOLDEN[name]) == pytest.approx(GOLDEN[name]["figures"], rel=0.01, abs=1e-9)


def test_weights_of_the_profile_t4() -> None:
    """fp32 weights and gradients, Adam's two moments; reference and reward model."""
    found = forecast("t4")
    own = 4 * found.parameters / GIB
    weights = {"policy": own, "gradients": own, "optimiser": 2 * own, "reference": own, "reward": own}
    assert {name: found.stages["train"][name] for name in weights} == pytest.approx(weights)
    assert found.trained == found.parameters == pytest.approx(464e6, rel=0.01)
    assert forecast("tiny").stages["train"][LIBRARIES] >= 0.4


def test_four_models() -> None:
    """Seven billion parameters are 84 GB by the assumptions of the common table."""
    together = [sum(each) for each in FOUR_MODELS["bytes"].values()]
    assert parameters_of("7B") * together[0] == 84e9
    assert together == pytest.approx([12, 36, 40, 20, 6.32, 3.836, 2.676])


def test_the_comment_of_the_profile_t4_256_states_what_is_predicted() -> None:
    text = (PROFILES / "t4-256.yaml").read_text("utf-8")
    rows = re.findall(r"^# +(\d+) +(\d) +(\d+) +(\d+) +(yes|no) +([\d.]+) +([\d.]+)(.*)$", text, re.M)
    assert len(rows) == 17
    keys = ("train.batch_size", "train.num_epochs", "train.steps", "runtime.micro_batch_size")
    for *numbers, again, gib, hours, fits in rows:
        changes = dict(zip(keys, map(int, numbers), strict=True)) | {"runtime.gradient_checkpointing": again == "yes"}
        found = forecast("t4-256", changes)
        assert (f"{found.total_gib:.2f}", f"{found.t4_hours:.2f}", found.fits) == (gib, hours, "fits" in fits)
        assert (load_config("t4-256", changes) == load_config("t4-256")) is fits.endswith("the profile")


def test_the_hours_of_a_study_count_shared_stages_once() -> None:
    found, study = forecast("t4-256"), load_study("recipe")
    shared = dict(found.other_hours)
    own = found.t4_hours + shared.pop("evaluate")
    fewer = forecast("t4-256", {"reward.learned.pairs": 4096}).other_hours
    apart = study.model_copy(update={"arms": {"reward": {}, "loss": {"reward.learned.pairs": 4096}}})
    total, more = (
        float(total_line(one, cells(one, None, {})).split(": ")[1].split(" h ")[0]) for one in (study, apart)
    )
    assert total == pytest.approx(30.9, abs=0.1)
    assert total == pytest.approx(5 * sum(shared.values()) + 10 * own, abs=0.01)
    assert more == pytest.approx(total + 5 * (fewer["reward"] + fewer["reference"]), abs=0.01), "SFT is shared"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what libraries take was measured on Linux")
def test_predicted_memory_is_within_15_percent_of_the_measured_peak(tmp_path: Path) -> None:
    peaks = measure("42M", tmp_path)
    # Not that of evaluation: its process has trained before, whose memory it keeps.
    for stage in ("sft", "reward", "train"):
        predicted, measured = peaks[stage]
        assert predicted == pytest.approx(measured, rel=0.15), stage


SEPARATE = {"critic.kind": "separate"}


@pytest.mark.parametrize("profile", ["smoke", "tiny", "t4", "t4-256"])
def test_every_shipped_profile_is_predicted_to_fit(profile: str) -> None:
    assert forecast(profile).fits
    check_budget(load_config(profile), "fits")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (SEPARATE, r"^X would exceed its caps: 21\.3 GiB predicted in stage train \(optimiser 6\.9, .*, \.\.\.\),"
                   r" caps\.memory_gib = 14\.6; 3\.16 h predicted on a T4,"
                   r" caps\.wall_clock_h = 2\.5\. .*critic\.kind=shared \(13\.3 "),
        ({"train.steps": 6_000},
         r"^X would exceed its caps: 3\.95 h predicted on a T4, caps.wall_clock_h = 2\.5\. .*steps=3748 "),
        ({"caps.memory_gib": 0.5}, r"No single knob makes it fit: take a smaller base"),
        ({"adapter.kind": "lora", "adapter.quantize": "4bit", "caps.memory_gib": 9.0}, r"predicted in stage sft"),
        ({"algorithm": "trpo"}, r"would exceed its caps"),
    ],
    ids=["both", "time", "nothing helps", "another stage", "TRPO"],
)  # fmt: skip
def test_a_trial_that_cannot_fit_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        check_budget(load_config("t4", changes), "X")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("visible", "refused"), [("NVIDIA H100 80GB HBM3", False), ("Tesla T4", True)])
def test_a_t4s_hours_count_only_on_a_t4(monkeypatch: pytest.MonkeyPatch, visible: str, refused: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: visible)
    assert forecast("t4", {"train.steps": 6_000}).fits is not refused
    assert not forecast("t4", SEPARATE).fits, "the allocator is limited on any card"


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (SEPARATE, ["critic.kind"]),
        (
            {**SEPARATE, "caps.memory_gib": 16.0, "caps.wall_clock_h": 4.0},
            ["critic.adapter", "critic.kind", "adapter.kind"],
        ),
        (
            {"runtime.micro_batch_size": 64, "runtime.gradient_checkpointing": False, "caps.wall_clock_h": 10.0},
            ["runtime.gradient_checkpointing", "adapter.kind", "runtime.micro_batch_size"],
        ),
    ],
)
def test_each_advised_change_makes_the_trial_fit(changes: dict[str, Any], keys: list[str]) -> None:
    config = load_config("t4", changes)
    found = fitting_changes(config)
    named = [next(iter(one)) for one, _ in found]
    assert [key for key in dict.fromkeys(named) if key in keys] == keys
    for one, with_it in found:
        again = predict(changed(config, one))
        assert again is not None
        assert again.fits
        assert (again.total_gib, again.t4_hours) == (with_it.total_gib, with_it.t4_hours)
        assert f"({again.total_gib:.1f} GiB, {again.t4_hours:.2f} h)" in remedy(config)


TINYLLAMA = {"vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
             "num_attention_heads": 32, "num_key_value_heads": 4, "tie_word_embeddings": False}  # fmt: skip
NEOX = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        ({"model_type": "gpt2"}, 124.4),
        ({"model_type": "llama", **TINYLLAMA}, 1100.0),
        ({"model_type": "gpt_neox", "vocab_size": 50304, **NEOX}, 70.4),
    ],
)
def test_shapes_of_any_decoder_come_from_its_configuration(config: dict[str, object], millions: float) -> None:
    shape = measured(json.dumps(config))
    assert shape is not None
    assert shape.parameters / 1e6 == pytest.approx(millions, rel=0.005)
    assert shape.maps == pytest.approx(12 * shape.layers * shape.hidden**2, rel=0.15)


def test_bases_without_a_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sizes = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 128}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    found = forecast("t4", {"model.base": str(tmp_path)})
    assert found.parameters == 500 * 64 + 128 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64
    assert measured(json.dumps({"model_type": "t5"})) is None
    unknown = load_config("t4", {"model.base": "someone/unknown"})
    assert predict(unknown) is None
    check_budget(unknown, "not refused")


def write() -> None:
    for case in GOLDEN.values():
        case["figures"] = {name: float(f"{value:.6g}") for name, value in figures(case).items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in GOLDEN.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", "utf-8")


if __name__ == "__main__":
    write()
