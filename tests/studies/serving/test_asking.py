"""Bodies of requests: what is taken, and the sentence for what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from studies.serving.asking import Request, read_request
from studies.serving.limits import Limits
from studies.serving.refusal import Refusal

MODELS = {"study/arm/0": "policy", "reference": "reference"}
BENDS = "nothing truncates or bends the distribution here"
LIMITS = Limits(max_tokens=64, completions=6)


def read(body: Any, unmeasured: str | None = None) -> Request:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(content, LIMITS, MODELS, unmeasured)


def refused(body: Any, unmeasured: str | None = None) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read(body, unmeasured)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    return caught.value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temprature": 1}, "unknown key 'temprature'; did you mean 'temperature'?"),
        ({"max_new_tokens": 4}, "unknown key 'max_new_tokens'; did you mean 'max_tokens'?"),
        ({"topp": 1}, "unknown key 'topp'; did you mean 'top_p'?"),
        ({"top_p": 0.9}, "top_p = 0.9: nothing truncates or bends the distribution here; leave it out, or send 1"),
        ({"top_k": 40}, "top_k = 40: nothing truncates or bends the distribution here; leave it out, or send 0 or -1"),
        ({"presence_penalty": True}, f"presence_penalty = true: {BENDS}; leave it out, or send 0"),
        ({"logit_bias": {"5": 1}}, f'logit_bias = {{"5": 1}}: {BENDS}; leave it out, or send {{}}'),
        ({"echo": True}, "echo = true: this is not offered here; leave it out, or send false"),
        ({"best_of": 3}, "best_of = 3: this is not offered here; leave it out, or send 1"),
        ({"max_tokens": 0}, "max_tokens = 0: must be greater than or equal to 1"),
        ({"max_tokens": 65}, "max_tokens = 65: at most 64"),
        ({"max_tokens": "many"}, "max_tokens = 'many': must be a whole number"),
        ({"max_tokens": True}, "max_tokens = true: must be a whole number"),
        ({"temperature": 2.5}, "temperature = 2.5: must be less than or equal to 2"),
        ({"temperature": -1}, "temperature = -1: must be greater than or equal to 0"),
        ({"n": 7}, "prompts x n = 1 x 7 = 7 completions: at most 6"),
        ({"prompt": ["a"] * 4, "n": 2}, "prompts x n = 4 x 2 = 8 completions: at most 6"),
        ({"prompt": []}, "prompt: needs at least 1 entry, has none"),
        ({"prompt": [1, 2]}, "prompt: must be a text or a list of texts"),
        ({"prompt": 5}, "prompt: must be a text or a list of texts"),
        ({"stop": ["a"] * 5}, "stop has 5 texts: at most 4"),
        ({"stop": ""}, "stop: each text must have 1 to 100 characters"),
        ({"stop": 5}, "stop: must be a text or a list of texts"),
        ({"logprobs": 6}, "logprobs = 6: must be less than or equal to 5"),
        ({"logprobs": True}, "logprobs = true: must be a whole number"),
        ({"stream_options": {"include_usage": True}}, "stream_options act only with stream = true"),
        ({"measure": True, "stop": "."}, "measure = true: a score is one of a whole answer, so it goes without stop"),
        ({"seed": 2**63}, f"seed = {2**63}: must be less than {2**63}"),
    ],
)  # fmt: skip
def test_one_plain_sentence_says_what_is_wrong(given: dict[str, Any], message: str) -> None:
    refusal = refused({"prompt": "The film", **given})
    assert (refusal.status, refusal.message) == (400, message)
    assert refusal.param in {*given, "n"}


def test_a_prompt_is_needed() -> None:
    assert refused({}).message == "key 'prompt' is missing"
    assert refused({"prompt": None}).message == "key 'prompt' is missing"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not valid JSON (Expecting property name enclosed in double quotes, line 1)"),
        (b"\xff\xfe{}", "the body is not valid JSON"),
        (b"[" * 100_000, "the body is not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "the body is not valid JSON"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature = inf: must be a finite number"),
        (b'"prompt"', 'the body must be a JSON object, such as {"prompt": "The film"}'),
    ],
)
def test_what_is_no_request_is_said_to_be_none(body: bytes, message: str) -> None:
    assert refused(body).message == message


@pytest.mark.parametrize(
    "body", [b'{"prompt": "a \\ud83d"}', b'{"\\ud83d": 1}', b'{"prompt": "a", "model": "\\udc00"}']
)
def test_half_of_a_character_is_no_text(body: bytes) -> None:
    """A client that cuts a text between two surrogates sends it as JSON, and neither a tokenizer nor a log takes it."""
    assert refused(body).message == "the body holds half of a character: a surrogate such as \\ud83d by itself"


def test_an_emoji_is_a_text() -> None:
    assert read(b'{"prompt": "a \\ud83d\\ude00"}').prompt == ["a \U0001f600"]


@pytest.mark.parametrize(
    "given", [{"max_tokens": "x" * 9999}, {"x" * 9999: 1}, {"model": "x" * 9999}, {"top_p": "x" * 9999}]
)
def test_a_fault_is_one_sentence_however_long_the_value(given: dict[str, Any]) -> None:
    assert len(refused({"prompt": "a", **given}).message) < 300


def test_an_unknown_model_is_not_found_and_the_nearest_is_named() -> None:
    refusal = refused({"prompt": "a", "model": "study/arm/1"})
    assert (refusal.status, refusal.code) == (404, "model_not_found")
    assert refusal.message == (
        "model = 'study/arm/1': not served here; did you mean 'study/arm/0'?; there are: study/arm/0, reference"
    )


def test_nothing_can_be_measured_without_a_trial() -> None:
    assert refused({"prompt": "a", "measure": True}, "no trial").message == "measure = true: no trial"
    assert not read({"prompt": "a", "measure": False}, "no trial").measure


def test_what_clients_send_at_its_neutral_value_is_taken() -> None:
    neutral = {
        "top_p": 1.0, "top_k": -1, "min_p": 0, "presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": {},
        "best_of": 1, "echo": False, "suffix": None, "user": "me", "seed": None, "stop": None, "logprobs": None,
        "stream_options": None, "repetition_penalty": 1, "model": "reference",
    }  # fmt: skip
    request = read({"prompt": "The film", **neutral})
    assert (request.prompt, request.stop, request.model, request.seed) == (["The film"], [], "reference", None)
    assert (request.max_tokens, request.temperature, request.n) == (16, 1.0, 1)
    assert read({"prompt": ["a", "b"], "stop": ["x"], "temperature": 0}).stop == ["x"]
