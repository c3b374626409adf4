from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.stages.laws import entropy_law, reward_laws


def test_the_entropy_law_foretells_what_follows_it() -> None:
    entropy = np.linspace(1.5, 0.1, 40)
    right = 0.9 - 0.2 * np.exp(entropy)
    series = pd.DataFrame({"objective/accuracy": right, "objective/entropy_per_token": entropy})
    twice = pd.concat([series, pd.DataFrame({"policy/lr": [1.0] * 40})])  # gradient steps have rows of their own
    assert entropy_law(twice) == {"eval/entropy_law_miss": pytest.approx(0, abs=1e-12)}
    broken = series.assign(**{"objective/accuracy": np.where(np.arange(40) < 36, right, right - 0.25)})
    assert entropy_law(broken) == {"eval/entropy_law_miss": pytest.approx(0.25)}
    assert entropy_law(series.head(19)) == entropy_law(series.assign(**dict.fromkeys(series, 1.0))) == {}
    assert entropy_law(pd.DataFrame({"policy/lr": [1.0]})) == {}


def test_the_laws_of_rewards_foretell_what_follows_them() -> None:
    length, d = 20.0, np.linspace(0.0, 4.0, 40)  # 0 at the reference, where log d is -inf and d log d is 0
    follows = pd.DataFrame({
        "objective/gold": -0.3 + d * (2.0 - 1.5 * np.log(np.maximum(d, 1e-300))),
        "objective/scores": 0.5 * d,
        "objective/kl_exact_per_token": d**2 / length,
        "objective/length": length,
    })  # fmt: skip
    exact = {"eval/gold_law_miss": pytest.approx(0, abs=1e-9), "eval/proxy_law_miss": pytest.approx(0, abs=1e-9)}
    assert reward_laws(follows, -0.3) == exact
    late = np.arange(40) >= 36
    bent = follows.assign(**{
        "objective/gold": follows["objective/gold"] - 3.0 * late,
        "objective/scores": follows["objective/scores"] - 0.5 * late,
    })  # fmt: skip
    assert reward_laws(bent, -0.3) == {
        "eval/gold_law_miss": pytest.approx(3),
        "eval/proxy_law_miss": pytest.approx(0.5),
    }
    assert reward_laws(follows, 0.7)["eval/gold_law_miss"] > 0.1, "the curve of gold begins at the reference"
    assert reward_laws(follows.head(19), -0.3) == reward_laws(pd.DataFrame({"policy/lr": [1.0]}), 0.0) == {}
