from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_trial import SEARCH, STUDY

from pipeline.config.loading import parse_set
from pipeline.errors import UserError
from studies.definition.design import cells, design_digest
from studies.definition.schema import Study, load_study, single, study_names


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_are_valid(name: str) -> None:
    study = load_study(name)
    assert len(cells(study)) == len(study.arm_overrides()) * len(study.seeds)


def test_the_kl_ablation_asks_what_the_project_is_about() -> None:
    study = load_study("kl_ablation")
    betas = {arm: own["kl.beta"] for arm, own in study.arm_overrides().items()}
    assert betas.items() >= {"beta_0": 0.0, "beta_0.01": 0.01, "beta_0.05": 0.05, "beta_0.2": 0.2}.items()
    assert (study.baseline, study.seeds) == ("beta_0.05", (10, 11, 12, 13, 14))
    assert study.falsifiers[0].condition == "objective/kl_exact_per_token > 0.025 before step 2000"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("question:", "qestion:", r"unknown key 'qestion'; did you mean 'question'\?"),
        ("question: Does it work?", "", "key 'question' is missing"),
        ("question:", "name: other\nquestion:", "unknown key 'name'; a study is named after its file"),
        (
            "baseline: weak",
            "baseline: week",
            r"baseline 'week' is not an arm; did you mean 'weak'\?; arms: weak, strong",
        ),
        ("seeds: [0, 1]", "seeds: [0, 1, 0]", "seeds: 0 is given more than once"),
        ("seeds: [0, 1]", "seeds: []", "line 6: seeds: needs at least 1 entry, has none"),
        (
            "seeds: [0, 1]",
            "seeds: 3",
            r"line 6: seeds: 3 is a single number; give a list of seeds, for example seeds: \[0, 1, 2\]",
        ),
        ("seeds: [0, 1]", "seeds: [-1]", "seeds.0 = -1: must be greater than or equal to 0"),
        (
            "seeds: [0, 1]",
            "seeds: [0, 1]\nbeta: 1",
            r"unknown key 'beta'; did you mean 'kl.beta'\?; knobs stand under arms, grid",
        ),
        (
            "baseline: weak\n",
            "",
            "baseline 'baseline' is not an arm; say which one is, with `baseline: NAME`; arms: weak, strong",
        ),
        (
            "strong: {kl.beta: 0.2}",
            "strong: {beta: 0.2}",
            r"line 9: arms.strong: unknown key 'beta'; did you mean 'kl.beta'\?",
        ),
        ("strong: {kl.beta: 0.2}", "strong:", "arms.strong = null: must be a mapping of keys to values"),
        ("baseline: weak", "baseline: weak\nfigures: [fronteir]", r"no figure 'fronteir'; did you mean 'frontier'\?"),
        (
            "objective/kl_per_token",
            "kl_per_token",
            r"no metric 'kl_per_token'; did you mean 'objective/kl_per_token'\?",
        ),
        ("seeds: [0, 1]", "seeds: [0, 1.5]", "seeds.1 = 1.5"),
        ("seeds: [0, 1]", "seeds: [true]", "seeds.0 = true"),
        ("strong: {kl.beta: 0.2}", "../strong: {kl.beta: 0.2}", r"arms: the name '\.\./strong' cannot be used"),
        ("strong: {kl.beta: 0.2}", "Weak: {kl.beta: 0.2}", "'weak' and 'Weak' differ only in case"),
        ("strong: {kl.beta: 0.2}", "strong: {kl.beta: 0.01}", "'weak' and 'strong' are the same trial"),
        (
            "strong: {kl.beta: 0.2}",
            "strong: {ppo.klcoef: 0.2}",
            r"arms.strong: unknown key 'ppo.klcoef'; did you mean 'kl.beta'\?",
        ),
        ("strong: {kl.beta: 0.2}", "strong: {kl.beta: -1}", "arms.strong: kl.beta = -1"),
        ("strong: {kl.beta: 0.2}", "strong: {train.seed: 3}", "'train.seed' is set by the study's seeds"),
        (
            "strong: {kl.beta: 0.2}",
            "strong: {kl.beta: 0.2}\ngrid: {optimiser.lr: [1]}",
            "both arms and grid are given",
        ),
        (
            "strong: {kl.beta: 0.2}",
            "yes: {kl.beta: 0.2}",
            "line 7: arms: the name true must be a text; put it in quotes",
        ),
        ("question: Does it work?", "question: ''", "line 2: question = '': must not be empty"),
        ("profile", "profile", ""),
        ("baseline: weak", "baseline: weak\nprofile: tinny", r"no profile 'tinny'; did you mean 'tiny'\?"),
        (
            "objective/kl_per_token",
            "objective/kl_pertoken",
            r"falsifiers.drift.metric: no metric 'objective/kl_pertoken'; did you mean",
        ),
        ("objective/kl_per_token", "eval/win_rate", "measured once, after training"),
        ("threshold: 0.5", "threshold: .nan", "falsifiers.drift.threshold"),
        ("threshold: 0.5", "threshold: true", "falsifiers.drift.threshold = true: must be a number"),
        ("threshold: 0.5", "threshold: '0.5'", "falsifiers.drift.threshold = '0.5': must be a number"),
        ("before_step: 32", "before_step: 32, arms: ['*', '*']", r"drift.arms: '\*' is given more than once"),
        ("kl.beta: 0.2", "kl.beta: '2e-1'", "kl.beta = '2e-1': must be a number"),
        ("before_step: 32", "before_step: 0", "falsifiers.drift.before_step = 0"),
        ("before_step: 32", "before_step: 32, arms: [storng]", r"no arm is named 'storng'; did you mean 'strong'\?"),
        (
            "before_step: 32",
            "before_step: 32, aggregation: {consecutive: 0}",
            "falsifiers.drift.aggregation: .* is not an aggregation; write any, mean",
        ),
        ("before_step: 32", "before_step: 32, aggregation: median", "is not an aggregation"),
        (
            "baseline: weak",
            "baseline: weak\nobjective: {metric: policy/entropy}",
            "is a series; name a metric of the evaluation",
        ),
        ("baseline: weak", "baseline: weak\nobjective: {smallest: 0.02}", ""),
        (
            "baseline: weak",
            "baseline: weak\nobjective: {smallest: 0}",
            "objective.smallest = 0: must be greater than 0",
        ),
        ("baseline: weak", "baseline: weak\nobjective: {smallest: .inf}", "objective.smallest"),
        (
            "baseline: weak",
            "baseline: weak\nobjective: {smalest: 0.1}",
            r"unknown key 'objective.smalest'; did you mean 'objective.smallest'\?",
        ),
    ],
)
def test_faults_are_told_with_file_key_and_remedy(
    write_study: Callable[..., Study], old: str, new: str, message: str
) -> None:
    text = STUDY.replace(old, new)
    if not message:
        write_study(text)
        return
    with pytest.raises(UserError, match=message) as caught:
        write_study(text)
    assert "small.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("{beta: [weak, strong]}", ""),
        ("{one: [weak], other: [strong]}", ""),
        ("{beta: [weak]}", ""),
        (
            "{beta: [weak, storng]}",
            r"methods.beta: no arm is named 'storng'; did you mean 'strong'\?; arms:",
        ),
        (
            "{a: [weak, strong], b: [strong]}",
            "methods.b: the arm 'strong' is in it and in methods.a; an arm",
        ),
        ("{a: [weak, weak]}", "methods.a: the arm 'weak' is in it twice"),
        ("{a: [weak], b: []}", "methods.b: has no arms; name at least one"),
        ("{a: [strong]}", "methods: the baseline 'weak' is in none of them; add it to its method"),
        ("[weak, strong]", "methods"),
    ],
)
def test_methods_name_arms_that_are_there_and_each_once(
    write_study: Callable[..., Study], methods: str, message: str
) -> None:
    text = STUDY.replace("baseline: weak", f"baseline: weak\nmethods: {methods}")
    if not message:
        assert write_study(text).methods is not None
        return
    with pytest.raises(UserError, match=message) as caught:
        write_study(text)
    assert "small.yaml" in str(caught.value)


