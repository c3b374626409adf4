from __future__ import annotations

from pathlib import Path

import pytest
from fake_trial import SEARCH, STUDY
from light_study import Write

from pipeline.config.loading import parse_set
from pipeline.errors import UserError
from pipeline.run.dag import likeness
from pipeline.stages.graph import STAGES
from studies.definition.checks import shrunk
from studies.definition.design import cautions, cells, design_digest
from studies.definition.schema import load_study, single, study_names

HEAD = STUDY.partition("arms:")[0]
FACTORS = HEAD.replace("baseline: weak\n", "")
SMOKE = STUDY.partition("falsifiers:")[0].replace("seeds: [0, 1]", "seeds: [3, 4]\nprofile: smoke")


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_are_valid_and_small_on_smoke(name: str) -> None:
    study = load_study(name)
    assert len(cells(study)) == len(study.arm_overrides()) * len(study.seeds)
    assert "objective/kl_per_token" not in {claim.metric for claim in study.falsifiers}, "claims use the exact KL"
    for cell in [] if study.profile == "chains" else cells(study, "smoke"):
        config = cell.config
        assert config.train.steps <= 96, "with smoke's 32, three times as many where an arm has more epochs"
        assert config.train.updates <= 16
        assert config.critic.warmup_steps + config.critic.pretraining_steps <= 16
        assert config.reward.learned.pairs <= 512
        assert config.reward.kind != "ocr" or config.evaluate.prompts <= 16


def test_sizes_of_arms_shrink_as_the_steps_of_the_profile_do() -> None:
    own = {"train.steps": 3000, "train.num_epochs": 3, "reward.learned.pairs": 1024, "kl.beta": 0.5}
    own |= {"reward.calibration_samples": 4}
    small = {"train.steps": 48, "reward.learned.pairs": 16}
    assert shrunk(own, "tiny") == {**own, **small}, "3000 / 64, in whole updates of 6; no less than 8, or than it was"
    assert shrunk(own, "smoke") == own


# --- designs -----------------------------------------------------------------------------------------------


def test_grid_is_a_full_product_with_readable_names(write_study: Write) -> None:
    head = HEAD.replace("baseline: weak", "baseline: algorithm=ppo+beta=0")
    study = write_study(head + "grid: {algorithm: [ppo, rloo], kl.beta: [0, 0.05]}\n")
    assert list(study.arm_overrides()) == [
        "algorithm=ppo+beta=0", "algorithm=ppo+beta=0.05", "algorithm=rloo+beta=0", "algorithm=rloo+beta=0.05",
    ]  # fmt: skip
    assert study.arm_overrides()["algorithm=rloo+beta=0.05"] == {"algorithm.name": "rloo", "kl.beta": 0.05}
    assert [cell.config.critic.kind for cell in cells(study)[:4:2]] == ["shared", "none"]


def test_factors_are_taken_one_at_a_time_around_the_profile(write_study: Write) -> None:
    study = write_study(
        FACTORS + "factors: {kl.beta: [0, 0.2], algorithm: [rloo]}\ninteractions: [[kl.beta, algorithm]]\n"
    )
    assert (study.kind, study.baseline) == ("factors", "baseline")
    assert study.arm_overrides() == {
        "baseline": {},
        "beta=0": {"kl.beta": 0},
        "beta=0.2": {"kl.beta": 0.2},
        "algorithm=rloo": {"algorithm.name": "rloo"},
        "beta=0+algorithm=rloo": {"kl.beta": 0, "algorithm.name": "rloo"},
        "beta=0.2+algorithm=rloo": {"kl.beta": 0.2, "algorithm.name": "rloo"},
    }
    same = write_study(FACTORS + "factors: {kl.beta: [0.01]}\n")
    assert len(cells(same)) == 4
    with pytest.raises(UserError, match=r"arms 'baseline' and 'beta=0\.01' are the same trial on profile 't4'"):
        cells(same, "t4")


# --- trials ------------------------------------------------------------------------------------------------


