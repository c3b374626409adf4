"""What a client asks for: the body of a request, checked field by field, every fault one plain sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pipeline.config.messages import unknown_key, validated
from pipeline.config.names import nearest
from studies.serving.limits import Limits
from studies.serving.refusal import Refusal

BENDING: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
}
"""Fields of other servers that would change the distribution, and the values at which they do not."""
ABSENT: dict[str, tuple[Any, ...]] = {"best_of": (1,), "echo": (False,), "suffix": ("",)}
"""Fields for what is not offered, and the values that do not ask for it."""


SHOWN = 200
"""Characters of a fault at most: its value may be as long as a body."""


def _as_list(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a text or a list of texts")
    return texts


Texts = Annotated[list[str], BeforeValidator(_as_list)]


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False


class Request(BaseModel):
    """The body of ``POST /v1/completions``; null is the same as nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)
    prompt: Annotated[Texts, Field(min_length=1)]
    model: str | None = None
    """None: the policy."""
    max_tokens: int = Field(16, ge=1)
    temperature: float = Field(1.0, ge=0.0, le=2.0, allow_inf_nan=False)
    """At 0 the likeliest token."""
    n: int = Field(1, ge=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    logprobs: int | None = Field(None, ge=0, le=5)
    stop: Texts = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Taken, and not used."""
    measure: bool = False
    """Ours: also log-probs under policy and reference, proxy and gold."""


def read_request(body: bytes, limits: Limits, models: Mapping[str, str], measurable: str | None) -> Request:
    """The checked request. `models`: what can be asked, by name; `measurable`: why nothing can be measured, or None.

    Raises `Refusal`: 404 for an unknown model, else 400.
    """
    content = _mapping(body)
    given = {name: value for name, value in content.items() if value is not None}
    own = {name: value for name, value in given.items() if name not in BENDING and name not in ABSENT}
    known = [*Request.model_fields, *BENDING, *ABSENT]
    for name in own:
        if name not in known:
            raise Refusal(400, unknown_key(_cut(name, 80), known), _cut(name, 80))
    for name in BENDING.keys() & given.keys():
        _neutral(name, given[name], BENDING[name], "nothing truncates or bends the distribution here")
    for name in ABSENT.keys() & given.keys():
        _neutral(name, given[name], ABSENT[name], "this is not offered here")
    request, faults = validated(Request, own)
    if request is None:
        raise Refusal(400, _cut(faults[0].text, SHOWN), str(faults[0].where[0]) if faults[0].where else None)
    if request.model is not None and request.model not in models:
        called = _cut(request.model, 80)
        hint = nearest(called, models)
        message = f"model = '{called}': not served here{hint}; there are: {', '.join(models)}"
        raise Refusal(404, message, "model", "model_not_found")
    _check(request, limits, measurable)
    return request


def _check(request: Request, limits: Limits, measurable: str | None) -> None:
    asked = len(request.prompt) * request.n
    if asked > limits.completions:
        raise Refusal(
            400,
            f"prompts x n = {len(request.prompt)} x {request.n} = {asked} completions: at most {limits.completions}",
            "n" if request.n > 1 else "prompt",
        )
    if request.max_tokens > limits.max_tokens:
        raise Refusal(400, f"max_tokens = {request.max_tokens}: at most {limits.max_tokens}", "max_tokens")
    if len(request.stop) > limits.stops:
        raise Refusal(400, f"stop has {len(request.stop)} texts: at most {limits.stops}", "stop")
    if any(not 0 < len(stop) <= limits.stop_characters for stop in request.stop):
        raise Refusal(400, f"stop: each text must have 1 to {limits.stop_characters} characters", "stop")
    if request.stream_options is not None and not request.stream:
        raise Refusal(400, "stream_options act only with stream = true", "stream_options")
    if request.measure and measurable:
        raise Refusal(400, f"measure = true: {measurable}", "measure")
    if request.measure and request.stop:
        raise Refusal(400, "measure = true: a score is one of a whole answer, so it goes without stop", "measure")


def _neutral(name: str, value: Any, neutral: tuple[Any, ...], why: str) -> None:
    if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
        allowed = " or ".join(json.dumps(one) for one in neutral)
        raise Refusal(400, f"{name} = {_short(value)}: {why}; leave it out, or send {allowed}", name)


def _short(value: Any) -> str:
    return _cut(json.dumps(value), 60)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _mapping(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:  # JSON can write it as \ud83d, and no tokenizer reads it
        raise Refusal(400, "the body holds half of a character: a surrogate such as \\ud83d by itself") from None
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 are a ValueError too
        why = f" ({error.msg}, line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise Refusal(400, f"the body is not valid JSON{why}") from None
    if not isinstance(content, dict):
        raise Refusal(400, 'the body must be a JSON object, such as {"prompt": "The film"}')
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
