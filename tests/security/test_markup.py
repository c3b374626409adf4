"""A policy's output is shown as text: in the page of a report, in MLflow, and in the page of `ablate serve`."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

from reports.pages.page import inline_svg
from studies.serving import app
from studies.tracking.runs import upload

ROOT = Path(__file__).parents[2]
NASTY = "<script>alert(1)</script><img src=x onerror=alert(1)>&]]>\"'"
RAW_HTML = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc")


def test_every_template_escapes() -> None:
    """The page itself is drawn with such a completion in tests/reports/pages."""
    templates = [path for path in (ROOT / "reports").rglob("templates/*") if path.is_file()]
    assert len(templates) > 1
    for path in templates:
        source = path.read_text("utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape\s+false|Markup", source), path
        assert not RAW_HTML.search(source), path


def test_texts_of_figures_are_escaped(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2], label=NASTY, gid=NASTY)
    axes.set_title(NASTY)
    axes.legend()
    figure.savefig(tmp_path / "figure.svg", metadata={"Date": None})
    with_text = inline_svg(tmp_path / "figure.svg", "name")
    assert "<script" not in with_text
    assert "<img" not in with_text
    ElementTree.fromstring(with_text)


def test_mlflow_is_sent_samples_as_a_table_and_hands_it_out_as_a_download(tmp_path: Path) -> None:
    import pandas as pd
    from flask import Flask
    from mlflow.server import handlers
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    pd.DataFrame({"prompt": ["The"], "completion": [NASTY]}).to_parquet(tmp_path / "samples.parquet")
    client = Mock()
    upload(client, "run", "train", tmp_path / "samples.parquet")
    ((_, text, name),) = (call.args for call in client.log_text.call_args_list)
    assert name == "train/samples.csv"
    assert "<script>" in text, "a table holds what was written; who shows it escapes it"
    with Flask("test").test_request_context():
        for file in ("samples.csv", "page.html"):
            (tmp_path / file).write_text(text)
            answer = handlers._send_artifact(LocalArtifactRepository(str(tmp_path)), file)
            assert answer.headers["Content-Disposition"].startswith("attachment")
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            answer.close()


def test_the_page_of_the_server_makes_no_markup_of_texts_and_runs_its_own_script_alone() -> None:
    """A real browser tries it in tests/studies/serving/test_page.py."""
    from starlette.testclient import TestClient
    from tiny_service import Tiny

    answer = TestClient(app.create_app(Tiny().server, ["testserver"])).get("/")
    page = answer.text
    assert not RAW_HTML.search(page)
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", page), "no handlers in attributes, which the policy would refuse"
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy, "after a change, this belongs into the page's policy"
    assert re.findall(r'(?:href|src)="([^"]*)"|https?://', page) == ["data:,"], "it takes nothing from elsewhere"
    assert (answer.headers["x-content-type-options"], answer.headers["x-frame-options"]) == ("nosniff", "DENY")