def test_cells_pair_seeds_and_put_overrides_below_arms(write_study: Write) -> None:
    plan = cells(write_study(), None, {"optimiser.lr": 5e-4, "train.steps": 64})
    assert [(cell.label, cell.config.kl.beta, cell.config.train.seed) for cell in plan] == [
        ("weak seed 0", 0.01, 0), ("strong seed 0", 0.2, 0), ("weak seed 1", 0.01, 1), ("strong seed 1", 0.2, 1),
    ]  # fmt: skip
    assert {cell.config.optimiser.lr for cell in plan} == {5e-4}


def test_only_arms_of_a_claim_that_stops_are_stopped(write_study: Write) -> None:
    study = write_study(STUDY.replace("before_step: 32", "before_step: 32, stop: true, arms: [strong]"))
    weak, strong = (cell.config.train.stop for cell in cells(study)[:2])
    assert weak == ()
    assert [(rule.metric, rule.op, rule.threshold, rule.before_step) for rule in strong] == [
        ("objective/kl_per_token", ">", 0.5, 32)
    ]


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (STUDY, {"kl.beta": 1}, "--set: 'kl.beta' is what small varies"),
        (STUDY, {"train.seed": 1}, "--set: 'train.seed' is set by the study's seeds"),
        (STUDY, {"optimiser.lrr": 1}, "did you mean 'optimiser.lr'"),
        (STUDY, {"kl.adaptive.target": 3}, "--set: kl.adaptive.target = 3.0 has no effect while kl.control is fixed"),
        (STUDY.replace("beta: 0.2", "beta: 0.2, kl.control: adaptive"), {"kl.adaptive.target": 3}, ""),
        (SEARCH.replace("algorithm.clip.epsilon: {values: [0.1, 0.2, 0.3]}", "kl.control: {values: [fixed, adaptive]}"),
         {"kl.adaptive.target": 3}, ""),
        (SEARCH.replace("clip.epsilon: {values: [0.1, 0.2", "gae_lambda: {values: [0.8, 0.9"),
         {"algorithm.name": "rloo"},
         "--set: search.space: algorithm.gae_lambda = 0.8 has no effect"),
        (STUDY.replace("beta: 0.2", "beta: 0.2, algorithm: rloo"), {"critic.kind": "separate"},
         "arms.strong with --set: critic.kind 'separate' is not for advantage 'rloo'"),
    ],
)  # fmt: skip
def test_a_setting_for_all_arms(write_study: Write, text: str, changes: dict[str, object], expected: str) -> None:
    study = write_study(text)
    if not expected:
        assert all(
            cell.config.kl.adaptive.target == changes["kl.adaptive.target"] for cell in cells(study, None, changes)
        )
        return
    with pytest.raises(UserError) as error:
        cells(study, None, changes)
    (line,) = {line.partition("small.yaml, line 9: ")[2] or line for line in str(error.value).splitlines()[:1]}
    assert expected in line


def test_the_design_digest_follows_content_and_not_order(write_study: Write) -> None:
    first = cells(write_study())
    assert design_digest(first) == design_digest(list(reversed(first)))
    assert design_digest(first) != design_digest(cells(write_study(), None, {"optimiser.lr": 5e-4}))
    assert design_digest(first) != design_digest(first[:-1])
    assert design_digest(first) == design_digest(cells(write_study(), None, {"runtime.threads": 2}))


def test_a_single_trial_is_named_after_what_it_changes() -> None:
    assert single("tiny", {}, 3).arm_overrides() == {"tiny": {}}
    assert list(single("tiny", {"optimiser.lr": 0.1, "algorithm.clip.epsilon": 0.3}, 0).arm_overrides()) == [
        "epsilon=0.3+lr=0.1"
    ]
    assert next(iter(single("tiny", {"model.base": "a/b"}, 0).arm_overrides())).startswith("set-")
    with pytest.raises(UserError, match="given by --seed"):
        single("tiny", {"train.seed": 1}, 0)


# --- what a seed varies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "chains"),
    [
        ("", [(0, 0, 0), (0, 0, 0)]),
        ("vary: [labels, sft]\n", [(3, 3, 0), (4, 4, 0)]),
        ("vary: [reward]\n", [(0, 0, 3), (0, 0, 4)]),
    ],
)
def test_a_seed_changes_the_training_and_every_link_that_varies(
    write_study: Write, extra: str, chains: list[tuple[int, ...]]
) -> None:
    plan = cells(write_study(SMOKE + extra))[::2]
    assert [cell.config.train.seed for cell in plan] == [3, 4]
    seeds = [(cell.config.sft.seed, cell.config.reward.learned.pairs_seed, cell.config.reward.seed) for cell in plan]
    assert seeds == chains
    one, other = (likeness(STAGES, cell.config) for cell in plan)
    for stage in ("sft", "reward"):
        assert (one[stage] != other[stage]) == ("sft" in extra or stage in extra)


