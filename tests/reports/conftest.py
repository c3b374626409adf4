"""Studies that many tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from synthetic import WHOLE, Built, build

from reports.figures import style
from reports.findings.findings import Findings
from reports.records.load import StudyRecords


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Four arms, three seeds; one trial diverged, one ended by its budget, one is missing."""
    return build(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def records(demo: Built) -> StudyRecords:
    return demo.records


@pytest.fixture(scope="module")
def findings(demo: Built) -> Findings:
    return demo.findings


@pytest.fixture(scope="session")
def strengths(tmp_path_factory: pytest.TempPathFactory) -> StudyRecords:
    """Three strengths of one method, two arms of others that end between them, and one that ends beyond: six arms x
    three seeds, all complete."""
    arms = {f"beta_{beta}": beta for beta in (0.07, 0.05, 0.035)}
    others = {"tight": (0.04, 0.1), "tighter": (0.06, 0.05), "loose": (0.005, 0.4)}
    arms |= {name: {"kl.beta": beta, "algorithm.clip.epsilon": clip} for name, (beta, clip) in others.items()}
    return build(tmp_path_factory.mktemp("strengths"), arms=arms, steps=640, **WHOLE).records


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write figures as SVG alone: the other formats are tested with the figures."""

    def svg_only(figure: Figure, stem: Path, *_: object) -> None:
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})

    monkeypatch.setattr(style, "save", svg_only)
