"""The front door: one command that mounts the commands of the studies and of the reports."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.errors import UserError
from studies import cli
from studies.importing.cli import import_command

if TYPE_CHECKING:
    from pipeline.layout import StudyFolder
    from studies.schema import Study

INTERRUPTED = 130
USER_ERROR = 2
BROKEN_PIPE = 141

app = typer.Typer(
    help="Ablation studies of PPO-based RLHF on small language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


StudiesArgument = Annotated[list[str], typer.Argument(metavar="STUDY...", help="Names or YAML paths of studies.", show_default=False)]
OptionalStudy = Annotated[
    str | None, typer.Argument(metavar="[STUDY]", help="A study's name, or the path of a YAML file.", show_default=False)
]
DiffOption = Annotated[
    tuple[str, str] | None,
    typer.Option("--diff", metavar="OLD NEW", help="Compare two versions: study folders, output roots (STUDY chooses), or studies."),
]


def report(name: OptionalStudy = None, versions: DiffOption = None, profile: cli.ProfileOption = None, out: cli.OutOption = None) -> None:
    """Draw tables, figures and the page of a study again, from its records, or compare two versions of it; no training."""
    from reports import cli as reports

    if versions:
        page, text = reports.diff(*versions, study=name, profile=profile, out=out)
        print(f"{text}\nPage: {page}")
    elif name:
        print(f"Report: {reports.report(name, profile, out)}")
    else:
        raise UserError("report: name a study, or two versions of one with --diff OLD NEW")


def compare(names: StudiesArgument, profile: cli.ProfileOption = None, out: cli.OutOption = None) -> None:
    """Set several studies side by side in one table, from their records; no training."""
    from reports import cli as reports

    page, text = reports.compare(names, profile, out)
    print(f"{text}\nPage: {page}")


for command in (cli.study, cli.run, cli.plan, cli.new_study, cli.falsify, report, compare, cli.ui, cli.sync, cli.export):
    app.command()(command)
app.command("import")(import_command)


def _draw(study: Study, folder: StudyFolder) -> Path | None:
    """Draw the report of a study that has just ended."""
    from reports.fresh import current_report

    return current_report(folder, study)


def main() -> None:
    """Run a command; mistakes of the user end as one line and exit code 2, faults of ours as a plain traceback."""
    cli.draw_reports_with(_draw)
    try:
        app()
    except UserError as error:
        print(f"ablate: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `ablate ... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)


if __name__ == "__main__":
    main()
