from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.forecast.advice import changed, check_budget, knobs, predict, variants
from pipeline.forecast.policy_shape import assumed_scorers
from pipeline.forecast.work import Forecast


def t4(**changes: object) -> TrialConfig:
    return load_config("t4", {key.replace("__", "."): value for key, value in changes.items()})


def test_every_shipped_profile_is_predicted_to_fit() -> None:
    for profile in ("smoke", "tiny", "t4", "t4-256"):
        found = predict(load_config(profile))
        assert found is not None
        assert found.fits, profile


def test_samples_that_only_some_algorithms_need_are_forecast_for_these_alone() -> None:
    plain, chosen, twice = (
        predict(t4(**changes))
        for changes in ({}, {"algorithm": "a_star_po"}, {"algorithm": "a_star_po", "values__samples": 32})
    )
    assert plain is not None
    assert chosen is not None
    assert twice is not None
    assert "values" not in plain.shared_hours.keys() | plain.stages.keys()
    assert 0 < chosen.stage_gib("values") < chosen.stage_gib("train")
    assert twice.shared_hours["values"] == pytest.approx(2 * chosen.shared_hours["values"], rel=0.01)
    assert chosen.fits


def test_rounds_are_forecast_with_their_rewards_and_the_policy_that_each_began_with() -> None:
    def tiny(**changes: object) -> Forecast:
        found = predict(load_config("tiny", {key.replace("__", "."): value for key, value in changes.items()}))
        assert found is not None
        return found

    once, two, four = tiny(), tiny(reward__rounds=2), tiny(reward__rounds=4)
    newest = tiny(reward__rounds=4, reward__keep_pairs="newest")
    assert "reward" not in once.hours
    assert 0 < two.hours["reward"] < four.hours["reward"]
    assert newest.hours["reward"] < four.hours["reward"], "old pairs are learned from again"
    assert once.shared_hours["reward"] / 4 < four.shared_hours["reward"] < once.shared_hours["reward"] / 2
    assert "reference" in once.shared_hours, "shared by all trials with this reward"
    assert (list(once.own_hours), "reference" in two.shared_hours) == (["evaluate"], False)
    assert two.own_hours["reference"] == once.shared_hours["reference"]
    assert once.hours["score"] < two.hours["score"] < four.hours["score"] < 2 * once.hours["score"]
    assert {stage: two.stage_gib(stage) - once.stage_gib(stage) for stage in ("reward", "train")} == pytest.approx(
        dict.fromkeys(("reward", "train"), 4 * once.parameters / 2**30)
    )
    assert four.disk["earlier rounds"] == pytest.approx(3 * two.disk["earlier rounds"])
    opposed, again = (tiny(reward__against="reference", reward__rounds=rounds) for rounds in (1, 4))
    drawn = opposed.shared_hours["reward"] - once.shared_hours["reward"]
    assert again.hours["reward"] - four.hours["reward"] == pytest.approx(3 * drawn), "each reward has its opponents"


def test_a_separate_critic_on_a_t4_is_refused_in_one_line_with_what_would_fit() -> None:
    config = t4(critic__kind="separate")
    with pytest.raises(UserError) as refused:
        check_budget(config, "full, seed 0")
    said = str(refused.value)
    assert "\n" not in said
    assert said.startswith("full, seed 0 cannot fit: ")
    assert "caps.memory_gib = 14.6" in said
    assert "critic.kind=shared (" in said
    assert "critic.adapter" not in said, "which a shared critic would refuse, and which is not enough by itself"
    for knob in knobs(config):
        found = predict(changed(config, knob.changes))
        assert found is not None
        assert found.fits
        assert f"({found.total_gib:.1f} GiB, {found.t4_hours:.2f} h)" in str(knob)


def test_knobs_that_change_no_result_come_first_and_each_takes_the_mildest_setting() -> None:
    config = t4(runtime__micro_batch_size=64, runtime__gradient_checkpointing=False, caps__wall_clock_h=10.0)
    found = knobs(config)
    keys = [next(iter(knob.changes)) for knob in found]
    assert keys[0] == "runtime.micro_batch_size"
    assert keys.index("runtime.gradient_checkpointing") < keys.index("adapter.kind")
    rows = found[0].changes["runtime.micro_batch_size"]
    twice = predict(changed(config, {"runtime.micro_batch_size": 2 * rows}))
    assert twice is not None
    assert not twice.fits


