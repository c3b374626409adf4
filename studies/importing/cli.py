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
        typer.Argument(help="Holds a log per arm and seed: ARM/seed_N.jsonl, ARM-seedN.csv, ...", show_default=False),
    ],
    name: Annotated[
        str,
        typer.Option(
            "--name", help="The study: NAME.yaml here, or its path. Written when there is none.", show_default=False
        ),
    ],
    map_file: Annotated[
        Path | None, typer.Option("--map", help="YAML of names, units and factors; TRL's names need none.")
    ] = None,
    steps_per_update: Annotated[
        int | None,
        typer.Option("--steps-per-update", min=1, help="Gradient steps in one update: epochs x mini-batches."),
    ] = None,
    out: OutOption = None,
) -> None:
    """Bring records of other programs into the store: TRL's logged keys, as JSON, JSON lines or CSV."""
    from rich.text import Text

    from pipeline.run.layout import Layout
    from studies.console.cli import terminal
    from studies.importing.problems import grouped
    from studies.importing.run import import_folder
    from studies.importing.sync import send

    layout, console = Layout.at(out), terminal()

    def warn(message: str) -> None:
        console.print(Text(message, "yellow"), soft_wrap=True)

    done = import_folder(folder, name, layout, map_file, steps_per_update, warn)
    lines = grouped(done.problems)
    for line in lines[:SHOWN]:
        console.print(Text(line, "yellow"), soft_wrap=True)
    if done.problems:
        rest = f"{len(lines) - SHOWN} more, and " if len(lines) > SHOWN else ""
        console.print(
            Text(f"{rest}every occurrence by file: {done.folder.path / 'problems.csv'}", "yellow"), soft_wrap=True
        )
    if done.unused:
        console.print(Text(f"not imported, as no metric is named so: {', '.join(done.unused)}"), soft_wrap=True)
    for line in done.lines:
        console.print(Text(line), soft_wrap=True)
    send(done, layout, warn)
