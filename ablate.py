"""The front door: one command that mounts the commands of the studies and of the reports, and the last place for an
exception."""

from __future__ import annotations

import atexit
import errno
import functools
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from pipeline.errors import BROKEN_PIPE, FAULT, INTERRUPTED, USER_ERROR, Fault, UserError
from pipeline.wording import brief, printable, shown
from studies.console import cli

if TYPE_CHECKING:
    from pipeline.run.layout import StudyFolder
    from studies.definition.schema import Study

TRACEBACK = "ABLATE_TRACEBACK"
"""Environment variable; where it is set, a fault also prints its traceback."""


class _Commands(TyperGroup):
    """Commands whose refusals show no character of a word as a terminal would obey it."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _printable_refusals():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _printable_refusals():
            return super().invoke(ctx)


@contextmanager
def _printable_refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            error.message = printable(message)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    cls=_Commands,
    help="Ablation studies of RLHF for small language models.",
    epilog=(
        "Exit codes: 0 success (falsify: all SURVIVED and SUPPORTED); 1 falsify: FALSIFIED or REFUTED; 2 an error to"
        " correct in the command, a file or the data; 3 falsify: NOT TESTED or UNDECIDED; 4 a fault of data, disk or"
        f" program, or a failed trial; {INTERRUPTED} interrupted. {TRACEBACK}=1 shows the traceback of a fault."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def report(name: cli.StudyArgument, profile: cli.ProfileOption = None, out: cli.OutOption = None) -> None:
    """Draw a study's report again.

    From its records, without training.
    """
    from reports.pages.report import render_report

    print(printable(f"Report: {render_report(*_found(name, profile, out))}"))


def publish(
    name: cli.StudyArgument,
    to: Annotated[Path, typer.Option("--to", help="Folder of all published studies.")] = Path("reports/example"),
    profile: cli.ProfileOption = None,
    out: cli.OutOption = None,
) -> None:
    """Write a study's short page, and the data by which anyone can judge its claims again."""
    from reports.pages.published import publish as write

    print(printable(f"Page: {write(*_found(name, profile, out), to)}"))


def findings(
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder of the page and the published studies (default: OUT/findings).")
    ] = None,
    jobs: cli.JobsOption = None,
    out: cli.OutOption = None,
) -> None:
    """Run the studies that test findings of papers, and write one page of verdicts.

    At low priority. Finished trials are not repeated.
    """
    from pipeline.run.layout import Layout
    from reports.pages.findings import folders, published_hours, write_index
    from reports.pages.published import publish as write
    from studies.console.plan import outlook
    from studies.definition.schema import load_study

    os.nice(10)
    layout = Layout.at(out)
    root = (to or layout.root / "findings").absolute()
    wanted = {folder: (load_study(name), profile) for folder, (name, profile) in folders().items()}
    print(f"{len(wanted)} studies; the trials of those that are published took {published_hours():.1f} hours of a core")
    for folder, (study, profile) in wanted.items():
        print(f"{folder}: {outlook(study, profile, layout)}", flush=True)
    pages = dict[str, str]()
    for folder, (study, profile) in wanted.items():
        print(f"\n{folder}", flush=True)
        cli.study(study.name, profile, jobs=jobs, out=out)
        located = layout.study(study.name, profile or study.profile)
        write(located, study, root)
        pages[folder] = os.path.relpath(located.report / "index.html", root)
    print(printable(f"Page: {write_index(root, pages)}"))


def compare(
    names: Annotated[list[str], typer.Argument(metavar="STUDY", help="Names or YAML paths of studies.")],
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", help="Profile to use instead of the studies' own; repeat it to compare profiles."),
    ] = None,
    out: cli.OutOption = None,
) -> None:
    """Compare several studies, or one on several profiles, in one table.

    From their records, without training. The claims of one on several profiles stand side by side.
    """
    from pipeline.run.layout import Layout
    from reports.pages.compare import compare as write

    profiles: list[str | None] = [*profile] if profile else [None]
    located = [_found(name, on, out) for name in names for on in profiles]
    page, text = write(located, Layout.at(out).root / "compare")
    print(printable(f"{text}\nPage: {page}"))


def _found(name: str, profile: str | None, out: Path | None) -> tuple[StudyFolder, Study]:
    from pipeline.run.layout import Layout
    from reports.records.load import find_study

    return find_study(Layout.at(out), name, profile)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose exceptions end as one line on standard error and an exit code that no verdict has."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        try:
            try:
                command(**arguments)
            finally:
                # a closed pipe or a full disk raises here, and not after the exit code has been chosen
                sys.stdout.flush()
        except (typer.Exit, KeyboardInterrupt):
            raise
        except BrokenPipeError:  # `ablate ... | head` has seen enough
            _write_to_nowhere()
            sys.exit(BROKEN_PIPE)
        except UserError as error:
            _end(error, USER_ERROR)
        except Fault as error:
            _end(error, FAULT)
        except OSError as error:
            # errors at a path that names nothing and can name nothing: somebody gave it
            if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP) or error.filename is None:
                _explain(error, arguments)
            _end(UserError(f"'{shown(error.filename, 400)}': {error.strerror}; name another path"), USER_ERROR)
        except Exception as error:
            _explain(error, arguments)

    return run


def _explain(error: Exception, arguments: dict[str, Any]) -> NoReturn:
    from pipeline.run.layout import Layout
    from studies.faults import explained

    _end(explained(error, Layout.at(arguments.get("out")).root), FAULT, error)


def _end(error: Exception, code: int, cause: Exception | None = None) -> NoReturn:
    if code == FAULT and os.environ.get(TRACEBACK):
        traceback.print_exception(cause or error)
    print(f"ablate: {brief(str(error))}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _write_to_nowhere()  # what could not be written would raise again when Python ends
    sys.exit(code)


def _write_to_nowhere() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


for command in (
    cli.study,
    cli.work,
    cli.run,
    cli.plan,
    cli.new_study,
    cli.falsify,
    report,
    publish,
    findings,
    compare,
    cli.ui,
    cli.serve,
    cli.sync,
    cli.export,
    cli.score,
):
    app.command()(guarded(command))
app.command("import")(guarded(cli.import_command))


def _draw(study: Study, folder: StudyFolder) -> Path | None:
    """Draw the report of a study that has just ended."""
    from reports.pages.report import render_report

    return render_report(folder, study)


def _judge(folder: StudyFolder, study: Study) -> dict[str, Any]:
    """The verdicts on a study's hypotheses."""
    from reports.findings.hypotheses import judge
    from reports.records.load import load_records
    from reports.text.hypotheses import summary

    records = load_records(folder, study)
    return summary(records, judge(records))


def main() -> None:
    """Run a command and exit with its code."""
    atexit.register(gc.freeze)  # to look for cycles among all that ends with the process takes half a second
    cli.report_with(_draw, _judge)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
