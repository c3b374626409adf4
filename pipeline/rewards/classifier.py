"""A ready sequence-classification model as a reward or a judge: texts in, one of its outputs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.config.names import nearest
from pipeline.errors import UserError
from pipeline.models.heads import fp32_classes
from pipeline.models.loading import freeze
from pipeline.models.out_of_memory import Room
from pipeline.models.precision import Precision
from pipeline.rewards.base import Completions
from pipeline.rewards.kinds import ClassifierSettings
from pipeline.wording import in_words

UNBOUNDED = 10**6
"""A tokenizer that states more tokens than this states no limit."""


class ClassifierReward:
    """The score of prompt and completion as one text by the model's own tokenizer, of a text that is too long the end.

    Scoring raises `MemoryFull`, and `UserError` for a tokenizer that is another model's.
    """

    def __init__(self, model: Any, tokenizer: Any, index: int, room: Room) -> None:
        self._model, self._tokenizer, self._index, self._room = model, tokenizer, index, room
        self.networks: Sequence[Any] = [model]

    @torch.inference_mode()
    def __call__(self, completions: Completions) -> Tensor:
        texts = [prompt + text for prompt, text in zip(completions.prompts, completions.texts, strict=True)]
        # Texts of one length together: little padding.
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        scores = torch.empty(len(texts))
        scores[order] = torch.cat(
            self._room.over(len(order), lambda rows: self._score([texts[row] for row in order[rows]]))
        )
        return scores

    def _score(self, texts: list[str]) -> Tensor:
        inputs = self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        known, largest = self._model.get_input_embeddings().num_embeddings, int(inputs["input_ids"].max())
        if largest >= known:  # a tokenizer may hold more tokens than the model, as long as no text has them
            raise UserError(
                f"the classifier's tokenizer gives a text token number {largest:,}, but its model has {known:,} tokens;"
                " take tokenizer and model from the same place"
            )
        inputs = inputs.to(self._model.device)
        with Precision.of(self._model.device).autocast():
            logits: Tensor = self._model(**inputs).logits.float().cpu()
        # Labels that do not exclude each other have a logit each, which is their log-odds.
        alone = self._model.config.problem_type == "multi_label_classification"
        return logits[:, self._index] if alone else log_odds(logits, self._index)


def log_odds(logits: Tensor, index: int) -> Tensor:
    """log p / (1 - p) of one of L exclusive labels; logits (B, L), returns (B,). Of a single output: its logit.

    >>> log_odds(torch.tensor([[1.0, 4.0]]), 1).tolist()
    [3.0]
    """
    others = torch.cat([logits[:, :index], logits[:, index + 1 :]], dim=1)
    return logits[:, index] if others.shape[1] == 0 else logits[:, index] - others.logsumexp(dim=1)


def load(section: str, cfg: ClassifierSettings, device: torch.device, room: Room) -> ClassifierReward:
    """Load a hub id at a commit, or a folder: safetensors only, no code of theirs, fp32. Raises `UserError` for a model
    that cannot be had, that is no sequence classifier, or that does not have the label."""
    key, name, revision = f"{section}.classifier.model", cfg.model or "", cfg.revision
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            name,
            revision=revision,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
        _prepare(model, tokenizer)
        tokens = tokenizer("A film", add_special_tokens=False)["input_ids"]
    except Exception as error:  # every library below has its own class for "not this file"
        raise UserError(f"{key} = '{name}' could not be loaded as a sequence classifier ({in_words(error)})") from None
    # transformers fills what a file lacks with random numbers and only warns.
    absent = sorted(report["missing_keys"])
    if absent:
        raise UserError(f"{key} = '{name}' is no sequence classifier: its files lack {', '.join(absent[:3])}")
    index = label_index(model.config.id2label, cfg.label, f"{section}.classifier.label")
    if not tokens:
        raise UserError(f"{key} = '{name}': its tokenizer knows no words; its files must lie beside the network")
    return ClassifierReward(fp32_classes(freeze(model)).to(device), tokenizer, index, room)


def label_index(names: dict[int, str], label: str | None, key: str) -> int:
    """The output of a label. Raises `UserError` with the labels that there are."""
    if label is None and len(names) == 1:
        return next(iter(names))
    known = {str(name): index for index, name in names.items()}
    if label is None or label not in known:
        raise UserError(
            f"{key} = {label!r}: the model's labels are {', '.join(known)}{nearest(label or '', list(known))}"
        )
    return known[label]


def _prepare(model: Any, tokenizer: Any) -> None:
    """Padding, which decoders need to find the last token, and a bound on the length."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side, tokenizer.truncation_side = "right", "left"
    if tokenizer.model_max_length > UNBOUNDED:
        positions = getattr(model.config, "max_position_embeddings", None) or UNBOUNDED
        # The position ids of the RoBERTa family start behind that of padding.
        tokenizer.model_max_length = positions - (2 if "roberta" in model.config.model_type else 0)
