"""Peak memory of every stage that holds networks, by component: arithmetic on shapes.

Assumed: texts and responses of full length, the longest prompt. What an allocator loses between blocks is not counted:
on a CPU, networks of 10 M to 56 M parameters agree with measured peaks within 15 % (tests/memory_check.py).
"""

from __future__ import annotations

from pipeline.config.model import SftConfig
from pipeline.config.presets import ADVANTAGES
from pipeline.config.replay import has_replay
from pipeline.config.rewards import LEARNED, is_judged
from pipeline.config.trial import TrialConfig
from pipeline.forecast.shapes import Shape
from pipeline.forecast.subject import FROZEN_BYTES, ForecastSubject, Trained
from pipeline.models import buckets, cpu
from pipeline.resources.chunking import chunk_tokens, ranking_rows, text_rows
from pipeline.resources.device import built_for_cards
from pipeline.resources.machine import GIB

INTERPRETER_GIB, CARD_LIBRARIES_GIB, ADAPTER_LIBRARY_GIB = 0.40, 0.20, 0.20
"""Resident set of a worker with its libraries but no network; what a torch that was built for GPUs adds on a machine
without one; and what importing peft adds. Measured on Linux."""

Parts = dict[str, float]
"""Bytes by component."""


def memory_by_stage(trial: ForecastSubject, trained: Trained) -> dict[str, Parts]:
    """Bytes at the peak of each stage. What a phase needs for a while is that of the phase that needs most."""
    phases = {
        "sft": _sft(trial),
        "reward": _reward(trial),
        "train": _train(trial, trained),
        "evaluate": _evaluate(trial),
    }
    if trial.config.needs_samples:
        phases["values"] = _values(trial)
    return {
        stage: max((_whole(trial.on_card, *phase) for phase in of_stage), key=lambda parts: sum(parts.values()))
        for stage, of_stage in phases.items()
    }


def _whole(on_card: bool, lasting: Parts, passing: Parts) -> Parts:
    libraries = 0.0 if on_card else (INTERPRETER_GIB + CARD_LIBRARIES_GIB * built_for_cards()) * GIB
    return {"interpreter and libraries": libraries, **lasting, **passing}


def _sft(trial: ForecastSubject) -> list[tuple[Parts, Parts]]:
    """All weights are trained, whatever PPO trains; the optimiser goes before the held-out texts are measured."""
    return _language_model(trial, trial.shape, trial.config.sft, "policy")


def _language_model(trial: ForecastSubject, shape: Shape, cfg: SftConfig, name: str) -> list[tuple[Parts, Parts]]:
    """Training a network on texts and measuring it; `name` is what its weights are called."""
    positions = cfg.max_tokens * text_rows(cfg.batch_size, cfg.max_tokens, shape.vocab, trial.on_card)
    head = shape.vocab * shape.hidden
    logits = positions * shape.vocab * (22.0 if trial.on_card else 20.0)
    train = {
        "activations": positions * _kept(trial, shape),
        "logits": logits + head * 4.0,
        "half-precision copies": 2.0 * (shape.maps + head) * trial.on_card,
    }
    fitted = {
        name: 4.0 * shape.parameters,
        "gradients": 4.0 * shape.parameters,
        "optimiser": 8.0 * shape.parameters,
    }
    measure = {
        "activations": positions * _kept(trial, shape) / shape.layers,
        "logits": logits / 2,
        "half-precision copies": 2.0 * head * trial.on_card,
    }
    return [(fitted, train)] * bool(cfg.steps) + [({name: 4.0 * shape.parameters}, measure)]


def _reward(trial: ForecastSubject) -> list[tuple[Parts, Parts]]:
    """Of learned parts the last is trained while the others wait; then samples are drawn and scored. In a later round
    the policy is there as well."""
    shape, cfg, own = trial.reward_shape, trial.config.reward, 4.0 * trial.shape.parameters
    lasting = {"policy": own * (trial.config.rounds > 1), "reference": own, "reward": _rewards(trial)}
    phases = [(lasting, passing) for passing in _unlearned(trial)]
    if trial.config.reward_pretraining is not None:
        trained, passing = _language_model(trial, shape, trial.config.reward_pretraining, "reward")[0]
        phases.append(({**trained, **lasting}, passing))
    for part in cfg.scorers().values():
        if part.kind in LEARNED:
            # Sorted by length: little of them is padding.
            episode = trial.mean_prompt + trial.config.train.response_length
            tokens = int(episode) if is_judged(part.preferences) else cfg.max_tokens
            rows = cfg.ranked * ranking_rows(cfg.rankings_in_step, cfg.ranked, tokens, trial.on_card)
            fitted = {**lasting, "gradients": 4.0 * shape.trunk, "optimiser": 8.0 * shape.trunk}
            phases.append(
                (
                    fitted,
                    {
                        "activations": rows * tokens * _kept(trial, shape),
                        "half-precision copies": 2.0 * shape.maps * trial.on_card,
                    },
                )
            )
    return phases


