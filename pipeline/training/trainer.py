"""The loop around the mathematics: rollout, update, metrics, checkpoint; resumable at any moment.

The steps are numbered as in pipeline/algorithms/README.md; 1 to 5 are in `rollout`, 6 in `update`. The trainer names no
algorithm and no regulariser: learners are found by `pipeline.algorithms.kinds.TRUST_REGIONS`, and what acts
beside the gradient is a part (`pipeline.training.part`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from pipeline.algorithms.kinds import TRUST_REGIONS
from pipeline.config.train import only_watched
from pipeline.config.trial import TrialConfig
from pipeline.models.loading import CausalLM
from pipeline.models.out_of_memory import MemoryFull, Room
from pipeline.models.policy import ActorCritic
from pipeline.models.precision import Precision
from pipeline.models.sampling import EagerSampler, choose_sampler
from pipeline.resources.ledger import BYTES_STEP, Ledger
from pipeline.run.progress import Leaving, Reporter, asked_to_leave
from pipeline.training.checkpoint import Checkpoints, TrainingState
from pipeline.training.experience import Experience, in_turn
from pipeline.training.health import Diverged, check_collapse, check_end, check_finite, check_start
from pipeline.training.judging import RolloutContext, ScoreFn, TrainingData
from pipeline.training.pairs import stored_experience
from pipeline.training.part import TAKEN, Terms, parts_of
from pipeline.training.processes import Ranks
from pipeline.training.rollout import Rollout, collect
from pipeline.training.rounds import Round, last_update
from pipeline.training.update import Learner


@dataclass
class Outcome:
    """Result of a trial's training."""

    status: str
    reason: str | None
    steps: int
    updates: int
    episodes: int
    tokens: int
    cap: dict[str, Any] | None
    """The cap that has ended the trial: its key, what was spent of it, and the step of the newest checkpoint."""
    samples: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """The training of one trial. Everything that changes while it runs is in `state`, and so in every checkpoint."""

    def __init__(
        self,
        cfg: TrialConfig,
        networks: tuple[ActorCritic, CausalLM],
        data: TrainingData,
        score: ScoreFn,
        out: Path,
        watch: Reporter,
        ledger: Ledger,
        round_: Round | None = None,
    ) -> None:
        """`networks`: the trained one and its reference; `out`: the folder of the metrics and the checkpoints;
        `round_`: the one that is trained, of a training with several."""
        actor, reference = networks
        self.device = next(actor.parameters()).device
        self.cfg, self.data, self.watch, self.ledger = cfg, data, watch, ledger
        self.actor, self.round = actor.to(self.device).eval(), round_ or Round(1, 1)
        self.precision, self.ranks = Precision.of(self.device), Ranks.of(self.device)
        self.end = last_update(cfg.train.updates, self.round.number, self.round.count)
        self.parts = parts_of(cfg)
        self.state = TrainingState(cfg, self.actor, self.parts, ledger)
        self.checkpoints = Checkpoints(out, self.state, self.ranks, watch, self.round.begin)
        rows = min(cfg.runtime.rollout_batch_size, cfg.train.batch_size)
        room = Room("runtime.rollout_batch_size", rows, watch.warn)
        eager = EagerSampler(self.actor.lm, cfg.train.temperature, room, **data.token_ids)
        sampler = choose_sampler(cfg.runtime.sampler, eager, self.precision, watch.warn)
        start = None if round_ is None else round_.start or reference
        self.rollout_context = RolloutContext(
            self.actor, reference, score, cfg, data, sampler, room, ledger.timed, self.ranks, start=start
        )
        rows = min(cfg.runtime.micro_batch_size, cfg.train.mini_batch_size)
        room = Room("runtime.micro_batch_size", rows, watch.warn)
        learner: type[Learner] = resolve_name(TRUST_REGIONS[cfg.algorithm.trust_region].learner)
        self.learner = learner(self.actor, self.state.steps, self.precision, self.ranks, cfg, self.parts, room)
        self.only_watched = only_watched(cfg)
        self.trained_size = sum(tensor.numel() for _, tensor in self.state.trained())
        self.reached = 0
        self.cap: dict[str, Any] | None = None
        self.last_step: Mapping[str, float] = {}

    def run(self) -> Outcome:
        """Train to the end, that of the round where there are several, a cap, a rule that stops it, or divergence; from
        the newest checkpoint where there is one."""
        try:
            self.checkpoints.resume()
            status, reason = self._train()
        finally:
            if self.checkpoints.log:
                self.checkpoints.log.close()
        state, tokens, cap = self.state, self.ledger.generated_tokens, self.cap
        episodes = state.update * self.cfg.train.batch_size
        ended = cap and {"key": cap["key"], "spent": cap["spent"], "step": self.checkpoints.saved.taken}
        return Outcome(status, reason, state.taken, state.update, episodes, tokens, ended, state.samples)

    def _train(self) -> tuple[str, str | None]:
        state, begun = self.state, self.state.update
        try:
            while state.update < self.end:
                cap = self.ledger.exceeded(self.cfg.caps)
                self.cap, leaves = self.ranks.agree((cap, asked_to_leave()))
                if self.cap is not None:
                    self._pause()
                    return "budget", self.cap["words"]
                if leaves and state.update > begun:
                    self._pause()
                    self.ranks.wait()  # a process that ends has the others killed
                    raise Leaving
                if broken := next(filter(None, (part.stop() for part in self.parts.values())), None):
                    self._check_end()
                    return "pruned", broken
                self._one_update()
            self._check_end()
        except Diverged as error:
            # The metrics up to the divergence stay as evidence.
            ended, self.cap = state.planned, None
            kept = self._rewind()
            self.ledger.mark()
            return "diverged", f"{error} in the update after step {ended}; the policy kept is that of step {kept}"
        except MemoryFull as error:
            state.taken = max(state.taken, self.reached)
            self.ledger.mark()
            self.cap = {"key": "memory_gib", "spent": self.cfg.caps.memory_gib}
            return "budget", str(error)
        self.ledger.mark()
        return "complete", None

    def _pause(self) -> None:
        """Leave a checkpoint from which a larger cap goes on; one more rollout checks that the last step has not broken
        the network."""
        self._look(self._rollout())
        if self.state.update > self.checkpoints.saved.update:
            self.checkpoints.save()

    def _one_update(self) -> None:
        rollout = self._rollout()
        self._look(rollout)
        if self.checkpoints.due(self.cfg.runtime):
            self.checkpoints.save()
        start = self.state.planned
        self._write(start, rollout.metrics)  # 7 metrics
        self.state.keep_samples(rollout.scores)
        if after := self._learn(rollout):
            self._write(self.state.planned, after)
        self.ledger.generated_tokens += 0 if self.only_watched else rollout.sampled_tokens
        if self.checkpoints.log:
            self.checkpoints.log.flush(durable=False)
        self.watch.metrics(start, {**rollout.metrics, **self.last_step})
        self.watch.progress("train", self.state.planned, self.cfg.train.steps)

    def _rollout(self) -> Rollout:
        terms, parts = Terms(), self.parts.values()
        for part in parts:
            part.rollout(self.state.update, terms)
        self.rollout_context = context = replace(self.rollout_context, terms=terms)
        if self.only_watched:  # neither the work of rollouts nor their tokens are counted
            context = replace(context, timed=lambda phase: self.ledger.timed("watch"))
        with self.precision.autocast():
            rollout = collect(context, self._prompts(), self.state.update)
        shown = {metric: getattr(part, name) for part in parts for metric, name in part.shows}
        return replace(rollout, metrics={**rollout.metrics, **shown})

    def _experience(self, rollout: Rollout) -> Experience:
        if self.data.pairs is None:
            return rollout
        with self.precision.autocast():
            return stored_experience(self.rollout_context, self.data.pairs, self.state.update)

    def _learn(self, rollout: Rollout) -> dict[str, float]:
        """Take the steps of an update. Returns what parts have to record behind it."""
        state, learner, parts = self.state, self.learner, self.parts.values()
        experience = self._experience(rollout)
        with self.ledger.timed("train"):
            taken = learner.learn(experience, state.update, self._on_step)
            names = sorted({name for part in parts for name in part.measurements})
            extra = {name: learner.MEASUREMENTS[name](learner, experience) for name in names}
        check_finite(extra)
        state.taken += taken
        state.update += 1
        # 8 parts take the update into account
        measured, moved = {**rollout.metrics, **extra, TAKEN: float(taken)}, not learner.holds(state.planned - 1)
        return {name: value for part in parts for name, value in part.after(measured, moved).items()}

    def _look(self, rollout: Rollout) -> None:
        if self.state.update == 0:
            with self.ledger.timed("selfcheck"), self.precision.autocast():
                check_start(rollout, self.actor, self.cfg.train.temperature, self.precision.tolerance)
        check_collapse(rollout.metrics)

    def _check_end(self) -> None:
        with self.ledger.timed("selfcheck"), self.precision.autocast():
            check_end(*self.rollout_context.prompts(self._prompts()), self.actor, self.cfg.train.temperature)

    def _on_step(self, step: int, values: dict[str, float]) -> None:
        self._write(step, values)
        self.last_step = {**self.last_step, **values}  # some steps are of a critic alone
        self.reached = self.state.taken + step - self.state.planned
        self.ledger.work(0.0, float(self.trained_size * BYTES_STEP))

    def _prompts(self) -> Tensor:
        """Numbers of the prompts of the current update, (B,) int64: each pass over all prompts in a fresh order, each
        as often as it gets responses."""
        each, size = self.cfg.train.responses_per_prompt, self.cfg.train.batch_size
        numbers = in_turn(len(self.data.queries), size // each, self.state.update, self.cfg.train.seed, "prompts")
        return numbers.repeat_interleave(each)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self.checkpoints.log:
            self.checkpoints.log.append(step, values)
        for part in self.parts.values():
            part.recorded(step, values)

    def _rewind(self) -> int:
        """Bring back the weights of the newest checkpoint, whose rollout was healthy, and return their planned step."""
        state, ended = self.state, self.state.progress
        self.ranks.wait()
        content = self.checkpoints.newest()
        if content is None:
            raise RuntimeError("the last healthy weights are lost: no checkpoint can be read")
        state.load_learner(content)
        kept, state.update, state.taken = state.planned, ended.update, ended.taken
        return kept
