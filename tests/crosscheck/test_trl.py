"""One whole update of PPO by our real code, in TRL's conventions, against TRL's own `train`: losses, gradients and the
weights they lead to; and our losses of pairs against its `DPOTrainer`, on the same network and the same pairs.

PPO is one small experiment for both sides: networks, prompts, responses of given lengths. TRL's conventions: one slot
after EOS belongs to the episode for rewards, advantages and the critic, and advantages are whitened by the unbiased
variance. The critic is separate, so policy and critic can be followed one after the other, each with its own mask.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.sizes import reward
from helpers import trial_config
from tinytrial import moved, preset, trainer
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen2ForSequenceClassification
from trl import DPOTrainer
from trl.experimental.ppo import ppo_trainer as trl_ppo
from trl_peer import Witness, critic_of, ppo_trainer, tokenizer

from pipeline.algorithms.mathematics.advantages import gae
from pipeline.algorithms.mathematics.masking import masked_whiten
from pipeline.algorithms.mathematics.shaping import non_score_reward, token_rewards
from pipeline.config.networks import ModelConfig
from pipeline.config.trial import TrialConfig
from pipeline.models.loading import scratch_model
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import ActorCritic, Episodes, flush_left, response_mask
from pipeline.models.precision import GradientSteps, Precision
from pipeline.models.seeding import permutation, stream
from pipeline.models.trunk import trunk
from pipeline.training.experience import Experience
from pipeline.training.judging import RolloutContext, Scores, TrainingData, measure
from pipeline.training.part import Terms, parts_of
from pipeline.training.processes import Ranks
from pipeline.training.rollout import Rollout, collect
from pipeline.training.trainer import Trainer
from pipeline.training.update import Learner

VOCAB, PAD, EOS, CONTEXT, WIDTH, BATCH = 24, 0, 1, 5, 8, 16
LENGTHS = {"full": (WIDTH,) * BATCH, "ragged": (8, 3, 5, 1, 8, 7, 2, 6, 4, 8, 5, 3, 7, 1, 6, 2)}
RELATIVE = 1e-4
CLOSE = {"rtol": RELATIVE, "atol": 1e-5}
NAMES = (("value_model.score.", "value_head."), ("value_model.model.", "critic_trunk."), ("policy.", "lm."))


def settings() -> TrialConfig:
    """One update of 2 epochs x 2 mini-batches, with a clip range that bites, at a constant learning rate."""
    changes: dict[str, Any] = {
        "train__steps": 4, "train__batch_size": BATCH, "train__num_mini_batches": 2, "train__num_epochs": 2,
        "train__response_length": WIDTH, "train__temperature": 0.8, "train__missing_eos": "none", "optimiser__lr": 3e-3,
        "optimiser__lr_schedule": "constant", "optimiser__max_grad_norm": 1e9, "optimiser__clip_norms": "together",
        "critic__kind": "separate", "critic__cliprange": 0.01, "critic__vf_coef": 0.3, "kl__beta": 0.1,
        "algorithm__clip__epsilon": 0.02, "algorithm__gae_lambda": 0.8, "algorithm__gamma": 0.9,
    }  # fmt: skip
    return trial_config(**changes)


def network(seed: int) -> Qwen2ForCausalLM:
    sizes = ModelConfig(hidden_size=32, heads=4, intermediate_size=64)
    return scratch_model(sizes, VOCAB, PAD, EOS, CONTEXT + WIDTH, seed)


@dataclass
class Case:
    cfg: TrialConfig
    policy: Qwen2ForCausalLM
    reference: Qwen2ForCausalLM
    critic: Qwen2ForSequenceClassification
    episodes: Episodes
    seen: Witness
    trained: dict[str, Tensor]

    @property
    def mask(self) -> Tensor:
        return self.episodes.response_mask

    @property
    def one_more(self) -> Tensor:
        """(B, T) valid response tokens and the slot after each response, where there is one."""
        return response_mask(self.episodes.lengths + 1, self.mask.shape[1])


def run_trl(lengths: Sequence[int], folder: Path) -> Case:
    """TRL's own `train` on responses of these lengths; a response shorter than `WIDTH` ends by EOS.

    The prompts reach TRL in the order of our permutations, so that mini-batch k of epoch e is the same on both sides.
    """
    cfg, policy, reference = settings(), network(0), network(1)
    critic = critic_of(network(2))
    torch.nn.init.normal_(critic.score.weight, std=0.3, generator=stream("score"))
    untouched = deepcopy(policy), deepcopy(reference), deepcopy(critic)
    rollouts: list[Episodes] = []
    ends = torch.tensor(lengths)
    ended = ends < WIDTH

    def generation(model: Qwen2ForCausalLM, queries: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """Random responses; EOS ends every one that is shorter than `WIDTH`; it and PAD stand nowhere else."""
        tokens = torch.randint(2, VOCAB, (BATCH, WIDTH), generator=stream("responses"))
        tokens[ended, ends[ended] - 1] = EOS
        rows, every, mask = torch.cat([queries, tokens], 1), torch.ones_like(queries).bool(), response_mask(ends, WIDTH)
        rollouts.append(Episodes(rows, every, mask, ended))
        padded = rows.masked_fill(~torch.cat([every, mask], 1), PAD)
        with torch.no_grad():
            logits = trl_ppo.forward(model, padded, PAD).logits[:, CONTEXT - 1 : -1]
        return padded, logits / cfg.train.temperature

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


@pytest.fixture(scope="module", params=LENGTHS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Responses of the full length without EOS, where the two conventions coincide, and of every length."""
    return run_trl(LENGTHS[request.param], tmp_path_factory.mktemp("whole"))


