"""A trained policy as a plain folder that anybody can load: weights, tokenizer, generation settings, a model card."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.config.names import TRAINING
from pipeline.config.presets import PRESETS
from pipeline.config.rewards import JUDGES
from pipeline.config.trial import TrialConfig, flatten
from pipeline.errors import Damaged, UserError
from pipeline.faults import disk_full, is_disk_full
from pipeline.intervals import student
from pipeline.named_files import place
from pipeline.run.layout import Layout, StudyFolder, TrialRecord
from pipeline.run.metrics import METRICS
from pipeline.run.store import artifact_of, checked, file_digest, file_of
from studies.execution.recorded import find_trial, folder_of

PER_PROMPT = {
    "eval/gold": "policy_gold",
    "eval/gold_reference": "reference_gold",
    "eval/proxy": "policy_proxy",
    "eval/proxy_reference": "reference_proxy",
    "eval/kl_per_sequence": "kl",
    "eval/length": "policy_length",
}
"""Means over prompts, and the column of the evaluation's table that they are the mean of."""
WIN_RATES = ("eval/win_rate", "eval/win_rate_proxy")
"""Figures whose interval is in the record."""
WHOLE = ("eval/kl_per_token", "eval/entropy", "eval/eos_rate", "eval/distinct_2", "eval/ppl_reference")
"""Figures of all prompts together, which have no interval of their own."""


