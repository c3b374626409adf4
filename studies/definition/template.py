"""A new study: a commented file of one of the four designs, valid as it stands."""

from __future__ import annotations

from pathlib import Path

import jinja2

from pipeline.config.names import SYMBOLS, nearest
from pipeline.errors import UserError
from pipeline.run.layout import safe
from studies.definition.editor_schema import header, write_schema
from studies.definition.schema import CONFIRMATION, study_names

TEMPLATE = Path(__file__).with_name("study.yaml.j2")
DESIGNS = ("arms", "grid", "factors", "search")


def new_study(name: str, design: str, folder: Path) -> Path:
    """Write ``<folder>/<name>.yaml`` and return its path.

    Raises `UserError` for a name that cannot be a file's or is that of a shipped study, for an unknown design,
    and for a file that exists: nothing is ever overwritten.
    """
    if design not in DESIGNS:
        raise UserError(f"--design '{design}'{nearest(design, DESIGNS)}; there are: {', '.join(DESIGNS)}")
    path = folder / f"{safe(name.removesuffix('.yaml'))}.yaml"
    if path.stem.endswith(CONFIRMATION):
        raise UserError(f"'{path.stem}': names that end with {CONFIRMATION} are those of confirmations; choose another")
    if path.stem in study_names():
        raise UserError(
            f"'{path.stem}' is the name of a study that comes with the project; choose another, for example"
            f" {path.stem}_mine"
        )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(path, design))
    except FileExistsError:
        raise UserError(f"{path} exists and is not overwritten; choose another name, or remove it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    write_schema()
    return path


def template(path: Path, design: str) -> str:
    """The text of a new study."""
    source = jinja2.Template(TEMPLATE.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True)
    text: str = source.render(design=design, header=header(path), name=path.stem, symbols=SYMBOLS)
    return text
