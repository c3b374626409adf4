"""The command `import`; `ablate.py` mounts it. Imports nothing heavy itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from studies.console.cli import OutOption

SHOWN = 40


def import_command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Folder with one log per arm and seed (ARM/seed_N.jsonl, ARM-seedN.csv, ...), or a table with columns"
            " arm and seed.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str,
        typer.Option(
            "--name", help="Name or path of the study; NAME.yaml is written if it does not exist.", show_default=False
        ),
    ],
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map", help="YAML file that says which column holds which metric; columns of known programs need none."
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            "--program",
            help="Which program's names the logs use: trl-ppo, trl-grpo, trl-rloo, verl or openrlhf. Default: the one"
            " that their columns show.",
            show_default=False,
        ),
    ] = None,
    steps_per_update: Annotated[
        int | None,
        typer.Option("--steps-per-update", min=1, help="Gradient steps per update (epochs x mini-batches)."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", help="Pattern of files to read, such as '*.csv'; repeatable.", show_default=False),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", help="Pattern of files to leave out; repeatable.", show_default=False),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Remove all trials recorded under this name; only those of this import remain."),
    ] = False,
    out: OutOption = None,
) -> None:
    """Import training logs and per-prompt results of other programs, such as TRL, verl and OpenRLHF.

    Logs are JSON, JSON lines, CSV or parquet. A second import under the same name adds its trials.
    """
    from rich.text import Text

    from pipeline.run.layout import Layout
    from studies.console.cli import terminal
    from studies.importing.problems import grouped
    from studies.importing.run import import_folder
    from studies.importing.sync import send

    layout, console = Layout.at(out), terminal()

    def warn(message: str) -> None:
        console.print(Text(message, "yellow"), soft_wrap=True)

    done = import_folder(
        folder,
        name,
        layout,
        map_file,
        warn,
        over=replace,
        program=program,
        steps_per_update=steps_per_update,
        include=list(include or ()),
        exclude=list(exclude or ()),
    )
    lines = grouped(done.problems)
    for line in lines[:SHOWN]:
        console.print(Text(line, "yellow"), soft_wrap=True)
    if done.problems:
        rest = f"{len(lines) - SHOWN} more, and " if len(lines) > SHOWN else ""
        console.print(
            Text(f"{rest}every occurrence by file: {done.folder.path / 'problems.csv'}", "yellow"), soft_wrap=True
        )
    for line in (*done.account, *done.lines):
        console.print(Text(line), soft_wrap=True)
    send(done, layout, warn)
