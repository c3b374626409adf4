from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder
from tinynets import completions

from pipeline.errors import UserError
from pipeline.models.out_of_memory import Room
from pipeline.rewards import own
from pipeline.rewards.base import Completions
from pipeline.rewards.scorers import ready
from pipeline.rewards.settings import PartConfig
from pipeline.run.layout import Layout
from pipeline.stages.sources import check_sources
from pipeline.trial import plan_trial, run_trial
from studies.definition.design import cells, check_own, own_digests
from studies.definition.schema import load_study

MODULE = """
from pathlib import Path

from pydantic import BaseModel

Path(__file__).with_name("imported").touch()


class Short:
    class Settings(BaseModel):
        longest: int = 20

    def __init__(self, settings):
        self.longest = settings.longest

    def __call__(self, completions):
        return [-abs(len(text) - self.longest) for text in completions.texts]


class Words:
    def __call__(self, completions):
        return [float(len(text.split())) for text in completions.texts]


class Silent:
    pass


class Wrong:
    def __init__(self):
        if Path(__file__).with_name("broken").exists():
            raise RuntimeError("no such\\nfile")

    def __call__(self, completions):
        if "raise" in completions.texts:
            raise KeyError("x")
        return [[1.0]] if "shape" in completions.texts else [float("nan")] * len(completions.texts)
"""
STUDY = """question: Is it short?
hypothesis: It is.
refuted_if: It is not.
profile: smoke
baseline: short
seeds: [0, 1]
arms:
  short: {SHORT}
  learned: {kl.beta: 0.05}
"""
SHORT = "reward.kind: mine:Short, reward.settings: {longest: 5}"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "mine.py").write_text(MODULE)
    yield tmp_path
    own.search_in(None)
    sys.modules.pop("mine", None)


def write(folder: Path, short: str = SHORT) -> Path:
    (folder / "my_study.yaml").write_text(STUDY.replace("SHORT", short))
    return folder / "my_study.yaml"


def texts(*given: str) -> Completions:
    return completions(*(("", text) for text in given))


def scorer(kind: str, **settings: Any) -> Callable[[Completions], torch.Tensor]:
    return ready("reward", PartConfig(kind=kind, settings=settings), torch.device("cpu"), Room("rows", 4))


def test_a_trial_is_trained_on_a_class_of_the_users_own_and_judged_by_another(
    folder: Path, smoke_layout: Layout
) -> None:
    study = load_study(write(folder, f"{SHORT}, judge.kind: mine:Words, judge.also: {{x: {{kind: mine:Short}}}}"))
    config = next(cell.config for cell in cells(study) if cell.arm == "short")
    assert config.runtime.code == str(folder)
    planned = {one.stage: one.key for one in plan_trial(config, smoke_layout)}
    check_sources(config, ["reward"])
    assert not (folder / "imported").exists(), "a plan imports nothing"
    outcome = run_trial(config, smoke_layout, Recorder())
    assert outcome.status == "complete"
    assert {"eval/gold/x", "eval/proxy"} <= outcome.summary.keys()
    assert (folder / "imported").exists()
    check_own(study, {cell.arm: cell.config for cell in cells(study)})
    digests = own_digests([config])
    assert digests.keys() == {"mine:Short", "mine:Words"}
    (folder / "mine.py").rename(folder / "away.py")
    with pytest.raises(UserError, match=r"judge\.kind = 'mine:Words': there is no module 'mine'; searched"):
        check_sources(config, ["reward"])
    (folder / "mine.py").write_text(MODULE + "\n\nX = 1\n")
    assert own_digests([config]) != digests
    changed = {one.stage: one.key for one in plan_trial(config, smoke_layout)}
    assert [stage for stage in planned if changed[stage] != planned[stage]] == ["reward"], "the others wait for it"
    assert own_digests(cell.config for cell in cells(study) if cell.arm == "learned") == {}


WRONG = {
    "reward.kind: mine:Shrt": "reward.kind = 'mine:Shrt': {folder}/mine.py has no class 'Shrt'; did you mean 'Short'?",
    "reward.kind: absent.module:Short": "there is no module 'absent.module'; searched (the folder of the study file",
    "reward.kind: mine:Silent": "the class cannot score; give it __call__(self, completions)",
    "reward.kind: mine:Short, reward.settings: {long: 5}": "unknown key 'reward.settings.long'; did you mean",
    "reward.kind: mine:Short, reward.settings.longest: many": "reward.settings.longest = 'many': must be a whole",
    "reward.kind: mine:Words, reward.settings: {a: 1}": "unknown key 'reward.settings.a'",
    "judge.also: {x: {kind: mine:Silent}}": "judge.also.x.kind = 'mine:Silent': the class cannot score",
}


@pytest.mark.parametrize(("short", "says"), WRONG.items())
def test_a_class_that_does_not_fit_is_one_line_with_the_place_in_the_study(folder: Path, short: str, says: str) -> None:
    path = write(folder, short)
    study = load_study(path)
    with pytest.raises(UserError) as error:
        check_own(study, {cell.arm: cell.config for cell in cells(study)})
    assert str(error.value).startswith(f"{path}, line 8: arms.short: ")
    assert says.format(folder=folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_scores_are_one_finite_number_a_text(folder: Path) -> None:
    own.search_in(str(folder))
    assert scorer("mine:Short", longest=3)(texts("abc", "a")).tolist() == [0.0, -2.0]
    for text, says in (
        ("raise", "scoring failed (KeyError: 'x')"),
        ("shape", "it must give a finite number for each of 1 completions, and gave [[1.0]]"),
        ("nan", "it must give a finite number for each of 1 completions, and gave [nan]"),
    ):
        with pytest.raises(UserError) as error:
            scorer("mine:Wrong")(texts(text))
        assert str(error.value) == f"reward.kind = 'mine:Wrong': {says}"
    (folder / "broken").touch()
    with pytest.raises(UserError, match=r"'mine:Wrong': could not be made \(RuntimeError: no such\)$"):
        scorer("mine:Wrong")


def test_modules_are_found_in_packages_and_on_pythonpath_and_are_not_mistaken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "elsewhere" / "my_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for file in (package / "rewards.py", folder / "json.py"):
        file.write_text("class Mine:\n    def __call__(self, completions):\n        return [1.0]\n")
    assert own.file_of("my_package.rewards:Mine", None) is None
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    assert own.file_of("my_package.rewards:Mine", None) == package / "rewards.py"
    assert scorer("my_package.rewards:Mine")(texts("a")).tolist() == [1.0]
    own.search_in(str(folder))
    with pytest.raises(UserError, match=r"'json' is already the name of .*; rename .*json\.py"):
        scorer("json:Mine")
