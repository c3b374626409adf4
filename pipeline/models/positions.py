"""Refuse what is longer than a model has positions for: beyond them some networks fail, and others say nonsense."""

from __future__ import annotations

from pipeline.errors import UserError
from pipeline.models.loading import CausalLM


def check_room(model: CausalLM, key: str, tokens: int, beside: int = 0) -> None:
    """Raise `UserError` when `tokens` (the value of `key`) and `beside` (tokens of the longest prompt) do not fit."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and tokens + beside > positions:
        prompt = f" with prompts of up to {beside} tokens" if beside else ""
        raise UserError(
            f"{key} = {tokens}:{prompt} this goes beyond the model's {positions} positions; at most"
            f" {max(positions - beside, 0)}"
        )
