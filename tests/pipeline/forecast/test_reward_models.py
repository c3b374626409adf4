"""What reward models of other sizes and ensembles are predicted to take."""

from __future__ import annotations

import pytest

from pipeline.config.loading import load_config
from pipeline.forecast.disk import shared_disk
from pipeline.forecast.memory import memory_by_stage
from pipeline.forecast.policy_shape import shape_of
from pipeline.forecast.subject import ForecastSubject, Trained
from pipeline.forecast.work import estimate, rollout_work, work_of_shared

OWN = {"reward.trunk": "scratch"}
SMALL = {**OWN, "reward.hidden_size": 16, "reward.layers": 1, "reward.heads": 2, "reward.intermediate_size": 32}


def trial(**changes: object) -> ForecastSubject:
    config = load_config("tiny", changes)
    shape = shape_of(config)
    assert shape is not None
    return ForecastSubject(config, shape, "cpu")


def memory(subject: ForecastSubject, stage: str) -> float:
    return memory_by_stage(subject, Trained.of(subject.shape, subject.config))[stage]["reward"]


def score_flops(subject: ForecastSubject) -> float:
    return rollout_work(subject, Trained.of(subject.shape, subject.config))["score"][0]


def test_every_model_of_an_ensemble_is_trained_held_and_asked() -> None:
    one, four = trial(), trial(**{"reward.ensemble": 4})
    assert work_of_shared(four)["reward"][0] == pytest.approx(4 * work_of_shared(one)["reward"][0])
    assert memory(four, "train") == pytest.approx(4 * memory(one, "train"))
    assert shared_disk(four) - shared_disk(one) == pytest.approx(3 * 4.0 * one.shape.trunk)
    two = trial(**{"reward.ensemble": 2})
    assert score_flops(four) - score_flops(two) == pytest.approx(2 * (score_flops(two) - score_flops(one)))
    assert score_flops(two) > score_flops(one)


def test_a_scratch_trunk_of_the_policys_sizes_costs_what_the_reference_does_and_its_pretraining() -> None:
    taught = {**OWN, "reward.pretraining_steps": 400}
    reference, own = trial(), trial(**taught)
    assert own.reward_shape == reference.shape
    assert score_flops(own) == score_flops(reference)
    pretraining = work_of_shared(own)["reward"][0] - work_of_shared(reference)["reward"][0]
    assert pretraining == pytest.approx(work_of_shared(reference)["sft"][0]), "as many steps as the policy's"
    assert work_of_shared(trial(**OWN)) == work_of_shared(reference)
    twice = trial(**taught, **{"reward.ensemble": 2})
    assert work_of_shared(twice)["reward"][0] == pytest.approx(2 * work_of_shared(own)["reward"][0])


def test_a_small_reward_model_is_cheaper_in_every_column() -> None:
    small, large = trial(**SMALL), trial(**OWN)
    assert small.reward_shape.parameters < large.reward_shape.parameters / 10
    assert score_flops(small) < score_flops(large)
    assert memory(small, "train") < memory(large, "train") / 10
    assert shared_disk(small) < shared_disk(large)
    assert estimate(small).shared_hours["reward"] < estimate(large).shared_hours["reward"]
    assert small.shape == large.shape, "the policy is as it was"


def test_a_ranking_reads_each_answer_once_for_all_its_pairs() -> None:
    many = {"reward.pairs": 9_600, "reward.batch_size": 60}
    pairs, four = trial(**many), trial(**many, **{"reward.ranked": 4})
    assert work_of_shared(four)["reward"][0] == pytest.approx(work_of_shared(pairs)["reward"][0] * 4 / (6 * 2))
    three = trial(**many, **{"reward.ranked": 3})
    moved = [work_of_shared(one)["reward"][1] for one in (pairs, three, four)]
    assert moved[2] - moved[1] == pytest.approx(moved[1] - moved[0]), "the weights are read once for each answer"
    assert moved[1] > moved[0]
    large = {
        **OWN,
        "reward.hidden_size": 512,
        "reward.layers": 8,
        "reward.batch_size": 1,
    }
    some, twice = (trial(**large, **{"reward.ranked": ranked}) for ranked in (32, 64))

    def activations(subject: ForecastSubject) -> float:
        return memory_by_stage(subject, Trained.of(subject.shape, subject.config))["reward"]["activations"]

    assert activations(twice) == pytest.approx(2 * activations(some))
