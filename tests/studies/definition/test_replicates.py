"""What a seed of a study changes: which keys, for which chains, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from studies.definition.design import cells
from studies.definition.replicates import LINKS, Replicate, Trainings, acting, chain_of, replicates, seeded
from studies.definition.schema import Study, load_study

BODY = """
question: Does it work?
hypothesis: It does.
refuted_if: It does not.
profile: smoke
baseline: weak
seeds: [3, 4]
arms:
  weak: {kl.beta: 0.01}
  strong: {kl.beta: 0.2}
"""


def study(folder: Path, extra: str = "") -> Study:
    path = folder / "mine.yaml"
    path.write_text(BODY + extra, encoding="utf-8")
    return load_study(path)


def test_a_seed_changes_the_training_alone_unless_the_study_says_more(tmp_path: Path) -> None:
    plan = cells(study(tmp_path))
    assert {cell.config.train.seed for cell in plan} == {3, 4}
    assert {chain_of(cell.config) for cell in plan} == {(0, 0, 0)}


def test_a_seed_changes_every_link_that_varies_and_no_other(tmp_path: Path) -> None:
    plan = cells(study(tmp_path, "vary: [labels, sft]\n"))
    assert [(cell.seed, cell.config.train.seed, chain_of(cell.config)) for cell in plan[::2]] == [
        (3, 3, (3, 3, 0)),
        (4, 4, (4, 4, 0)),
    ]


@pytest.mark.parametrize("design", ["nested", "crossed"])
def test_trainings_share_a_chain(tmp_path: Path, design: str) -> None:
    plan = cells(study(tmp_path, f"vary: [reward]\ntrainings: {{seeds: [0, 1], design: {design}}}\n"))[::2]
    assert [cell.seed for cell in plan] == [3000, 3001, 4000, 4001]
    assert [cell.config.reward.seed for cell in plan] == [3, 3, 4, 4]
    trained = [cell.config.train.seed for cell in plan]
    assert trained == ([0, 1, 0, 1] if design == "crossed" else [3000, 3001, 4000, 4001])


def test_links_that_do_not_exist_are_left_alone() -> None:
    ready = load_config("smoke", {"reward.kind": "grammar"})
    assert acting(ready, tuple(LINKS)) == ("sft",)
    assert seeded(ready, Replicate(7, 7, 7), tuple(LINKS)).reward == ready.reward


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("vary: [rewards]\n", "vary"),
        ("vary: [reward, reward]\n", "more than once"),
        ("trainings: {seeds: [0, 1]}\n", "vary names nothing"),
        ("vary: [reward]\ntrainings: {seeds: [0, 1000]}\n", "below 1000"),
        ("vary: [reward]\ntrainings: {seeds: [0]}\n", "at least 2"),
    ],
)
def test_designs_that_make_no_sense_are_refused(tmp_path: Path, extra: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        study(tmp_path, extra)


def test_an_arm_may_not_set_what_the_seeds_vary(tmp_path: Path) -> None:
    extra = "  third: {sft.seed: 5}\nvary: [sft]\n"
    with pytest.raises(UserError, match=r"'sft.seed' is set by the study's seeds, which vary the reference policy"):
        study(tmp_path, extra)
    with pytest.raises(UserError, match=r"is set by the study"):
        cells(study(tmp_path, "vary: [sft]\n"), overrides={"sft.seed": 1})


def test_numbers_of_trials_are_unique() -> None:
    rows = replicates(range(5), Trainings(seeds=(0, 1, 2)))
    assert len({row.number for row in rows}) == len({row.training for row in rows}) == 15
