from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers import Recorder, copy_upstream, smoke, trial_config
from naive import drawn, prefix
from safetensors.torch import load_file

from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.data.reviews import generate
from pipeline.models.policy import padded_episodes
from pipeline.models.tokenizers import train_tokenizer, word_tokenizer
from pipeline.rewards.base import Calibrated, Completions, Proxy, TextScore
from pipeline.rewards.grammar import GrammarJudge, HelpfulJudge
from pipeline.rewards.kinds import VerifierSettings
from pipeline.rewards.verifier import Verifier
from pipeline.run.layout import Layout
from pipeline.run.metrics import merged
from pipeline.training.judging import judge
from pipeline.trial import run_trial

STEPS = Verifier(VerifierSettings(sound_steps=0.5))
Pieces = Sequence[tuple[str, float]]
CASES: list[tuple[TextScore, str, Pieces, str, float]] = [
    (GrammarJudge(), "I saw it. The", [(" plot was dull, but the cast was superb.", 1.0)], " I liked it", -2.0),
    (GrammarJudge(), "The plot was dull.", [(" The plot was bad.", -2), (" green.", -2), (" I loved it.", 1.5)], "", 0),
    (GrammarJudge(), "The plot was dull", [(".", -1.0), (" It runs for about two hours.", 0.0)], " \n", 0.0),
    (GrammarJudge(), "The plot", [], "", -2.0),
    (GrammarJudge(), "", [("Only a fool would skip it.", -2.0)], "", 0.0),
    (HelpfulJudge(), "", [("Only a fool would skip it.", 2.0)], "", 0.0),
    (STEPS, "2 7 5 ?", [(" ; 7 5 2", 0.25), (" ; 2 2 4", 0.25)], " = 4", 1.0),
    (STEPS, "2 7 5 ?", [(" ; 7 5 2", 0.25)], " = 1", 0.25),  # the only step, so all of the share
    (STEPS, "2 7 5 ?", [(" ; 7 5 2", 0.25)], " ; 2 2 3 = 4", 1.0),
    (STEPS, "2 7 5 1 ?", [(" ; 2 7 9", 0.5 / 3)], " ; 9 9 8 ; 5 1 6 ; 1 1 2 = 5", 1.0 + 0.125 - 0.5 / 3),  # one of four
    (STEPS, "2 7 5 ?", [], " ; 9 = 4", 1.0),
    (STEPS, "2 7 5 ?", [], " ; 7 5", 0.0),
    (STEPS, "what", [], " ; 7 5 2", 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("scorer", "prompt", "pieces", "end", "rest"), CASES)
def test_points_are_earned_where_the_text_decides_them(
    scorer: TextScore, prompt: str, pieces: Pieces, end: str, rest: float
) -> None:
    """Whatever follows: a beginning of the text earns what the whole has earned by then."""
    text = "".join(piece for piece, _ in pieces) + end
    earned = scorer.earned(prompt, text)
    ends = [sum(len(piece) for piece, _ in pieces[: at + 1]) for at in range(len(pieces))]
    assert earned == list(zip(ends, [points for _, points in pieces], strict=True))
    assert scorer.score(prompt, text) - sum(points for _, points in earned) == pytest.approx(rest)
    for cut in range(len(text)):
        assert scorer.earned(prompt, text[:cut]) == [one for one in earned if one[0] <= cut]


@pytest.mark.parametrize("unit", [1.0, 4.0])
def test_points_fall_on_the_token_that_earns_them(unit: float) -> None:
    """A full stop is a token; so is every word of a chain. Tokens that are part of a character, EOS, and a cut."""
    tokenizer = train_tokenizer([review.text for review in generate(300, 1)], 700)
    asked, answers = ["The plot was", "I saw it."], [" dull. I loved it.", " é. The plot was good. You must"]
    prompts, rows = ([tokenizer(text)["input_ids"] for text in texts] for texts in (asked, answers))
    rows[0] += [tokenizer.eos_token_id]
    episodes = padded_episodes(prompts, rows, torch.tensor([True, False]), tokenizer.pad_token_id)
    completions = Completions.of(tokenizer, episodes, asked)
    assert completions.texts == answers
    proxy = Proxy({"reward": Calibrated(GrammarJudge(), 0.7, unit)}, {"reward": 1.0})
    found = proxy.earned(completions, tokenizer, 20)
    assert (found.shape, found.dtype) == ((2, 20), torch.float32)
    for paid, row, points in zip(found, rows, ([-1.0, 1.5], [-2.0, 1.0]), strict=True):
        stops = [at for at, token in enumerate(row) if "." in tokenizer.decode([token])]
        assert paid.nonzero().flatten().tolist() == stops
        assert paid[stops].tolist() == [one / unit for one in points]

    words = word_tokenizer(["?", ";", "=", *"0123456789"])
    prompts, rows = ([words(text)["input_ids"] for text in texts] for texts in (["2 7 5 ?"], ["; 7 5 2 ; 2 2 4"]))
    episodes = padded_episodes(prompts, rows, torch.tensor([False]), words.pad_token_id)
    proxy = Proxy({"reward": Calibrated(STEPS, 0.7, unit)}, {"reward": 1.0})
    found = proxy.earned(Completions.of(words, episodes, ["2 7 5 ?"]), words, 9)
    assert found.tolist() == [[0, 0, 0, 0.25 / unit, 0, 0, 0, 0.25 / unit, 0]]


@pytest.mark.parametrize("place", ["reward", "score", "loss"])
def test_the_sum_of_a_response_is_that_of_a_score_at_its_end(place: str) -> None:
    mask = prefix([[1, 2, 3, 4, 5], [6], [7, 8, 9]])
    final, non_score, earned = drawn(3, seed=1), drawn(3, 5, seed=2) * mask, drawn(3, 7, seed=3)
    cfg = trial_config(kl__place=place)
    sparse, dense = (
        token_rewards(judged.scores, judged.non_score, mask)
        for judged in (judge(final, non_score, None, mask, cfg, paid) for paid in (None, earned))
    )
    torch.testing.assert_close(dense.sum(1), sparse.sum(1))
    expected = torch.where(mask, earned[:, :5], 0.0)
    last = mask.sum(1, keepdim=True) - 1
    expected.scatter_add_(1, last, -expected.sum(1, keepdim=True))
    torch.testing.assert_close(dense - sparse, expected)


def test_a_trial_by_a_dense_reward(smoke_layout: Layout, tmp_path: Any) -> None:
    """The first rollout is worth what it is worth at the ends; then another policy is learned, the same however many
    rows are scored at once."""
    found = {}
    for name, dense, rows in (("sparse", False, 64), ("dense", True, 64), ("few", True, 7)):
        layout = Layout(tmp_path / name)
        copy_upstream(smoke_layout.store, layout.store)
        knobs = {"reward__kind": "grammar", "reward__dense": dense, "runtime__rollout_batch_size": rows}
        outcome = run_trial(smoke(train__steps=8, **knobs), layout, Recorder(), until="train")
        out = outcome.artifacts["train"].path
        policy = load_file(out / "policy" / "model.safetensors")
        found[name] = (
            torch.cat([weight.flatten() for weight in policy.values()]),
            merged(out / "metrics.jsonl")[0],
            outcome.artifacts["reward"].digest,
        )
    assert found["dense"][2] == found["sparse"][2], "what depends on the reward alone is shared"
    torch.testing.assert_close(found["dense"][0], found["few"][0], atol=2e-3, rtol=0)
    assert not torch.equal(found["dense"][0], found["sparse"][0])
    same = ("objective/scores", "objective/rlhf_reward", "objective/non_score_reward")
    assert all(found["dense"][1][key] == found["sparse"][1][key] for key in same)
    assert found["dense"][1]["objective/advantage_std"] != found["sparse"][1]["objective/advantage_std"]
