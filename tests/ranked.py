"""Functions that a launcher's processes run, and that do not always behave."""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.run.progress import Leaving, Reporter


def refuses(cfg: TrialConfig, out: Path, reporter: Reporter, inputs: object) -> None:
    raise UserError("train.batch_size: too small")


def breaks(cfg: TrialConfig, out: Path, reporter: Reporter, inputs: object) -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("the second one broke")
    time.sleep(600)


def dies(cfg: TrialConfig, out: Path, reporter: Reporter, inputs: object) -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def leaves(cfg: TrialConfig, out: Path, reporter: Reporter, inputs: object) -> None:
    """Leave as a trial that a scheduler has signalled, every process of it."""
    os.kill(os.getpid(), signal.SIGTERM)
    raise Leaving


def listens(cfg: TrialConfig, out: Path, reporter: Reporter, inputs: object) -> None:
    """Join the others, and write their messages and the addresses on which this process listens."""
    import psutil
    import torch

    from pipeline.training.processes import Ranks

    ranks, rank = Ranks.of(torch.device("cpu")), os.environ["RANK"]
    said = ranks.gathered([f"from {rank}, \u00e9 \ud800" * (1 + int(rank)), None, {"nan": float("nan")}])
    first = ranks.agree({"rank": rank})
    ports = [port.laddr.ip for port in psutil.Process().net_connections() if port.status == psutil.CONN_LISTEN]
    (out / f"{rank}.json").write_text(json.dumps([said, first, ports]))
    ranks.end()


def short_of_memory(cfg: TrialConfig, out: Path, reporter: Reporter, inputs: object) -> None:
    """The training stage, where the second process has memory for as many episodes as ROOM_FOR."""
    import torch

    from pipeline.models.policy import ActorCritic, Episodes

    real = ActorCritic.hidden_and_values

    def limited(actor: ActorCritic, episodes: Episodes) -> Any:
        if os.environ["RANK"] == "1" and torch.is_grad_enabled() and len(episodes.ended) > int(os.environ["ROOM_FOR"]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(actor, episodes)

    ActorCritic.hidden_and_values = limited  # type: ignore[method-assign]
    importlib.import_module("pipeline.stages.train").one_process(cfg, out, reporter, inputs)
