"""Functions that a launcher's processes run, and that do not always behave."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from pipeline.artifacts import Artifact
from pipeline.config import TrialConfig
from pipeline.errors import UserError
from pipeline.reporter import Reporter


def refuses(cfg: TrialConfig, out: Path, reporter: Reporter) -> None:
    raise UserError("ppo.batch_size: too small")


def breaks(cfg: TrialConfig, out: Path, reporter: Reporter) -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("the second one broke")
    time.sleep(600)


def speaks(cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact) -> None:
    print("a library that prints")
    reporter.progress("ppo", 1, 2, "half")
    reporter.warn(f"{prompts.stage} {prompts.path.name}")
    (out / os.environ["RANK"]).write_text(json.dumps([os.environ["WORLD_SIZE"], cfg.profile]))
