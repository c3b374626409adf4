"""A trained reward model as a plain folder: a sequence classifier with one output, its tokenizer and a model card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.named_files import place as in_full
from pipeline.rewards.classifier import OFFSET
from pipeline.run.layout import Layout, TrialRecord
from pipeline.stages.common import member_folders, part_folder
from studies.execution.export import copy_files, new_folder, recipe_rows
from studies.execution.recorded import artifact, find_trial, folder_of

PADDING = "<|padding|>"
SCALE = "The score is in standard deviations of samples of the trial's reference policy, whose mean is 0."
AGAINST = (
    "Training used the score less the mean score of the reference's answers to the same prompt, which this model does"
    " not know, in standard deviations of that difference over samples of the reference policy. So differences between"
    " answers to one prompt are those of training; a score by itself is not."
)
"""The scale of a reward with `reward.against`."""


def export_reward(
    run: str,
    target: Path,
    layout: Layout,
    profile: str | None = None,
    part: str | None = None,
    member: int | None = None,
) -> Path:
    """Write a reward model of `run`, named STUDY/ARM/SEED, to the folder `target`, which must not hold anything yet.

    The folder loads with `AutoModelForSequenceClassification` and has one output. On a text whose EOS its tokenizer
    adds, logit + ``config.reward_offset`` is the score that training used, in standard deviations of reference samples;
    with ``reward.against``, differences between answers to one prompt are those of training. `part` names one of a
    composite reward, `member` a model of an ensemble, from 1 on. Raises `UserError`, `Damaged`.
    """
    record = find_trial(run, layout, profile)
    folder = folder_of(layout, record)
    made = artifact(folder, record, "reward")
    name, spec = _part(run, made.meta, part)
    scales = spec.get("members", [])
    place = part_folder(Path(), name, made.meta["kind"] == "composite")
    where = member_folders(place, max(len(scales), 1))[_member(run, len(scales), member)]
    mean, std = scales[_member(run, len(scales), member)] if scales else (spec["mean"], spec["std"])
    with new_folder(target) as beside:
        copy_files(folder, record, "prompts", "tokenizer/", beside)
        _write_classifier(made.path / where, beside, float(mean), float(std))
        (beside / "README.md").write_text(_card(record, made.meta, name, float(mean), float(std)), "utf-8")
    return in_full(target)


def _part(run: str, meta: Mapping[str, Any], part: str | None) -> tuple[str, Mapping[str, Any]]:
    """A learned part by name; the only one where none is named."""
    learned = {name: made for name, made in meta["parts"].items() if made["spec"]["kind"] == "learned"}
    if not learned:
        kinds = ", ".join(made["spec"]["kind"] for made in meta["parts"].values())
        raise UserError(
            f"run '{run}': it has no reward of kind learned but {kinds}; only a model that was trained here and gives"
            " an answer one score is exported"
        )
    if part is None and len(learned) == 1:
        return next(iter(learned.items()))
    if part is None or part not in learned:
        raise UserError(f"run '{run}': --part ({part or 'not given'}): its learned parts are {', '.join(learned)}")
    return part, learned[part]


def _member(run: str, count: int, member: int | None) -> int:
    """Which model of an ensemble of `count`, from 0 on; 0 of a single one."""
    if not count:
        if member is not None:
            raise UserError(f"run '{run}': --member {member}: its reward is one model, no ensemble; leave it out")
        return 0
    if member is None or not 1 <= member <= count:
        given = "not given" if member is None else str(member)
        raise UserError(
            f"run '{run}': --member ({given}): its reward is an ensemble of {count} models, and a folder holds one; use"
            f" 1 to {count}"
        )
    return member - 1


def _write_classifier(made: Path, target: Path, mean: float, std: float) -> None:
    """The reward model in the folder `made` as a classifier in `target`, where its tokenizer is. Raises `UserError` for
    an architecture without one."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from pipeline.models.anatomy import trunk
    from pipeline.rewards.learned import RewardModel

    model = RewardModel.load(made, torch.device("cpu"))
    tokenizer = closing_tokenizer(target)
    config = AutoConfig.from_pretrained(made / "trunk", local_files_only=True, trust_remote_code=False)
    # The embedding that a padding token of its own needs is there only later.
    config.num_labels, config.pad_token_id = 1, None
    config.id2label, config.label2id = {0: "reward"}, {"reward": 0}
    setattr(config, OFFSET, (float(model.head.bias.detach()) - mean) / std)
    try:
        network = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    except ValueError:
        network = None
    if not isinstance(getattr(network, "score", None), torch.nn.Linear):
        raise UserError(f"{config.model_type}: transformers has no sequence classifier of a decoder of this kind")
    trunk(network).load_state_dict(trunk(model.lm).state_dict())
    with torch.no_grad():
        network.score.weight.copy_(model.head.weight / std)
    if len(tokenizer) > config.vocab_size:
        network.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    network.config.pad_token_id = tokenizer.pad_token_id
    network.save_pretrained(target)
    tokenizer.save_pretrained(target)


