"""Whether a report has to be drawn again. Imports nothing that draws: a report that stands as it was made is only
looked at.

Beside a report lies ``.drawn.json``: one digest of all that it was made from (study, records, every file of their
artifacts but weights, our code, versions of libraries) and the digest of each file that was written. All of it is read,
not only looked up.
"""

from __future__ import annotations

import gc
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.errors import WITHOUT_MISSING, Fault, UserError
from pipeline.run.layout import Layout, StudyFolder, read_json, write_json
from pipeline.run.store import WEIGHTS
from studies.definition.schema import Study

CODE = ("reports", "studies", "pipeline")
LIBRARIES = ("fonttools", "Jinja2", "matplotlib", "numpy", "pandas", "pillow", "pyarrow", "scipy", "seaborn")
STAMP = ".drawn.json"


def current_report(folder: StudyFolder, study: Study, *, without_missing: bool = False) -> Path:
    """Return the page of a study's report, drawn where it is not there as its records give it.

    `without_missing`: leave out what is no longer on disk. Raises what `reports.pages.report.render_report` does.
    """
    origin = made_from(folder, study) + (WITHOUT_MISSING if without_missing else "")
    stamp = _read(folder.path / STAMP)
    intact = intact_files(folder.report, stamp) if stamp.get("made_from") == origin else set()
    page = folder.report / "index.html"
    if intact and intact == set(stamp["files"]) == {name for name, _ in _files(folder.report)}:
        return page
    with seldom_collecting():
        from reports.pages.report import render_report

        page = render_report(folder, study, without_missing=without_missing)
    write_json(
        folder.path / STAMP,
        {"made_from": origin, "files": {name: _digest(path) for name, path in _files(folder.report)}},
    )
    return page


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """What a report imports and makes, it needs to its end: to look for garbage after every 700 new objects takes a
    tenth of its time."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def intact_files(folder: Path, stamp: Mapping[str, Any]) -> set[str]:
    """The files of a folder whose content is that of the stamp, by their path in it."""
    files = stamp.get("files")
    return {name for name, path in _files(folder) if isinstance(files, dict) and files.get(name) == _digest(path)}


def made_from(folder: StudyFolder, study: Study) -> str:
    """One digest of all that a report of this study is made from."""
    digest = hashlib.sha256()
    for part in _parts(folder, study):
        digest.update(f"{len(part)}:".encode() + part)
    return digest.hexdigest()


def _parts(folder: StudyFolder, study: Study) -> Iterator[bytes]:
    yield study.model_dump_json().encode()
    yield json.dumps({"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}}).encode()
    root = Path(__file__).parents[2]
    for path in sorted(
        path
        for package in CODE
        for path in (root / package).rglob("*")
        if path.suffix in (".py", ".j2", ".csv", ".mplstyle")
    ):
        yield from _named(path, root)
    records = sorted((folder.path / "trials").glob("*.json"))
    for path in (folder.study_file, folder.search_file, folder.registration_file, *records):
        yield from _named(path, folder.path)
    if study.confirms:
        yield from _named(Layout(folder.root).study(study.confirms, folder.path.name).claims_file, folder.root)
    for artifact in sorted({path for record in records for path in _artifacts(record)}):
        for _, path in _files(folder.root / artifact):
            if path.suffix != WEIGHTS:
                yield from _named(path, folder.root)


def _named(path: Path, root: Path) -> Iterator[bytes]:
    """A file's name and the digest of its content; the name alone where there is no such file."""
    yield path.relative_to(root).as_posix().encode()
    if path.is_file():
        yield _digest(path).encode()


def _artifacts(record: Path) -> list[str]:
    """Paths, below the output root, of the artifacts that a trial's record names; those that lead elsewhere are left to
    who reads them."""
    stages = _read(record).get("stages")
    paths = (
        [stage.get("path") for stage in stages.values() if isinstance(stage, dict)] if isinstance(stages, dict) else []
    )
    return [
        path
        for path in paths
        if isinstance(path, str) and not Path(path).is_absolute() and ".." not in Path(path).parts
    ]


def _files(folder: Path) -> list[tuple[str, Path]]:
    return sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_file())


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is none, or nothing that can be understood."""
    with suppress(Fault):
        return read_json(path)
    return {}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
