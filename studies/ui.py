"""MLflow's own server on this machine only, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from types import FrameType

from pipeline.errors import UserError
from pipeline.layout import Layout, writable
from pipeline.mlflow_sink import experiments, prepare_store

HOST = "127.0.0.1"
RUNS = "#/experiments/{id}/runs?compareRunsMode=CHART"
"""The charts of an experiment; the pages that MLflow opens first are about chat traces."""


def serve(layout: Layout, port: int) -> None:
    """Serve the output root's runs until Ctrl-C or SIGTERM. Raises `UserError` when the port is taken."""
    _check_free(port)
    writable(layout.root)
    prepare_store(layout)
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
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
    command += ["--backend-store-uri", layout.mlflow_uri, "--artifacts-destination", layout.mlflow_artifacts.as_uri()]
    signal.signal(signal.SIGTERM, _as_interrupt)
    server = subprocess.Popen(command, env=environment, start_new_session=True)
    try:  # at once: a Ctrl-C from here on must not leave the server behind
        print(f"MLflow: http://{HOST}:{port}   (Ctrl-C ends it; group runs by the tag `arm`)")
        for name, number in experiments(layout):
            print(f"  {name}: http://{HOST}:{port}/{RUNS.format(id=number)}")
        sys.stdout.flush()
        code = server.wait()
    except KeyboardInterrupt:
        return
    finally:
        _end(server)
    raise UserError(f"the MLflow server ended with exit code {code}; its messages are above")


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(f"port {port} on {HOST} cannot be used ({error.strerror}); choose another with --port") from None


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