def test_the_kl_control_study_has_several_strengths_of_a_way() -> None:
    study = load_study("kl_control")
    assert study.methods is not None
    assert set().union(*study.methods.values()) == set(study.arm_overrides())
    own = next(arms for arms in study.methods.values() if study.baseline in arms)
    assert len(own) == 6
    assert sum(len(arms) > 1 for arms in study.methods.values()) == 4


def test_all_faults_of_a_file_come_at_once_and_unknown_keys_before_the_baseline(
    write_study: Callable[..., Study],
) -> None:
    text = STUDY.replace("baseline: weak", "baseline: week").replace(
        "weak: {kl.beta: 0.01}", "weak: {steps: 64, optimiser.lr: high}"
    )
    text = text.replace("strong: {kl.beta: 0.2}", "strong: {kl.beta: -1}").replace(
        "objective/kl_per_token", "objective/kl_pertoken"
    )
    said = faults(write_study, text)
    assert [line.split("small.yaml, ")[1] for line in said] == [
        "line 8: arms.weak: unknown key 'steps'; did you mean 'train.steps' or 'sft.steps'?",
        "line 8: arms.weak: optimiser.lr = 'high': must be a number",
        "line 9: arms.strong: kl.beta = -1: must be greater than or equal to 0",
        "line 5: baseline 'week' is not an arm; did you mean 'weak'?; arms: weak, strong",
        "line 11: falsifiers.drift.metric: no metric 'objective/kl_pertoken'; did you mean 'objective/kl_per_token'?",
    ]
    misshapen = faults(write_study, text.replace("seeds: [0, 1]", "seeds: 2"))
    assert [line.split("small.yaml, ")[1] for line in misshapen] == [
        "line 8: arms.weak: unknown key 'steps'; did you mean 'train.steps' or 'sft.steps'?",
        "line 11: falsifiers.drift.metric: no metric 'objective/kl_pertoken'; did you mean 'objective/kl_per_token'?",
        "line 5: baseline 'week' is not an arm; did you mean 'weak'?; arms: weak, strong",
        "line 6: seeds: 2 is a single number; give a list of seeds, for example seeds: [0, 1]",
    ]


