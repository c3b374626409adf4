"""MLflow's own server, on this machine only: how it starts, the link to each study's curves, and how it ends.

Where runs go to another server, nothing is started: its address and links are told.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from pipeline.errors import Damaged, UserError
from pipeline.run.layout import Layout, writable
from studies.definition.schema import IMPORTED
from studies.tracking.repair import is_database
from studies.tracking.trial_run import (
    Experiment,
    experiments,
    prepare_store,
    public,
    tag_experiment,
    tracking_uri,
)
from studies.tracking.view import PAGE, TAG, experiment_tags

HOST = "127.0.0.1"
QUIET = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "PYTHONWARNINGS": "ignore",
}
"""Environment of the server: no job workers, no telemetry, and no messages about its own parts."""


def serve(layout: Layout, port: int) -> None:
    """Serve the output root's runs until Ctrl-C or SIGTERM. Raises `UserError` when the port is taken.

    Where ``MLFLOW_TRACKING_URI`` names a server, say where it is and return.
    """
    if (uri := tracking_uri(layout)) != layout.mlflow_uri:
        print("\n".join(elsewhere(uri)), flush=True)
        return
    check_free(HOST, port)
    writable(layout.root)
    if layout.mlflow_file.exists() and not is_database(layout.mlflow_file):
        raise Damaged(
            layout.mlflow_file, "it is no SQLite database", "ablate sync STUDY sets it aside and sends everything again"
        )
    prepare_store(layout)
    links = _links(layout, port)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        HOST,
        "--port",
        str(port),
        "--workers",
        "1",
        "--uvicorn-opts",
        "--log-level warning",
    ]
    command += [
        "--backend-store-uri",
        layout.mlflow_uri,
        "--registry-store-uri",
        layout.mlflow_uri,
        "--artifacts-destination",
        layout.mlflow_artifacts.as_uri(),
    ]
    signal.signal(signal.SIGTERM, _as_interrupt)
    server = subprocess.Popen(command, env={**os.environ, **QUIET}, start_new_session=True)
    try:  # at once: a Ctrl-C from here on must not leave the server behind
        print(f"MLflow is starting at http://{HOST}:{port} (Ctrl-C stops it).", flush=True)
        if _answers(server, port):
            print("\n".join(links or ["No study has been run here yet."]), flush=True)
        code = server.wait()
    except KeyboardInterrupt:
        return
    finally:
        _end(server)
    raise UserError(f"the MLflow server ended with exit code {code}; its messages are above")


def _links(layout: Layout, port: int) -> list[str]:
    """One line per study, the latest first. Saves the view again where an older version left another one, or none."""
    stored = experiments(layout.mlflow_uri)
    for experiment in stored:
        tag_experiment(
            layout.mlflow_uri, experiment.name, experiment_tags(experiment.run_tags.get("profile") == IMPORTED)
        )
    return _lines(f"http://{HOST}:{port}", stored)


def _lines(address: str, stored: Sequence[Experiment]) -> list[str]:
    return [f"Curves of {one.name}: {address}/{PAGE.format(id=one.id)}" for one in stored]


def elsewhere(uri: str) -> list[str]:
    """The address of a server that is not ours to start, and a link for each study there. Raises `UserError` where none
    answers."""
    address = public(uri).rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise UserError(
            f"MLFLOW_TRACKING_URI is {address}, which is no server's address; serve it with: mlflow server"
            ' --backend-store-uri "$MLFLOW_TRACKING_URI"'
        )
    try:
        stored = experiments(uri, f"tags.`{TAG}` LIKE '%'")
    except Exception as error:  # whatever MLflow raises for a server that is away, slow or another program
        line = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"the MLflow server at {address} (MLFLOW_TRACKING_URI) does not answer ({type(error).__name__}:"
            f" {public(line)[:200]}); without the variable, ablate ui serves the runs of the output root"
        ) from None
    started = f"Runs go to the MLflow server at {address} (MLFLOW_TRACKING_URI); none is started here."
    return [started, *(_lines(address, stored) or ["It has no study yet."])]


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server takes connections; False when it ends before that."""
    while server.poll() is None:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return True
        time.sleep(0.2)
    return False


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def check_free(host: str, port: int) -> None:
    """Raise `UserError` where a server cannot listen on this address."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"port {port} on {host} cannot be used ({error.strerror}); choose another with --port"
            ) from None


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and its workers, which form a session of their own, so that Ctrl-C is quiet."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, how)
            server.wait(10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
