from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from starlette.testclient import TestClient
from tiny_service import NAME, POSITIONS, Tiny

from studies.serving.app import HERE, create_app


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(scope="module")
def client(tiny: Tiny) -> Iterator[TestClient]:
    with TestClient(create_app(tiny.server, ["testserver"]), raise_server_exceptions=False) as made:
        yield made


def ask(client: TestClient, **body: Any) -> Any:
    return client.post("/v1/completions", json={"prompt": "The acting", "seed": 5, "max_tokens": 12, **body})


def refusal(answer: Any) -> dict[str, Any]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error, status=answer.status_code)


def test_a_completion_has_the_shape_of_openai_and_names_its_weights(client: TestClient, tiny: Tiny) -> None:
    answer = ask(client, n=2, logprobs=0).json()
    assert (answer["object"], answer["model"], answer["seed"]) == ("text_completion", NAME, 5)
    assert answer["revision"] == {"trial": "kkkkkkkk", "step": 1, "state": "training"}
    assert answer["choices"] == tiny.answer(n=2, logprobs=0)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == 2, "a prompt is read once, however many completions it has"
    assert usage["completion_tokens"] == sum(len(choice["logprobs"]["tokens"]) for choice in answer["choices"])
    first, second = ask(client, seed=None).json(), ask(client, seed=None).json()
    assert first["seed"] != second["seed"]
    assert ask(client, seed=first["seed"]).json()["choices"] == first["choices"]


def test_measurements_come_with_the_answer_also_in_a_stream(client: TestClient) -> None:
    choices = ask(client, measure=True, n=2).json()["choices"]
    lines = [line for line in ask(client, measure=True, n=2, stream=True).text.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    assert [json.loads(line.removeprefix("data: "))["choices"] for line in lines[:-1]] == [[one] for one in choices]


def test_the_client_of_openai_talks_to_it(client: TestClient, tiny: Tiny) -> None:
    openai = pytest.importorskip("openai")
    theirs = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0)
    assert [model.id for model in theirs.models.list()] == [NAME, "reference"]
    assert theirs.models.retrieve(NAME).owned_by == "ablate"
    settings = {"model": NAME, "prompt": ["The acting", "It"], "seed": 5, "max_tokens": 12, "n": 2}
    neutral = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "user": "me"}
    whole = theirs.completions.create(**settings, **neutral, logprobs=0, extra_body={"measure": True})
    expected = tiny.answer(["The acting", "It"], n=2, logprobs=0)
    assert [choice.text for choice in whole.choices] == [choice["text"] for choice in expected]
    assert whole.choices[1].logprobs.token_logprobs == expected[1]["logprobs"]["token_logprobs"]
    settings |= {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [chunk.choices[0] for chunk in theirs.completions.create(**settings)]
    assert [chunk.text for chunk in chunks] == [choice.text for choice in whole.choices]


@pytest.mark.parametrize(
    ("given", "message", "param"),
    [
        ({"temprature": 1}, "unknown key 'temprature'; did you mean 'temperature'?", "temprature"),
        ({"top_p": 0.5}, "top_p = 0.5: must be greater than or equal to 1", "top_p"),
        ({"max_tokens": 0}, "max_tokens = 0: must be greater than or equal to 1", "max_tokens"),
        ({"stop": ["a"] * 5}, "stop: has 5 entries; at most 4 are allowed", "stop"),
        ({"n": 65}, "prompts x n = 65 completions: at most 64", "n"),
        ({"measure": True, "stop": "."}, "measure = true: needs a trial, not a folder, and whole answers", "measure"),
        ({"prompt": ["It", ""]}, "a prompt has 0 tokens and max_tokens is 12: the network reads 1 to 96", "prompt"),
    ],
)  # fmt: skip
def test_one_sentence_names_the_fault(client: TestClient, given: dict[str, Any], message: str, param: str) -> None:
    found = refusal(ask(client, **given))
    assert (found["status"], found["param"], found["type"]) == (400, param, "invalid_request_error")
    assert found["message"].startswith(message)
    assert ask(client, max_tokens=POSITIONS - 2).status_code == 200, "the longest that fits"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not valid JSON (EOF while parsing an object at line 1 column 1)"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature = inf: must be a finite number"),
        (b'{"prompt": "a", "max_tokens": "' + b"x" * 9999 + b'"}', "max_tokens = 'xxx"),
    ],
)
def test_a_body_that_is_no_request_is_refused_in_one_line(client: TestClient, body: bytes, message: str) -> None:
    found = refusal(client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"}))
    assert (found["status"], found["message"][: len(message)]) == (400, message)
    assert (len(found["message"]) < 400, found["message"].count("\n")) == (True, 0)


def test_names_and_sizes_are_bounded(client: TestClient) -> None:
    unknown = refusal(client.get("/v1/models/study/arm/1"))
    assert (unknown["status"], unknown["code"]) == (404, "model_not_found")
    assert unknown["message"].endswith(f"not served here; did you mean '{NAME}'?; there are: {NAME}, reference")
    assert refusal(ask(client, model="gpt"))["status"] == 404
    assert refusal(ask(client, prompt="x" * 2**18))["status"] == 413
    assert [refusal(client.get(path))["status"] for path in ("/v1/completions", "/docs")] == [405, 404]


def test_pages_elsewhere_cannot_use_the_server(client: TestClient, tiny: Tiny) -> None:
    plain = refusal(client.post("/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": "text/plain"}))
    assert (plain["status"], plain["message"]) == (415, "the content type is 'text/plain': send application/json")
    for host, status in {"elsewhere.example:8000": 400, "testserver:8000": 200, "": 400}.items():
        assert client.get("/health", headers={"Host": host}).status_code == status
    assert "access-control-allow-origin" not in client.get("/health").headers
    here = TestClient(create_app(tiny.server))
    assert all(here.get("/health", headers={"Host": f"{host}:8000"}).is_success for host in HERE)


def test_the_page_makes_no_markup_of_texts_and_runs_its_own_script_alone(client: TestClient) -> None:
    """A real browser tries it in test_serving.py."""
    answer = client.get("/")
    page = answer.text
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", page), "no handlers in attributes, which the policy would refuse"
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy, "after a change, this belongs into the page's policy"
    assert re.findall(r'(?:href|src)="([^"]*)"|https?://', page) == ["data:,"], "it takes nothing from elsewhere"
    assert (answer.headers["x-content-type-options"], answer.headers["x-frame-options"]) == ("nosniff", "DENY")


def test_health_shows_the_state_of_the_server(client: TestClient) -> None:
    ask(client)
    health = client.get("/health").json()
    assert health.pop("revision") == {"trial": "kkkkkkkk", "step": 1, "state": "training"}
    assert health == {"status": "ok", "model": NAME, "waiting": 0, "measure": True}


def test_a_fault_of_ours_is_a_500_and_the_server_goes_on(client: TestClient, tiny: Tiny) -> None:
    with patch.object(tiny.server, "_gold", None):
        found = refusal(ask(client, measure=True))
    assert (found["status"], found["type"]) == (500, "server_error")
    assert ask(client).status_code == 200