def test_settings_that_cannot_act_are_refused_with_the_arms_name(write_study: Callable[..., Study]) -> None:
    text = STUDY.replace("strong: {kl.beta: 0.2}", "strong: {kl.beta: 0.2, kl.target: 3}")
    assert (
        "line 9: arms.strong: kl.target = 3.0 has no effect while kl.control is fixed" in faults(write_study, text)[0]
    )
    (factor,) = faults(write_study, FACTORS + "factors: {adapter.rank: [4]}\n")
    assert "line 6: factors.adapter.rank=4: adapter.rank = 4 has no effect while adapter.kind is none" in factor
    head = FACTORS + "baseline: beta=0+kl.place=reward\n"
    (crossed,) = faults(write_study, head + "grid: {kl.beta: [0, 0.1], kl.place: [reward, loss]}\n")
    assert "grid.beta=0+kl.place=loss: kl.place = loss has no effect while kl.beta is 0.0" in crossed
    assert crossed.endswith("list the ones you want under arms instead")


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (
            "kl.target: {low: 1, high: 5}",
            ["search.space: kl.target = 1.0 has no effect", "search.space: kl.target = 5.0"],
        ),
        (
            "{kl.beta: {values: [0, 0.1]}, kl.place: {values: [reward, loss]}}",
            ["search.space: with kl.beta=0, kl.place=loss: kl.place = loss has no effect"],
        ),
    ],
)
def test_a_space_with_a_knob_that_cannot_act_is_refused_before_the_search(
    write_study: Callable[..., Study], space: str, says: list[str]
) -> None:
    head, _, tail = SEARCH.partition("    kl.beta: {low")
    text = head.replace("space:\n", f"space: {space}\n" if space.startswith("{") else f"space:\n    {space}\n")
    found = faults(write_study, text + "  trials: 14" + tail.partition("  trials: 14")[2])
    assert len(found) == len(says)
    assert all(words in line for words, line in zip(says, found, strict=True))