def closing_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, which adds EOS to every text, and pads with a token of its own.

    A reward model reads the EOS of a finished answer. A classifier takes the last token that is no padding for the end
    of a text, so padding must not be EOS.
    """
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, padding_side="right"
    )
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.add_special_tokens({"pad_token": PADDING})
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    return tokenizer


def _card(record: TrialRecord, meta: Mapping[str, Any], part: str, mean: float, std: float) -> str:
    """What the model scores, on which scale, how it was made and measured; Markdown."""
    spec = {key: meta["parts"][part]["spec"][key] for key in ("kind", "preferences")}
    prefix = f"{part}/" if meta["kind"] == "composite" else ""
    measured = [
        f"| {title} | {100 * meta[prefix + key]:.1f} % [{100 * meta[f'{prefix}{key}_low']:.1f},"
        f" {100 * meta[f'{prefix}{key}_high']:.1f}] |"
        for key, title in (("accuracy", "agrees with the labels"), ("accuracy_gold", "agrees with the judge"))
        if f"{prefix}{key}_low" in meta
    ]
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-classification",
        "tags: [reward-model, rlhf, ablation]",
        "---",
        "",
        f"# {record.study}: reward model of {record.arm}, seed {record.seed}",
        "",
        "A Bradley-Terry reward model of one trial of an ablation study. It has one output for a prompt and its answer,"
        " written as one text; higher is better.",
        "",
        "## Use",
        "",
        "```python",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
        "",
        'model = AutoModelForSequenceClassification.from_pretrained("path/to/this/folder")',
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        'text = tokenizer(["The first words of a review, and the rest."], return_tensors="pt", padding=True)',
        f"reward = model(**text).logits[:, 0] + model.config.{OFFSET}",
        "```",
        "",
        "## Scale",
        "",
        (SCALE if meta.get("against", "none") == "none" else AGAINST)
        + f" The standard deviation, {std:.6g}, is folded into the head. The head has no bias, so the mean, {mean:.6g},"
        f" and the bias of the trained head are left to `{OFFSET}` in `config.json`, the same for every text. The"
        " tokenizer adds"
        " EOS, which the model reads at the end of a finished answer; of an answer that was cut off, drop it. Pad on"
        " the right, as the tokenizer does.",
        "",
        "## Measured",
        "",
        "On held-out pairs, with 95 % intervals over prompts"
        + (", by the whole ensemble that the model is part of." if "members" in meta["parts"][part] else "."),
        "",
        "| | share of pairs |",
        "| --- | --- |",
        *measured,
        "",
        "## Recipe",
        "",
        "| key | value |",
        "| --- | --- |",
        *recipe_rows({"reward": {**record.config["reward"], **spec, "parts": {}}}),
        "",
        "## Limits",
        "",
        "- It was trained on the reference's answers. Text that a policy was trained to find for it can score high and"
        " be bad.",
    ]
    return "\n".join(lines) + "\n"
