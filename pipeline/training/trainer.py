"""The loop around the mathematics: rollout, update, metrics, controllers, checkpoint; resumable at any moment.

The steps are numbered as in pipeline/algorithms/README.md; 1 to 5 are in `rollout`, 6 in `update`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pipeline.algorithms.mathematics.controllers import (
    EntropyController,
    FloorController,
    KlController,
    LrGuard,
    OldKlController,
)
from pipeline.config.pairs import only_watched
from pipeline.config.replay import has_replay
from pipeline.config.rounds import last_update
from pipeline.config.trial import TrialConfig
from pipeline.models.loading import CausalLM
from pipeline.models.policy import ActorCritic, Episodes
from pipeline.models.precision import NAMES, TOLERANCE, GradientSteps, Precision
from pipeline.models.sampler_choice import choose_sampler
from pipeline.resources.ledger import Ledger, Reached
from pipeline.resources.out_of_memory import MemoryFull, MemoryFullSomewhere, Room
from pipeline.resources.roofline import BYTES_STEP
from pipeline.run.leaving import Leaving, asked_to_leave
from pipeline.run.progress import RESUMED
from pipeline.run.stopping import Watcher
from pipeline.training import checkpoint
from pipeline.training.health import Diverged, check_collapse, check_finite, negative_kl
from pipeline.training.judging import Away, Prompts, RolloutContext, ScoreFn
from pipeline.training.learner import Learner
from pipeline.training.lesson import Lesson
from pipeline.training.natural_step import learn_naturally
from pipeline.training.processes import NullLog, Ranks
from pipeline.training.reference_scores import ReferenceScores
from pipeline.training.rollout import Rollout, collect
from pipeline.training.rounds import Round
from pipeline.training.selfcheck import check_rollout, rounding_shown
from pipeline.training.stored_pairs import StoredPairs, in_turn
from pipeline.training.update import OnStep, train_on, warm_up
from pipeline.training.whole_rollout import moved_kl

SAMPLE_TABLES = 8
SAMPLE_ROWS = 8


class Log(Protocol):
    """Where metrics go; `offset` is a place to come back to."""

    offset: int

    def append(self, step: int, values: Mapping[str, float]) -> None: ...

    def flush(self, *, durable: bool = True) -> None: ...

    def close(self) -> None: ...


class Watch(Protocol):
    """Who is told of progress."""

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def warn(self, message: str) -> None: ...


@dataclass
class Outcome:
    """How a trial ended."""

    status: str
    reason: str | None
    steps: int
    updates: int
    episodes: int
    tokens: int
    cap: dict[str, Any] | None
    """Of a trial that a cap has ended: which one, how much was spent of it, and the step of the newest checkpoint."""
    samples: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """How far a trial has come."""

    update: int
    taken: int
    wall_s: float = 0.0


class Trainer:
    """The training of one trial. Everything that changes while it runs is in `_state`, and so in every checkpoint."""

    def __init__(
        self,
        cfg: TrialConfig,
        actor: ActorCritic,
        reference: CausalLM,
        score: ScoreFn,
        queries: Tensor,
        query_mask: Tensor,
        token_ids: dict[str, int],
        open_log: Callable[[int], Log],
        watch: Watch,
        ledger: Ledger,
        checkpoints: Path,
        samples: ReferenceScores | None = None,
        pairs: StoredPairs | None = None,
        closes: Tensor | None = None,
        part: Round | None = None,
        away: Away | None = None,
    ) -> None:
        """queries (n, P) and query_mask (n, P): all training prompts, left-padded, on the CPU; `samples` of the
        reference for the same prompts, where the advantage needs them; `pairs` to learn from instead of rollouts;
        closes (V,) bool: the tokens that end a group, where the KL penalty is one on clauses or sentences; `part`: the
        round that is trained, of a training with several; `away` keeps networks of those above off the card.

        `open_log` opens the metrics file at an offset and cuts off what stood behind it; 0 is a fresh file.
        """
        self.device = next(actor.parameters()).device
        self.cfg, self.actor = cfg, actor.to(self.device).eval()
        self.queries, self.query_mask = queries, query_mask
        self.v_star, self.pairs = _v_star(cfg, samples, len(queries)), pairs
        self.open_log, self.watch, self.ledger, self.folder = open_log, watch, ledger, checkpoints
        self.log: Log = NullLog()
        self.part = part or Round(1, 1)
        self.end = last_update(cfg.train.updates, self.part.number, self.part.count)
        self.precision, self.ranks = Precision.of(self.device), Ranks.of(self.device)
        self.steps = GradientSteps(
            torch.optim.Adam(_groups(actor, cfg), eps=cfg.optimiser.adam_eps, fused=True), self.precision
        )
        self.kl, self.guard, self.stop = KlController.of(cfg), LrGuard.of(cfg), Watcher(cfg.train.stop)
        self.old_kl, self.entropy, self.floor = (
            OldKlController.of(cfg),
            EntropyController.of(cfg),
            FloorController.of(cfg),
        )
        rollout_room = Room(
            "runtime.rollout_batch_size", min(cfg.runtime.rollout_batch_size, cfg.train.batch_size), watch.warn
        )
        sampler = choose_sampler(
            cfg.runtime.sampler,
            actor.lm,
            queries.shape[1] + cfg.train.response_length * (2 if has_replay(cfg) else 1),
            temperature=cfg.train.temperature,
            room=rollout_room,
            precision=self.precision,
            tally=ledger.work,
            warn=watch.warn,
            **token_ids,
        )
        closes = None if closes is None else closes.to(self.device)
        self.rollout_context = RolloutContext(
            actor, reference, score, cfg, sampler, rollout_room, ledger.timed, self.ranks, closes, away=away
        )
        if part is not None:
            self.rollout_context = replace(self.rollout_context, start=part.start or reference)
        self.only_watched = only_watched(cfg)
        train_room = Room(
            "runtime.micro_batch_size",
            min(cfg.runtime.micro_batch_size, cfg.train.mini_batch_size),
            watch.warn,
            sampler.give_way,
        )
        self.learner = Learner(
            actor,
            self.steps,
            self.precision,
            self.ranks,
            cfg,
            self.guard,
            self.old_kl,
            self.entropy,
            train_room,
            cfg.runtime.gradient_checkpointing,
            closes,
        )
        self.trained_size = sum(tensor.numel() for _, tensor in self._trained())
        self.update = self.taken = self.reached = 0
        self.warned = False
        self.cap: Reached | None = None
        self.samples: list[dict[str, Any]] = []
        self.last_step: Mapping[str, float] = {}
        self.healthy = self.saved = Place(0, 0, 0.0)

    def run(self) -> Outcome:
        """Train to the end, that of the round where there are several, a cap, a rule that stops it, or divergence; from
        the newest checkpoint where there is one."""
        try:
            self._resume()
            status, reason = self._train()
        finally:
            self.log.close()
        episodes = self.update * self.cfg.train.batch_size
        cap = None if self.cap is None else {"key": self.cap.key, "spent": self.cap.spent, "step": self.saved.taken}
        return Outcome(
            status, reason, self.taken, self.update, episodes, self.ledger.generated_tokens, cap, self.samples
        )

    def _reached(self) -> dict[str, Any] | None:
        """The cap that this process has reached, in plain values."""
        reached = self.ledger.exceeded(self.cfg.caps)
        return None if reached is None else vars(reached)

    def _train(self) -> tuple[str, str | None]:
        begun = self.update
        try:
            while self.update < self.end:
                reached, leaves = self.ranks.agree((self._reached(), asked_to_leave()))
                if reached is not None:
                    self.cap = Reached(**reached)
                    self._pause()
                    return "budget", str(self.cap)
                if leaves and self.update > begun:
                    self._pause()
                    self.ranks.wait()  # a process that ends has the others killed
                    raise Leaving
                if broken := self.stop.broken():
                    self._check_end()
                    return "pruned", broken
                self._one_update()
            self._check_end()
        except Diverged as error:
            # The metrics up to the divergence stay as evidence.
            kept, self.cap = self._rewind(), None
            self.ledger.mark()
            where = f"in the update after step {self.planned}; the policy kept is that of step {kept}"
            return "diverged", f"{error} {where}"
        except MemoryFull as error:
            self._check_shared(error)
            self.taken = max(self.taken, self.reached)
            self.ledger.mark()
            self.cap = Reached("memory_gib", self.cfg.caps.memory_gib, str(error))
            return "budget", str(error)
        self.ledger.mark()
        return "complete", None

    def _pause(self) -> None:
        """Leave a checkpoint from which a larger cap goes on; one more rollout tells whether the last step broke the
        network."""
        rollout = self._rollout()
        with self.precision.autocast():
            self._look(rollout)
        if self.update > self.saved.update:
            self._checkpoint()

    def _one_update(self) -> None:
        rollout = self._rollout()
        with self.precision.autocast():
            self._look(rollout)
        if self._due():
            self._checkpoint()
        start, taken = self.planned, self.taken
        self._write(start, rollout.metrics)  # 7 metrics
        self._keep_samples(start, rollout)
        moved = self._learn(rollout, self._on_step)
        if moved is not None:
            self._write(self.planned, {"policy/old_kl": moved})
        if self.cfg.algorithm.target_kl is not None:
            self._write(self.planned, {"policy/update_steps": float(self.taken - taken)})
        self.ledger.generated_tokens += 0 if self.only_watched else rollout.sampled_tokens
        self.log.flush(durable=False)
        self.watch.metrics(start, {**rollout.metrics, **self.last_step})
        self.watch.progress("train", self.planned, self.cfg.train.steps)

    @property
    def planned(self) -> int:
        """Gradient steps that the updates so far were to take. Metrics stand at planned steps, so that trials are
        compared, and claims judged, at the same episodes; those that the target-KL stop leaves out stay empty."""
        return self.update * self.cfg.train.steps_per_update

    def _rollout(self) -> Rollout:
        self.kl.start(self.update)
        self.entropy.start(self.update)
        context = replace(self.rollout_context, floor_weight=self.floor.weight)
        if self.only_watched:  # neither the work of rollouts nor their tokens are counted
            context = replace(context, timed=lambda phase: self.ledger.timed("watch"))
        with self.precision.autocast():
            rollout = collect(context, self._prompts(), self.update, self.kl.kl_coef)
        bonus = {"objective/ent_coef": self.entropy.coef} if self.cfg.entropy.acts else {}
        floor = {} if self.floor.weight is None else {"objective/floor_weight": self.floor.weight}
        return replace(rollout, metrics={**rollout.metrics, **bonus, **floor})

    def _lesson(self, rollout: Rollout) -> Lesson:
        if self.cfg.train.data == "rollouts":
            return rollout
        if self.pairs is None:
            raise ValueError("train.data 'pairs' needs stored pairs")
        with self.precision.autocast():
            return self.pairs.lesson(self.rollout_context, self.update, self.kl.kl_coef)

    def _learn(self, rollout: Rollout, on_step: OnStep) -> float | None:
        """Take the steps of an update. Returns how far they moved the policy, nats per token, where a controller asks;
        else None."""
        learn, moved = learn_naturally if self.cfg.algorithm.trust_region == "trpo" else train_on, None
        lesson = self._lesson(rollout)
        with self.ledger.timed("train"):
            self.taken += learn(lesson, self.learner, self.update, on_step)
            if self.old_kl.enabled:
                moved = moved_kl(lesson, self.learner)
            if self.rollout_context.away:  # what comes back for the next rollout takes their place
                self.steps.clear()
        # 8 controllers step
        if moved is not None:
            check_finite({"policy/old_kl": moved})
        if self.planned + self.cfg.train.steps_per_update > warm_up(self.cfg):  # else the policy has not moved
            if moved is not None:
                self.old_kl.observe(moved)
            self.kl.observe(rollout.metrics["objective/kl"])
            if self.floor.weight is not None:
                self.floor.observe(rollout.metrics[f"reward/{self.cfg.floor.part}"])
            self.entropy.observe(rollout.metrics["objective/entropy_per_token"])
        self.guard.observe(rollout.metrics["objective/kl_per_token"])
        self.update += 1
        return moved

    def _look(self, rollout: Rollout) -> None:
        """Health of a rollout, and what must hold of the first; only then are the weights that made it good ones."""
        measured = rollout.measured
        if self.update == 0:
            with self.ledger.timed("selfcheck"):
                self._check_start(rollout)
        check_collapse(rollout.metrics, self.cfg)
        warning = None if self.warned else negative_kl(measured.logprobs, measured.ref_logprobs)
        if warning:
            self.warned = True
            self.watch.warn(f"{warning}; at step {self.planned}")
        self.healthy = Place(self.update, self.taken)

    def _check_start(self, rollout: Rollout) -> None:
        train = self.cfg.train
        held = TOLERANCE[NAMES[train.frozen_dtype]]
        check_rollout(rollout, self.actor, train.temperature, self.precision.tolerance, held)
        if shown := rounding_shown(rollout.metrics["objective/kl_exact_per_token"], train.frozen_dtype):
            self.watch.warn(shown)

    def _on_step(self, step: int, values: dict[str, float]) -> None:
        self._write(step, values)
        self.last_step = {**self.last_step, **values}  # some steps are of a critic alone
        self.reached = self.taken + step - self.planned
        self.ledger.work(0.0, float(self.trained_size * BYTES_STEP))

    def _check_end(self) -> None:
        """The last step of a trial is followed by no rollout that could tell whether it broke the network. Raises
        `Diverged`."""
        with self.ledger.timed("selfcheck"), torch.no_grad(), self.precision.autocast():
            prompts = self._prompts()
            queries, mask = prompts.queries[:2], prompts.query_mask[:2]
            # Any token will do as a response.
            episodes = Episodes(torch.cat([queries, queries[:, -1:]], dim=1), mask, mask[:, -1:], mask[:, -1])
            log_pi, values = self.actor(episodes, self.cfg.train.temperature)
        if not all(bool(torch.isfinite(said).all()) for said in (log_pi, values) if said is not None):
            raise Diverged("not finite: the policy after its last step")

    def _prompts(self) -> Prompts:
        rows = self._prompt_rows()
        v_star = None if self.v_star is None else self.v_star[rows].to(self.device)
        return Prompts(self.queries[rows].to(self.device), self.query_mask[rows].to(self.device), rows.tolist(), v_star)

    def _prompt_rows(self) -> Tensor:
        """Prompts of the current update: each pass over all prompts in a fresh order, as many rows of each as it gets
        responses; (batch_size,) int64."""
        each = self.cfg.train.responses_per_prompt
        size = self.cfg.train.batch_size // each
        rows = in_turn(len(self.queries), size, self.update, self.cfg.train.seed, "prompts")
        return rows.repeat_interleave(each)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        self.log.append(step, values)
        self.stop.observe(step, values)

    def _keep_samples(self, step: int, rollout: Rollout) -> None:
        every = max(self.cfg.train.updates // SAMPLE_TABLES, 1)
        if self.update % every:
            return
        scores = rollout.scores
        columns: Sequence[Sequence[Any]] = (scores.prompts, scores.texts, scores.proxy.tolist(), scores.gold.tolist())
        different = slice(0, SAMPLE_ROWS * self.cfg.train.responses_per_prompt, self.cfg.train.responses_per_prompt)
        for prompt, text, proxy, gold in list(zip(*columns, strict=True))[different]:
            self.samples.append({"step": step, "prompt": prompt, "completion": text, "proxy": proxy, "gold": gold})

    def _due(self) -> bool:
        """Whether it is time for a checkpoint: enough updates after the last one, and not too large a share of the
        time."""
        share = self.cfg.runtime.checkpoint_share
        rare = share is None or self.ledger.checkpoint_s <= share * (self.ledger.wall_s - self.saved.wall_s)
        return rare and self.update - self.saved.update >= self.cfg.runtime.checkpoint_updates

    def _checkpoint(self) -> None:  # 9 checkpoint
        """Save the trial as it stood before the update at hand. Its rollout has been healthy, so the weights are good
        ones."""
        if self.ranks.main:
            with self.ledger.timed("checkpoint"):
                self.log.flush()
                self.ledger.wrote_checkpoint(checkpoint.save(self.folder, self.update, self._state()))
        self.saved = Place(self.update, self.taken, self.ledger.wall_s)

    def _state(self) -> dict[str, Any]:
        return {
            "update": self.update,
            "taken": self.taken,
            "actor": dict(self._trained()),
            "steps": self.steps.state(),
            "kl": self.kl.state(),
            "guard": self.guard.state(),
            "old_kl": self.old_kl.state(),
            "entropy": self.entropy.state(),
            "floor": self.floor.state(),
            "stop": self.stop.state(),
            "warned": self.warned,
            "offset": self.log.offset,
            "samples": self.samples,
            "spent": self.ledger.state(),
        }

    def state(self) -> dict[str, Any]:
        """What the next round begins with; what was spent is apart, since no two runs spend the same seconds."""
        return {name: value for name, value in self._state().items() if name != "spent"}

    def _resume(self) -> None:
        """Go on from the newest checkpoint that is sound. The main process looks first, and repairs; the others find
        what it left."""
        if self.ranks.main:
            self._open()
        self.ranks.wait()
        if not self.ranks.main:
            state = checkpoint.load_latest(self.folder, self.watch.warn)
            assert state is not None
            self._load(state)

    def _open(self) -> None:
        state = checkpoint.load_latest(self.folder, self.watch.warn)
        if state is not None:
            try:
                self.log = self.open_log(state["offset"])
            except (ValueError, FileNotFoundError) as error:
                self.watch.warn(f"the metrics do not fit the checkpoint ({error}); starting over")
                shutil.rmtree(self.folder)
                state = None
        if state is None:
            self._begin()
            return
        self._load(state)
        self.watch.progress("train", self.planned, self.cfg.train.steps, RESUMED)

    def _begin(self) -> None:
        """Start as the trial does, or where the round before ended, with a checkpoint of that."""
        if self.part.begin is None:
            self.log = self.open_log(0)
        else:
            state = self.part.begin()
            self.log = self.open_log(state["offset"])
            self._load(state)
        self._checkpoint()

    def _load(self, state: dict[str, Any]) -> None:
        self._load_learner(state)
        self.stop.load(state["stop"])
        self.samples, self.warned = list(state["samples"]), state["warned"]
        self.ledger.load(state["spent"])
        self.healthy, self.saved = Place(self.update, self.taken), Place(self.update, self.taken, self.ledger.wall_s)

    def _load_learner(self, state: dict[str, Any]) -> None:
        self.update, self.taken = state["update"], state["taken"]
        self._restore(state["actor"])
        self.steps.load(state["steps"])
        self.kl.load(state["kl"])
        self.guard.load(state["guard"])
        self.old_kl.load(state["old_kl"])
        self.entropy.load(state["entropy"])
        self.floor.load(state["floor"])

    def _rewind(self) -> int:
        """Bring back the weights that made the last healthy rollout, and return their planned step.

        They are trained again from the newest checkpoint. Few trials diverge; a copy of the weights in every update of
        every trial would cost memory on the card, or time on its bus.
        """
        ended = Place(self.update, self.taken)
        self.ranks.wait()
        state = checkpoint.load_latest(self.folder, self.watch.warn)
        if state is None:
            raise RuntimeError(f"the last healthy weights are lost: no checkpoint in {self.folder} can be read")
        self._load_learner(state)
        try:
            while self.update < self.healthy.update:
                self._learn(self._rollout(), lambda step, values: None)
        except (Diverged, MemoryFull) as error:
            # On a card, sums need not be rounded alike twice, nor is as much memory free; the checkpoint's own weights
            # are healthy ones.
            self._check_shared(error)
            self._load_learner(state)
        kept, self.update, self.taken = self.planned, ended.update, ended.taken
        return kept

    def _check_shared(self, error: Exception) -> None:
        """Raise a lack of memory that this process alone has seen: the others wait for it, and are ended by whoever
        started them."""
        if self.ranks.count > 1 and isinstance(error, MemoryFull) and not isinstance(error, MemoryFullSomewhere):
            raise error

    def _trained(self) -> Iterator[tuple[str, Tensor]]:
        """What training moves; all else is as the trial found it, and in no checkpoint."""
        return ((name, tensor.detach()) for name, tensor in self.actor.named_parameters() if tensor.requires_grad)

    def state_bytes(self) -> int:
        """Memory of what training keeps from step to step, counted from the tensors: the weights of policy, critic and
        reference, of the policy that a later round began with, and the gradients and the optimiser's state of what is
        trained. Frozen networks that are off the card are not counted."""
        frozen = () if self.rollout_context.away else (self.rollout_context.reference, self.part.start)
        held = (self.actor, *frozen)
        networks = [module for module in held if isinstance(module, nn.Module)]
        kept = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
        kept += [tensor for _, tensor in self._trained()]
        states = self.steps.optimiser.state.values()
        moments = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        if not moments:  # a trial that diverged in its first update has gone back to before its first step
            moments = [tensor for _, tensor in self._trained() for _ in ("mean", "square")]
        return sum(tensor.nbytes for tensor in (*kept, *moments))

    def _restore(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self._trained():
                tensor.copy_(weights[name])


def _v_star(cfg: TrialConfig, samples: ReferenceScores | None, prompts: int) -> Tensor | None:
    """V* of every training prompt, (n,), or None where the advantage needs none. Raises `ValueError` for samples that
    are not those of the prompts."""
    if not cfg.algorithm.needs_values:
        return None
    found = 0 if samples is None else len(samples.proxy)
    if samples is None or found != prompts:
        raise ValueError(f"advantage '{cfg.algorithm.advantage}': scored samples of {found} of {prompts} prompts")
    return samples.v_star(cfg)


def _groups(actor: ActorCritic, cfg: TrialConfig) -> list[dict[str, Any]]:
    """Parameters by base learning rate. The value head starts at zero and may have to move faster than the trunk it
    reads. A shared value head is braked with the policy, because its gradient flows through the policy's trunk."""
    rates = ((actor.lm, None), (actor.value_head, cfg.critic.head_lr), (actor.critic_trunk, cfg.critic.lr))
    groups = []
    for module, own in rates:
        if module is not None:
            rate = cfg.optimiser.lr if own is None else own
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            moves_policy = module is actor.lm or actor.critic_trunk is None
            groups.append({"params": trained, "lr": rate, "base_lr": rate, "moves_policy": moves_policy})
    return groups
