"""Requests to ``serve``: bodies, paths and headers with something wrong, and a server in this process that is asked."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

from fuzz.making import DEEP, NAMES, command, mutated_bytes
from fuzz.oracle import OUT, Case

from pipeline.errors import UserError

PATH = "/v1/completions"
PATHS = ("/", "/health", "/metrics", "/v1/models", "/v1/models/", "/v1/completion", "/v1/chat/completions", "/docs",
         "/openapi.json", "/v1/models/../../health", "/v1/models/%2e%2e", "/%00", "/%ff", "//etc/passwd",
         "/" + "a" * 4096)  # fmt: skip
METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE")
KINDS = ("text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonn")
FIELDS = ("prompt", "model", "max_tokens", "temperature", "n", "seed", "logprobs", "stop", "stream", "stream_options",
          "measure", "user", "top_p", "top_k", "logit_bias", "best_of", "echo", "suffix",
          "presence_penalty")  # fmt: skip
VALUES = ("null", "true", "false", "0", "1", "-1", "2", "64", "65", "1024", "1025", "0.5", "-0.0", "1e308", "1e400",
          "NaN", "Infinity", "-Infinity", "9" * 400, "9" * 5000, "1" + "0" * 30, "9223372036854775808", '""', '" "',
          '"\\u0000"', '"\\ud800"', '"\\u202e"', '"\\u001b[2J"', '"x"', '["x"]', '["x", 1]', "[]", "[[1, 2]]", "[1, 2]",
          '["", "x"]', "{}", '{"a": 1}', '{"include_usage": "yes"}', '{"include_usage": true}', "[" * DEEP,
          "[" * DEEP + "]" * DEEP, '{"a":' * DEEP, '["x"' + ', "x"' * 70 + "]", '"' + "word " * 200 + '"',
          '"' + "é" * 3000 + '"', '"' + "x" * 300_000 + '"', "'x'", "undefined", "", "01", "1_000", "0x10",
          "[" + "1," * 5000 + "1]", '["a", "b", "c", "d", "e"]')  # fmt: skip
"""Fragments that stand where JSON is expected."""


def request(rng: random.Random, folder: Path) -> Case:
    """A request with one to three things wrong; what ought to be answered, more often than not."""
    fields = {"prompt": '"The acting"', "max_tokens": "12", "seed": "5"}
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(FIELDS) if rng.random() < 0.85 else rng.choice((*NAMES, "promt", "max_new_tokens"))
        fields[name] = rng.choice(VALUES) if rng.random() < 0.85 else json.dumps(rng.choice(NAMES))
    if rng.random() < 0.1:
        del fields["prompt"]
    items = [f"{json.dumps(name)}: {value}" for name, value in fields.items()]
    items += rng.sample(items, rng.random() < 0.05)  # the same key twice
    text = "{" + ", ".join(items) + "}" if rng.random() < 0.95 else rng.choice(VALUES)
    body = text.encode()
    (folder / "body").write_bytes(mutated_bytes(rng, body) if rng.random() < 0.15 else body)
    method = "POST" if rng.random() < 0.93 else rng.choice(METHODS)
    path = PATH if rng.random() < 0.93 else rng.choice((*PATHS, *(f"/v1/models/{one}" for one in NAMES)))
    kind = "application/json" if rng.random() < 0.95 else rng.choice(KINDS)
    return Case(command("ask-server", "--method", method, "--path", f"={path}", "--kind", f"={kind}"))


def ask_server(method: str = "POST", path: str = f"={PATH}", kind: str = "=", out: str = OUT) -> None:
    """Send the file ``body``; a refusal of the server is one of the user's errors. What follows ``=`` is meant."""
    from urllib.parse import quote

    headers = {"Content-Type": kind[1:]} if kind[1:] else {}
    where = quote(path[1:].encode("utf-8", "surrogatepass"), safe="/%")
    answer = _client().request(method, where, content=Path("body").read_bytes(), headers=headers)
    if answer.status_code >= 500:
        raise RuntimeError(f"status {answer.status_code}: {answer.text[:300]}")
    if answer.status_code >= 400 and method != "HEAD":
        raise UserError(_sentence(answer.json()))
    if path == f"={PATH}" and method == "POST":
        _check_answer(answer)


def _sentence(content: dict[str, Any]) -> str:
    """What a refusal says. Raises `ValueError` for one of another shape."""
    if set(content) != {"error"} or set(content["error"]) != {"message", "type", "param", "code"}:
        raise ValueError(f"a refusal of another shape: {content}")
    return str(content["error"]["message"])


def _check_answer(answer: Any) -> None:
    """An answer has text and a reason to end, in one piece or in parts."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
        parts = [json.loads(line) for line in lines if line != "[DONE]"]
        ends = [one["finish_reason"] for part in parts for one in part.get("choices", ())]
        if lines[-1] != "[DONE]" or not any(ends):
            raise ValueError(f"a stream without its end: {answer.text[-300:]}")
        return
    if not all(one["finish_reason"] in ("stop", "length") for one in answer.json()["choices"]):
        raise ValueError(f"a choice without its end: {answer.text[:300]}")


@functools.cache
def _client() -> Any:
    """A client of a server around two tiny networks; it ends with this process."""
    from starlette.testclient import TestClient
    from tiny_service import Tiny

    from studies.serving.app import create_app

    client = TestClient(create_app(Tiny().server, ["testserver"]), raise_server_exceptions=False)
    client.__enter__()  # one event loop for all requests
    return client
