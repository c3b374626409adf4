"""What all pages share: the template environment, plain pages of sentences and tables, and how a folder of results is
swapped in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jinja2
from filelock import FileLock

from pipeline.errors import UserError
from pipeline.faults import is_disk_full
from reports.tables.table import Table, markdown, write
from reports.text.words import number

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Part:
    """A section of a plain page."""

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Page:
    """A page of sentences and tables."""

    title: str
    eyebrow: str
    lead: str
    caveats: tuple[str, ...]
    parts: tuple[Part, ...]


def environment() -> jinja2.Environment:
    """Jinja with everything escaped and the filters that the templates use."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["number"] = number
    env.filters["visible"] = visible
    return env


def visible(text: str) -> str:
    """Replace control characters, which no page can show, by the replacement character."""
    return "".join("�" if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 else c for c in text)


def write_page(page: Page, folder: Path) -> Path:
    """``index.html``, ``index.md`` and ``tables/*`` of a plain page, swapped in whole; returns the path of the page."""

    def build(new: Path) -> None:
        write([table for part in page.parts for table in part.tables], new / "tables")
        write_text(new / "index.html", environment().get_template("plain.html.j2").render(page=page))
        write_text(new / "index.md", markdown_page(page))

    replace_folder(folder, build)
    return folder / "index.html"


def replace_folder(folder: Path, build: Callable[[Path], None]) -> None:
    """Let `build` fill a folder beside, which then takes the old one's place: when it is interrupted, the old one stays
    whole.

    Raises `UserError` when that cannot be written.
    """
    new, old = (folder.with_name(f".{folder.name}.{word}") for word in ("new", "old"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if old.exists() and not folder.exists():
                old.replace(folder)  # an earlier swap was interrupted between its two steps
            shutil.rmtree(old, ignore_errors=True)
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            build(new)
            if folder.exists():
                folder.replace(old)
            new.replace(folder)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise UserError(f"the report cannot be written to {folder}: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """Write and wait until it is on the disk; line ends are the same on every system."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def markdown_page(page: Page) -> str:
    """The same content as text."""
    lines = [
        f"# {page.title}",
        "",
        page.eyebrow,
        "",
        f"**{page.lead}**",
        "",
        *(f"- {caveat}" for caveat in page.caveats),
        "",
    ]
    for part in page.parts:
        lines += [f"## {part.title}", "", *(line for sentence in part.sentences for line in (sentence, ""))]
        for table in part.tables:
            lines += [markdown(table), table.note, ""]
    return "\n".join(lines)
