"""A trained reward model as a plain folder: a sequence classifier with one output, its tokenizer and a model card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.named_files import place as in_full
from pipeline.rewards.classifier import OFFSET
from pipeline.rewards.scorers import part_folder
from pipeline.run.layout import Layout, TrialRecord
from studies.execution.export import card, copy_files, new_folder, recipe_of
from studies.execution.recorded import artifact, find_trial, folder_of

PADDING = "<|padding|>"


def export_reward(run: str, target: Path, layout: Layout, profile: str | None = None, part: str | None = None) -> Path:
    """Write a reward model of `run`, named STUDY/ARM/SEED, to the folder `target`, which must not hold anything yet.

    The folder loads with `AutoModelForSequenceClassification` and has one output. On a text whose EOS its tokenizer
    adds, logit + ``config.reward_offset`` is the score that training used, in standard deviations of reference samples;
    with ``reward.against``, differences between answers to one prompt are those of training. `part` names one of a
    composite reward. Raises `UserError`, `Damaged`.
    """
    record = find_trial(run, layout, profile)
    folder = folder_of(layout, record)
    made = artifact(folder, record, "reward")
    name, spec = _part(run, made.meta, part)
    mean, std = float(spec["mean"]), float(spec["std"])
    with new_folder(target) as beside:
        copy_files(folder, record, "prompts", "tokenizer/", beside)
        _write_classifier(part_folder(made.path, name, made.meta["kind"] == "composite"), beside, mean, std)
        (beside / "README.md").write_text(_card(record, made.meta, name, mean, std), "utf-8")
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


def _write_classifier(made: Path, target: Path, mean: float, std: float) -> None:
    """The reward model in the folder `made` as a classifier in `target`, where its tokenizer is. Raises `UserError` for
    an architecture without one."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from pipeline.models.trunk import trunk
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
    spec = {key: meta["parts"][part]["spec"][key] for key in ("kind", "preferences")}
    prefix = f"{part}/" if meta["kind"] == "composite" else ""
    shares = {"accuracy": "agrees with the labels", "accuracy_gold": "agrees with the judge"}
    measured = {
        title: [100 * meta[f"{prefix}{key}{end}"] for end in ("", "_low", "_high")]
        for key, title in shares.items()
        if f"{prefix}{key}_low" in meta
    }
    return card(
        "reward",
        record=record,
        offset=OFFSET,
        against=meta.get("against", "none") != "none",
        mean=f"{mean:.6g}",
        std=f"{std:.6g}",
        measured=[(title, f"{rate:.1f} % [{low:.1f}, {high:.1f}]") for title, (rate, low, high) in measured.items()],
        recipe=recipe_of({"reward": {**record.config["reward"], **spec, "parts": {}}}),
    )
