"""A study whose trials have all been run, as far as any command can tell: real keys and a real store, made-up
numbers."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from helpers import write_record

from pipeline.run import dag
from pipeline.run.layout import Layout, StageRef, TrialRecord, write_json
from pipeline.run.store import Artifact, Store
from pipeline.stages.graph import STAGES
from studies.definition.design import Cell, cells
from studies.definition.schema import Study


def record_study(study: Study, layout: Layout, steps: int, prompts: int) -> list[TrialRecord]:
    """Write artifacts and records of every cell; `steps` of training, and an evaluation on so many prompts, are
    recorded of each."""
    numbers, store, made = _numbers(), Store(layout.store), []
    for cell in cells(study):
        artifacts: dict[str, Artifact] = {}
        for stage in dag.stages_of(STAGES, cell.config):
            identity = dag._identity(stage, cell.config, {name: one.digest for name, one in artifacts.items()})
            write = _writer(numbers, stage.name, cell, steps, prompts)
            artifacts[stage.name] = store.build(stage.name, dag._key(identity), identity, write, resumable=False)
        table = numbers.prompt_table(cell.config.kl.beta, cell.seed, prompts)
        record = TrialRecord(
            study=study.name,
            profile=study.profile,
            arm=cell.arm,
            seed=cell.seed,
            config=cell.config.model_dump(mode="json"),
            config_digest=cell.config.digest(),
            status="complete",
            steps=steps,
            stages={
                name: StageRef(key=one.key, path=one.path.relative_to(layout.root).as_posix(), digest=one.digest)
                for name, one in artifacts.items()
            },
            summary=numbers.summary_of(table),
            cost=numbers.COST,
            environment=numbers.ENVIRONMENT,
            finished="2025-01-01T00:00:00+00:00",
        )
        folder = layout.study(study.name, study.profile)
        write_record(folder, record)
        made.append(record)
    return made


def _writer(numbers: ModuleType, stage: str, cell: Cell, steps: int, prompts: int) -> Callable[[Path], dict[str, Any]]:
    def write(out: Path) -> dict[str, Any]:
        beta, seed = cell.config.kl.beta, cell.seed
        if stage == "sft":
            write_json(
                out / "summary.json",
                {"perplexity": 8.31, "nats_per_token": 2.117, "entropy_floor_nats_per_token": 2.09},
            )
        elif stage == "reward":
            write_json(out / "summary.json", {"accuracy": 0.79, "accuracy_gold": 0.88})
            numbers.scored_samples(out)
        elif stage == "train":
            table = numbers.curves(beta, seed, steps, cell.config.train.steps)
            table.to_parquet(out / "metrics.parquet", index=False)
            lines = [
                json.dumps({key: value for key, value in row.items() if value == value})
                for row in table.to_dict("records")
            ]
            (out / "metrics.jsonl").write_text("\n".join([*lines, ""]))
            (out / "model.safetensors").write_bytes(f"{beta} {seed}".encode())
        elif stage == "evaluate":
            table = numbers.prompt_table(beta, seed, prompts)
            table.to_parquet(out / "prompts.parquet", index=False)
            table.head(16).to_parquet(out / "samples.parquet", index=False)
        else:
            shutil.copyfile(Path(__file__), out / "something")
        return {}

    return write


def _numbers() -> ModuleType:
    """The made-up series and tables of the tests of reports."""
    spec = importlib.util.spec_from_file_location("made_up_numbers", Path(__file__).parent / "reports" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look there for their module
    spec.loader.exec_module(module)
    return module