def _evaluate(trial: ForecastSubject) -> list[tuple[Parts, Parts]]:
    weights, rows = 4.0 * trial.shape.parameters, trial.config.runtime.rollout_batch_size
    lasting = {"policy": weights, "reference": weights, "reward": _rewards(trial)}
    texts = min(rows, trial.config.evaluate.texts)
    return [(lasting, passing) for passing in [*_unlearned(trial), _read(trial, texts, trial.config.sft.max_tokens)]]


def _values(trial: ForecastSubject) -> list[tuple[Parts, Parts]]:
    lasting = {"reference": 4.0 * trial.shape.parameters, "reward": _rewards(trial)}
    return [(lasting, passing) for passing in _unlearned(trial)]


def _train(trial: ForecastSubject, trained: Trained) -> list[tuple[Parts, Parts]]:
    shape, cfg = trial.shape, trial.config
    if not cfg.algorithm.learns:
        return [({"policy": 4.0 * shape.parameters * (not trial.on_card)}, {})]  # the reference is copied
    own = Trained.of_critic(shape, cfg).parameters
    natural = cfg.algorithm.trust_region == "trpo"
    weights = 4.0 * shape.parameters + 4.0 * (trained.parameters if cfg.adapter.kind == "lora" else 0)
    adapted = cfg.adapter.kind == "lora" or cfg.critic.has_adapter
    lasting = {
        "adapter library": ADAPTER_LIBRARY_GIB * GIB if adapted and not trial.on_card else 0.0,
        "policy": weights - _spared(shape, cfg.adapter.quantize),
        "gradients": 4.0 * (trained.parameters + own),
        "optimiser": 8.0 * (own if natural else trained.parameters + own),
        # Gradient, solution, residual, direction and product of conjugate gradients, and the parts of a product.
        "natural step": 4.0 * 5 * trained.parameters * natural,
        "critic": _critic(shape, cfg),
    }
    sampling, measuring, *scoring = _unlearned(trial, _copies(trial) if trained.head else 0.0)
    away, held = trial.offloads, Parts()
    if trial.static_sampler:
        # Between rollouts it is held only where there is room for it beside the training.
        sampling, held = _sampled_statically(trial)
    between = {**lasting, "gradients": 0.0} if away else lasting
    return [
        ({**lasting, **_frozen(trial, away, away)}, _training(trial, trained)),
        ({**between, **_frozen(trial, away, away)}, sampling),
        ({**between, **_frozen(trial, False, away)}, _together(measuring, held)),
        ({**between, **_frozen(trial, away, False)}, _together({**measuring, "logits": 0.0}, held)),
        *(({**between, **_frozen(trial, away, False)}, _together(passing, held)) for passing in scoring),
    ]


def _sampled_statically(trial: ForecastSubject) -> tuple[Parts, Parts]:
    """What the static sampler needs beside the networks while it samples, and what of that is there while responses are
    measured: where further ones are sampled after that.

    The graphs of all buckets share their memory, which is that of one step: mainly logits, in fp32, with their softmax
    and what is drawn from it. The prompts are read into a cache of their own first, keys in fp32; a compaction needs
    room for one layer of the cache.
    """
    shape, cfg = trial.shape, trial.config
    number = 2.0 if trial.on_card else 4.0
    rows = min(cfg.runtime.rollout_batch_size, cfg.train.batch_size)
    columns = buckets.column_buckets(int(trial.longest_prompt) + cfg.train.response_length)[-1]
    copy = number * (shape.maps + shape.vocab * shape.hidden)
    cache, logits = number * rows * columns * shape.kv, 12.0 * rows * shape.vocab
    prompts = rows / cfg.train.responses_per_prompt * trial.longest_prompt
    beside = max(prompts * shape.kv * (3.0 if trial.on_card else 4.0), cache / shape.layers)
    sampling = {"cache": cache + beside, "logits": logits, "half-precision copies": copy}
    again = ADVANTAGES[cfg.algorithm.advantage].greedy or has_replay(cfg)
    return sampling, {"cache": cache, "logits": logits, "half-precision copies": copy} if again else {}


def _together(one: Parts, other: Parts) -> Parts:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def moved_bytes(trial: ForecastSubject) -> float:
    """Weights that come onto the card for a rollout; 0 where none are away from it."""
    there, away = (sum(_frozen(trial, gone, gone).values()) for gone in (False, trial.offloads))
    return there - away