def test_an_adapter_for_the_critic_is_advised_where_it_is_enough() -> None:
    config = t4(critic__kind="separate", caps__memory_gib=16.0, caps__wall_clock_h=4.0)
    said = [str(knob) for knob in knobs(config)]
    assert any(line.startswith("critic.adapter=lora, critic.quantize=8bit (") for line in said)


def test_where_no_single_knob_is_enough_several_are_named_together() -> None:
    config = t4(critic__kind="separate", train__response_length=100, caps__memory_gib=11.0)
    found = knobs(config)
    assert len(found) == 1
    assert found[0].found.fits
    assert len(found[0].changes) > 2
    load_config("t4", {"critic.kind": "separate", **found[0].changes})  # nothing in it is without effect


def test_what_nothing_helps_is_said_to_be_so() -> None:
    with pytest.raises(UserError, match="take a smaller base, or raise the cap"):
        check_budget(t4(caps__memory_gib=0.5), "greedy")


def test_raising_the_cap_lets_a_trial_through() -> None:
    check_budget(t4(critic__kind="separate", caps__memory_gib=40.0, caps__wall_clock_h=20.0), "rich")


def test_time_alone_is_refused_too() -> None:
    with pytest.raises(UserError, match=r"predicted on a T4, caps.wall_clock_h = 2.5\. .*train.steps="):
        check_budget(t4(train__steps=6_000), "long")


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
    config = t4(train__steps=6_000, caps__card=card)
    if refused:
        with pytest.raises(UserError, match="predicted on a T4"):
            check_budget(config, "long")
    else:
        check_budget(config, "long")
    with pytest.raises(UserError, match=r"caps\.memory_gib"):  # which the allocator holds on any card
        check_budget(t4(critic__kind="separate", caps__card=card), "large")


def test_the_ways_to_train_are_ordered_as_they_must_be() -> None:
    found = {name: one for name, one in variants(t4()).items() if one is not None}
    falling = [
        "full, separate critic",
        "full, separate 8-bit critic with LoRA",
        "full, shared critic",
        "LoRA on 4 bits, separate 8-bit critic with LoRA",
        "LoRA, shared critic",
        "LoRA on 4 bits, shared critic",
    ]
    assert set(found) == set(falling)
    memory = [found[name].total_gib for name in falling]
    assert memory == sorted(memory, reverse=True)
    ppo = [found[name].stage_gib("train") for name in falling]
    assert ppo == sorted(ppo, reverse=True)
    assert len(set(ppo)) == len(ppo)
    assert found["full, shared critic"].fits
    assert not found["full, separate critic"].fits


def test_an_algorithm_without_a_critic_is_planned_without_one() -> None:
    ppo, rloo = variants(t4()), variants(load_config("t4", {"algorithm": "rloo"}))
    assert list(rloo) == ["full, no critic", "LoRA, no critic", "LoRA on 4 bits, no critic"]
    shared, none = ppo["full, shared critic"], rloo["full, no critic"]
    assert shared is not None
    assert none is not None
    assert 1.02 < none.t4_hours / shared.t4_hours < 1.2, "its loss goes through the head once more"


def test_a_local_base_is_sized_by_its_own_configuration_and_an_unknown_one_not_at_all(tmp_path: Path) -> None:
    sizes = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 128}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    found = predict(t4(model__base=str(tmp_path)))
    assert found is not None
    assert found.parameters == 500 * 64 + 128 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64
    assert predict(t4(model__base="someone/unknown")) is None
    check_budget(t4(model__base="someone/unknown"), "unknown")


def test_the_reference_and_the_reward_model_have_to_fit_as_well() -> None:
    """An adapter spares PPO what it does not spare the stages before it, which train all weights."""
    large = t4(model__base="TinyLlama/TinyLlama-1.1B-Chat-v1.0", adapter__kind="lora", adapter__quantize="4bit")
    found = predict(large)
    assert found is not None
    assert found.stage_gib("train") < 14.6 < found.stage_gib("sft")
    with pytest.raises(UserError, match=r"GiB predicted in stage reward \(optimiser"):
        check_budget(large, "large")
    ready = predict(changed(large, {"sft.steps": 0, "reward.kind": "lexicon", "reward.preferences": "judge"}))
    assert ready is not None
    assert ready.total_gib < 14.6


