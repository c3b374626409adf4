"""`ablate ui`: MLflow's own server on this machine, with a link to the curves of each study."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from pipeline.errors import UserError
from pipeline.run.layout import Layout, writable
from studies.tracking import store

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

    Where ``MLFLOW_TRACKING_URI`` names a server, print its address, and start none.
    """
    if uri := store.server():
        print(f"Runs go to {store.public(uri)} (MLFLOW_TRACKING_URI); no server is started here.", flush=True)
        return
    check_free(HOST, port)
    writable(layout.root)
    links = links_at(f"http://{HOST}:{port}", store.connect(layout))
    command = [sys.executable, *f"-m mlflow server --host {HOST} --port {port} --workers 1".split()]
    command += ["--uvicorn-opts", "--log-level warning", "--artifacts-destination", layout.mlflow_artifacts.as_uri()]
    command += ["--backend-store-uri", layout.mlflow_uri, "--registry-store-uri", layout.mlflow_uri]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = subprocess.Popen(command, env={**os.environ, **QUIET}, start_new_session=True)
    try:  # at once: a Ctrl-C from here on must not leave the server behind
        print(f"MLflow is starting at http://{HOST}:{port} (Ctrl-C stops it).", flush=True)
        if _answers(server, port):
            print("\n".join(links), flush=True)
        code = server.wait()
    except KeyboardInterrupt:
        return
    finally:
        _end(server)
    raise UserError(f"the MLflow server ended with exit code {code}; its messages are above")


def links_at(address: str, client: Any) -> list[str]:
    """One line for each study, the newest first."""
    found = client.search_experiments(filter_string=f"tags.`{store.TAG}` LIKE '%'", order_by=["creation_time DESC"])
    lines = [f"Curves of {one.name}: {address}/{store.PAGE.format(id=one.experiment_id)}" for one in found]
    return lines or ["It has no study yet."]


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


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server takes connections; False when it ends before that."""
    while server.poll() is None:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return True
        time.sleep(0.2)
    return False


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
