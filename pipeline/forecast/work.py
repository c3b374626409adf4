"""What the stages of a trial will take, before any of it is spent: peak memory by component, T4-hours by phase.

Assumed: responses of full length, for memory the longest prompt, for time the mean one. Only linear maps, attention,
optimiser, logits and checkpoints are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.model import SftConfig
from pipeline.config.pairs import only_watched
from pipeline.config.presets import ADVANTAGES
from pipeline.config.replay import has_replay
from pipeline.config.rewards import LEARNED, is_judged
from pipeline.config.trial import TrialConfig
from pipeline.forecast.disk import checkpoint_hours, disk_by_part, shared_disk
from pipeline.forecast.memory import memory_by_stage, moved_bytes
from pipeline.forecast.ocr import reading_hours, shared_reading_hours
from pipeline.forecast.sampling import (
    asked_hours,
    asked_of_reference,
    asked_of_reward,
    asked_of_values,
    copying,
    evaluating_hours,
    opponents_hours,
    sampling,
    sampling_statically,
    text_work,
)
from pipeline.forecast.shapes import Shape
from pipeline.forecast.subject import ForecastSubject, Trained
from pipeline.resources.chunking import chunk_tokens, ranking_rows, text_rows
from pipeline.resources.machine import GIB
from pipeline.resources.roofline import (
    BYTES_BACKWARD,
    BYTES_GRADIENT,
    BYTES_HEAD_GRADIENT,
    BYTES_LOGIT,
    BYTES_READ_CAST,
    BYTES_READ_HALF,
    BYTES_STEP,
    T4_FLOPS,
    T4_FP32_FLOPS,
    T4_HOST_BYTES,
    t4_seconds,
)
from pipeline.training.value_pretraining import HELD_OUT


@dataclass(frozen=True)
class Forecast:
    """A prediction for one trial."""

    parameters: int
    trained: int
    stages: dict[str, dict[str, float]]
    """Memory of each stage by component, GiB."""
    hours: dict[str, float]
    """Of training on a T4, by phase."""
    own_hours: dict[str, float]
    """On a T4, by stage, of what a trial has for itself beside its training; not held against `cap_hours`."""
    shared_hours: dict[str, float]
    """On a T4, by stage, of what the trials of a study have in common; with the hours of reading images on the CPU."""
    disk: dict[str, float]
    """On disk at the peak of training, by part, GiB."""
    shared_disk_gib: float
    """On disk, of what the trials of a study have in common."""
    cap_gib: float
    cap_hours: float
    timed: bool
    """Whether the T4-hours are held against `cap_hours`."""
    static_hours: float | None = None
    """On a T4, of the phase `generate` by the static sampler, which `hours` leaves out; None where it is not asked
    for."""

    @property
    def stage(self) -> str:
        """The stage that needs most memory."""
        return max(self.stages, key=self.stage_gib)

    def stage_gib(self, stage: str) -> float:
        return sum(self.stages[stage].values())

    @property
    def memory_gib(self) -> dict[str, float]:
        """Of the stage that needs most, by component."""
        return self.stages[self.stage]

    @property
    def total_gib(self) -> float:
        """Of the stage that needs most."""
        return self.stage_gib(self.stage)

    @property
    def disk_gib(self) -> float:
        """On disk at the peak of training."""
        return sum(self.disk.values())

    @property
    def left_gib(self) -> float:
        """What a trial leaves on disk."""
        return self.disk_gib - self.disk.get("checkpoints", 0.0)

    @property
    def t4_hours(self) -> float:
        return sum(self.hours.values())

    @property
    def fits(self) -> bool:
        return (not self.timed or self.t4_hours <= self.cap_hours) and self.total_gib <= self.cap_gib


def estimate(trial: ForecastSubject) -> Forecast:
    """Predict memory and time."""
    cfg = trial.config
    trained, hours = Trained.of(trial.shape, cfg), dict[str, float]()
    if cfg.algorithm.learns:
        work_by_phase = work_of_update(trial, trained)
        hours = {phase: cfg.train.updates * t4_seconds(phase, *w) / 3600 for phase, w in work_by_phase.items()}
        if only_watched(cfg):  # no cost of the algorithm, but of the wall clock
            watched = sum(t4_seconds(phase, *w) for phase, w in rollout_work(trial, trained).items())
            hours["watch"] = cfg.train.updates * watched / 3600
        if cfg.rounds > 1:
            drawn_again = (cfg.rounds - 1) * opponents_hours(trial)
            hours["reward"] = t4_seconds("reward", *later_rewards(trial)) / 3600 + drawn_again
        scored = cfg.train.batch_size * (1.0 + _greedy(cfg) + _replayed(cfg)[1])
        if read := reading_hours(cfg, cfg.train.updates * scored):
            hours["ocr on the CPU"] = read
        if moved := moved_bytes(trial):
            hours["offload"] = cfg.train.updates * moved / T4_HOST_BYTES / 3600
        hours["checkpoint"] = checkpoint_hours(trial, trained, sum(hours.values()))
    shared = _shared_hours(trial)
    read = reading_hours(cfg, cfg.evaluate.best_of * cfg.evaluate.prompts)
    own = {"evaluate": evaluating_hours(trial) + read}
    if cfg.rounds > 1:  # it is scored by a reward that is the trial's own
        own["reference"] = shared.pop("reference")
    memory = {
        stage: {name: size / GIB for name, size in parts.items() if size}
        for stage, parts in memory_by_stage(trial, trained).items()
    }
    disk = {name: size / GIB for name, size in disk_by_part(trial, trained).items() if size}
    return Forecast(
        trial.shape.parameters,
        trained.parameters,
        memory,
        hours,
        own,
        shared,
        disk,
        shared_disk(trial) / GIB,
        trial.config.caps.memory_gib,
        trial.config.caps.wall_clock_h,
        trial.timed,
        _static_hours(trial) if "generate" in hours else None,
    )


def _static_hours(trial: ForecastSubject) -> float | None:
    """Hours on a T4 of sampling all rollouts by the static sampler. They are no part of the sum that is held against a
    cap: a network or a card that does not allow capture takes those of the eager one."""
    cfg = trial.config
    if not cfg.runtime.static_sampler(on_card=True):
        return None
    once = sampling_statically(trial, cfg.train.batch_size, cfg.train.responses_per_prompt)
    drawn = _times(1.0 + _greedy(cfg) + _replayed(cfg)[0], once)
    seconds = t4_seconds("generate", *drawn) + t4_seconds("generate", *copying(trial))
    return cfg.train.updates * seconds / 3600


def _shared_hours(trial: ForecastSubject) -> dict[str, float]:
    """Hours on a T4 by stage: what is learned, what is sampled and scored, what is measured, what is read."""
    cfg = trial.config
    parts = [(stage, t4_seconds("train", *work) / 3600) for stage, work in work_of_shared(trial).items()]
    parts += [
        ("sft", t4_seconds("score", *text_work(trial, cfg.data.heldout_prompts)) / 3600),
        ("reward", asked_hours(trial, asked_of_reward(cfg)) + opponents_hours(trial)),
        ("reference", asked_hours(trial, asked_of_reference(cfg))),
    ]
    if cfg.needs_samples:
        parts.append(("values", asked_hours(trial, asked_of_values(cfg))))
    if cfg.pretrains_critic:
        parts.append(("critic", t4_seconds("train", *critic_work(trial)) / 3600))
    parts += shared_reading_hours(cfg).items()
    hours = dict[str, float]()
    for stage, spent in parts:
        hours[stage] = hours.get(stage, 0.0) + spent
    return hours


def critic_work(trial: ForecastSubject) -> tuple[float, float]:
    """(FLOPs, bytes) of value pre-training. Only a trunk of its own is trained; a shared one is read."""
    shape, cfg, own = trial.shape, trial.config, Trained.of_critic(trial.shape, trial.config)
    span = trial.mean_prompt + cfg.train.response_length - 1
    rows = cfg.critic.pretraining_steps * cfg.train.batch_size
    heldout = -(-cfg.values.samples * cfg.data.train_prompts // HELD_OUT)
    maps, trains = own.forward or shape.maps, bool(own.parameters)
    attended = _attending(shape, 1.0, span)
    micros = cfg.critic.pretraining_steps * -(-cfg.train.batch_size // cfg.runtime.micro_batch_size)
    calls = -(-heldout // cfg.runtime.micro_batch_size)
    moved = 1.0 * (micros + calls) * shape.blocks * BYTES_READ_CAST
    if trains:
        moved += micros * (shape.blocks * BYTES_BACKWARD + own.maps * BYTES_GRADIENT)
        moved += cfg.critic.pretraining_steps * own.parameters * BYTES_STEP
    flops = span * (rows + heldout) * (2.0 * maps + attended)
    return flops + span * rows * trains * (2.0 * (own.below + own.maps) + 2 * attended), moved


def work_of_shared(trial: ForecastSubject) -> dict[str, tuple[float, float]]:
    """(FLOPs, bytes) of training the reference and learned rewards, sampling and measuring apart."""
    work = {"sft": _language_model(trial, trial.shape, trial.config.sft)}
    if trial.learned:
        work["reward"] = reward_work(trial, trial.config.reward.pairs // trial.config.rounds)
    return work


def reward_work(trial: ForecastSubject, pairs: int) -> tuple[float, float]:
    """(FLOPs, bytes) of training the learned rewards on so many pairs, and scratch trunks of them on texts before."""
    shape, reward = trial.reward_shape, trial.config.reward
    episode = trial.mean_prompt + trial.config.train.response_length
    rankings = pairs // reward.comparisons
    per_weight, passes = BYTES_READ_CAST + BYTES_BACKWARD + BYTES_GRADIENT, _passes(trial)
    flops = moved = 0.0
    if (pretraining := trial.config.reward_pretraining) is not None:
        flops, moved = _times(trial.learned, _language_model(trial, shape, pretraining))
    for part in reward.scorers().values():
        if part.kind in LEARNED:
            tokens = episode if is_judged(part.preferences) else reward.max_tokens
            in_step = min(reward.rankings_in_step, rankings)
            steps = reward.ensemble * reward.epochs * (rankings // in_step)
            rows = ranking_rows(in_step, reward.ranked, int(tokens), trial.on_card)
            flops += steps * in_step * reward.ranked * tokens * passes * shape.maps
            passes_of_weights = -(-in_step // rows) * reward.ranked
            moved += steps * (passes_of_weights * shape.blocks * per_weight + shape.trunk * BYTES_STEP)
    return flops, moved


def later_rewards(trial: ForecastSubject) -> tuple[float, float]:
    """(FLOPs, bytes) of the rewards of all rounds but the first: their pairs are sampled and learned from; measuring
    apart."""
    cfg, count = trial.config.reward, trial.config.rounds
    each = cfg.pairs // count
    sampled = 2 * (each + cfg.heldout_pairs) + cfg.calibration_samples
    drawn = _times(count - 1, sampling(trial, sampled, trial.shape.maps, BYTES_READ_CAST))
    learned = [reward_work(trial, each * (number if cfg.keep_pairs == "all" else 1)) for number in range(2, count + 1)]
    flops, moved = (sum(column) for column in zip(drawn, *learned, strict=True))
    return flops, moved


def _passes(trial: ForecastSubject) -> float:
    """FLOPs per weight and position of a pass forth and back in which every weight is trained."""
    return (4 if trial.config.runtime.gradient_checkpointing else 3) * 2.0


def _language_model(trial: ForecastSubject, shape: Shape, sft: SftConfig) -> tuple[float, float]:
    """(FLOPs, bytes) of training a network on texts."""
    head, micro = shape.vocab * shape.hidden, text_rows(sft.batch_size, sft.max_tokens, shape.vocab, trial.on_card)
    positions = sft.steps * sft.batch_size * sft.max_tokens
    per_weight = BYTES_READ_CAST + BYTES_BACKWARD + BYTES_GRADIENT
    weights = shape.blocks * per_weight + head * (BYTES_READ_HALF + BYTES_BACKWARD + BYTES_HEAD_GRADIENT)
    return (
        positions * (_passes(trial) * shape.maps + 3 * 2.0 * head),
        sft.steps * (-(-sft.batch_size // micro) * weights + shape.parameters * BYTES_STEP)
        + 2 * positions * shape.vocab * BYTES_LOGIT,
    )


def work_of_update(trial: ForecastSubject, trained: Trained) -> dict[str, tuple[float, float]]:
    """(FLOPs, bytes) of one update, by phase; of rollouts only where they teach or steer the policy."""
    shape, cfg, runtime = trial.shape, trial.config, trial.config.runtime
    rows, prompt, response = cfg.train.batch_size, trial.mean_prompt, trial.learned_response
    tokens, span, head = rows * (prompt + response - 1), prompt + response - 1, shape.vocab * shape.hidden
    separate, own = cfg.critic.kind == "separate", Trained.of_critic(shape, cfg)
    forward = 2.0 * tokens * shape.maps + _attending(shape, tokens, span)
    chunks = -(-rows * response // chunk_tokens(shape.vocab, True))
    again = 1.0 if runtime.gradient_checkpointing else 0.0
    passes, critic = (
        2.0 * tokens * (part.forward * (1 + again) + part.below + part.maps)
        + _attending(shape, tokens, span) * (3 + again)
        for part in (trained, own)
    )
    critic *= separate
    micros = -(-rows // min(runtime.micro_batch_size, cfg.train.mini_batch_size))
    moved = 1.0 * shape.blocks * (BYTES_READ_CAST + BYTES_BACKWARD) * (1 + separate)
    moved += (trained.maps + own.maps) * BYTES_GRADIENT
    head_bytes = head * (
        (BYTES_READ_HALF if trained.head else BYTES_READ_CAST) + BYTES_BACKWARD + BYTES_HEAD_GRADIENT * trained.head
    )
    # A loss of several tokens together goes through the head once more, to know their log-probs beforehand.
    twice = cfg.algorithm.by_sequence or cfg.kl.grouped_in("loss")
    # A loss of pairs goes through the trunk once more too, since a pair may be in two micro-batches.
    first = forward if cfg.algorithm.by_pairs else 0.0
    steps = cfg.train.num_mini_batches * (trained.parameters + own.parameters) * BYTES_STEP
    epoch = (
        first + passes + critic + 2.0 * rows * response * head * (2 + trained.head + twice),
        micros * moved
        + cfg.algorithm.by_pairs * micros * shape.blocks * BYTES_READ_CAST
        + chunks * (head_bytes + twice * head * BYTES_READ_CAST)
        + (2 + twice) * rows * response * shape.vocab * BYTES_LOGIT
        + steps,
    )
    work = {} if only_watched(cfg) else rollout_work(trial, trained)
    if cfg.train.data == "pairs":  # the reference's log-probs
        reads = -(-rows // runtime.rollout_batch_size) * shape.blocks + chunks * head
        logits = rows * response * shape.vocab * BYTES_LOGIT
        measured = forward + 2.0 * rows * response * head, reads * BYTES_READ_CAST + logits
        before = work.get("score", (0.0, 0.0))
        work["score"] = before[0] + measured[0], before[1] + measured[1]
    if cfg.algorithm.trust_region == "trpo":
        epoch = (critic, micros * shape.blocks * (BYTES_READ_CAST + BYTES_BACKWARD) + steps)
        whole = (passes + 2.0 * rows * response * head * (2 + trained.head), micros * moved)
        work["natural step"] = _natural_step(trial, trained, forward, passes, whole)
    return {**work, "train": (cfg.train.num_epochs * epoch[0], cfg.train.num_epochs * epoch[1])}


def rollout_work(trial: ForecastSubject, trained: Trained) -> dict[str, tuple[float, float]]:
    """(FLOPs, bytes) of sampling one rollout and of scoring and measuring it."""
    shape, cfg = trial.shape, trial.config
    rows, response, head = cfg.train.batch_size, cfg.train.response_length, shape.vocab * shape.hidden
    span = trial.mean_prompt + response - 1
    tokens = rows * span
    read = BYTES_READ_CAST if cfg.adapter.kind == "lora" else BYTES_READ_HALF
    generate = sampling(trial, rows, trained.forward, read, cfg.train.responses_per_prompt)
    # The KL to the policy that a later round began with is one more network, and goes through two heads.
    started = 1 - 1 / cfg.rounds
    networks, reward = 2 + (cfg.critic.kind == "separate") + started, trial.reward_shape
    heads = 2 + 2 * started
    scorers = sum(scorer.maps for scorer in trial.scorers)
    forward = 2.0 * tokens * shape.maps + _attending(shape, tokens, span)
    chunks = -(-rows * response // chunk_tokens(shape.vocab, True))
    score = (
        networks * forward
        + trial.learned * (2.0 * tokens * reward.maps + _attending(reward, tokens, span))
        + 2.0 * tokens * scorers
        + heads * 2.0 * rows * response * head,
        (networks * shape.blocks + trial.learned * reward.blocks + scorers)
        * -(-rows // cfg.runtime.rollout_batch_size)
        * BYTES_READ_CAST
        + heads * chunks * head * BYTES_READ_CAST
        + heads * rows * response * shape.vocab * BYTES_LOGIT,
    )
    greedy, (sampled, scored) = _greedy(cfg), _replayed(cfg)
    return {"generate": _times(1.0 + greedy + sampled, generate), "score": _times(1.0 + greedy + scored, score)}


def _greedy(cfg: TrialConfig) -> float:
    """Greedy responses, sampled and scored as one more for each prompt, as a share of a rollout's episodes."""
    return ADVANTAGES[cfg.algorithm.advantage].greedy / cfg.train.responses_per_prompt