def test_set_may_prepare_a_switch_that_some_arm_turns_on(write_study: Callable[..., Study]) -> None:
    plain = write_study()
    with pytest.raises(UserError, match=r"^--set: kl\.target = 3\.0 has no effect while kl\.control is fixed.*out$"):
        cells(plain, None, {"kl.target": 3})
    with pytest.raises(UserError, match=r"^--set: optimiser\.lr = -1: must be greater than or equal to 0$"):
        cells(plain, None, {"optimiser.lr": -1})
    assert cells(plain, None, {"kl.target": 2})  # what tiny has anyway
    adaptive = write_study(STUDY.replace("kl.beta: 0.2", "kl.beta: 0.2, kl.control: adaptive"))
    assert [cell.config.kl.target for cell in cells(adaptive, None, {"kl.target": 3})] == [3.0] * 4
    switched = SEARCH.replace(
        "algorithm.cliprange: {values: [0.1, 0.2, 0.3]}", "kl.control: {values: [fixed, adaptive]}"
    )
    assert cells(write_study(switched), None, {"kl.target": 3})


def test_a_fault_of_many_arms_is_told_once(write_study: Callable[..., Study]) -> None:
    text = STUDY.split("arms:")[0].replace("baseline: weak", "baseline: ppo.klcoef=0.1+cliprange=0.1")
    said = faults(write_study, text + "grid: {ppo.klcoef: [0.1, 0.2], algorithm.cliprange: [0.1, -1]}\n")
    assert [line.split("small.yaml, ")[1] for line in said] == [
        (
            "line 7: grid.ppo.klcoef=0.1+cliprange=0.1: unknown key 'ppo.klcoef'; did you mean 'kl.beta'? (and in 3"
            " more arms)"
        ),
        (
            "line 7: grid.ppo.klcoef=0.1+cliprange=-1: algorithm.cliprange = -1: must be greater than 0 (and in 1 more"
            " arm)"
        ),
    ]


def faults(write_study: Callable[..., Study], text: str) -> list[str]:
    with pytest.raises(UserError) as error:
        write_study(text)
    return str(error.value).splitlines()


def test_no_arms_at_all(write_study: Callable[..., Study]) -> None:
    text = STUDY.split("arms:")[0]
    with pytest.raises(UserError, match="no arms"):
        write_study(text)
    with pytest.raises(UserError, match="no arms"):
        write_study(text + "arms: {}\n")
    with pytest.raises(UserError, match=r"grid.optimiser.lr: has no values"):
        write_study(text + "grid: {optimiser.lr: []}\n")


def test_grid_is_a_full_product_with_readable_names(write_study: Callable[..., Study]) -> None:
    text = STUDY.split("arms:")[0].replace("baseline: weak", "baseline: beta=0.05+cliprange=0.1")
    study = write_study(text + "grid: {kl.beta: [0, 0.05], algorithm.cliprange: [0.1, 0.2]}\n")
    assert list(study.arm_overrides()) == [
        "beta=0+cliprange=0.1",
        "beta=0+cliprange=0.2",
        "beta=0.05+cliprange=0.1",
        "beta=0.05+cliprange=0.2",
    ]
    assert study.arm_overrides()["beta=0.05+cliprange=0.1"] == {"kl.beta": 0.05, "algorithm.cliprange": 0.1}
    with pytest.raises(UserError, match="comes out more than once"):
        write_study(text + "grid: {kl.beta: [0.1, 0.1]}\n")


FACTORS = STUDY.split("arms:")[0].replace("baseline: weak\n", "")


def test_factors_are_taken_one_at_a_time_around_the_profile(write_study: Callable[..., Study]) -> None:
    study = write_study(
        FACTORS
        + "factors: {kl.beta: [0, 0.2], algorithm.cliprange: [0.1]}\ninteractions: [[kl.beta, algorithm.cliprange]]\n"
    )
    assert (study.kind, study.baseline) == ("factors", "baseline")
    assert study.arm_overrides() == {
        "baseline": {},
        "beta=0": {"kl.beta": 0},
        "beta=0.2": {"kl.beta": 0.2},
        "cliprange=0.1": {"algorithm.cliprange": 0.1},
        "beta=0+cliprange=0.1": {"kl.beta": 0, "algorithm.cliprange": 0.1},
        "beta=0.2+cliprange=0.1": {"kl.beta": 0.2, "algorithm.cliprange": 0.1},
    }
    with pytest.raises(UserError, match=r"'kl\.beta' is what small varies"):
        cells(study, None, {"kl.beta": 0.2})


