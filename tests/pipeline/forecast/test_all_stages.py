"""The hours of a plan are those of all stages: what they sample, score and measure, against what a smoke trial does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import Recorder, smoke

from pipeline.config.trial import TrialConfig
from pipeline.forecast.shapes import ForecastSubject, subject_of
from pipeline.forecast.work import asked, asked_work, critic_work, measured, sampling
from pipeline.models.sampling import EagerSampler
from pipeline.resources.roofline import BYTES_READ_HALF
from pipeline.rewards.grammar import GrammarJudge
from pipeline.rewards.learned import LearnedReward
from pipeline.run.layout import Layout
from pipeline.trial import run_trial

SMALL: Mapping[str, Any] = {
    "data__prompt_unit": "tokens",
    "data__prompt_length": [5, 5],
    "data__train_prompts": 32,
    "data__heldout_prompts": 24,
    "data__sft_texts": 200,
    "sft__steps": 2,
    "reward__learned__pairs": 32,
    "reward__learned__heldout_pairs": 12,
    "reward__calibration_samples": 16,
    "reward__learned__batch_size": 12,
    "train__steps": 4,
    "train__response_length": 4,
    "evaluate__prompts": 10,
    "evaluate__reference_draws": 3,
    "evaluate__texts": 7,
}
LEARNED_TWICE = {"a": {"kind": "learned"}, "b": {"kind": "lexicon"}}


class Counting(Recorder):
    """Knows which stage is being built."""

    now = ""

    def stage(self, name: str, state: str, detail: str = "") -> None:
        self.now = name


def run(cfg: TrialConfig, root: Path, monkeypatch: pytest.MonkeyPatch, until: str) -> dict[str, Counter[str]]:
    """What each stage asked for: rows sampled, rows scored by each learned model, rows judged."""
    reporter, rows = Counting(), dict[str, Counter[str]]()

    def count(owner: type, method: str, what: str, size: Any) -> None:
        original = getattr(owner, method)

        def counted(self: Any, *args: Any) -> Any:
            rows.setdefault(reporter.now, Counter())[what] += size(args)
            return original(self, *args)

        monkeypatch.setattr(owner, method, counted)

    count(EagerSampler, "sample", "drawn", lambda args: len(args[0]))
    count(LearnedReward, "__call__", "rewarded", lambda args: len(args[0].texts))
    count(GrammarJudge, "__call__", "judged", lambda args: len(args[0].texts))
    run_trial(cfg, Layout(root), reporter, until=until)
    return rows


@pytest.mark.parametrize(
    ("changes", "until"),
    [
        ({"critic__pretraining_steps": 2, "evaluate__best_of": 2}, "evaluate"),
        ({"reward__learned__ranked": 4, "reward__learned__pairs": 36}, "reward"),
        ({"reward__learned__ensemble": 2}, "reward"),
        ({"reward__kind": "composite", "reward__parts": LEARNED_TWICE}, "reward"),
    ],
    ids=["all", "rankings", "ensemble", "composite"],
)
def test_stages_ask_for_as_many_rows_as_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], until: str
) -> None:
    cfg = smoke(**{**SMALL, **changes})
    found, wanted = run(cfg, tmp_path, monkeypatch, until), asked(cfg)
    for stage in ("reward",) if until == "reward" else ("reward", "reference", "values", "evaluate"):
        want = wanted[stage]
        assert found[stage]["drawn"] == want.drawn, stage
        assert found[stage]["rewarded"] == (want.rewarded + want.checked) * cfg.learned_rewards, stage
        assert found[stage]["judged"] == want.judged, stage


def subject(cfg: TrialConfig) -> ForecastSubject:
    found = subject_of(cfg)
    assert found is not None
    return found


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_the_work_of_values_and_critic_is_what_is_counted(tmp_path: Path, critic: str) -> None:
    cfg = smoke(
        **{**SMALL, "critic__kind": critic, "critic__pretraining_steps": 8, "values__samples": 4},
        model__layers=6,
        runtime__micro_batch_size=16,
    )
    made = run_trial(cfg, Layout(tmp_path), Recorder(), until="critic").artifacts
    spent = {stage: json.loads((made[stage].path / "log" / "cost.json").read_text()) for stage in ("values", "critic")}
    # No response of 4 tokens ends, so all are worth the penalty, and there is no variance to explain.
    assert "explained_variance" not in json.loads((made["critic"].path / "summary.json").read_text())
    # The vocabulary that was learned from so few texts may be smaller than asked for.
    trial = subject(cfg.model_copy(update={"data": cfg.data.model_copy(update={"vocab_size": vocabulary(made)})}))
    assert critic_work(trial).flops / 1e12 == pytest.approx(spent["critic"]["train_tflop"], rel=0.1)
    for phase, work in asked_work(trial, asked(cfg)["values"]).items():
        assert work.flops / 1e12 == pytest.approx(spent["values"][f"{phase}_tflop"], rel=0.1), phase


def vocabulary(made: Mapping[str, Any]) -> int:
    summary = json.loads((made["prompts"].path / "summary.json").read_text())
    return int(summary["vocab_size"])


def test_measuring_goes_through_the_trunk_and_for_some_tokens_through_the_head() -> None:
    """Per row: 2 FLOPs a weight and position, attention over all positions, 2 a weight of the head and measured one."""
    trial = subject(smoke(**SMALL))
    attended = 4.0 * trial.shape.attention * trial.shape.layers * 8
    row = 8 * (2.0 * trial.shape.maps + attended) + 2.0 * 4 * trial.shape.vocab * trial.shape.hidden
    assert measured(trial, 10, 8, 4).flops == pytest.approx(10 * row)


@pytest.mark.parametrize(
    ("together", "each", "prompts"), [(8, 1, 8), (4, 1, 8), (8, 4, 2), (4, 4, 2), (3, 4, 4), (3, 2, 5)]
)
def test_a_prompt_is_read_once_in_every_batch_that_has_responses_to_it(together: int, each: int, prompts: int) -> None:
    """8 responses, `together` at a time: what each weight is multiplied by is 2 a position of a prompt or response."""
    trial = subject(smoke(runtime__rollout_batch_size=together))
    one, none = (sampling(trial, 8, maps, BYTES_READ_HALF, each).flops for maps in (1, 0))
    assert one - none == pytest.approx(2 * (prompts * trial.mean_prompt + 8 * (16 - 1)), rel=1e-6)