def actor_of(case: Case) -> ActorCritic:
    """TRL's starting weights in our networks; TRL's value head has no bias, so ours stays at zero."""
    head = torch.nn.Linear(case.critic.score.in_features, 1)
    head.load_state_dict({"weight": case.critic.score.weight.detach(), "bias": torch.zeros(1)})
    head.bias.requires_grad_(False)
    return ActorCritic(deepcopy(case.policy), deepcopy(trunk(case.critic)), head).eval()


def scores_of(case: Case) -> Tensor:
    last = CONTEXT + case.episodes.lengths - 1
    return reward(case.episodes.query_responses).gather(1, last.unsqueeze(1)).squeeze(1)


def context_of(case: Case, actor: ActorCritic) -> RolloutContext:
    """Networks that are given TRL's responses instead of sampling."""

    def score(_: Episodes, rows: list[int]) -> Scores:
        return Scores(scores_of(case), scores_of(case), [""] * len(rows), [""] * len(rows))

    given: Any = SimpleNamespace(sample=lambda *_: case.episodes)
    alone, room = Ranks.of(torch.device("cpu")), Room("rows", BATCH)
    terms = Terms(case.cfg.kl.beta)
    data = TrainingData(case.episodes.query_responses[:, :CONTEXT], case.episodes.query_mask, {})
    return RolloutContext(
        actor, case.reference, score, case.cfg, data, given, room, lambda _: nullcontext(), alone, terms=terms
    )


def in_their_conventions(case: Case, actor: ActorCritic) -> Rollout:
    cfg, mask, n = case.cfg, case.mask, int(case.mask.sum())
    wide = replace(case.episodes, response_mask=case.one_more)
    measured = measure(context_of(case, actor), wide)
    non_score = non_score_reward(measured.logprobs, measured.ref_logprobs, mask, cfg.kl.beta)
    scores = scores_of(case)
    rewards = token_rewards(scores, non_score, case.one_more)
    advantages, returns = gae(rewards, measured.values, case.one_more, cfg.algorithm.gamma, cfg.algorithm.gae_lambda)
    whitened = masked_whiten(advantages, mask) * math.sqrt((n - 1) / n)
    return Rollout(case.episodes, measured, whitened, returns, cfg.kl.beta, Scores(scores, scores, [], []), {})


def follow(case: Case, actor: ActorCritic, rollout: Rollout) -> tuple[list[dict[str, float]], list[dict[str, Tensor]]]:
    metrics: list[dict[str, float]] = []
    gradients: list[dict[str, Tensor]] = []
    trained = [parameter for parameter in actor.parameters() if parameter.requires_grad]
    group = {"params": trained, "lr": 0.0, "base_lr": case.cfg.optimiser.lr, "moves_policy": True}
    optimiser = torch.optim.Adam([group], eps=case.cfg.optimiser.adam_eps, fused=True)

    def note(*_: Any) -> None:
        gradients.append({name: p.grad.clone() for name, p in actor.named_parameters() if p.grad is not None})

    optimiser.register_step_pre_hook(note)
    precision = Precision.of(torch.device("cpu"))
    steps, alone = GradientSteps(optimiser, precision), Ranks.of(precision.device)
    learner = Learner(actor, steps, precision, alone, case.cfg, parts_of(case.cfg), Room("micro", 3))
    learner.learn(rollout, 0, lambda _, values: metrics.append(values))
    return metrics, gradients


