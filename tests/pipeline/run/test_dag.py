from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, smoke

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.run import dag
from pipeline.run.code import Code
from pipeline.run.dag import PROJECT, Stage
from pipeline.run.layout import Layout
from pipeline.run.store import Artifact, Store
from pipeline.stages.graph import STAGES as REAL


def first(cfg: Any, out: Path, reporter: Any) -> dict[str, Any]:
    (out / "x").write_text(str(cfg.data.seed))
    return {}


def second(cfg: Any, out: Path, reporter: Any, *, first: Artifact) -> dict[str, Any]:
    (out / "x").write_text((first.path / "x").read_text() + str(cfg.sft.seed))
    return {}


def constant(cfg: Any, out: Path, reporter: Any, *, first: Artifact) -> dict[str, Any]:
    (out / "x").write_text("always the same")
    return {}


def third(cfg: Any, out: Path, reporter: Any, *, constant: Artifact) -> dict[str, Any]:
    return {}


STAGES = (
    Stage("third", third, ()),
    Stage("second", second, ("sft.seed",)),
    Stage("first", first, ("data",)),
    Stage("constant", constant, ()),
)


def run(tmp_path: Path, cfg: TrialConfig) -> list[tuple[str, str]]:
    recorder = Recorder()
    dag.run(STAGES, cfg, Store(tmp_path), recorder)
    return [(name, state) for name, state in recorder.stages if state != "building"]


def test_edges_read_from_the_source_are_those_of_the_functions() -> None:
    for stage in REAL:
        assert isinstance(stage.run, str)
        imported, every = dataclasses.replace(stage, run=stage.function()), [one.name for one in REAL]
        assert [stage.inputs(there) for there in ([], every)] == [imported.inputs(there) for there in ([], every)]
    with pytest.raises(ValueError, match=r"'pipeline\.stages\.sft:absent', which does not exist"):
        Stage("sft", "pipeline.stages.sft:absent", ()).inputs([])


def test_code_that_is_edited_before_it_is_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key was made of the code as it was: what came after it must not be published under it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(dag, "PROJECT", Code(tmp_path))
    module = tmp_path / "late_stage.py"
    module.write_text("def late(cfg, out, reporter):\n    return {'made': 1}\n")
    stage, store = Stage("late", "late_stage:late", ()), Store(tmp_path / "store")
    assert [one.cached for one in dag.plan([stage], smoke(), store)] == [False]
    module.write_text("def late(cfg, out, reporter):\n    return {'made': 2222}\n")
    with pytest.raises(UserError, match=r"late_stage\.py was edited while this command was running"):
        dag.run([stage], smoke(), store, Recorder())
    monkeypatch.setattr(dag, "PROJECT", Code(tmp_path))
    dag.run([stage], smoke(), store, Recorder())
    module.write_text("def late(cfg, out, reporter):\n    return {'made': 3}\n")
    monkeypatch.setattr(dag, "PROJECT", Code(tmp_path))
    assert [one.why for one in dag.plan([stage], smoke(), store)] == ["code changed"]


def test_a_stage_that_some_trials_have_is_in_no_other_trials_keys(tmp_path: Path) -> None:
    def last(cfg: Any, out: Path, reporter: Any, *, first: Artifact, extra: Artifact | None = None) -> dict[str, Any]:
        return {"extra": extra is not None}

    def extra(cfg: Any, out: Path, reporter: Any, *, first: Artifact) -> dict[str, Any]:
        return {}

    optional = Stage("extra", extra, ("values",), only=lambda config: config.algorithm.needs_values)
    ends, store = Stage("last", last, ("kl.beta",)), Store(tmp_path)
    plain = dag.plan((STAGES[2], ends), smoke(), store), dag.run((STAGES[2], ends), smoke(), store, Recorder())
    graph = (ends, STAGES[2], optional)
    without = {one.stage: one for one in dag.plan(graph, smoke(), store)}
    assert list(without) == ["first", "last"]
    assert without["last"].key == plain[1]["last"].key
    assert dag.run(graph, smoke(), store, Recorder())["last"].meta == {"extra": False}
    chosen = smoke(**{"algorithm": "a_star_po"})
    assert [one.stage for one in dag.plan(graph, chosen, store)] == ["first", "extra", "last"]
    found = dag.run(graph, chosen, store, Recorder())
    assert found["last"].meta == {"extra": True}
    assert found["last"].key != plain[1]["last"].key
    more = {one.stage: one.why for one in dag.plan(graph, smoke(algorithm="a_star_po", values__samples=4), store)}
    assert more["extra"] == "values.samples 16 -> 4"


