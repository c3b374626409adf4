from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ablate import app
from pipeline.config.loading import load_config, parse_set, profile_names
from studies.definition.design import planned
from studies.definition.schema import load_study, single, study_names

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for path in ROOT.rglob("*.md") if not {".venv", "outputs"} & set(path.relative_to(ROOT).parts))
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ |nice -n \d+ )*(make|(?:\.venv/bin/)?(?:ablate|python3? -m)) (?=\S)(.*)")
PLACEHOLDER = re.compile(r"[A-Z]+|mine(\.yaml)?|name(-or-file)?|STUDY/ARM/SEED")
"""Placeholders for a reader's own study, folder or trial."""
TRIAL = re.compile(rf"\b({'|'.join(study_names())})/([\w.+=-]+)/(\d+)\b")
GROUP: Any = typer.main.get_command(app)
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def commands(page: Path) -> Iterator[str]:
    """Commands in code blocks and in code spans; a table's column for `ablate` leaves that word out."""
    fenced, column = False, False
    for line in re.sub(r"\\\n\s*", "", page.read_text("utf-8")).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        spans = [line.strip()] if fenced or line.startswith("    ") else re.findall(r"`([^`]+)`", line)
        cell = re.match(r"\|[^|]*\| `([^`]+)`", line) if column else None
        column = line.startswith("|") and (column or "| `.venv/bin/ablate` |" in line)
        for text in [*spans, *([f"ablate {cell[1]}"] if cell and not COMMAND.match(cell[1]) else [])]:
            if COMMAND.match(text):
                yield text


EVERY = [(f"{page.relative_to(ROOT)}: {text}", text) for page in PAGES for text in dict.fromkeys(commands(page))]


@pytest.mark.parametrize("text", [text for _, text in EVERY], ids=[name for name, _ in EVERY])
def test_a_command_works_as_it_is_written(text: str) -> None:
    found = COMMAND.match(text)
    assert found is not None
    program, words = found[1], shlex.split(found[2], comments=True)
    if program == "make":
        target, *given = words
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"no target {target}"
        assert all(f"$({word.partition('=')[0]})" in MAKEFILE for word in given)
        made = ["make", "-n", "-o", ".venv/.stamp", "-o", ".venv/.stamp-dev", target, *given]
        lines = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        mention = target in ("serve", "new-study") and not given  # these need a value
        for line in lines:
            if (found := COMMAND.match(line)) and found[1].endswith("ablate") and not mention:
                _check(shlex.split(found[2]))
    elif program.endswith("ablate"):
        assert words[0] in GROUP.commands
        if words[1:]:
            _check(words)
    else:
        assert importlib.util.find_spec(words[0]) is not None


def _check(words: list[str]) -> None:
    name, *arguments = words
    asked = GROUP.commands[name].make_context(name, arguments).params
    given, settings = asked.get("profile"), parse_set(list(asked.get("settings") or []))
    profiles = [given] if isinstance(given, str) else [*(given or [None])]
    assert {*profiles} <= {None, *profile_names()}
    profile = profiles[0]
    if name == "run":
        single(profile, settings, 0)
        load_config(profile, settings)
    named = asked.get("names") or ([asked["name"]] if asked.get("name") and name not in ("new-study", "import") else [])
    for study in named:
        if not PLACEHOLDER.fullmatch(study):
            for on in profiles:
                planned(load_study(study), on, settings)
    for trial in (asked.get("what"), asked.get("run"), asked.get("reward")):
        assert not isinstance(trial, str) or TRIAL.fullmatch(trial) or PLACEHOLDER.fullmatch(trial)


MODULES = [path for room in ("pipeline", "studies", "reports") for path in sorted((ROOT / room).rglob("*.py"))]
SOURCES = [*PAGES, ROOT / "ablate.py", ROOT / "Makefile", *MODULES]


def test_every_trial_that_is_named_is_one_of_its_study() -> None:
    found = {match.groups() for path in SOURCES for match in TRIAL.finditer(path.read_text("utf-8"))}
    assert found
    for name, arm, seed in found:
        study = load_study(name)
        assert (arm in study.arm_overrides(), int(seed) in study.seeds) == (True, True), f"{name}/{arm}/{seed}"


@pytest.mark.parametrize("path", [path for path in MODULES if ">>> " in path.read_text("utf-8")], ids=str)
def test_the_examples_of_a_module(path: Path) -> None:
    found = doctest.testmod(importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)))
    assert found.attempted > 0
    assert found.failed == 0
