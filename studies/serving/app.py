"""`ablate serve`: a policy behind OpenAI's completions, and a page to look at, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import sys
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from pipeline.config.loading import validated
from pipeline.config.names import nearest
from pipeline.models.process import quiet_libraries
from pipeline.run.layout import Layout
from pipeline.wording import shown
from studies.serving.batching import COMPLETIONS, Completion, Refused, Server
from studies.serving.weights import find
from studies.tracking.ui import check_free

PAGE_HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store"}
BODY_BYTES, GRACE_SECONDS = 2**18, 10
HERE = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine in a browser's address. A page elsewhere can have a name of its own lead here."""


def read(body: bytes, server: Server) -> Completion:
    """The checked body. Raises `Refused`."""
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(400, f"the body is not valid JSON ({error})") from None
    if isinstance(content, dict):
        content |= {name: [content[name]] for name in ("prompt", "stop") if isinstance(content.get(name), str)}
        given = {name: value for name, value in content.items() if value is not None}
        content = {"model": server.source.name} | given
    completion, faults = validated(Completion, content)
    if completion is None:
        raise Refused(400, faults[0].text, *map(shown, faults[0].where[:1]))
    check_model(completion.model, server.models)
    if completion.size > COMPLETIONS:
        raise Refused(400, f"prompts x n = {completion.size} completions: at most {COMPLETIONS}", "n")
    if completion.measure and (completion.stop or "reference" not in server.models):
        raise Refused(400, "measure = true: needs a trial, not a folder, and whole answers, without stop", "measure")
    for row in server.tokenizer(completion.prompt, add_special_tokens=False)["input_ids"]:
        if not 0 < len(row) <= (server.positions or math.inf) - completion.max_tokens:
            why = f"a prompt has {len(row)} tokens and max_tokens is {completion.max_tokens}"
            raise Refused(400, f"{why}: the network reads 1 to {server.positions} together", "prompt")
    return completion


def check_model(name: str, models: Collection[str]) -> None:
    """Raises `Refused` for a model that is not served."""
    if name not in models:
        message = f"model '{shown(name)}' is not served here{nearest(name, models)}; there are: {', '.join(models)}"
        raise Refused(404, message, "model", "model_not_found")


def create_app(server: Server, hosts: Sequence[str] = HERE) -> Starlette:
    """The routes. `hosts`: by which names the server may be called, ``*`` for any."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(server.run())
        yield
        task.cancel()

    async def page(request: Request) -> Response:
        return FileResponse(Path(__file__).with_name("page.html"), headers=PAGE_HEADERS)

    async def health(request: Request) -> Response:
        state = {"status": "ok", "model": server.source.name, "waiting": server.waiting}
        return JSONResponse(state | {"revision": server.revision._asdict(), "measure": "reference" in server.models})

    async def models(request: Request) -> Response:
        about = {"object": "model", "created": 0, "owned_by": "ablate", "revision": server.revision._asdict()}
        about["max_model_len"] = server.positions
        found = {name: {"id": name, "role": role, **about} for name, role in server.models.items()}
        if (name := request.path_params.get("name")) is None:
            return JSONResponse({"object": "list", "data": list(found.values())})
        check_model(name, server.models)
        return JSONResponse(found[name])

    async def completions(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # other web pages may send anything else without a preflight request
            raise Refused(415, f"the content type is '{shown(kind)}': send application/json")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES:
                raise Refused(413, f"the body has more than {BODY_BYTES} bytes")
        completion = read(bytes(body), server)
        about = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
        content: dict[str, Any] = about | await server.answer(completion)
        if not completion.stream:
            return JSONResponse(content)
        events = [*(json.dumps(content | {"choices": [choice]}) for choice in content["choices"]), "[DONE]"]
        return Response("".join(f"data: {event}\n\n" for event in events), media_type="text/event-stream")

    async def refused(request: Request, error: Exception) -> Response:
        fault = error if isinstance(error, HTTPException) else Refused(500, "the server failed; its log has the reason")
        kind = "invalid_request_error" if fault.status_code < 500 else "server_error"
        about = {"message": fault.detail, "type": kind} | {at: getattr(fault, at, None) for at in ("param", "code")}
        return JSONResponse({"error": about}, fault.status_code, fault.headers)

    gets = {"/": page, "/health": health, "/v1/models": models, "/v1/models/{name:path}": models}
    routes = [*(Route(*get) for get in gets.items()), Route("/v1/completions", completions, methods=["POST"])]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))]
    handlers: Any = dict.fromkeys((HTTPException, ClientDisconnect, Exception), refused)
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)


def serve(name: str, layout: Layout, port: int, host: str, profile: str | None) -> None:
    """Serve a policy until Ctrl-C or SIGTERM. Raises `UserError` for an unservable policy or a port that is taken."""
    check_free(host, port)
    quiet_libraries()
    server, local = Server(find(name, layout, profile)), host in (*HERE, "::1")
    app, address = create_app(server, HERE if local else ["*"]), f"[{host}]" if ":" in host else host
    print(f"Serving {name} at http://{address}:{port} (Ctrl-C stops it); completions at /v1/completions", flush=True)
    if not local:
        print(f"warning: {host} can be reached from other machines, and there is no password", file=sys.stderr)
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS)
