"""A hub on 127.0.0.1 that serves one folder as one data set at one commit, so that the real client can be tested
offline."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


def _handler(name: str, files: dict[str, bytes], log: list[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            log.append(f"{self.command} {self.path}")

        def send(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def answer(self) -> None:
            if length := int(self.headers.get("Content-Length") or 0):
                self.rfile.read(length)
            path = unquote(urlsplit(self.path).path).lstrip("/")
            api = f"api/datasets/{name}"
            if path in (f"{api}/revision/{COMMIT}", api):
                siblings = [{"rfilename": file} for file in files]
                self.send_json(
                    {"id": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
                )
            elif path.startswith(f"{api}/tree/{COMMIT}"):
                self.send_json(_children(files, path.removeprefix(f"{api}/tree/{COMMIT}").strip("/")))
            elif (
                path.startswith(f"datasets/{name}/resolve/{COMMIT}/")
                and (file := path.split(f"{COMMIT}/", 1)[1]) in files
            ):
                self.send(200, files[file], X_Repo_Commit=COMMIT, ETag=f'"{_oid(files[file])}"')
            else:
                missing = "RevisionNotFound" if COMMIT not in path else "EntryNotFound"
                self.send(404, b"{}", X_Error_Code=missing if name in path else "RepoNotFound", X_Repo_Commit=COMMIT)

        def send_json(self, value: Any) -> None:
            self.send(200, json.dumps(value).encode(), Content_Type="application/json")

        do_GET = do_HEAD = do_POST = answer  # noqa: N815

    return Handler


def _children(files: dict[str, bytes], folder: str) -> list[dict[str, Any]]:
    """List the direct content of a folder of the repository."""
    prefix = f"{folder}/" if folder else ""
    inside = {file.removeprefix(prefix): body for file, body in files.items() if file.startswith(prefix)}
    folders = dict.fromkeys(file.split("/")[0] for file in inside if "/" in file)
    return [
        *({"type": "directory", "path": prefix + one, "oid": "0" * 40, "size": 0} for one in folders),
        *(
            {"type": "file", "path": prefix + one, "oid": _oid(body), "size": len(body)}
            for one, body in inside.items()
            if "/" not in one
        ),
    ]


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@contextmanager
def serve(name: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of the hub, and what it was asked so far."""
    files = {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
    }
    log: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(name, files, log))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", log
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
