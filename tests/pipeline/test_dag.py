from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import Recorder

from pipeline import dag
from pipeline.artifacts import Artifact, Store
from pipeline.config import TrialConfig, load_config
from pipeline.dag import Stage

CODE = ("pipeline.errors",)


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
    Stage("third", third, (), CODE),
    Stage("second", second, ("sft.seed",), CODE),
    Stage("first", first, ("data",), CODE),
    Stage("constant", constant, (), CODE),
)


def config(**changes: Any) -> TrialConfig:
    return load_config("smoke", {key.replace("__", "."): value for key, value in changes.items()})


def run(tmp_path: Path, cfg: TrialConfig) -> list[tuple[str, str]]:
    recorder = Recorder()
    dag.run(STAGES, cfg, Store(tmp_path), recorder)
    return [(name, state) for name, state in recorder.stages if state != "building"]


def test_the_signature_is_the_graph() -> None:
    assert STAGES[1].needs == ("first",)
    names = [stage.name for stage in dag.order(STAGES)]
    assert names.index("first") < names.index("second")
    assert names.index("constant") < names.index("third")


def test_faults_of_the_graph_are_named() -> None:
    with pytest.raises(ValueError, match="needs 'constant', which is no stage"):
        dag.order(STAGES[:2])
    with pytest.raises(ValueError, match="same name"):
        dag.order((STAGES[2], STAGES[2]))
    loop = Stage("first", lambda cfg, out, reporter, *, second: {}, (), CODE)
    with pytest.raises(ValueError, match="in a circle"):
        dag.order((loop, STAGES[1]))


def test_only_what_depends_on_a_change_is_built_again(tmp_path: Path) -> None:
    assert {state for _, state in run(tmp_path, config())} == {"built"}
    assert {state for _, state in run(tmp_path, config())} == {"cached"}
    after_sft = dict(run(tmp_path, config(sft__seed=7)))
    assert after_sft == {"first": "cached", "second": "built", "constant": "cached", "third": "cached"}
    # `constant` runs again, but its output is the same, so `third` need not.
    after_data = dict(run(tmp_path, config(data__seed=7)))
    assert after_data == {"first": "built", "second": "built", "constant": "built", "third": "cached"}


def test_runtime_settings_build_nothing_again(tmp_path: Path) -> None:
    run(tmp_path, config())
    assert {state for _, state in run(tmp_path, config(runtime__threads=2))} == {"cached"}


def test_a_stage_sees_only_what_it_declares(tmp_path: Path) -> None:
    def nosy(cfg: Any, out: Path, reporter: Any) -> dict[str, Any]:
        return {"steps": cfg.sft.steps}

    with pytest.raises(AttributeError):
        dag.run([Stage("nosy", nosy, ("sft.seed",), CODE)], config(), Store(tmp_path), Recorder())


def test_plan_says_what_and_why_and_builds_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    plan = {one.stage: one for one in dag.plan(STAGES, config(), store)}
    assert (plan["first"].cached, plan["first"].why) == (False, "never built")
    assert (plan["second"].key, plan["second"].why) == (None, "waits for first")
    assert not list(tmp_path.iterdir())
    run(tmp_path, config())
    assert all(one.cached for one in dag.plan(STAGES, config(), store))
    changed = {one.stage: one.why for one in dag.plan(STAGES, config(sft__seed=7), store)}
    assert changed["second"] == "sft.seed 0 -> 7"


def test_code_counts_but_comments_and_docstrings_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "some_module.py"
    digests = []
    for text in ("def f():\n    return 1\n", '"""Doc."""\n# why\ndef f():\n    """Doc."""\n    return 1\n', "def f():\n    return 2\n"):
        module.write_text(text)
        dag.code_digest.cache_clear()
        digests.append(dag.code_digest(("some_module",)))
    assert digests[0] == digests[1] != digests[2]
    stage = Stage("first", first, ("data",), ("some_module",))
    module.write_text("x = 1\n")
    dag.code_digest.cache_clear()
    dag.run([stage], config(), Store(tmp_path / "store"), Recorder())
    module.write_text("x = 2\n")
    dag.code_digest.cache_clear()
    plan = dag.plan([stage], config(), Store(tmp_path / "store"))
    assert (plan[0].cached, plan[0].why) == (False, "code changed")
    with pytest.raises(ValueError, match="does not exist"):
        dag.code_digest(("no_such_module",))


def test_stages_declare_the_code_they_are_made_of() -> None:
    """Every first-party module that a stage's module imports is part of its key, or cannot change what it writes."""
    import ast
    import importlib.util

    from pipeline.stages import STAGES as REAL

    harmless = {"pipeline.artifacts", "pipeline.config", "pipeline.layout", "pipeline.reporter", "pipeline.metrics", "pipeline.errors"}
    harmless |= {"pipeline.tracking", "pipeline.budget"}
    for stage in REAL:
        spec = importlib.util.find_spec(stage.run.__module__)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        for module in imported:
            if module.startswith("pipeline.") and module not in harmless:
                assert any(module == one or module.startswith(f"{one}.") for one in stage.modules), (stage.name, module)
