"""The code of a stage: an edit that can change its result changes its key, and no other edit does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import smoke

from pipeline.errors import UserError
from pipeline.run.code import Code
from pipeline.run.dag import PROJECT
from pipeline.stages.graph import STAGES

EVERY = {stage.name for stage in STAGES}
SCORED = {"reward", "reference", "values", "critic", "train", "evaluate"}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Code:
    root = tmp_path_factory.mktemp("code")
    shutil.copytree(PROJECT.root / "pipeline", root / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    return Code(root)


def digests(code: Code, **changes: Any) -> dict[str, str]:
    config = smoke(**changes)
    return {stage.name: code.digest(str(stage.run).partition(":")[0], stage.kinds(config)) for stage in STAGES}


def rebuilt(code: Code, module: str, edit: Callable[[str], str], **changes: Any) -> set[str]:
    """The stages whose code is another one after an edit of one module."""
    path = code._path(module)
    assert path is not None
    if module == "pipeline.algorithms.kinds":
        path = path.with_suffix(".yaml")
    text, before = path.read_text(), digests(code, **changes)
    try:
        assert edit(text) != text
        path.write_text(edit(text))
        edited = Code(code.root)
        edited._source = lambda name: (edited._read if name == module else code._source)(name)  # type: ignore[assignment]
        after = digests(edited, **changes)
    finally:
        path.write_text(text)
    return {name for name in before if before[name] != after[name]}


def with_a_line(text: str) -> str:
    return f"{text}\nEDITED = 1\n"


@pytest.mark.parametrize(
    ("module", "changes", "stages"),
    [
        *((f"pipeline.stages.{name}", {}, {name}) for name in sorted(EVERY)),
        ("pipeline.training.language_model", {}, {"sft", "reward"}),
        ("pipeline.rewards.collection", {}, {"reward"}),
        ("pipeline.rewards.scored_samples", {}, {"values", "critic", "train"}),
        ("pipeline.evaluation.heldout", {}, {"reference", "evaluate"}),
        ("pipeline.evaluation.best_of", {}, {"evaluate"}),
        ("pipeline.data.corpus", {}, {"prompts"}),
        ("pipeline.rewards.fluency", {}, {"judge"}),
        ("pipeline.rewards.fluency", {"judge__kind": "fluent_lexicon"}, {"judge", *SCORED - {"values", "critic"}}),
        ("pipeline.models.trunk", {}, EVERY - {"prompts"}),
        ("pipeline.models.out_of_memory", {}, EVERY - {"prompts"}),
        ("pipeline.training.trainer", {}, {"train"}),
        ("pipeline.training.parts.brakes", {}, {"train"}),
        ("pipeline.training.parts.entropy", {}, set()),
        ("pipeline.training.parts.entropy", {"entropy__coef": 0.1}, {"train"}),
        ("pipeline.training.natural_step", {}, set()),
        ("pipeline.stopping", {}, {"train"}),
        ("pipeline.rewards.learned", {}, SCORED - {"critic"}),
        ("pipeline.rewards.ocr", {}, set()),
        ("pipeline.rewards.ocr", {"reward__kind": "ocr"}, SCORED - {"critic"}),
        ("pipeline.rewards.classifier", {}, set()),
        ("pipeline.rewards.fluency", {"judge__kind": "lexicon"}, {"judge", *SCORED - {"values", "critic"}}),
        ("pipeline.algorithms.gae", {}, {"train"}),
        ("pipeline.algorithms.baselines", {}, set()),
        ("pipeline.algorithms.baselines", {"algorithm": "grpo"}, {"train"}),
        # words, storage, measurements, the planner
        *(
            (module, {}, set())
            for module in (
                "pipeline.config.messages", "pipeline.errors", "pipeline.forecast.memory", "pipeline.resources.ledger",
                "pipeline.run.metrics", "pipeline.run.store", "pipeline.stages.graph", "pipeline.trial",
                "pipeline.wording",
            )
        ),
    ],
)  # fmt: skip
def test_an_edit_builds_what_it_can_change(
    copied: Code, module: str, changes: dict[str, Any], stages: set[str]
) -> None:
    assert rebuilt(copied, module, with_a_line, **changes) == stages


def test_comments_docstrings_and_new_entries_of_a_registry_build_nothing(copied: Code) -> None:
    def documented(text: str) -> str:
        return "# why\n" + text.replace("    def __init__(", '    """Doc."""\n\n    def __init__(', 1)

    def registered(text: str) -> str:
        start = "KINDS: dict[str, Kind] = {"
        return text.replace(start, f'{start}\n    "new": Kind("new judge", "pipeline.rewards.ocr:load"),')

    assert rebuilt(copied, "pipeline.training.trainer", documented) == set()
    assert rebuilt(copied, "pipeline.rewards.kinds", registered) == set()
    replaced = rebuilt(copied, "pipeline.rewards.kinds", lambda text: text.replace("ocr:load", "lexicon:load"))
    assert replaced == set(), "nothing here is scored by ocr"
    changed = rebuilt(copied, "pipeline.algorithms.kinds", lambda text: text.replace("clipped", "capped"))
    assert changed == {"train"}


def test_code_that_is_edited_while_it_is_in_use_is_refused(tmp_path: Path) -> None:
    module, code = tmp_path / "late.py", Code(tmp_path)
    module.write_text("x = 1\n")
    before = code.digest("late")
    module.write_text("# why\nx = 1\n")
    code.check_unchanged("late")
    module.write_text("x = 2222\n")
    with pytest.raises(UserError, match=r"late\.py was edited while this command was running"):
        code.check_unchanged("late")
    assert code.digest("late") == before != (after := Code(tmp_path).digest("late"))
    module.with_suffix(".yaml").write_text("x: 1\n")  # data beside the code
    assert Code(tmp_path).digest("late") not in (before, after)
    with pytest.raises(ValueError, match=r"'no\.such', which does not exist"):
        code.digest("no.such")
