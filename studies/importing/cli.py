"""The command `import`; `ablate.py` mounts it. Imports nothing heavy itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from studies.console.cli import OutOption


def import_command(
    folder: Annotated[Path, typer.Argument(help="Logs by arm and seed (ARM/seed_N.jsonl, ...), or one table.")],
    name: Annotated[str, typer.Option(help="Name or path of the study; NAME.yaml is written if it does not exist.")],
    map_: Annotated[str, typer.Option("--map", help="trl-ppo, trl-grpo, trl-rloo, verl, openrlhf, plain, or a .yaml.")],
    steps_per_update: Annotated[int | None, typer.Option(min=1, help="Gradient steps (epochs x mini-batches).")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Keep the trials of this import alone.")] = False,
    out: OutOption = None,
) -> None:
    """Import training logs and per-prompt results of other programs, such as TRL, verl and OpenRLHF.

    Logs are JSON, JSON lines, CSV or parquet. A second import under the same name adds its trials.
    """
    from rich.text import Text

    from pipeline.run.layout import Layout
    from studies.console.cli import terminal
    from studies.importing.run import import_folder

    _, lines = import_folder(folder, name, Layout.at(out), map_, steps_per_update, replace=replace)
    for line in lines:
        terminal().print(Text(line), soft_wrap=True)