def renamed(tensors: Mapping[str, Tensor], *prefixes: str) -> dict[str, Tensor]:
    return {
        mine + name.removeprefix(its): one
        for name, one in tensors.items()
        for its, mine in NAMES
        if name.startswith(its) and mine in prefixes
    }


def apart(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Distance of two sets of tensors relative to the size of the second."""
    assert set(theirs) <= set(mine)
    difference = math.sqrt(sum(float((mine[name] - tensor).double().pow(2).sum()) for name, tensor in theirs.items()))
    return difference / math.sqrt(sum(float(tensor.double().pow(2).sum()) for tensor in theirs.values()))


def test_the_rollout(case: Case) -> None:
    rollout, seen = in_their_conventions(case, actor_of(case)), case.seen.update
    torch.testing.assert_close(~seen["padding_mask"], case.mask)
    torch.testing.assert_close(~seen["padding_mask_p1"], case.one_more)
    torch.testing.assert_close(rollout.scores.proxy, seen["scores"], **CLOSE)
    for mine, theirs, mask in (
        (rollout.measured.logprobs, seen["logprobs"], case.mask),
        (rollout.measured.ref_logprobs, seen["ref_logprobs"], case.mask),
        (rollout.measured.values, seen["values"], case.one_more),
        (rollout.returns, seen["returns"], case.one_more),
        (rollout.advantages, seen["advantages"], case.mask),
    ):
        torch.testing.assert_close(mine[mask], theirs[mask], **CLOSE)


def test_every_policy_step(case: Case) -> None:
    actor = actor_of(case)
    metrics, gradients = follow(case, actor, in_their_conventions(case, actor))
    assert len(metrics) == len(case.seen.steps) == case.cfg.train.steps
    for step, seen, gradient, expected in zip(metrics, case.seen.steps, gradients, case.seen.gradients, strict=True):
        assert step["policy/pg_loss"] == pytest.approx(float(seen["pg_loss"]), rel=RELATIVE, abs=1e-6)
        assert apart(gradient, renamed(expected, "lm.")) < RELATIVE
    assert metrics[-1]["policy/approxkl"] > 1e-5
    clipped = sum(step["policy/pg_clipfrac"] for step in metrics) / len(metrics)
    assert clipped == pytest.approx(case.seen.update["metrics"]["policy/clipfrac_avg"], rel=1e-3)
    start = {f"lm.{name}": parameter.detach() for name, parameter in case.policy.named_parameters()}
    mine, theirs = dict(actor.named_parameters()), renamed(case.trained, "lm.")
    moved = {name: theirs[name] - start[name] for name in theirs}
    # Adam divides by the gradient's size, so rounding in a gradient near zero is not near zero in its step.
    assert apart({name: mine[name].detach() - start[name] for name in theirs}, moved) < 10 * RELATIVE


def test_every_critic_step(case: Case) -> None:
    rollout = in_their_conventions(case, actor := actor_of(case))
    wide = replace(rollout.episodes, response_mask=case.one_more)
    rollout = replace(rollout, episodes=wide, advantages=torch.zeros_like(rollout.advantages))
    metrics, gradients = follow(case, actor, rollout)
    for step, seen, gradient, expected in zip(metrics, case.seen.steps, gradients, case.seen.gradients, strict=True):
        assert step["value/vf_loss"] == pytest.approx(float(seen["vf_loss"]), rel=RELATIVE)
        assert apart(gradient, renamed(expected, "critic_trunk.", "value_head.")) < RELATIVE
    clipped = [step["value/vf_clipfrac"] for step in metrics]
    assert max(clipped) > 0
    assert sum(clipped) / len(clipped) == pytest.approx(case.seen.update["metrics"]["val/clipfrac_avg"], rel=1e-3)


@pytest.mark.parametrize("case", ["full"], indirect=True)
def test_our_own_rollout_is_theirs_where_the_conventions_coincide(case: Case) -> None:
    """No EOS anywhere: `collect` as it is, but for the sampling, gives TRL's advantages up to the correction of the
    variance."""
    n, seen = int(case.mask.sum()), case.seen.update
    rollout = collect(context_of(case, actor_of(case)), torch.arange(BATCH), 0)
    torch.testing.assert_close(rollout.returns, seen["returns"], **CLOSE)
    torch.testing.assert_close(rollout.advantages * math.sqrt((n - 1) / n), seen["advantages"], **CLOSE)
    for name in ("kl", "entropy", "scores", "rlhf_reward"):
        wanted = seen["metrics"][f"objective/{name}"]
        assert rollout.metrics[f"objective/{name}"] == pytest.approx(wanted, rel=RELATIVE), name


BETA, ROWS = 0.3, [6, 7, 0, 1, 4, 5]
LOSSES = {
    "dpo": ("sigmoid", 1 / BETA, preset("dpo")),
    "ipo": ("ipo", BETA, preset("ipo")),
    "dpo on means": ("sigmoid_norm", 1 / BETA, {**preset("dpo"), "algorithm__ratio": "sequence_mean"}),
}
"""TRL's name, the scale of our gradient (the slope at margin 0 is the same for every beta), our settings."""


def theirs(one: Trainer, experience: Experience, loss_type: str) -> tuple[float, dict[str, Any], list[Tensor]]:
    """TRL's loss, what it logs and its gradient: its method on a stand-in that has what the method reads."""
    chosen_first = torch.tensor([*ROWS[::2], *ROWS[1::2]])
    episodes = experience.episodes.take(chosen_first)
    tokens, starts = flush_left(episodes)
    columns, ends = torch.arange(tokens.shape[1]), (starts + episodes.lengths).unsqueeze(1)
    references = experience.measured.ref_logprobs[chosen_first].sum(1)
    inputs = {
        "input_ids": tokens,
        "attention_mask": (columns < ends).long(),
        "completion_mask": ((columns >= starts.unsqueeze(1)) & (columns < ends)).long(),
        "ref_chosen_logps": references[:3],
        "ref_rejected_logps": references[3:],
    }
    logged = {"train": defaultdict(list)}
    its = SimpleNamespace(
        model=SimpleNamespace(training=True), aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=True,
        accelerator=SimpleNamespace(device=tokens.device, gather=torch.clone, gather_for_metrics=torch.clone),
        f_divergence_type="reverse_kl", loss_types=[loss_type], loss_weights=[1.0], beta=BETA, use_weighting=False,
        _metrics=logged, _total_train_tokens=0,
    )  # fmt: skip
    loss = DPOTrainer._compute_loss(its, one.actor.lm, inputs, False)
    gradient = torch.autograd.grad(loss, list(one.actor.lm.parameters()))
    return loss.item(), logged["train"], list(gradient)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_agree(tmp_path: Path, name: str) -> None:
    loss_type, scale, knobs = LOSSES[name]
    one = trainer(tmp_path, runtime__micro_batch_size=4, kl__beta=BETA, **knobs)
    experience = one._experience(one._rollout())
    moved(one, 0.05)
    expected, logged, gradient = theirs(one, experience, loss_type)
    ours = one.learner.accumulate(experience, torch.tensor(ROWS))
    assert ours["policy/pg_loss"] == pytest.approx(expected, rel=1e-5)
    assert ours["pairs/chosen_logprobs"] == pytest.approx(logged["logps/chosen"][0], rel=1e-5)
    assert ours["pairs/rejected_logprobs"] == pytest.approx(logged["logps/rejected"][0], rel=1e-5)
    for parameter, one_gradient in zip(one.actor.lm.parameters(), gradient, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, scale * one_gradient, rtol=1e-3, atol=1e-6)
    if name != "dpo on means":  # TRL's rewards are of sums, and its accuracy is that of their margin
        margin = ours["pairs/chosen_log_ratio"] - ours["pairs/rejected_log_ratio"]
        assert logged["rewards/margins"][0] == pytest.approx(BETA * margin, rel=1e-4)
    if name == "dpo":
        assert ours["pairs/accuracy"] == pytest.approx(logged["rewards/accuracies"][0])