# --- algorithms by name ------------------------------------------------------------------------------------


def test_the_profile_then_the_algorithm_then_set_then_the_arm(write_study: Write) -> None:
    study = write_study(STUDY.replace("{kl.beta: 0.2}", "{algorithm: rloo, train.responses_per_prompt: 2}"))
    assert study.arm_overrides()["strong"] == {"algorithm.name": "rloo", "train.responses_per_prompt": 2}
    plain, chosen = (cell.config for cell in cells(study)[:2])
    assert (plain.algorithm.name, plain.critic.kind, plain.train.responses_per_prompt) == ("ppo", "shared", 1)
    assert (chosen.algorithm.name, chosen.critic.kind, chosen.train.responses_per_prompt) == ("rloo", "none", 2)
    assert chosen.train.batch_size == plain.train.batch_size, "as many episodes"
    kept = write_study(STUDY.replace("{kl.beta: 0.2}", "{kl.beta: 0.2, algorithm: ppo}"))
    weak, strong = (cell.config for cell in cells(kept, None, parse_set(["algorithm=rloo"]))[:2])
    assert [(one.algorithm.name, one.critic.kind) for one in (weak, strong)] == [("rloo", "none"), ("ppo", "shared")]


# --- cautions ----------------------------------------------------------------------------------------------


def test_misleading_settings_give_a_warning_with_the_arms_concerned() -> None:
    study = single("tiny", {}, 0)
    base = study.baseline

    def warned(arms: dict[str, dict[str, object]]) -> list[str]:
        return cautions(cells(study.model_copy(update={"arms": arms})))

    assert warned({base: {}, "remax": {"algorithm.name": "remax"}}) == [], "as many, smaller steps"
    (line,) = warned({base: {}, "oracle": {"reward.kind": "grammar"}})
    assert line.startswith("oracle: the gold judge (grammar) is also what is trained on (reward)")


# --- how a file is found -----------------------------------------------------------------------------------


def test_a_study_is_found_by_name_or_path(write_study: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    study = write_study(name="mine")
    folder = Path(study.source).parent
    monkeypatch.chdir(folder)
    assert load_study("mine").source == load_study("./mine.yaml").source == study.source
    assert (study.argument, load_study("kl_ablation").argument) == ("mine", "kl_ablation")
    for name, expected in (
        ("mein", r"no study 'mein'; did you mean 'mine'\?; there are: a_star_po, .*, mine \("),
        ("kl_ablaton+confirm", r"no study 'kl_ablaton'; did you mean 'kl_ablation'\?"),
        (str(folder), "is a folder"),
    ):
        with pytest.raises(UserError, match=expected):
            load_study(name)
    write_study(name="kl_ablation")
    with pytest.raises(UserError, match="two studies are named 'kl_ablation'"):
        load_study("kl_ablation")


def test_a_confirmation_is_the_study_on_fresh_seeds(write_study: Write, tmp_path: Path) -> None:
    study = write_study(f"{STUDY}confirm: {{seeds: [7, 8, 9]}}\n")
    fresh = load_study(f"{study.source}+confirm")
    assert (fresh.name, fresh.seeds, fresh.confirms) == ("small+confirm", (7, 8, 9), "small")
    assert (fresh.arm_overrides(), fresh.falsifiers) == (study.arm_overrides(), study.falsifiers)
    assert {cell.seed for cell in cells(fresh)} == {7, 8, 9}
    assert load_study(fresh.argument) == fresh
    with pytest.raises(UserError, match=r"names no seeds for a confirmation; add `confirm: {seeds: \[...\]}`"):
        load_study(f"{write_study().source}+confirm")
    (tmp_path / "mine+confirm.yaml").write_text(STUDY)
    with pytest.raises(UserError, match="rename the file"):
        load_study(tmp_path / "mine+confirm.yaml")
