"""The routes: OpenAI's completions, what is served, health, metrics, and a page to look at."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.config.names import nearest
from studies.serving.asking import Request as Asked
from studies.serving.asking import read_request
from studies.serving.batching import Waiting, Worker
from studies.serving.decoding import noise_of
from studies.serving.limits import Limits
from studies.serving.metrics import Metrics
from studies.serving.networks import REFERENCE, Holder
from studies.serving.page import HEADERS, PAGE
from studies.serving.refusal import Refusal, failure
from studies.serving.rows import Delta, Job, Row

PORT = re.compile(r":\d*$")
GONE = 499
"""Status, in the metrics alone, of a request whose client went away."""


@dataclass
class Service:
    """What the routes work on."""

    name: str
    """Of the policy, as clients call it."""
    holder: Holder
    tokenizer: Any
    """Used under `lock`; that of the worker is another one."""
    worker: Worker
    waiting: Waiting
    metrics: Metrics
    limits: Limits
    positions: int | None
    """Tokens of prompt and completion together that the network can read; None where it names no bound."""
    unmeasured: str | None
    """Why nothing can be measured, or None."""
    hosts: frozenset[str] | None
    """Names under which a browser may ask, None for any: a page elsewhere must not reach the server by a name of its
    own that it points here."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def models(self) -> dict[str, str]:
        """Names that can be asked, and what they are."""
        return {self.name: "policy"} | ({} if self.holder.now.reference is None else {REFERENCE: "reference"})


class KnownHosts:
    """Lets requests pass that call the server by one of its own names."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            called = Headers(scope=scope).get("host", "")
            if (host := PORT.sub("", called).lower()) not in self._hosts:
                hosts = ", ".join(sorted(self._hosts))
                refusal = Refusal(403, f"the host '{host[:80]}' is none of this server's, which are {hosts}")
                return await JSONResponse(refusal.body, refusal.status)(scope, receive, send)
        return await self._app(scope, receive, send)


def create_app(service: Service) -> FastAPI:
    """The application. It has no pages of its framework: these load assets from elsewhere."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    if service.hosts is not None:
        app.add_middleware(KnownHosts, hosts=service.hosts)

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> JSONResponse:
        return JSONResponse(refusal.body, refusal.status, refusal.headers)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        body = Refusal(error.status_code, _no_route(app, request, error)).body
        return JSONResponse(body, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(failure().body, 500)

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE, headers=HEADERS)

    @app.get("/health")
    async def health() -> JSONResponse:
        alive = service.worker.thread.is_alive()
        revision = service.holder.now.revision
        content = {
            "status": "ok" if alive else "failed",
            "model": service.name,
            "revision": revision.body,
            "waiting": service.waiting.completions,
            "measure": service.unmeasured is None,
        }
        return JSONResponse(content, 200 if alive else 503)

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        step = service.holder.now.revision.step
        gauges = {"waiting_completions": service.waiting.completions} | ({} if step is None else {"policy_step": step})
        return PlainTextResponse(service.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(service, name) for name in service.models]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name not in service.models:
            hint = nearest(name, service.models)
            message = f"model '{name}' is not served here{hint}; there are: {', '.join(service.models)}"
            raise Refusal(404, message, "model", "model_not_found")
        return _model(service, name)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _counted(service, request)

    return app