def test_only_what_depends_on_a_change_is_built_again(tmp_path: Path) -> None:
    assert {state for _, state in run(tmp_path, smoke())} == {"built"}
    assert {state for _, state in run(tmp_path, smoke())} == {"cached"}
    after_sft = dict(run(tmp_path, smoke(sft__seed=7)))
    assert after_sft == {"first": "cached", "second": "built", "constant": "cached", "third": "cached"}
    # `constant` runs again, but its output is the same, so `third` need not.
    after_data = dict(run(tmp_path, smoke(data__seed=7)))
    assert after_data == {"first": "built", "second": "built", "constant": "built", "third": "cached"}


def test_a_stage_sees_only_what_it_declares(tmp_path: Path) -> None:
    def nosy(cfg: Any, out: Path, reporter: Any) -> dict[str, Any]:
        return {"steps": cfg.sft.steps}

    with pytest.raises(AttributeError):
        dag.run([Stage("nosy", nosy, ("sft.seed",))], smoke(), Store(tmp_path), Recorder())


def test_plan_says_what_and_why_and_builds_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    plan = {one.stage: one for one in dag.plan(STAGES, smoke(), store)}
    assert (plan["first"].cached, plan["first"].why) == (False, "never built")
    assert (plan["second"].key, plan["second"].why) == (None, "waits for first")
    assert not list(tmp_path.iterdir())
    run(tmp_path, smoke())
    assert all(one.cached for one in dag.plan(STAGES, smoke(), store))
    changed = {one.stage: one.why for one in dag.plan(STAGES, smoke(sft__seed=7), store)}
    assert changed["second"] == "sft.seed 0 -> 7"


def test_the_content_of_the_users_files_counts_and_not_only_their_path(tmp_path: Path) -> None:
    reviews = tmp_path / "reviews.csv"
    changes = {"data.source": "local", "data.local.path": str(reviews)}
    prompts = [stage for stage in REAL if stage.name == "prompts"]
    keys = []
    for text in ("good", "good", "bad!"):
        reviews.write_text(f"text,label\n{text},1\n")
        keys.append(dag.plan(prompts, load_config("smoke", changes), Store(tmp_path / "store"))[0].key)
    assert keys[0] == keys[1] != keys[2]


