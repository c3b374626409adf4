"""The store of the runs: the MLflow database of the output root, or the address in ``MLFLOW_TRACKING_URI``."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from pipeline.run.layout import Layout

TAG = "mlflow.sharedViewState.ablate"
"""The tag of an experiment with the view that the link of `ablate ui` opens, which MLflow finds by this key."""
PAGE = "#/experiments/{id}/runs?compareRunsMode=CHART&workflowType=machine_learning&viewStateShareKey=ablate"
"""The address of the view within MLflow, for one experiment. Without its workflow type, MLflow surrounds it with pages
for chat traces."""
VIEW: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("view.yaml").read_text("utf-8"))


def server() -> str | None:
    """MLflow's own ``MLFLOW_TRACKING_URI`` where the user set it; otherwise runs go to the database of the output
    root."""
    return os.environ.get("MLFLOW_TRACKING_URI") or None


def public(text: str) -> str:
    """A text without the names and passwords in its addresses."""
    return re.sub(r"//[^/\s]*@", "//", text)


def connect(layout: Layout) -> Any:
    """Return a client of the store, which is created where it is missing."""
    if server() is None:
        _create(layout)
    return client_of(server() or layout.mlflow_uri)


def client_of(uri: str) -> Any:
    """Return an MLflow client. It gives up on a server that twice does not answer within 10 s."""
    os.environ.pop("MLFLOW_RUN_ID", None)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs the errors that it raises
    return MlflowClient(uri)


def has_run(layout: Layout, experiment: str, run: str) -> bool:
    """Return whether the store has an undeleted run. Reads the own database without MLflow, whose import takes
    seconds."""
    if uri := server():
        return bool(run and client_of(uri).search_runs([experiment], f"attributes.run_id = '{run}'"))
    database = layout.mlflow_file
    if not database.is_file() or not database.stat().st_size:
        return False
    query = "SELECT 1 FROM runs WHERE run_uuid = ? AND lifecycle_stage = 'active'"
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True)) as connection:
            return connection.execute(query, [run]).fetchone() is not None
    except sqlite3.OperationalError:  # locked, or not to be opened
        raise
    except sqlite3.DatabaseError as error:
        raise RuntimeError(f"{database} is damaged: {error}; delete it, and it is made again") from None


def experiment_of(client: Any, study: str, layout: Layout) -> tuple[str, str]:
    """Id and name of the experiment with the study's name; where another program has runs in that one, of
    ``STUDY (ablate)``. It is made, or restored, where it is missing."""
    from mlflow.entities import ViewType
    from mlflow.exceptions import MlflowException

    artifacts = None if server() else layout.mlflow_artifacts.as_uri()
    for name in (study, f"{study} (ablate)"):
        if client.get_experiment_by_name(name) is None:
            try:
                client.create_experiment(name, artifact_location=artifacts)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by another process, just now
                    raise
        found = client.get_experiment_by_name(name)
        if TAG in found.tags or not client.search_runs([found.experiment_id], "", ViewType.ALL, max_results=1):
            if found.lifecycle_stage == "deleted":
                client.restore_experiment(found.experiment_id)
            return found.experiment_id, name
    raise RuntimeError(f"the experiments '{study}' and '{study} (ablate)' belong to another program")


def saved_view(imported: bool = False) -> str:
    """The value of `TAG`: a page of charts in MLflow 3."""
    charts = [
        {
            **VIEW["chart"],
            "uuid": metric,
            "metricKey": metric,
            "selectedMetricKeys": [metric],
            "selectedYAxisMetricKey": metric,
        }
        for metric in VIEW["imported_charts" if imported else "charts"]
    ]
    return json.dumps({**VIEW["page"], "compareRunCharts": charts}, separators=(",", ":"))


def _create(layout: Layout) -> None:
    """Create the database, complete or not at all.

    Two processes that open a fresh database would both migrate it, and one would fail; so it is made under another
    name and a lock.
    """
    database = layout.mlflow_file
    with FileLock(layout.root / ".mlflow.lock"):
        if database.exists():
            return
        new = layout.root / ".mlflow-new"  # with SQLite's journal; what a killed process left is removed
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            client_of(f"sqlite:///{new / database.name}").search_experiments(max_results=1)
            (new / database.name).replace(database)
        finally:
            shutil.rmtree(new, ignore_errors=True)
