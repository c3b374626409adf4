"""The loop around the mathematics: rollout, update, metrics, controllers, checkpoint; resumable at any moment.

The steps are numbered as in pipeline/ppo/README.md; 1 to 5 are in `rollout`, 6 in `update`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from pipeline.budget import Ledger
from pipeline.config import PpoConfig, RuntimeConfig
from pipeline.models.loading import CausalLM, mixed_precision
from pipeline.models.policy import ActorCritic
from pipeline.models.seeding import permutation
from pipeline.ppo import checkpoint
from pipeline.ppo.controllers import KlController, LrGuard
from pipeline.ppo.rollout import Diverged, Rollout, ScoreFn, collect
from pipeline.ppo.update import train_on

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
    samples: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """One PPO trial. Everything that changes while it runs is in `_state`, and so in every checkpoint."""

    def __init__(
        self,
        cfg: PpoConfig,
        runtime: RuntimeConfig,
        policy: CausalLM,
        reference: CausalLM,
        score: ScoreFn,
        queries: Tensor,
        query_mask: Tensor,
        token_ids: dict[str, int],
        open_log: Callable[[int], Log],
        watch: Watch,
        ledger: Ledger,
        checkpoints: Path,
    ) -> None:
        """queries (n, P) and query_mask (n, P): all training prompts, left-padded, on the CPU.

        `open_log` opens the metrics file at an offset and cuts off what stood behind it; 0 is a fresh file.
        """
        from accelerate import Accelerator

        device = next(policy.parameters()).device
        self.cfg, self.runtime, self.device = cfg, runtime, device
        self.reference, self.score, self.queries, self.query_mask = reference, score, queries, query_mask
        self.token_ids, self.open_log, self.watch, self.ledger, self.folder = token_ids, open_log, watch, ledger, checkpoints
        self.accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=mixed_precision(device))
        actor = ActorCritic(policy).to(device).eval()
        optimiser = torch.optim.Adam(_groups(actor, cfg), eps=cfg.adam_eps, fused=True)
        self.actor, self.optimiser = self.accelerator.prepare(actor, optimiser)
        self.kl, self.guard = KlController.of(cfg), LrGuard.of(cfg)
        self.update = 0
        self.samples: list[dict[str, Any]] = []
        self.last_step: Mapping[str, float] = {}
        self._keep_good()

    def run(self) -> Outcome:
        """Train to the end, a cap, or divergence; from the newest checkpoint where there is one."""
        self._resume()
        try:
            status, reason = self._train()
        finally:
            self.log.close()
        steps, episodes = self.update * self.cfg.steps_per_update, self.update * self.cfg.batch_size
        return Outcome(status, reason, steps, self.update, episodes, self.ledger.generated_tokens, self.samples)

    def _train(self) -> tuple[str, str | None]:
        while self.update < self.cfg.updates:
            reason = self.ledger.exceeded(self.cfg)
            if reason:
                return "budget", reason
            try:
                self._one_update()
            except Diverged as error:
                kept = self._back_to_last_good()
                steps = self.update * self.cfg.steps_per_update
                return "diverged", f"{error} in the update after step {steps}; the policy kept is that of step {kept}"
            if self.update % self.runtime.checkpoint_updates == 0 or self.update == self.cfg.updates:
                self._checkpoint()
        return "complete", None

    def _one_update(self) -> None:
        cfg, rows = self.cfg, self._prompt_rows()
        queries, mask = self.queries[rows].to(self.device), self.query_mask[rows].to(self.device)
        with self.accelerator.autocast():
            rollout = collect(
                self.actor_critic,
                self.reference,
                self.score,
                queries,
                mask,
                rows.tolist(),
                self.update,
                self.kl.kl_coef,
                cfg,
                self.runtime.rollout_batch_size,
                self.token_ids,
                self.ledger.timed,
            )
        self._keep_good()
        start = self.update * cfg.steps_per_update
        self._write(start, rollout.metrics)  # 7 metrics
        self._keep_samples(start, rollout)
        with self.ledger.timed("train"):
            train_on(
                rollout,
                self.actor,
                self.optimiser,
                self.accelerator,
                cfg,
                self.update,
                self.guard,
                self.runtime.micro_batch_size,
                self._write,
            )
            self._probe(rollout)
        # 8 controllers step
        self.kl.observe(rollout.metrics["objective/kl"], cfg.batch_size)
        self.guard.observe(rollout.metrics["objective/kl_per_token"])
        self.ledger.count_update(cfg, int(mask.sum()), int(rollout.episodes.response_mask.sum()))
        self.update += 1
        self.log.flush(durable=False)
        self.watch.metrics(start, {**rollout.metrics, **self.last_step})
        self.watch.progress("ppo", start + cfg.steps_per_update, cfg.steps)

    @property
    def actor_critic(self) -> ActorCritic:
        """The networks being trained, without wrappers."""
        actor: ActorCritic = self.accelerator.unwrap_model(self.actor)
        return actor

    def _prompt_rows(self) -> Tensor:
        """Prompts of the current update: each pass over all prompts in a fresh order, (batch_size,) int64."""
        n, size = len(self.queries), self.cfg.batch_size
        places = range(self.update * size, (self.update + 1) * size)
        orders = {turn: permutation(n, self.cfg.seed, "prompts", turn) for turn in {place // n for place in places}}
        return torch.stack([orders[place // n][place % n] for place in places])

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        self.log.append(step, values)
        self.last_step = values

    def _keep_samples(self, step: int, rollout: Rollout) -> None:
        every = max(self.cfg.updates // SAMPLE_TABLES, 1)
        if self.update % every:
            return
        scores = rollout.scores
        columns: Sequence[Sequence[Any]] = (scores.prompts, scores.texts, scores.proxy.tolist(), scores.gold.tolist())
        for prompt, text, proxy, gold in list(zip(*columns, strict=True))[:SAMPLE_ROWS]:
            self.samples.append({"step": step, "prompt": prompt, "completion": text, "proxy": proxy, "gold": gold})

    def _checkpoint(self) -> None:  # 9 checkpoint
        self.log.flush()
        checkpoint.save(self.folder, self.update, self._state())

    def _state(self) -> dict[str, Any]:
        scaler = self.accelerator.scaler
        return {
            "update": self.update,
            "actor": self.actor_critic.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else {},
            "kl": self.kl.state(),
            "guard": self.guard.state(),
            "offset": self.log.offset,
            "samples": self.samples,
            "spent": self.ledger.state(),
        }

    def _resume(self) -> None:
        state = checkpoint.load_latest(self.folder, self.watch.warn)
        if state is not None:
            try:
                self.log = self.open_log(state["offset"])
            except (ValueError, FileNotFoundError) as error:
                self.watch.warn(f"the metrics do not fit the checkpoint ({error}); starting over")
                shutil.rmtree(self.folder)
                state = None
        if state is None:
            self.log = self.open_log(0)
            self._checkpoint()
            return
        self._load(state)
        self.watch.progress("ppo", self.update * self.cfg.steps_per_update, self.cfg.steps, "resumed")

    def _load(self, state: dict[str, Any]) -> None:
        self.update = state["update"]
        self.actor_critic.load_state_dict(state["actor"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.kl.load(state["kl"])
        self.guard.load(state["guard"])
        self.samples = list(state["samples"])
        self.ledger.load(state["spent"])
        self._keep_good()

    def _keep_good(self) -> None:
        """Remember the weights that have just made a finite rollout, on the CPU."""
        weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.actor_critic.state_dict().items()}
        self.good = (self.update, weights)

    def _probe(self, rollout: Rollout) -> None:
        """Find out that the last step broke the network now, while the good weights of this update are at hand.

        Raises `Diverged`. Otherwise the next rollout would find out, and a resumed trial would have no good weights then.
        """
        with torch.no_grad(), self.accelerator.autocast():
            log_pi, values = self.actor_critic(rollout.episodes.take(slice(0, 2)), self.cfg.temperature)
        if not bool(torch.isfinite(log_pi).all() and torch.isfinite(values).all()):
            raise Diverged("not finite: the policy after its last step")

    def _back_to_last_good(self) -> int:
        """Restore the kept weights and return their gradient steps; the metrics up to the divergence stay as evidence."""
        update, weights = self.good
        self.actor_critic.load_state_dict(weights)
        return update * self.cfg.steps_per_update


def _groups(actor: ActorCritic, cfg: PpoConfig) -> list[dict[str, Any]]:
    """Parameters by base learning rate. The value head starts at zero and may have to move faster than the trunk it reads."""
    head_lr = cfg.lr if cfg.value_head_lr is None else cfg.value_head_lr
    return [
        {"params": list(actor.lm.parameters()), "lr": cfg.lr, "base_lr": cfg.lr},
        {"params": list(actor.value_head.parameters()), "lr": head_lr, "base_lr": head_lr},
    ]