def export(run: str, target: Path, layout: Layout, profile: str | None = None) -> Path:
    """Write the policy of `run`, named STUDY/ARM/SEED, to the folder `target`, which must not hold anything yet.

    The folder appears in one step. Raises `UserError` for a run that is not recorded or was never evaluated, and for a
    target that is in use; `Damaged` for a run whose files are not those that were trained.
    """
    record = find_run(run, layout, profile)
    folder = folder_of(layout, record)
    with new_folder(target) as beside:
        prompts = file_of(folder, record, "evaluate", "prompts.parquet")
        copy_files(folder, record, "train", "policy/", beside)
        copy_files(folder, record, "prompts", "tokenizer/", beside)
        _check_weights(beside)
        (beside / "generation_config.json").write_text(_generation(record, beside), "utf-8")
        (beside / "README.md").write_text(model_card(record, prompts), "utf-8")
    return place(target)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its place at the end, and is removed where that is not reached.

    Raises `UserError` for a target that is in use or cannot be written, `DiskFull`.
    """
    target = place(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: is there already and not empty; name a new folder")
    beside = target.with_name(f".{target.name}.writing")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        yield beside
        os.replace(beside, target) if not target.exists() else _into(beside, target)
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(error, target) from error
        raise UserError(f"{target}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def find_run(run: str, layout: Layout, profile: str | None = None) -> TrialRecord:
    """The record of STUDY/ARM/SEED. Raises `UserError` with what there is instead, and for one without an
    evaluation."""
    record = find_trial(run, layout, profile)
    if "evaluate" not in record.stages:
        raise UserError(
            f"run '{run}' ended as {record.status} and was never evaluated ({record.reason}); nothing to export"
        )
    return record


def copy_files(folder: StudyFolder, record: TrialRecord, stage: str, part: str, target: Path) -> None:
    """Copy the files below `part` of a stage, and compare the copies with the manifest. Raises `Damaged`."""
    with folder.naming_remedy():
        path, manifest = artifact_of(folder, record.stages[stage].path, record.stages[stage].digest)
        for name, digest in manifest.files.items():
            if name.startswith(part):
                copy = target / name.removeprefix(part)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(checked(path, name, manifest), copy)
                if file_digest(copy) != digest:
                    raise Damaged(path / name, "its copy is not what the manifest states")


def _check_weights(folder: Path) -> None:
    """Refuse weights that are not safetensors, whatever a manifest says of them: what is exported is loaded
    elsewhere."""
    from safetensors import SafetensorError, safe_open

    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, framework="np"):
                pass
        except SafetensorError as error:
            raise Damaged(path, f"it is not safetensors ({error})") from None


def _into(beside: Path, target: Path) -> None:
    """`target` is an empty folder: fill it."""
    target.rmdir()
    os.replace(beside, target)


def _generation(record: TrialRecord, policy: Path) -> str:
    """Sampling as in training and evaluation: the whole distribution, nothing truncated."""
    config = json.loads((policy / "config.json").read_text("utf-8"))
    train = record.config["train"]
    settings = {
        "do_sample": True,
        "temperature": record.config["evaluate"]["temperature"],
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": train["response_length"],
        "eos_token_id": config.get("eos_token_id"),
        "pad_token_id": config.get("pad_token_id"),
    }
    return json.dumps(settings, indent=2) + "\n"


def model_card(record: TrialRecord, prompts: Path) -> str:
    """What the policy is, how it was made, what was measured on the table `prompts`, and what it is not good for;
    Markdown."""
    config = TrialConfig.model_validate(record.config)
    base, public = config.model.base, bool(config.model.base) and not Path(config.model.base or "").is_absolute()
    origin = f"`{base}`" if public else "a base of its own" if base else "a small network made from scratch"
    head = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        f"tags: [{config.algorithm.name}, rlhf, ablation]",
    ]
    head += [f"base_model: {base}"] if public else []
    source = {"builtin": "reviews generated by a grammar", "hub": f"`{config.data.name}`", "local": "a local data set"}[
        config.data.source
    ]
    lines = [
        *head,
        "---",
        "",
        f"# {record.study}: {record.arm}, seed {record.seed}",
        "",
        f"{_made(config)} from {origin} on {source}, as one trial of an ablation study. It ended as "
        f"`{record.status}` after {record.steps} gradient steps" + (f" ({record.reason})." if record.reason else "."),
        "",
        "## Use",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")',
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        'prompt = tokenizer("The first words of a review", return_tensors="pt", add_special_tokens=False)',
        "print(tokenizer.decode(model.generate(**prompt)[0], skip_special_tokens=True))",
        "```",
        "",
        "## Measured",
        "",
        (
            f"On held-out prompts, {_answer(config)} against {config.evaluate.reference_draws} of the reference,"
            f" drawn independently; judged by the {_judge(config)}. Intervals are of 95 % and speak of prompts alone,"
            " since this is one seed."
        ),
        "",
        "| metric | value | unit | prompts |",
        "| --- | --- | --- | --- |",
        *_figures(record, prompts),
        "",
        "## Recipe",
        "",
        "| key | value |",
        "| --- | --- |",
        *_recipe(record.config),
        "",
        "## Limits",
        "",
        (
            "- It was made to study training algorithms, not to be used: it continues the first words of a review, and"
            " the training reward rewards no truth."
        ),
        (
            "- It can have drifted into text that its training reward overrates; compare the proxy and the gold reward"
            " above."
        ),
        "- One seed of one arm. What the study found is said by the study's report, over all seeds.",
        "",
        f"Made on {record.finished} with "
        + ", ".join(f"{name} {value}" for name, value in sorted(record.environment.items()))
        + ".",
    ]
    return "\n".join(lines) + "\n"


def _made(config: TrialConfig) -> str:
    """How the policy came to be."""
    if not config.algorithm.learns:
        return "The reference policy, without further training,"
    return f"A policy trained by {PRESETS[config.algorithm.name].title}"


def _answer(config: TrialConfig) -> str:
    """What was judged; the weights alone answer with one sample."""
    n = config.evaluate.best_of
    return "one completion each" + f" (the best of {n} samples by the training reward)" * (n > 1)


def _judge(config: TrialConfig) -> str:
    """The gold judge by name. The path of a local classifier stays out of a folder that may be published."""
    judge = config.gold
    if judge.kind != "classifier":
        return str(JUDGES[judge.kind])
    name = "a local classifier" if Path(judge.model or "").is_absolute() else f"`{judge.model}`"
    at = f" at revision {judge.revision}" if judge.revision else ""
    label = f", label {judge.label}" if judge.label else ""
    return f"classifier judge ({name}{at}{label})"


def _figures(record: TrialRecord, prompts: Path) -> Iterable[str]:
    import pandas as pd

    table, summary = pd.read_parquet(prompts, columns=list(PER_PROMPT.values())), record.summary
    rows = {key: (summary[key], summary[f"{key}_low"], summary[f"{key}_high"]) for key in WIN_RATES}
    rows |= {key: student(table[column].to_numpy(dtype=float)) for key, column in PER_PROMPT.items()}
    for key, (value, low, high) in rows.items():
        yield (
            f"| {key}: {METRICS[key].formula} | {value:.4g} [{low:.4g}, {high:.4g}] | {METRICS[key].unit} |"
            f" {len(table)} |"
        )
    for key in WHOLE:
        if math.isfinite(summary.get(key, math.nan)):
            yield f"| {key}: {METRICS[key].formula} | {summary[key]:.4g} | {METRICS[key].unit} | {len(table)} |"


def _recipe(config: dict[str, Any]) -> Iterable[str]:
    return recipe_rows({section: config[section] for section in ("data", "model", "sft", "reward", *TRAINING)})


def recipe_rows(sections: Mapping[str, Any]) -> Iterator[str]:
    """Rows of a table of settings. Absolute paths stay out of a folder that may be published."""
    for key, value in flatten(sections):
        if not (isinstance(value, str) and Path(value).is_absolute()):
            yield f"| {key} | {value} |"
