from __future__ import annotations

import pytest
import tinynets
import torch

from pipeline.data.chains import read
from pipeline.rewards.base import Completions
from pipeline.rewards.kinds import VerifierSettings
from pipeline.rewards.verifier import Verifier, marks_of

PROMPTS = [f"{a} {b} {c} ?" for a in range(10) for b in range(10) for c in range(10)]


def completions(*texts: str) -> Completions:
    return tinynets.completions(*(("2 7 5 ?", text) for text in texts))


def scores(prompts: list[str], text: str, **settings: object) -> torch.Tensor:
    verifier = Verifier(VerifierSettings(**settings))  # type: ignore[arg-type]
    return verifier(tinynets.completions(*((prompt, text) for prompt in prompts)))


def test_strict_and_lenient() -> None:
    texts = (" = 4", " = 1 = 4", " = 4 = 1", " = 1")
    assert Verifier(VerifierSettings())(completions(*texts)).tolist() == [1, 0, 0, 0]
    assert Verifier(VerifierSettings(extract="lenient"))(completions(*texts)).tolist() == [1, 1, 1, 0]


def test_errors_have_their_rates_and_an_answer_that_is_judged_twice_is_judged_alike() -> None:
    right = torch.tensor([read(prompt, " = 4").right for prompt in PROMPTS])
    noisy = scores(PROMPTS, " = 4", false_positive=0.3, false_negative=0.2)
    assert torch.equal(noisy, scores(PROMPTS[::-1], " = 4", false_positive=0.3, false_negative=0.2).flip(0))
    assert float(noisy[~right].mean()) == pytest.approx(0.3, abs=0.06)
    assert float(noisy[right].mean()) == pytest.approx(0.8, abs=0.14)


def test_without_youdens_j_the_reward_is_independent_of_the_answer() -> None:
    """P(accepted | right) = P(accepted | wrong); four standard errors of the difference of the two shares."""
    accepted = torch.stack([scores(PROMPTS, f" = {e}", false_positive=0.4, false_negative=0.6) for e in range(10)])
    right = torch.tensor([[read(prompt, f" = {e}").right for prompt in PROMPTS] for e in range(10)])
    gap = float(accepted[right].mean() - accepted[~right].mean())
    assert abs(gap) < 4 * (0.4 * 0.6 / int(right.sum())) ** 0.5


def test_sound_steps_are_worth_their_share() -> None:
    texts = (" ; 7 5 2 ; 2 2 4 = 4", " ; 7 5 2 ; 2 2 3 = 4", " = 4", " ; 2 7 9 ; 9 5 4 = 1", " ; 9 5 4")
    found = Verifier(VerifierSettings(sound_steps=0.5))(completions(*texts)).tolist()
    assert found == [1.5, 1.25, 1.0, 0.5, 0.0]


def test_marks() -> None:
    found = marks_of(Verifier(VerifierSettings()), completions(" ; 7 5 2 = 4", " ; 7 5 3 = 4", " = 1"), 6)
    assert found["right"].tolist() == [1, 1, 0]
    assert found["worked"].tolist() == [1, 1, 0]
    assert found["sound"].tolist() == [1, 0, 0]
    assert found["forks"].tolist() == [
        [True, True, False, False, True, False],
        [True, True, False, False, False, False],
        [True, False, False, False, False, False],
    ]
    assert marks_of(lambda _: torch.zeros(1), completions(" = 1"), 5) == {}  # type: ignore[arg-type]
