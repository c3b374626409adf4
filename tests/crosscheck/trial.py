"""One small experiment for both sides: networks, prompts, responses of given lengths, and TRL's real update on them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import trial_config
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen2ForSequenceClassification
from trl.experimental.ppo import ppo_trainer as trl_ppo
from trl_peer import Witness, critic_of, ppo_trainer, tokenizer

from pipeline.config.model import ModelConfig
from pipeline.config.trial import TrialConfig
from pipeline.models.loading import scratch_model
from pipeline.models.policy import Episodes, response_mask
from pipeline.models.seeding import permutation, stream

VOCAB, PAD, EOS, CONTEXT, WIDTH, BATCH = 24, 0, 1, 5, 8, 16
FULL = (WIDTH,) * BATCH
RAGGED = (8, 3, 5, 1, 8, 7, 2, 6, 4, 8, 5, 3, 7, 1, 6, 2)


def settings(**changes: Any) -> TrialConfig:
    """One update of 2 epochs x 2 mini-batches, with a clip range that bites, at a constant learning rate."""
    plain: dict[str, Any] = {
        "train__steps": 4, "train__batch_size": BATCH, "train__num_mini_batches": 2, "train__num_epochs": 2,
        "train__response_length": WIDTH, "train__missing_eos": "none", "optimiser__lr": 3e-3,
        "optimiser__lr_schedule": "constant", "optimiser__max_grad_norm": 1e9, "optimiser__clip_norms": "together",
        "critic__kind": "separate", "critic__cliprange": 0.01, "critic__vf_coef": 0.3, "kl__beta": 0.1,
        "algorithm__clip__epsilon": 0.02, "algorithm__gae_lambda": 0.8, "algorithm__gamma": 0.9,
    }  # fmt: skip
    return trial_config(**(plain | changes))


def reward(ids: Tensor) -> Tensor:
    """Score every prefix: the mean of an arbitrary number for each token."""
    return ((ids * 7) % 5 - 2).float().cumsum(1) / torch.arange(1, ids.shape[1] + 1)


def network(seed: int) -> Qwen2ForCausalLM:
    return scratch_model(
        ModelConfig(hidden_size=32, heads=4, intermediate_size=64), VOCAB, PAD, EOS, CONTEXT + WIDTH, seed
    )


@dataclass
class Case:
    """Inputs and results of TRL."""

    cfg: TrialConfig
    policy: Qwen2ForCausalLM
    reference: Qwen2ForCausalLM
    critic: Qwen2ForSequenceClassification
    episodes: Episodes
    seen: Witness
    trained: dict[str, Tensor]

    @property
    def mask(self) -> Tensor:
        """(B, T) valid response tokens."""
        return self.episodes.response_mask

    @property
    def one_more(self) -> Tensor:
        """(B, T) valid response tokens and the slot after each response, where there is one."""
        return response_mask(self.episodes.lengths + 1, self.mask.shape[1])


def run_trl(lengths: Sequence[int], folder: Path, cfg: TrialConfig | None = None) -> Case:
    """TRL's own `train` on responses of these lengths; a response shorter than `WIDTH` ends by EOS.

    The prompts reach TRL in the order of our permutations, so that mini-batch k of epoch e is the same on both sides.
    """
    cfg = cfg or settings()
    policy, reference = network(0), network(1)
    critic = critic_of(network(2))
    torch.nn.init.normal_(critic.score.weight, std=0.3, generator=stream("score"))
    untouched = deepcopy(policy), deepcopy(reference), deepcopy(critic)
    rollouts: list[Episodes] = []

    def generation(model: Qwen2ForCausalLM, queries: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        rollouts.append(made_episodes(queries, torch.tensor(lengths)))
        return _as_generated(model, rollouts[-1], cfg.train.temperature)

    # Twice what is used: on the last batch of a pass over the prompts, accelerate steps after every micro-batch.
    queries = torch.randint(2, VOCAB, (2 * BATCH, CONTEXT), generator=stream("queries"))
    words = tokenizer(VOCAB, eos_id=EOS, pad_id=PAD)
    trainer = ppo_trainer(cfg, policy, reference, critic, reward, queries, words, folder, stop_token="eos")
    seen = Witness(trainer)
    epochs = iter(range(cfg.train.num_epochs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trl_ppo, "batch_generation", generation)
        patch.setattr(
            np.random, "permutation", lambda n: permutation(n, cfg.train.seed, "epoch", 0, next(epochs)).numpy()
        )
        trainer.train()
    trained = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    return Case(cfg, *untouched, rollouts[0], seen, trained)


def made_episodes(queries: Tensor, lengths: Tensor) -> Episodes:
    """Random responses; EOS stands at the end of every one that is shorter than `WIDTH`, and nowhere else, and PAD
    nowhere."""
    responses = torch.randint(2, VOCAB, (len(lengths), WIDTH), generator=stream("responses"))
    mask, ended = response_mask(lengths, WIDTH), lengths < WIDTH
    responses[ended, lengths[ended] - 1] = EOS
    return Episodes(torch.cat([queries, responses], dim=1), torch.ones_like(queries, dtype=torch.bool), mask, ended)


def _as_generated(model: Qwen2ForCausalLM, episodes: Episodes, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the output that TRL's generation would have for these responses: padded tokens, and the logits that they
    were drawn from."""
    valid = torch.cat([episodes.query_mask, episodes.response_mask], dim=1)
    padded = episodes.query_responses.masked_fill(~valid, PAD)
    with torch.no_grad():
        logits = trl_ppo.forward(model, padded, PAD).logits[:, CONTEXT - 1 : -1]
    return padded, logits / temperature
