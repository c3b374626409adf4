from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pipeline.config.loading import load_config
from pipeline.config.presets import PRESETS
from pipeline.config.trial import flatten
from pipeline.run.bands import BANDS
from pipeline.run.knobs import acting, instruction
from pipeline.run.symptoms import examine


def settings_of(**overrides: Any) -> dict[str, object]:
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return dict(flatten(load_config("tiny", named).model_dump(mode="json")))


def told(key: str, side: str, settings: dict[str, object]) -> str:
    """What a trial with this configuration is told to change, where the series leaves its band on a side."""
    (band,) = [one for one in BANDS[key] if (one.high if side == "above" else -one.low) < math.inf][:1]
    return instruction(acting(band.knobs, settings))


APPROXKL = ("policy/approxkl", "above")
KL = ("objective/kl_exact_per_token", "above")
EOS = ("objective/eos_rate", "below")
ENTROPY = ("policy/entropy", "below")
RANDOM = ("policy/entropy", "above")
CRITIC = ("value/explained_variance", "below")
STEPS = "lower optimiser.lr or train.num_epochs"


@pytest.mark.parametrize(
    ("series", "overrides", "expected"),
    [
        (APPROXKL, {}, STEPS),
        (APPROXKL, {"algorithm": "reinforce"}, "lower optimiser.lr"),  # one epoch cannot become fewer
        (APPROXKL, {"algorithm": "trpo"}, "lower algorithm.trpo.delta"),
        (APPROXKL, {"train.num_epochs": 1}, "lower optimiser.lr"),
        (APPROXKL, {"train.num_epochs": 1, "optimiser.lr": 0.0}, ""),
        (KL, {}, "raise kl.beta"),
        (KL, {"kl.beta": 0.0}, "raise kl.beta"),
        (KL, {"kl.control": "linear"}, "raise kl.beta or kl.end"),
        (KL, {"kl.control": "cosine"}, "raise kl.beta or kl.end"),
        (KL, {"kl.control": "adaptive"}, "lower kl.adaptive.target"),
        (KL, {"kl.control": "piecewise", "kl.stages": [[0.0, 0.1], [0.5, 0.0]]}, "raise kl.stages"),
        (KL, {"kl.control": "piecewise", "kl.stages": [[0.5, 0.0]]}, "raise kl.beta or kl.stages"),
        (KL, {"algorithm": "best_of_n"}, ""),
        (EOS, {}, "raise train.missing_eos_penalty or kl.beta"),
        (EOS, {"algorithm": "dapo"}, "raise train.overlong_penalty or kl.beta"),
        (EOS, {"algorithm": "dpo"}, "raise kl.beta"),
        (EOS, {"algorithm": "ipo"}, "raise kl.beta"),
        (ENTROPY, {}, "raise entropy.coef or kl.beta"),
        (ENTROPY, {"entropy.coef": 0.01, "entropy.control": "adaptive"}, "raise entropy.adaptive.target or kl.beta"),
        (RANDOM, {}, "lower optimiser.lr, or raise kl.beta"),  # a bonus of 0 cannot become less
        (RANDOM, {"entropy.coef": 0.01}, "lower optimiser.lr or entropy.coef, or raise kl.beta"),
        (CRITIC, {}, "lower critic.head_lr, or raise critic.pretraining_steps"),
        (("policy/grad_norm", "above"), {}, "lower optimiser.lr"),  # the series is before clipping
    ],
)  # fmt: skip
def test_what_to_change_acts_in_the_trial(series: tuple[str, str], overrides: dict[str, Any], expected: str) -> None:
    if series[0] == "policy/entropy":
        key, side = series
        band = BANDS[key][0 if side == "below" else 1]
        assert instruction(acting(band.knobs, settings_of(**overrides))) == expected
    else:
        assert told(*series, settings_of(**overrides)) == expected


@pytest.mark.parametrize("algorithm", PRESETS)
def test_no_algorithm_is_told_to_change_what_its_configuration_refuses(algorithm: str) -> None:
    """Each setting that is named can be set in an arm of that algorithm."""
    settings = settings_of(algorithm=algorithm)
    named = {knob for bands in BANDS.values() for band in bands for knob in acting(band.knobs, settings)}
    for verb, key in named - {("lower", "critic.head_lr")}:  # which is not set: the critic's common rate holds
        number = settings[key]
        assert isinstance(number, int | float)
        load_config("tiny", {"algorithm": algorithm, key: type(number)(number / 2 if verb == "lower" else number + 1)})
    assert (("lower", "critic.head_lr") in named) == (settings["critic.kind"] != "none")


def test_a_symptom_without_a_knob_that_acts_names_none() -> None:
    series = {"objective/kl_exact_per_token": (np.arange(20.0), np.ones(20))}
    (found,) = examine(series, settings_of(algorithm="best_of_n")).symptoms
    assert found.knob == ""
    assert "raise" not in found.sentence
    assert found.sentence.rstrip(".").endswith(found.cause)
