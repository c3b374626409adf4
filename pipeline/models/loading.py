"""Building, saving and loading causal language models; nothing from outside is ever unpickled or executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pipeline.config.networks import ModelConfig
from pipeline.errors import UserError
from pipeline.models.heads import fp32_logits
from pipeline.models.precision import ATTENTION
from pipeline.models.seeding import seed_of
from pipeline.models.tokenizers import cannot_load
from pipeline.models.trunk import ARCHITECTURES, packed_attention, states
from pipeline.models.trunk import CausalLM as CausalLM

TRUNK, HEAD = "trunk", "head.safetensors"
"""Names, in a folder, of the network of a reward model and of its scalar head."""


def device_of(name: str) -> torch.device:
    """``auto`` is the GPU where there is one. Raises `UserError` for a GPU that is not there."""
    available = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("runtime.device = 'cuda': no CUDA device is visible; use cpu or auto")
    return torch.device("cuda" if available else "cpu")


def scratch_config(cfg: ModelConfig, vocab_size: int, pad_id: int, eos_id: int, max_tokens: int) -> Any:
    """The configuration of a scratch model: the Qwen2 architecture, the class of Qwen1.5."""
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=cfg.hidden_size,
        num_hidden_layers=cfg.layers,
        num_attention_heads=cfg.heads,
        num_key_value_heads=cfg.heads,
        intermediate_size=cfg.intermediate_size,
        max_position_embeddings=max_tokens,
        initializer_range=cfg.init_std,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        pad_token_id=pad_id,
        eos_token_id=eos_id,
        bos_token_id=None,
        attn_implementation=packed_attention(),
    )


def scratch_model(cfg: ModelConfig, vocab_size: int, pad_id: int, eos_id: int, max_tokens: int, seed: int) -> CausalLM:
    """A Qwen2-architecture model with random weights, fp32."""
    from transformers import Qwen2ForCausalLM

    config = scratch_config(cfg, vocab_size, pad_id, eos_id, max_tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "scratch model"))
        return prepared(Qwen2ForCausalLM(config))


def pretrained_model(base: str, revision: str | None) -> CausalLM:
    """A base model by hub id or folder: safetensors only, no code of theirs, fp32 weights, fused attention.

    Raises `UserError` for one that does not load whole.
    """
    try:
        model = _whole(base, revision=revision)
    except Exception as error:  # each library below has its own class for a file that is none of its kind
        raise UserError(cannot_load("model.base", base, revision, error)) from None
    check_logits(prepared(model), f"model.base = '{base}'")
    return model


TOKENS, TOLERANCE = 8, 1e-2
"""Comparison of logits: tokens; nats that rounding in fp32 stays far below."""


@torch.no_grad()
def check_logits(model: CausalLM, origin: str) -> None:
    """Refuse a network whose own logits are not those of its head on the states that rollouts and training share.
    `origin` names it in the message. Raises `UserError`.

    Granite divides its logits, Cohere multiplies them, Gemma 2 caps them: fine-tuning would train another distribution
    than the one that is sampled.
    """
    head, vocab = model.get_output_embeddings(), int(model.config.vocab_size)
    tokens = (torch.arange(1, TOKENS + 1) * vocab // (TOKENS + 1)).unsqueeze(0)  # from all over the vocabulary
    column = torch.arange(TOKENS)
    hidden = states(model, tokens, torch.tensor([TOKENS]), torch.zeros_like(column), column)
    own, ours = model(input_ids=tokens, use_cache=False).logits[0], head(hidden)
    apart = float((torch.log_softmax(own.float(), -1) - torch.log_softmax(ours.float(), -1)).abs().max())
    if not apart <= TOLERANCE:
        raise UserError(
            f"{origin}: a network of the architecture {model.config.model_type} changes its logits after its"
            f" language-modelling head (log-probabilities differ by up to {apart:.3g} nats), which is not supported:"
            " the policy that is sampled would not be the one that was fine-tuned. Use a base whose logits are the"
            " output of its head, such as Qwen2, Llama or GPT-2"
        )


def load_snapshot(path: Path, device: torch.device) -> CausalLM:
    """One of our own `save_pretrained` folders, in fp32."""
    return prepared(_whole(path, local_files_only=True).to(device))


def _whole(name: str | Path, **source: Any) -> CausalLM:
    """Raises `ValueError` for files that lack weights: transformers would fill them with random numbers."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=torch.float32,
        use_safetensors=True,
        trust_remote_code=False,
        attn_implementation=ATTENTION,
        output_loading_info=True,
        **source,
    )
    if absent := sorted(report["missing_keys"]):
        raise ValueError(f"its files lack {', '.join(absent[:3])}")
    return model


def prepared(model: CausalLM) -> CausalLM:
    """The network as every stage uses it: packed rows where its architecture passes a packing down to its attention,
    logits in fp32, evaluation mode for good, and gradients for the embedding of the padding token, which a policy may
    sample; torch drops them."""
    model.get_input_embeddings().padding_idx = None
    if model.config.model_type in ARCHITECTURES:
        model.set_attn_implementation(packed_attention())
    return fp32_logits(model).eval()


def freeze(module: nn.Module) -> Any:
    """Switch gradients off for good and return the module."""
    return module.requires_grad_(False).eval()


def save_head(head: nn.Linear, path: Path) -> None:
    """A linear head as safetensors."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}, path)


def load_head(path: Path, device: torch.device) -> nn.Linear:
    """The head that `save_head` wrote."""
    tensors = load_file(path)
    outputs, inputs = tensors["weight"].shape
    head = nn.Linear(inputs, outputs)
    head.load_state_dict(tensors)
    return head.to(device)
