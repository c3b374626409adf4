"""A trained policy as a plain folder that anybody can load: weights, tokenizer, generation settings, a model card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.config.names import TRAINING
from pipeline.config.presets import PRESETS
from pipeline.config.trial import TrialConfig, flatten
from pipeline.data.chains import ASK, GROUPS
from pipeline.errors import UserError
from pipeline.intervals import student
from pipeline.named_files import place
from pipeline.rewards.kinds import KINDS
from pipeline.run.layout import Layout, StudyFolder, TrialRecord
from pipeline.run.metrics import METRICS, PER_PROMPT
from pipeline.run.store import artifact_of, checked, file_of
from studies.execution.recorded import find_trial
from studies.faults import disk_full, is_disk_full

MEANS = (
    "eval/gold", "eval/gold_reference", "eval/proxy", "eval/proxy_reference", "eval/kl_per_sequence", "eval/length",
)  # fmt: skip
"""Figures that are means over prompts."""
WIN_RATES = ("eval/win_rate", "eval/win_rate_proxy")
"""Figures whose interval is in the record."""


def export(run: str, target: Path, layout: Layout, profile: str | None = None) -> Path:
    """Write the policy of `run`, named STUDY/ARM/SEED, to the folder `target`, which must not hold anything yet.

    The folder appears in one step. Raises `UserError` for a run that is not recorded or was never evaluated, and for a
    target that is in use or cannot be written; `DiskFull`; `Damaged` for a run whose files have changed.
    """
    record = find_trial(run, layout, profile)
    if record.stages and "prompts" not in record.stages:
        raise UserError(f"run '{run}' was trained by another program, so its policy is not here; nothing to export")
    if "evaluate" not in record.stages:
        raise UserError(
            f"run '{run}' ended as {record.status} and was never evaluated ({record.reason}); nothing to export"
        )
    folder, target = layout.study(record.study, record.profile), place(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: is there already and not empty; name a new folder")
    with beside(target) as new:
        new.mkdir()
        prompts = file_of(folder, record, "evaluate", "prompts.parquet")
        copy_files(folder, record, "train", "policy/", new)
        copy_files(folder, record, "prompts", "tokenizer/", new)
        (new / "generation_config.json").write_text(_generation(record, new), "utf-8")
        (new / "README.md").write_text(model_card(record, prompts), "utf-8")
    return target


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A path for a file or folder that takes the place of `target` at the end, and is removed where that is not
    reached. Raises `UserError` for a target that cannot be written, `DiskFull`."""
    path = target.with_name(f".{target.name}.writing")
    shutil.rmtree(path, ignore_errors=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield path
        os.replace(path, target)
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(error) from error
        raise UserError(f"{target}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def copy_files(folder: StudyFolder, record: TrialRecord, stage: str, part: str, target: Path) -> None:
    """Copy the files below `part` of a stage, each as its manifest states it. Raises `Damaged`."""
    with folder.naming_remedy():
        path, manifest = artifact_of(folder, record.stages[stage].path, record.stages[stage].digest)
        for name in manifest.files:
            if name.startswith(part):
                copy = target / name.removeprefix(part)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(checked(path, name, manifest), copy)


def _generation(record: TrialRecord, policy: Path) -> str:
    """Sampling as in training and evaluation: the whole distribution, nothing truncated."""
    config = json.loads((policy / "config.json").read_text("utf-8"))
    settings = {
        "do_sample": True,
        "temperature": record.config["train"]["temperature"],
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": record.config["train"]["response_length"],
        "eos_token_id": config.get("eos_token_id"),
        "pad_token_id": config.get("pad_token_id"),
    }
    return json.dumps(settings, indent=2) + "\n"


def model_card(record: TrialRecord, prompts: Path) -> str:
    """Describe the policy: how it was made, its results on the table `prompts`, and its limits; Markdown."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    config = TrialConfig.model_validate(record.config)
    base, public = config.model.base, bool(config.model.base) and not Path(config.model.base or "").is_absolute()
    source = {
        "builtin": "reviews generated by a grammar",
        "hub": f"`{config.data.hub.name}`",
        "local": "a local data set",
        "chains": f"products in the group {config.data.chains.group}",
    }
    n, learns = config.evaluate.best_of, config.algorithm.learns
    title, judge = PRESETS[config.algorithm.name].title, config.gold.kind
    recipe = flatten({key: record.config[key] for key in ("data", "model", "sft", "reward", "judge", *TRAINING)})
    cards = FileSystemLoader(Path(__file__).parent / "cards")
    made = Environment(
        loader=cards, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    return made.get_template("policy.md.jinja").render(
        record=record,
        config=config,
        public=public,
        made=f"A policy trained by {title}" if learns else "The reference policy, without further training,",
        origin=f"`{base}`" if public else "a base of its own" if base else "a small network made from scratch",
        source=source[config.data.source],
        chain=" ".join((*GROUPS[config.data.chains.group].elements[-config.data.chains.lengths[0] :], ASK)),
        answer="one completion each" + f" (the best of {n} samples by the training reward)" * (n > 1),
        judge=KINDS[judge].words if judge in KINDS else f"`{judge}`",
        figures=list(_figures(record, prompts)),
        # Absolute paths stay out of a folder that may be published.
        recipe=[(key, one) for key, one in recipe if not (isinstance(one, str) and Path(one).is_absolute())],
    )


def _figures(record: TrialRecord, prompts: Path) -> Iterator[str]:
    import pandas as pd

    columns = {key: PER_PROMPT[key][0] for key in MEANS}
    table, summary = pd.read_parquet(prompts, columns=list(columns.values())), record.summary
    rows = {key: (summary[key], summary[f"{key}_low"], summary[f"{key}_high"]) for key in WIN_RATES}
    rows |= {key: student(table[column].to_numpy(dtype=float)) for key, column in columns.items()}
    for key, (value, low, high) in rows.items():
        yield (
            f"| {key}: {METRICS[key].formula} | {value:.4g} [{low:.4g}, {high:.4g}] | {METRICS[key].unit} |"
            f" {len(table)} |"
        )
