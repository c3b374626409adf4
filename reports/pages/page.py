"""The parts that all pages share: the templates, and how a folder of results is swapped in."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from filelock import FileLock

from pipeline.errors import UserError
from reports.tables.table import markdown
from reports.text.words import count, counted, listed, number, upper_first
from studies.faults import is_disk_full

TEMPLATES = Path(__file__).parent / "templates"


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Fill in a template; everything is escaped in HTML, and nothing in Markdown."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=template.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (count, counted, listed, markdown, minute, number, upper_first, visible)
    env.filters |= {function.__name__: function for function in filters}
    return env.get_template(template).render(values)


def minute(time: str) -> str:
    """A time stamp without its seconds.

    >>> minute("2026-11-25T13:22:08+00:00")
    '2026-11-25 13:22 UTC'
    """
    return f"{time[:16].replace('T', ' ')} UTC"


def visible(text: str) -> str:
    """Replace control characters, which no page can show, by the replacement character."""
    return "".join("�" if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 else c for c in text)


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


def inline_svg(path: Path, prefix: str) -> str:
    """The SVG element for a page: no XML head or metadata, and identifiers that cannot clash with another figure's."""
    text = path.read_text("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<title>.*?</title>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{prefix}-\2"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    box = re.search(r'viewBox="[^"]+"', text)
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f" {box.group() if box else ''}"
    )
    return head + ' aria-hidden="true" focusable="false">' + text[text.index(">") + 1 :]
