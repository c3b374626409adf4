"""A page, and a verdict, are never replaced by one that was made without results that have gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from synthetic import WHOLE, Built, build
from typer.testing import CliRunner, Result

from ablate import app
from pipeline.errors import FAULT


@pytest.fixture
def built(tmp_path: Path) -> Built:
    arms = {"beta_0.05": 0.3, "beta_0.2": 0.5}
    return build(tmp_path, arms=arms, seeds=(0, 1), prompts=12, extra="figures: []\n", **WHOLE)


def call(built: Built, *words: str) -> Result:
    return CliRunner().invoke(app, [words[0], built.study.source, *words[1:], "--out", str(built.layout.root)])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_without_the_store_or_the_records_the_page_stays(built: Built) -> None:
    assert call(built, "report").exit_code == 0
    page, aside = contents(built.folder.report), built.layout.root / "aside"
    shutil.move(built.layout.store, aside)
    for words in (["report"], ["falsify"], ["compare"]):
        done = call(built, *words)
        assert done.exit_code == FAULT, words
        assert f"{built.layout.store} is missing: 4 of 4 recorded trials have lost results" in done.stderr
    assert f"{built.folder.report / 'index.html'} is unchanged" in call(built, "report").stderr
    built.layout.store.symlink_to(aside)  # a store on another disk serves
    assert [call(built, words).exit_code for words in ("report", "falsify")] == [0, 0]
    shutil.rmtree(aside / "reward")
    assert [call(built, words).exit_code for words in ("report", "falsify")] == [FAULT, 0], "verdicts need no reward"
    shutil.rmtree(built.folder.path / "trials")
    done = call(built, "report")
    assert done.exit_code == 2
    assert f"{built.folder.path / 'trials'}: no trial is recorded" in done.stderr
    assert contents(built.folder.report) == page