async def _counted(service: Service, request: Request) -> Response:
    began = time.monotonic()

    def ended(status: int) -> None:
        service.metrics.add("requests_total", status=status)
        if status < 400:
            service.metrics.took(time.monotonic() - began)

    try:
        job, events = await _accepted(service, request)
        if job.request.stream:
            chunks = _stream(service, job, events, ended)
            return StreamingResponse(chunks, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        await _answered(request, job, events, service)
        answer = JSONResponse(_answer(service, job))
        ended(200)
        return answer
    except Refusal as refusal:
        ended(refusal.status)
        raise
    except ClientDisconnect:
        ended(GONE)
        return Response(status_code=GONE)  # nobody reads it
    except Exception:
        ended(500)
        raise


async def _accepted(service: Service, request: Request) -> tuple[Job, asyncio.Queue[Any]]:
    """The request, in the queue. Raises `Refusal`, `ClientDisconnect`."""
    body = await _body(request, service.limits)
    asked = read_request(body, service.limits, service.models, service.unmeasured)
    asked = asked.model_copy(update={"model": None if asked.model == service.name else asked.model})
    queries = await asyncio.to_thread(_tokens, service, asked.prompt)
    _check_lengths(asked, queries, service.positions)
    seed = secrets.randbits(53) if asked.seed is None else asked.seed
    rows = [
        Row(at * asked.n + one, prompt, query, noise_of(seed, at * asked.n + one, asked.max_tokens))
        for at, (prompt, query) in enumerate(zip(asked.prompt, queries, strict=True))
        for one in range(asked.n)
    ]
    loop, events = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def emit(event: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            loop.call_soon_threadsafe(events.put_nowait, event)

    job = Job(asked, rows, seed, emit)
    service.waiting.put(job)
    return job, events


async def _body(request: Request, limits: Limits) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a page elsewhere may send anything else without being asked first
        raise Refusal(415, f"the content type is '{kind[:80]}': send application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                body += part
                if len(body) > limits.body_bytes:
                    raise Refusal(413, f"the body has more than {limits.body_bytes} bytes")
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {limits.body_seconds:g} seconds") from None
    return bytes(body)


def _tokens(service: Service, prompts: Sequence[str]) -> list[list[int]]:
    with service.lock:
        rows: list[list[int]] = service.tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
        return rows


def _check_lengths(asked: Asked, queries: Sequence[Sequence[int]], positions: int | None) -> None:
    for at, query in enumerate(queries):
        which = f"prompt {at + 1}" if len(queries) > 1 else "the prompt"
        if not query:
            raise Refusal(400, f"{which} is empty: give at least one word, which the completion follows", "prompt")
        if positions is not None and len(query) + asked.max_tokens > positions:
            raise Refusal(
                400,
                f"{which} has {len(query)} tokens and max_tokens is {asked.max_tokens}: the network reads {positions}"
                " together",
                "prompt" if len(query) >= positions else "max_tokens",
                "context_length_exceeded",
            )


async def _answered(request: Request, job: Job, events: asyncio.Queue[Any], service: Service) -> None:
    """Wait for the answer. Raises the `Refusal` that came instead, and `ClientDisconnect` when the client goes away."""
    event, gone = asyncio.ensure_future(events.get()), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({event, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not event.done():
            raise ClientDisconnect
        if isinstance(event.result(), Refusal):
            raise event.result()
    finally:
        event.cancel()
        gone.cancel()
        service.waiting.drop(job)  # its place is free, whoever has given up


async def _stream(
    service: Service, job: Job, events: asyncio.Queue[Any], ended: Callable[[int], None]
) -> AsyncIterator[str]:
    """The answer as server-sent events: a chunk for what is new, one with the measurements, ``[DONE]``."""
    status, head = GONE, dict[str, Any]()
    try:
        while True:
            event = await events.get()
            if isinstance(event, Refusal):
                status = event.status
                yield _sent(event.body)
                return
            head = head or _head(service, job)
            if isinstance(event, Delta):
                yield _sent({**head, "choices": [event.choice]})
                continue
            blank = {"text": "", "logprobs": None, "finish_reason": None}
            for row, measured in zip(job.rows, job.measured or [], strict=False):
                yield _sent({**head, "choices": [{"index": row.index, **blank, "measured": measured}]})
            if job.request.stream_options is not None and job.request.stream_options.include_usage:
                yield _sent({**head, "choices": [], "usage": _usage(job)})
            yield "data: [DONE]\n\n"
            status = 200
            return
    finally:
        ended(status)
        service.waiting.drop(job)


def _sent(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _head(service: Service, job: Job) -> dict[str, Any]:
    assert job.revision is not None
    return {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": job.request.model or service.name,
        "system_fingerprint": str(job.revision),
        "revision": job.revision.body,
        "seed": job.seed,
    }


def _usage(job: Job) -> dict[str, int]:
    asked = sum(len(row.query) for row in job.rows[:: job.request.n])
    drawn = sum(len(row.tokens) for row in job.rows)
    return {"prompt_tokens": asked, "completion_tokens": drawn, "total_tokens": asked + drawn}


def _answer(service: Service, job: Job) -> dict[str, Any]:
    choices = [choice | ({"measured": job.measured[i]} if job.measured else {}) for i, choice in enumerate(job.choices)]
    return {**_head(service, job), "choices": choices, "usage": _usage(job)}


def _model(service: Service, name: str) -> dict[str, Any]:
    revision = service.holder.now.revision
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "ablate",
        "role": service.models[name],
        "revision": revision.body,
        "max_model_len": service.positions,
    }


def _no_route(app: FastAPI, request: Request, error: HTTPException) -> str:
    paths = [path for route in app.routes if isinstance(path := getattr(route, "path", None), str) and "{" not in path]
    if error.status_code == 405:
        return f"{request.method} is not allowed on {request.url.path}"
    if error.status_code == 404:
        path = request.url.path[:80]
        return f"there is no {path}{nearest(path, paths)}; there are: {', '.join(paths)}"
    return str(error.detail)
