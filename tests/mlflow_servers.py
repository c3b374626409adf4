"""PostgreSQL, MLflow's own server on it, and a proxy that loses answers. All on loopback,
on free ports, in temporary folders."""

from __future__ import annotations

import http.client
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from helpers import free_port, healthy, wait_until

from studies.tracking.ui import QUIET

HOST = "127.0.0.1"
START_S = 180.0


def missing_postgres() -> str:
    """Return why PostgreSQL cannot be used here, empty if it can."""
    if not _binary("postgres"):
        return "PostgreSQL is not installed (Debian: postgresql)"
    try:
        import psycopg2  # noqa: F401
    except ImportError:
        return "psycopg2 is not installed (pip install psycopg2-binary)"
    return "" if os.geteuid() or _user() else "PostgreSQL refuses to run as root, and there is no user nobody"


def _binary(name: str) -> str | None:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or next(map(str, debian), None)


def _user() -> pwd.struct_passwd | None:
    """Return the user that the server runs as, where we are root."""
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class Postgres:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ablate-postgres-"))  # pytest's folders are closed to other users
        self.port = free_port()
        user = _user() if os.geteuid() == 0 else None
        self._as: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        if user:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        command = [str(_binary("initdb")), "-D", "data", "-A", "trust", "-U", "mlflow", "-E", "UTF8", "--no-sync"]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True, **self._as)
        options = {"listen_addresses": HOST, "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        command = [str(_binary("postgres")), "-D", "data"]
        command += [part for key, value in options.items() for part in ("-c", f"{key}={value}")]

        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **self._as)
        self.address = f"postgresql+psycopg2://mlflow@{HOST}:{self.port}/postgres"
        wait_until(self.answers, START_S, "PostgreSQL starts")

    def answers(self) -> bool:
        import psycopg2

        with suppress(psycopg2.OperationalError):
            psycopg2.connect(host=HOST, port=self.port, user="mlflow", dbname="postgres", connect_timeout=10).close()
            return True
        return False

    def end(self) -> None:
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


class Server:
    def __init__(self, store: str, artifacts: Path, log: Path) -> None:
        self.port, self._log = free_port(), log
        self.uri = f"http://{HOST}:{self.port}"
        self._command = [
            sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(self.port), "--workers", "2",
            "--backend-store-uri", store, "--artifacts-destination", artifacts.as_uri(),
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env={**os.environ, **QUIET}, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self.answers, START_S, f"MLflow answers, {self._log}")

    def answers(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        return healthy(self.port)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Proxy:
    """Passes requests on to a server, and loses answers on request."""

    def __init__(self, target: str) -> None:
        self.target, self.requests = target.removeprefix("http://"), 0
        self.loses: Callable[[], bool] = lambda: False
        """Return whether the answer to a request is lost."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None: ...

            def handle_any(self) -> None:
                proxy.requests += 1
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with suppress(BrokenPipeError, ConnectionResetError):
                    self._pass_on(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

            def _pass_on(self, body: bytes) -> None:
                upstream = http.client.HTTPConnection(proxy.target, timeout=60)
                try:
                    upstream.request(self.command, self.path, body, dict(self.headers.items()))
                    answer = upstream.getresponse()
                    content = answer.read()
                except OSError:
                    return  # the server is away: so is the answer
                finally:
                    upstream.close()
                if not proxy.loses():
                    self.send_response(answer.status)
                    self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self.uri = f"http://{HOST}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


@contextmanager
def proxy_to(target: str) -> Iterator[Proxy]:
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy._server.shutdown()
        proxy._server.server_close()