@pytest.mark.parametrize(
    ("design", "message"),
    [
        (
            "factors: {algorithm.cliprange: [0.1, 0.2]}",
            r"factors.algorithm.cliprange: 0.2 is the baseline's own value on profile 'tiny'; leave it out",
        ),
        ("factors: {algorithm.cliprange: [0.1, 0.1]}", "the arm 'cliprange=0.1' comes out more than once"),
        ("factors: {algorithm.cliprange: []}", "factors.algorithm.cliprange: has no values"),
        (
            "factors: {algorithm.cliprnge: [0.1]}",
            r"factors.cliprnge=0.1: unknown key 'algorithm.cliprnge'; did you mean 'algorithm.cliprange'\?",
        ),
        ("factors: {}", "no arms"),
        ("factors: {algorithm.cliprange: [0.1]}\nbaseline: weak", "with factors it is the profile itself"),
        (
            "factors: {algorithm.cliprange: [0.1]}\ninteractions: [[algorithm.cliprange, optimiser.lr]]",
            "'optimiser.lr' is not a factor",
        ),
        (
            "factors: {algorithm.cliprange: [0.1]}\ninteractions: [[algorithm.cliprange, algorithm.cliprange]]",
            "must name two different factors",
        ),
        (
            "arms: {baseline: {}}\ninteractions: [[algorithm.cliprange, optimiser.lr]]",
            "they combine factors, and there are none",
        ),
        ("factors: {algorithm.cliprange: [0.1]}\ngrid: {optimiser.lr: [1]}", "both grid and factors are given"),
    ],
)
def test_faults_of_factors(write_study: Callable[..., Study], design: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_study(FACTORS + design + "\n")


def test_a_value_that_is_the_baselines_on_another_profile_is_refused_there(write_study: Callable[..., Study]) -> None:
    study = write_study(FACTORS + "factors: {kl.beta: [0.01]}\n")
    assert len(cells(study)) == 4
    with pytest.raises(UserError, match=r"arms 'baseline' and 'beta=0\.01' are the same trial on profile 't4'"):
        cells(study, "t4")


def test_a_study_in_the_current_folder_is_found_by_name(
    write_study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(name="mine")
    monkeypatch.chdir(Path(study.source).parent)
    assert load_study("mine").source == study.source
    with pytest.raises(UserError, match=r"no study 'mein'; did you mean 'mine'\?"):
        load_study("mein")
    write_study(name="kl_ablation")
    with pytest.raises(UserError, match="two studies are named 'kl_ablation'"):
        load_study("kl_ablation")


def test_an_unknown_name_lists_the_studies(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no study 'kl_ablaton'; did you mean 'kl_ablation'\?; there are: a_star_po, clip_ablation, "
    ):
        load_study("kl_ablaton")
    with pytest.raises(UserError, match="no study file"):
        load_study(tmp_path / "absent.yaml")
    with pytest.raises(UserError, match="is a folder"):
        load_study(tmp_path / "..")
    with pytest.raises(UserError, match="no study"):
        load_study("..")


def test_an_unknown_name_lists_the_files_of_this_folder_too(
    write_study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(write_study(name="mine").source).parent
    (folder / "no_study.yaml").mkdir()
    monkeypatch.chdir(folder)
    for name in ("xyzzy", "./xyzzy.yaml"):
        with pytest.raises(
            UserError,
            match=r"there are: a_star_po, clip_ablation, .*, value_ablation; in this folder: mine\.yaml( \(|$)",
        ):
            load_study(name)


def test_cells_pair_seeds_and_put_overrides_below_arms(write_study: Callable[..., Study]) -> None:
    plan = cells(write_study(), None, {"optimiser.lr": 5e-4, "train.steps": 64})
    assert [cell.label for cell in plan] == ["weak seed 0", "strong seed 0", "weak seed 1", "strong seed 1"]
    assert [(cell.config.kl.beta, cell.config.train.seed) for cell in plan] == [
        (0.01, 0),
        (0.2, 0),
        (0.01, 1),
        (0.2, 1),
    ]
    assert {cell.config.optimiser.lr for cell in plan} == {5e-4}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("kl.beta", "would have no effect: every arm"),
        ("train.seed", "comes from the study's seeds"),
        ("optimiser.lrr", "did you mean 'optimiser.lr'"),
    ],
)
def test_overrides_that_cannot_be_meant_are_refused(write_study: Callable[..., Study], key: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cells(write_study(), None, {key: 1})


def test_the_design_digest_follows_content_and_not_order(write_study: Callable[..., Study]) -> None:
    first = cells(write_study())
    assert design_digest(first) == design_digest(list(reversed(first)))
    assert design_digest(first) != design_digest(cells(write_study(), None, {"optimiser.lr": 5e-4}))
    assert design_digest(first) != design_digest(first[:-1])
    assert design_digest(first) == design_digest(cells(write_study(), None, {"runtime.threads": 2}))


def test_a_single_trial_is_named_after_what_it_changes() -> None:
    assert single("tiny", {}, 3).arm_overrides() == {"tiny": {}}
    assert list(single("tiny", {"optimiser.lr": 0.1, "algorithm.cliprange": 0.3}, 0).arm_overrides()) == [
        "cliprange=0.3+lr=0.1"
    ]
    assert next(iter(single("tiny", {"model.base": "a/b"}, 0).arm_overrides())).startswith("set-")
    with pytest.raises(UserError, match="given by --seed"):
        single("tiny", {"train.seed": 1}, 0)


def test_a_dump_reads_back(write_study: Callable[..., Study]) -> None:
    study = write_study()
    again = Study.model_validate(study.model_dump(mode="json"))
    assert again.model_dump() == study.model_dump()
    assert "source" not in study.model_dump()


# --- an algorithm by its name ------------------------------------------------------------------------------


def test_an_algorithm_brings_its_settings_and_each_can_be_changed(write_study: Callable[..., Study]) -> None:
    study = write_study(STUDY.replace("{kl.beta: 0.2}", "{algorithm: rloo, train.responses_per_prompt: 2}"))
    assert study.arm_overrides()["strong"] == {"algorithm.name": "rloo", "train.responses_per_prompt": 2}
    plain, chosen = (cell.config for cell in cells(study)[:2])
    assert (plain.algorithm.name, plain.critic.kind, plain.train.responses_per_prompt) == ("ppo", "shared", 1)
    assert (chosen.algorithm.name, chosen.critic.kind, chosen.train.responses_per_prompt) == ("rloo", "none", 2)
    assert chosen.train.batch_size == plain.train.batch_size, "as many episodes"


def test_an_arm_keeps_its_algorithm_under_another_by_set(write_study: Callable[..., Study]) -> None:
    study = write_study(STUDY.replace("{kl.beta: 0.2}", "{kl.beta: 0.2, algorithm: ppo}"))
    weak, strong = (cell.config for cell in cells(study, None, parse_set(["algorithm=rloo"]))[:2])
    assert (weak.algorithm.name, weak.critic.kind) == ("rloo", "none")
    assert (strong.algorithm.name, strong.critic.kind) == ("ppo", "shared")


def test_what_is_set_wins_over_an_algorithms_own_settings(write_study: Callable[..., Study]) -> None:
    """The profile, then the algorithm's settings, then --set, then the arm."""
    study = write_study(STUDY.replace("{kl.beta: 0.2}", "{kl.beta: 0.2, algorithm: rloo}"))
    _, strong = (cell.config for cell in cells(study, None, {"train.responses_per_prompt": 8})[:2])
    assert (strong.critic.kind, strong.train.responses_per_prompt) == ("none", 8)
    with pytest.raises(UserError, match=r"arms.strong with --set: critic.kind 'separate' is not for advantage 'rloo'"):
        cells(study, None, {"critic.kind": "separate"})


def test_an_algorithm_may_be_searched(write_study: Callable[..., Study]) -> None:
    searched = SEARCH.replace("algorithm.cliprange: {values: [0.1, 0.2, 0.3]}", "algorithm: {values: [ppo, rloo]}")
    study = write_study(searched)
    assert study.search is not None
    assert list(study.search.space) == ["kl.beta", "algorithm.name"]
    lambdas = SEARCH.replace("algorithm.cliprange: {values: [0.1, 0.2", "algorithm.gae_lambda: {values: [0.8, 0.9")
    study = write_study(lambdas)
    with pytest.raises(UserError, match=r"--set: search.space: algorithm.gae_lambda = 0.8 has no effect while"):
        cells(study, None, parse_set(["algorithm=rloo"]))


def test_interactions_with_an_algorithm(write_study: Callable[..., Study]) -> None:
    text = FACTORS + "factors: {algorithm: [rloo], kl.beta: [0.2]}\ninteractions: [[algorithm, kl.beta]]\n"
    assert list(write_study(text).arm_overrides())[-1] == "algorithm=rloo+beta=0.2"


def test_a_grid_over_algorithms_has_readable_names(write_study: Callable[..., Study]) -> None:
    text = STUDY.split("arms:")[0].replace("baseline: weak", "baseline: algorithm=ppo")
    study = write_study(text + "grid: {algorithm: [ppo, rloo]}\n")
    assert list(study.arm_overrides()) == ["algorithm=ppo", "algorithm=rloo"]
    assert [cell.config.critic.kind for cell in cells(study)[:2]] == ["shared", "none"]


@pytest.mark.parametrize(
    ("arm", "says"),
    [
        ("{algorithm: rlo}", r"line 9: arms.strong: algorithm.name = 'rlo': must be 'ppo', .* did you mean 'rloo'"),
        ("{algorithm: rloo, critic.kind: shared}", "critic.kind 'shared' is not for advantage 'rloo': use none"),
        ("{algorithm: rloo, train.responses_per_prompt: 1}", "so it needs at least 2"),
        ("{critic.kind: none}", "critic.kind 'none' is not for advantage 'gae': use shared or separate"),
        ("{algorithm: rloo, algorithm.name: ppo}", "'algorithm' and 'algorithm.name' are the same key; give it once"),
        ("{algorithm: rloo}\nseed: 2", "unknown key 'seed'"),
        ("{algorithm: rloo, algorithm.gae_lambda: 0.9}", "algorithm.gae_lambda = 0.9 has no effect while"),
        ("{train.responses_per_prompt: 3}", "batch_size 64 is no multiple of responses_per_prompt 3"),
    ],
)
def test_what_an_algorithm_cannot_work_with_is_refused(write_study: Callable[..., Study], arm: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        write_study(STUDY.replace("{kl.beta: 0.2}", arm))


def test_a_claim_without_a_metric_speaks_of_the_exact_kl(write_study: Callable[..., Study]) -> None:
    study = write_study(STUDY.replace("metric: objective/kl_per_token, ", ""))
    assert study.falsifiers[0].condition == "objective/kl_exact_per_token > 0.5 before step 32"


def test_a_claim_on_imported_trials_names_its_metric(write_study: Callable[..., Study]) -> None:
    text = "question: q\nbaseline: a\nhypothesis: h\nrefuted_if: r\nseeds: [0]\nimported: {a: {}}\nfalsifiers:\n"
    claim = '  - {name: drift, claim: it stays, op: ">", threshold: 1, before_step: 32%s}\n'
    said = faults(write_study, text + claim % "")
    assert "falsifiers.drift.metric: is missing; the default, objective/kl_exact_per_token, is rarely" in said[0]
    write_study(text + claim % ", metric: objective/kl_exact_per_token")


@pytest.mark.parametrize("name", study_names())
def test_shipped_claims_on_drift_speak_of_the_exact_kl(name: str) -> None:
    assert "objective/kl_per_token" not in {falsifier.metric for falsifier in load_study(name).falsifiers}
