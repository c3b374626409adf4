"""Every number of the forecasts in `golden.json`, and identities between forecasts.

After a change that is meant: PYTHONPATH=. python tests/pipeline/forecast/test_golden.py writes the numbers anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.forecast.advice import Forecast, predict
from pipeline.resources.machine import GIB

FILE = Path(__file__).with_name("golden.json")
GOLDEN: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
FIGURES = ("stages", "hours", "own_hours", "shared_hours", "disk", "shared_disk_gib", "trained")
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
        elif value is not None and LIBRARIES not in name:
            flat[name] = value

    found = forecast(case["profile"], case["changes"])
    for name in FIGURES:
        add(name, getattr(found, name))
    return flat


@pytest.mark.parametrize("name", GOLDEN)
def test_every_number_of_a_forecast(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert figures(GOLDEN[name]) == pytest.approx(GOLDEN[name]["figures"], rel=0.01, abs=1e-9)


def test_the_weights_of_the_profile_t4_take_what_their_number_says() -> None:
    """fp32 weights and gradients, Adam's two moments; reference and reward model; three checkpoints of 12 bytes."""
    found = forecast("t4")
    own = 4 * found.parameters / GIB
    weights = {"policy": own, "gradients": own, "optimiser": 2 * own, "reference": own, "reward": own}
    assert {name: found.stages["train"][name] for name in weights} == pytest.approx(weights)
    assert found.disk == pytest.approx({"checkpoints": 9 * own, "policy": own})
    assert found.trained == found.parameters
    assert LIBRARIES not in found.stages["train"]
    assert forecast("tiny").stages["train"][LIBRARIES] >= 0.4


def test_what_an_ensemble_or_a_round_adds_is_a_multiple() -> None:
    one, two, four = (forecast("tiny", {"reward.learned.ensemble": models}) for models in (1, 2, 4))
    for figure in (lambda found: found.stages["train"]["reward"], lambda found: found.shared_disk_gib):
        assert figure(four) - figure(two) == pytest.approx(2 * (figure(two) - figure(one)))
    rounds = {count: forecast("tiny", {"reward.learned.rounds": count}) for count in (2, 4)}
    assert rounds[4].disk["earlier rounds"] == pytest.approx(3 * rounds[2].disk["earlier rounds"])
    assert rounds[2].own_hours["reference"] == one.shared_hours["reference"], "scored by the trial's own reward"
    opposed = {
        count: forecast("tiny", {"reward.against": "reference", "reward.learned.rounds": count}) for count in (1, 4)
    }
    drawn = opposed[1].shared_hours["reward"] - one.shared_hours["reward"]
    assert opposed[4].hours["reward"] - rounds[4].hours["reward"] == pytest.approx(3 * drawn)


def test_what_is_off_the_card_costs_time_and_no_memory() -> None:
    plain, away = forecast("t4"), forecast("t4", {"runtime.offload_reference": True})
    moved = plain.stages["train"]["reference"] + plain.stages["train"]["reward"]
    assert plain.stage_gib("train") - away.stage_gib("train") == pytest.approx(moved)
    assert away.hours["offload"] * 3600 == pytest.approx(750 * moved * GIB / 12e9), "750 updates, 12 GB/s"


def write() -> None:
    for case in GOLDEN.values():
        case["figures"] = {name: float(f"{value:.6g}") for name, value in figures(case).items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in GOLDEN.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", "utf-8")


if __name__ == "__main__":
    write()
