"""Checks of every network that is loaded, on one row of tokens: what the rest of the code takes for granted."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.anatomy import CausalLM, recomputing
from pipeline.models.packing import states

TOKENS = 8
TOLERANCE = 1e-2
"""Nats: rounding in fp32 stays far below it."""
LARGE = 30.0
"""Logits are scaled up to this size for the comparison, so that a cap shows on a network that has learned nothing yet
as well."""


def check_network(model: CausalLM, origin: str) -> None:
    """Refuse a network that changes its logits after its head, or that is random. `origin` names it in the message.

    Raises `UserError`.
    """
    check_logits(model, origin)
    check_repeats(model, origin)


@torch.no_grad()
def check_logits(model: CausalLM, origin: str) -> None:
    """The model's own logits are those of its head on the states that PPO computes. Raises `UserError`.

    Granite divides its logits, Cohere multiplies them, Gemma 2 caps them: fine-tuning would train another distribution
    than the one that is sampled.
    """
    tokens, head = _row(model), model.get_output_embeddings()
    plain: Tensor = head(_states(model, tokens))
    factor = max(LARGE / float(plain.abs().max()), 1.0)
    scaling = head.register_forward_hook(lambda *call: call[2] * factor)
    try:
        own: Tensor = model(input_ids=tokens, use_cache=False).logits[0]
        ours: Tensor = head(_states(model, tokens))
    finally:
        scaling.remove()
    apart = float((torch.log_softmax(own.float(), -1) - torch.log_softmax(ours.float(), -1)).abs().max())
    if not apart <= TOLERANCE:
        raise UserError(
            f"{origin}: a network of the architecture {model.config.model_type} changes its logits after its"
            f" language-modelling head (log-probabilities differ by up to {apart:.3g} nats), which is not supported:"
            " the policy that is sampled would not be the one that was fine-tuned. Use a base whose logits are the"
            " output of its head, such as Qwen2, Llama or GPT-2"
        )


def check_repeats(model: CausalLM, origin: str) -> None:
    """Two passes as in training give the same bits and draw no random number, recomputed or not. Raises `UserError`."""
    tokens = _row(model)
    generators = _generators(tokens.device)
    for again in (False, True):
        with recomputing([model], again), torch.enable_grad():
            first, second = (_states(model, tokens).detach() for _ in range(2))
        drawn = [
            old for old, new in zip(generators, _generators(tokens.device), strict=True) if not torch.equal(old, new)
        ]
        if drawn or not torch.equal(first, second):
            raise UserError(
                f"{origin}: a network of the architecture {model.config.model_type} is random even in evaluation mode,"
                " so rollouts and losses would not see the same policy; use another base"
            )


def _row(model: CausalLM) -> Tensor:
    """(1, `TOKENS`) tokens from all over the vocabulary."""
    vocab = int(model.config.vocab_size)
    return (torch.arange(1, TOKENS + 1) * vocab // (TOKENS + 1)).unsqueeze(0).to(next(model.parameters()).device)


def _states(model: CausalLM, tokens: Tensor) -> Tensor:
    """(T, H) of every token of one row, by the forward that rollouts and training share."""
    column = torch.arange(tokens.shape[1], device=tokens.device)
    return states(model, tokens, torch.full_like(column[:1], tokens.shape[1]), torch.zeros_like(column), column)


def _generators(device: torch.device) -> list[Tensor]:
    """The states of torch's random number generators."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