def test_the_profile_of_a_t4_fits_in_every_stage() -> None:
    found = predict(t4())
    assert found is not None
    assert list(found.stages) == ["sft", "reward", "train", "evaluate"]
    assert all(5 < found.stage_gib(stage) < 14.6 for stage in found.stages)
    assert 0 < sum(found.shared_hours.values()) < 0.5
    assert list(found.shared_hours) == ["sft", "reward", "reference"]
    pairs = predict(t4(reward__preferences="labels", reward__max_tokens=1024, runtime__gradient_checkpointing=False))
    assert pairs is not None
    assert pairs.stage_gib("reward") > found.stage_gib("reward")
    assert pairs.shared_hours["reward"] > 2 * found.shared_hours["reward"]


def test_classifiers_count_by_their_own_configuration_or_by_a_stated_assumption(tmp_path: Path) -> None:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    RobertaForSequenceClassification(
        RobertaConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=1000
        )
    ).save_pretrained(tmp_path)
    network = RobertaForSequenceClassification.from_pretrained(tmp_path)
    local = {"judge__kind": "classifier", "judge__model": str(tmp_path), "judge__label": "LABEL_1"}
    absent = {
        "judge__kind": "classifier",
        "judge__model": "someone/absent",
        "judge__revision": "0" * 40,
        "judge__label": "POSITIVE",
    }
    plain, small, assumed = (predict(t4(**one)) for one in ({}, local, absent))
    assert plain
    assert small
    assert assumed
    grown = small.stages["evaluate"]["reward"] - plain.stages["evaluate"]["reward"]
    assert grown * 2**30 == pytest.approx(4 * sum(one.numel() for one in network.parameters()))
    assert small.hours["score"] > plain.hours["score"]
    assert assumed.total_gib - plain.total_gib == pytest.approx(4 * 125e6 / 2**30)
    assert assumed_scorers(t4(**absent)) == ["someone/absent"]
    assert assumed_scorers(t4(**local)) == []


def test_the_natural_step_of_trpo_is_forecast() -> None:
    """Its Fisher products take the time, its vectors the memory; the policy has no optimiser state."""
    found = {}
    for name, changes in {"separate": {}, "trpo": {"algorithm__trust_region": "trpo"}}.items():
        found[name] = predict(t4(critic__kind="separate", **changes))
    plain, trpo = found["separate"], found["trpo"]
    assert plain is not None
    assert trpo is not None
    assert "natural step" not in plain.hours
    assert trpo.hours["train"] < plain.hours["train"]
    assert trpo.hours["natural step"] > plain.hours["train"]
    assert trpo.stages["train"]["natural step"] > 0
    with pytest.raises(UserError, match="cannot fit"):
        check_budget(t4(algorithm="trpo"), "trpo")
    assert list(variants(t4(algorithm="trpo"))) == ["full, separate critic", "full, separate 8-bit critic with LoRA"]
    assert trpo.stages["train"]["optimiser"] < plain.stages["train"]["optimiser"]


def test_a_trial_that_trains_nothing_takes_the_time_of_its_answers() -> None:
    plain, chosen, twice = (
        predict(t4(**changes))
        for changes in ({}, {"algorithm": "best_of_n"}, {"algorithm": "best_of_n", "evaluate__best_of": 16})
    )
    assert plain is not None
    assert chosen is not None
    assert twice is not None
    assert (chosen.t4_hours, chosen.trained, chosen.hours) == (0.0, 0, {})
    one, eight, sixteen = (found.own_hours["evaluate"] for found in (plain, chosen, twice))
    assert sixteen - eight == pytest.approx(8 / 7 * (eight - one), rel=0.01)
    assert 0 < one < eight < 0.1 * plain.t4_hours
    assert chosen.stage_gib("train") < plain.stage_gib("train")
    assert chosen.stages["evaluate"] == plain.stages["evaluate"], "draws are not kept"
    assert (chosen.disk_gib, chosen.fits) == (chosen.left_gib, True)
    beside = predict(t4(evaluate__best_of=8))
    assert beside is not None
    assert (beside.hours, beside.own_hours) == (plain.hours, chosen.own_hours)