def _attending(shape: Shape, tokens: float, span: float) -> float:
    """FLOPs of attention in a forward of so many tokens, each of which sees `span` positions."""
    return 4.0 * shape.attention * shape.layers * tokens * span


def _replayed(cfg: TrialConfig) -> tuple[float, float]:
    """Tokens that are sampled, and episodes that are scored, for replayed states, as shares of the rollout's own."""
    if not has_replay(cfg):
        return 0.0, 0.0
    each, longest = cfg.replay.share * cfg.replay.continuations, cfg.train.response_length
    places = range(0, longest, cfg.replay.every)
    return each * sum(1 - place / longest for place in places), each * len(places)


def _times(factor: float, work: tuple[float, float]) -> tuple[float, float]:
    return factor * work[0], factor * work[1]


def _natural_step(
    trial: ForecastSubject, trained: Trained, forward: float, passes: float, gradient: tuple[float, float]
) -> tuple[float, float]:
    """(FLOPs, bytes) of TRPO's step of the policy: its gradient, the Fisher products, two points of the line search.

    forward, passes: FLOPs of a pass through the trunk, and of one forth and back. A product is a forward with tangents,
    three times as much as without, and a pass forth and back, in fp32. A point is a forward by the old and by the new
    weights.
    """
    shape, cfg = trial.shape, trial.config
    tokens, head = cfg.train.batch_size * cfg.train.response_length, shape.vocab * shape.hidden
    micros = -(-cfg.train.batch_size // min(trial.config.runtime.micro_batch_size, cfg.train.mini_batch_size))
    products, points = cfg.algorithm.trpo_cg_iterations + 1, 2
    product = (3 * forward + passes + 2.0 * tokens * head * (5 + trained.head)) * T4_FLOPS / T4_FP32_FLOPS
    point = 2 * (forward + 2.0 * tokens * head)
    logits = tokens * shape.vocab * BYTES_LOGIT
    moved = micros * (shape.blocks + head) * (BYTES_READ_CAST + BYTES_BACKWARD) + 6.0 * 4 * trained.parameters
    return (
        gradient[0] + products * product + points * point,
        gradient[1] + products * (moved + 4 * logits) + points * (moved / 2 + 2 * logits),
    )