def _frozen(trial: ForecastSubject, reference_away: bool, reward_away: bool) -> Parts:
    """The networks that PPO asks and does not train, as far as they are not away from the card; judges never are."""
    shape, cfg = trial.shape, trial.config
    how = cfg.train.frozen_dtype
    like_policy = (4.0 * shape.parameters - _spared(shape, how)) * (not reference_away)
    learned = trial.learned * (4.0 * trial.reward_shape.parameters - _spared(trial.reward_shape, how))
    ready = sum(4.0 * one.parameters - one.maps * (4.0 - FROZEN_BYTES[how]) for one in trial.rewarding)
    judges = 4.0 * sum(one.parameters for one in trial.scorers[: len(trial.scorers) - len(trial.rewarding)])
    return {
        "reference": like_policy * (cfg.adapter.kind == "none"),
        "policy at the start of the round": like_policy * (cfg.rounds > 1),
        "reward": (learned + ready) * (not reward_away) + judges,
    }


def _critic(shape: Shape, cfg: TrialConfig) -> float:
    """The weights of a critic of its own."""
    own = 4.0 * Trained.of_critic(shape, cfg).parameters
    return own + 4.0 * shape.trunk - _spared(shape, cfg.critic.held) if cfg.critic.has_adapter else own


def _spared(shape: Shape, how: str) -> float:
    """Bytes that a network does without in few bits."""
    return shape.maps * (4.0 - FROZEN_BYTES[how])


def _rewards(trial: ForecastSubject) -> float:
    """What rewards and a judge hold between their calls."""
    return 4.0 * (trial.learned * trial.reward_shape.parameters + sum(scorer.parameters for scorer in trial.scorers))


def _kept(trial: ForecastSubject, shape: Shape) -> float:
    """Bytes per position that a forward keeps for its backward where every weight is trained."""
    kept = shape.kept_half if trial.on_card else shape.kept_fp32
    return (
        4.0 * shape.hidden * shape.layers + kept / shape.layers if trial.config.runtime.gradient_checkpointing else kept
    )


def _copies(trial: ForecastSubject) -> float:
    """Half-precision copies of the weights that PPO trains and of those that it goes back through.

    Those of trained ones are kept as long as autocast lasts, those of frozen ones until the backward of their block,
    which may come at once.
    """
    shape, cfg, again = trial.shape, trial.config, trial.config.runtime.gradient_checkpointing
    # (in few bits, frozen) of each network
    networks = [(cfg.adapter.quantize != "none", cfg.adapter.kind == "lora")]
    if cfg.critic.kind == "separate":
        networks.append((cfg.critic.held != "none", cfg.critic.has_adapter))
    trunks = sum(1 / shape.layers if few or (frozen and again) else 1.0 for few, frozen in networks)
    return 2.0 * (shape.maps * trunks + shape.vocab * shape.hidden) * trial.on_card


def _training(trial: ForecastSubject, trained: Trained) -> Parts:
    """What a gradient step of PPO needs beside the networks."""
    shape, cfg, runtime = trial.shape, trial.config, trial.config.runtime
    length = trial.longest_prompt + trial.learned_response - 1
    rows = min(runtime.micro_batch_size, cfg.train.mini_batch_size)
    trunks = 2 if cfg.critic.kind == "separate" else 1
    upper = 1.0 if runtime.gradient_checkpointing else 1 - cfg.adapter.frozen_layers / shape.layers
    head, entries = shape.vocab * shape.hidden, chunk_tokens(shape.vocab, trial.on_card) * shape.vocab
    return {
        "activations": rows * length * _kept(trial, shape) * upper * trunks,
        # fp32 logits, their log-softmax and softmax; on a card the gradient in half precision, too; and that of the
        # head's weight.
        "logits": entries * (14.0 if trial.on_card else 12.0) + head * 4.0 * trained.head,
        "half-precision copies": _copies(trial),
    }


def _unlearned(trial: ForecastSubject, copies: float = 0.0) -> list[Parts]:
    """What sampling, measuring and scoring by classifiers need beside the networks."""
    shape, cfg, runtime, half = trial.shape, trial.config, trial.config.runtime, trial.on_card
    length = trial.longest_prompt + cfg.train.response_length - 1
    sampled = min(runtime.rollout_batch_size, cfg.train.batch_size)
    cache = sampled * length * shape.kv * (3.0 if half else 4.0) * (1 + 1 / shape.layers)
    classifiers = [
        {"activations": runtime.rollout_batch_size * length * scorer.block_bytes, "half-precision copies": copies}
        for scorer in trial.scorers
    ]
    return [
        {"cache": cache, "logits": sampled * shape.vocab * 12.0, "half-precision copies": copies},
        _read(trial, sampled, length, copies),
        *classifiers,
    ]


def _read(trial: ForecastSubject, rows: int, length: float, copies: float = 0.0) -> Parts:
    """What measuring at most `rows` rows of `length` tokens at once needs beside the networks."""
    shape, half = trial.shape, trial.on_card
    block = (shape.kept_half if half else shape.kept_fp32) / shape.layers
    micro_batch, entries = rows if half else min(rows, cpu.BUCKET), chunk_tokens(shape.vocab, half) * shape.vocab
    return {"activations": micro_batch * length * block, "logits": entries * 20.0, "half-precision copies": copies}