def test_artifacts_of_another_precision_are_built_again(smoke_layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Artifacts that a CPU made in fp32 do not pass for those of a GPU."""
    store = Store(smoke_layout.store)
    assert all(one.cached for one in dag.plan(REAL, smoke(), store))
    networks = [stage.name for stage in REAL if stage.name not in ("prompts", "judge")]
    assert [stage.name for stage in REAL if stage.precision] == networks
    monkeypatch.setattr("pipeline.stages.sources.gpu_visible", lambda: True)
    monkeypatch.setattr("pipeline.models.loading.device_of", lambda name: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: (8, 0))
    plan = {one.stage: one for one in dag.plan(REAL, smoke(runtime__device="auto"), store)}
    assert plan["prompts"].cached
    assert (plan["sft"].cached, plan["sft"].why) == (False, "precision fp32 -> bf16")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: (7, 5))
    assert {one.stage: one.why for one in dag.plan(REAL, smoke(runtime__device="auto"), store)}[
        "sft"
    ] == "precision fp32 -> fp16"


def test_a_plan_without_the_gpu_it_asks_for_says_that_the_precision_is_unknown(smoke_layout: Layout) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    plan = {one.stage: one for one in dag.plan(REAL, smoke(runtime__device="cuda"), Store(smoke_layout.store))}
    assert plan["sft"].why == "precision fp32 -> unknown (no GPU here)"


def test_a_stage_in_rounds_takes_what_the_round_before_left(tmp_path: Path) -> None:
    """The last round has the plain name, so a stage's name is that of what the trial ended with."""

    def label(cfg: Any, out: Path, reporter: Any, *, first: Artifact, last_learn: Artifact | None = None) -> Any:
        return {"seen": (last_learn.meta["seen"] if last_learn else []) + ["label"]}

    def learn(cfg: Any, out: Path, reporter: Any, *, label: Artifact, last_learn: Artifact | None = None) -> Any:
        before = last_learn.meta["seen"] if last_learn else []
        assert label.meta["seen"][:-1] == before
        return {"seen": [*label.meta["seen"], "learn"]}

    def ends(cfg: Any, out: Path, reporter: Any, *, learn: Artifact, label: Artifact) -> Any:
        return {"seen": learn.meta["seen"], "label": label.meta["seen"]}

    def rounds(config: Any) -> int:
        return int(config.reward.learned.rounds)

    graph = (
        Stage("learn", learn, ("reward.learned",), rounds=rounds),
        Stage("label", label, ("reward.learned",), rounds=rounds),
        Stage("ends", ends, ()),
        STAGES[2],
    )
    store, three = Store(tmp_path), smoke(reward__learned__rounds=4, train__steps=64)
    names = ["first", "label-1", "learn-1", "label-2", "learn-2", "label-3", "learn-3", "label", "learn", "ends"]
    assert [one.name for one in dag.stages_of(graph, three)] == names
    found = dag.run(graph, three, store, Recorder())
    assert found["ends"].meta["seen"] == ["label", "learn"] * 4
    assert found["ends"].meta["label"] == [*["label", "learn"] * 3, "label"]
    assert all(one.cached for one in dag.plan(graph, three, store))
    plan = {one.stage: one for one in dag.plan(graph, smoke(reward__learned__rounds=2), store)}
    assert list(plan) == ["first", "label-1", "learn-1", "label", "learn", "ends"]
    assert plan["label-1"].why == "reward.learned.rounds 4 -> 2"
    once = [one.name for one in dag.stages_of(graph, smoke())]
    assert once == ["first", "label", "learn", "ends"]


EVERY = {stage.name for stage in REAL}
SCORED = {"reward", "reference", "values", "critic", "train", "evaluate"}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Code:
    root = tmp_path_factory.mktemp("code")
    shutil.copytree(PROJECT.root / "pipeline", root / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    return Code(root)


def digests(code: Code, **changes: Any) -> dict[str, str]:
    config = smoke(**changes)
    return {stage.name: code.digest(str(stage.run).partition(":")[0], stage.kinds(config)) for stage in REAL}


def rebuilt(code: Code, module: str, edit: Callable[[str], str], **changes: Any) -> set[str]:
    path = code._path(module)
    assert path is not None
    if module.endswith(".kinds"):
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


@pytest.mark.parametrize(
    ("module", "changes", "stages"),
    [
        *((f"pipeline.stages.{name}", {}, {name}) for name in sorted(EVERY - {"values"})),
        ("pipeline.training.language_model", {}, {"sft", "reward"}),
        ("pipeline.rewards.collection", {}, SCORED),
        ("pipeline.stages.values", {}, {"values", "critic", "train"}),
        ("pipeline.stages.heldout", {}, {"reference", "evaluate"}),
        ("pipeline.data.corpus", {}, {"prompts", *SCORED}),
        ("pipeline.rewards.fluency", {}, {"judge"}),
        ("pipeline.rewards.fluency", {"judge__kind": "fluent_lexicon"}, {"judge", *SCORED - {"values", "critic"}}),
        ("pipeline.models.trunk", {}, EVERY - {"prompts"}),
        ("pipeline.models.out_of_memory", {}, EVERY - {"prompts"}),
        ("pipeline.training.trainer", {}, {"train"}),
        ("pipeline.training.parts.brakes", {}, {"train"}),
        ("pipeline.training.parts.coefficients", {}, {"train"}),
        ("pipeline.training.natural_step", {}, set()),
        ("pipeline.stopping", {}, {"train"}),
        ("pipeline.rewards.learned", {}, SCORED),
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
                "pipeline.config.loading", "pipeline.errors", "pipeline.forecast.memory", "pipeline.resources.ledger",
                "pipeline.run.metrics", "pipeline.run.store", "pipeline.stages.graph", "pipeline.trial",
                "pipeline.wording",
            )
        ),
    ],
)  # fmt: skip
def test_an_edit_builds_what_it_can_change(
    copied: Code, module: str, changes: dict[str, Any], stages: set[str]
) -> None:
    assert rebuilt(copied, module, lambda text: f"{text}\nEDITED = 1\n", **changes) == stages


def test_comments_docstrings_and_new_entries_of_a_registry_build_nothing(copied: Code) -> None:
    def documented(text: str) -> str:
        return "# why\n" + text.replace("    def __init__(", '    """Doc."""\n\n    def __init__(', 1)

    def registered(text: str) -> str:
        return f'{text}  new: {{words: new judge, code: "pipeline.rewards.ocr:load"}}\n'

    assert rebuilt(copied, "pipeline.training.trainer", documented) == set()
    assert rebuilt(copied, "pipeline.rewards.kinds", registered) == set()
    replaced = rebuilt(copied, "pipeline.rewards.kinds", lambda text: text.replace("ocr:load", "lexicon:load"))
    assert replaced == set(), "nothing here is scored by ocr"
    changed = rebuilt(copied, "pipeline.algorithms.kinds", lambda text: text.replace("clipped", "capped"))
    assert changed == {"train"}


def test_comments_and_data_beside_the_code_of_a_stage(tmp_path: Path) -> None:
    module, code = tmp_path / "late.py", Code(tmp_path)
    module.write_text("x = 1\n")
    before = code.digest("late")
    module.write_text("# why\nx = 1\n")
    code.check_unchanged("late")
    module.with_suffix(".yaml").write_text("x: 1\n")
    assert Code(tmp_path).digest("late") != before
    with pytest.raises(ValueError, match=r"'no\.such', which does not exist"):
        code.digest("no.such")
