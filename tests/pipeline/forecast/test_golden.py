"""Every number of the forecasts in `golden.json`, identities between forecasts, figures in comments, measured peaks.

After a change that is meant: PYTHONPATH=. python tests/pipeline/forecast/test_golden.py writes the numbers anew.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from memory_check import measure

from pipeline.config.loading import PROFILES, load_config
from pipeline.forecast.advice import Forecast, predict
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


def test_opponents_and_rounds_add_multiples() -> None:
    rounds, opposed = (
        {count: forecast("tiny", {**changes, "reward.learned.rounds": count}) for count in (1, 4)}
        for changes in ({}, {"reward.against": "reference"})
    )
    drawn = opposed[1].other_hours["reward"] - rounds[1].other_hours["reward"]
    assert opposed[4].hours["reward"] - rounds[4].hours["reward"] == pytest.approx(3 * drawn)


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


def write() -> None:
    for case in GOLDEN.values():
        case["figures"] = {name: float(f"{value:.6g}") for name, value in figures(case).items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in GOLDEN.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", "utf-8")


if __name__ == "__main__":
    write()
