"""The routes, as clients see them: OpenAI's shapes, its own client, limits, and who goes away."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from tiny_service import POSITIONS, Tiny

from studies.serving import app
from studies.serving.app import create_app
from studies.serving.limits import Limits
from studies.serving.page import HEADERS, PAGE
from studies.serving.server import stop


@pytest.fixture(scope="module")
def tiny() -> Iterator[Tiny]:
    made = Tiny(limits=Limits(body_bytes=4096, max_tokens=POSITIONS))
    made.service.worker.thread.start()
    yield made
    stop(made.service)


@pytest.fixture(scope="module")
def client(tiny: Tiny) -> Iterator[TestClient]:
    with TestClient(create_app(tiny.service), raise_server_exceptions=False) as made:
        yield made


def ask(client: TestClient, **body: Any) -> Any:
    return client.post("/v1/completions", json={"prompt": "The acting", "seed": 5, "max_tokens": 12, **body})


def sentence(answer: Any) -> str:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


def test_a_completion_has_the_shape_of_openai_and_says_by_what_it_was_made(client: TestClient, tiny: Tiny) -> None:
    answer = ask(client, n=2, logprobs=1).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "study/arm/0"
    assert answer["system_fingerprint"] == "kkkkkkkk@1"
    assert answer["revision"] == {"trial": "kkkkkkkk", "step": 1, "state": "training"}
    assert answer["seed"] == 5
    assert answer["choices"] == tiny.answer(n=2, logprobs=1)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == 2, "a prompt is read once, however many completions it has"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == sum(len(choice["logprobs"]["tokens"]) for choice in answer["choices"])


def test_without_a_seed_answers_differ_and_can_be_repeated(client: TestClient) -> None:
    first, second = ask(client, seed=None).json(), ask(client, seed=None).json()
    assert first["seed"] != second["seed"]
    assert ask(client, seed=first["seed"]).json()["choices"] == first["choices"]


def test_the_measurements_come_with_the_answer_and_at_the_end_of_a_stream(client: TestClient) -> None:
    (choice,) = ask(client, measure=True).json()["choices"]
    assert set(choice["measured"]) == {"policy_logprobs", "reference_logprobs", "kl", "proxy", "gold"}
    streamed = events(ask(client, measure=True, stream=True, stream_options={"include_usage": True}).text)
    assert streamed[-2]["choices"] == [
        {"index": 0, "text": "", "logprobs": None, "finish_reason": None, "measured": choice["measured"]}
    ]
    assert streamed[-1]["choices"] == []
    assert streamed[-1]["usage"]["completion_tokens"] == len(choice["measured"]["kl"])
    assert "".join(event["choices"][0]["text"] for event in streamed[:-1]) == choice["text"]


def events(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_the_client_of_openai_talks_to_it(client: TestClient, tiny: Tiny) -> None:
    openai = pytest.importorskip("openai")
    theirs = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0)
    assert [model.id for model in theirs.models.list()] == ["study/arm/0", "reference"]
    assert theirs.models.retrieve("study/arm/0").owned_by == "ablate"
    settings = {"model": "study/arm/0", "prompt": ["The acting", "It"], "seed": 5, "max_tokens": 12, "n": 2}
    whole = theirs.completions.create(**settings, logprobs=2, top_p=1, user="me", extra_body={"measure": True})
    expected = tiny.answer(prompt=["The acting", "It"], n=2, logprobs=2)
    assert [choice.text for choice in whole.choices] == [choice["text"] for choice in expected]
    assert whole.choices[1].logprobs.token_logprobs == expected[1]["logprobs"]["token_logprobs"]
    assert whole.system_fingerprint == "kkkkkkkk@1"
    assert whole.choices[0].measured["gold"] >= 0
    texts = ["", "", "", ""]
    for chunk in theirs.completions.create(**settings, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    with pytest.raises(openai.BadRequestError, match=r"top_p = 0\.5: nothing truncates"):
        theirs.completions.create(model="reference", prompt="It", top_p=0.5)
    with pytest.raises(openai.NotFoundError, match="there are: study/arm/0, reference"):
        theirs.completions.create(model="gpt", prompt="It")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"prompt": ""}, 400, "the prompt is empty: give at least one word, which the completion follows"),
        ({"prompt": ["It", ""]}, 400, "prompt 2 is empty: give at least one word, which the completion follows"),
        (
            {"max_tokens": POSITIONS - 1},
            400,
            "the prompt has 2 tokens and max_tokens is 95: the network reads 96 together",
        ),
        ({"prompt": "x" * 5000}, 413, "the body has more than 4096 bytes"),
        ({"model": "nobody"}, 404, "model = 'nobody': not served here; there are: study/arm/0, reference"),
    ],
)
def test_what_is_too_much_is_refused(client: TestClient, body: dict[str, Any], status: int, message: str) -> None:
    answer = ask(client, **body)
    assert (answer.status_code, sentence(answer)) == (status, message)
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_longest_that_fits_is_answered(client: TestClient) -> None:
    assert ask(client, max_tokens=POSITIONS - 2).status_code == 200


def test_pages_elsewhere_cannot_use_the_server(client: TestClient) -> None:
    plain = client.post("/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": "text/plain"})
    assert (plain.status_code, sentence(plain)) == (415, "the content type is 'text/plain': send application/json")
    rebound = client.get("/health", headers={"Host": "elsewhere.example:8000"})
    assert rebound.status_code == 403
    assert client.get("/health", headers={"Host": "testserver:8000"}).status_code == 200
    assert "access-control-allow-origin" not in client.get("/health").headers


def test_what_is_not_there_is_said_so(client: TestClient) -> None:
    missing = client.get("/v1/completion")
    assert missing.status_code == 404
    assert sentence(missing).startswith("there is no /v1/completion; did you mean '/v1/completions'?; there are: /, ")
    wrong = client.get("/v1/completions")
    assert (sentence(wrong), wrong.headers["allow"]) == ("GET is not allowed on /v1/completions", "POST")
    unknown = client.get("/v1/models/study/arm/1")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert client.get("/docs").status_code == 404


def test_health_and_metrics_say_what_goes_on(client: TestClient) -> None:
    ask(client)
    health = client.get("/health").json()
    assert health == {
        "status": "ok",
        "model": "study/arm/0",
        "revision": {"trial": "kkkkkkkk", "step": 1, "state": "training"},
        "waiting": 0,
        "measure": True,
    }
    text = client.get("/metrics").text
    assert re.search(r'^ablate_requests_total\{status="200"\} \d+$', text, re.MULTILINE)
    assert re.search(r'^ablate_tokens_total\{model="policy"\} \d+$', text, re.MULTILINE)
    assert "\nablate_policy_step 1\n" in text
    buckets = [int(count) for count in re.findall(r'bucket\{le="[^"]+"\} (\d+)', text)]
    assert buckets == sorted(buckets)
    assert f"\nablate_request_seconds_count {buckets[-1]}\n" in text
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) ablate_\w+ .+|ablate_\w+(\{[^}]*\})? [\d.e+-]+", line), line


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_place(stream: bool) -> None:
    """Nobody answers here: the request waits, its client leaves, and the queue is empty again."""
    tiny = Tiny()
    body = json.dumps({"prompt": "The acting", "stream": stream}).encode()
    sent: list[Any] = []

    async def run() -> None:
        arrived, gone = asyncio.Event(), asyncio.Event()

        async def receive() -> Any:
            if not arrived.is_set():
                arrived.set()
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"testserver"), (b"content-type", b"application/json")]
        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
                 "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"",
                 "headers": headers, "scheme": "http", "server": ("testserver", 80), "client": ("127.0.0.1", 5),
                 "root_path": ""}  # fmt: skip
        task = asyncio.ensure_future(create_app(tiny.service)(scope, receive, send))
        while not tiny.service.waiting.completions:
            await asyncio.sleep(0.01)
        gone.set()
        await asyncio.wait_for(task, 10)

    asyncio.run(run())
    assert tiny.service.waiting.completions == 0
    assert tiny.service.metrics.count("requests_total", status=499) == 1
    assert not any(b"text_completion" in message.get("body", b"") for message in sent)


def test_a_full_queue_turns_clients_away() -> None:
    full = Tiny(limits=Limits(waiting=2))
    with TestClient(create_app(full.service)) as client:
        full.service.waiting.put(full.job(n=2))
        answer = ask(client)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"]["type"] == "rate_limit_error"
        full.service.waiting.close()
        assert ask(client).status_code == 503


def test_a_fault_while_streaming_is_told_in_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from studies.serving import batching

    def broken(*arguments: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(batching, "decode_rows", broken)
    tiny = Tiny()
    tiny.service.worker.thread.start()
    with TestClient(create_app(tiny.service)) as client:
        answer = ask(client, stream=True)
        assert json.loads(answer.text.removeprefix("data: "))["error"]["type"] == "server_error"
        assert ask(client).status_code == 500
    assert tiny.service.metrics.count("requests_total", status=500) == 2
    stop(tiny.service)


def test_a_fault_of_ours_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise ValueError("broken")

    tiny = Tiny()
    monkeypatch.setattr(app, "_tokens", broken)
    with TestClient(create_app(tiny.service), raise_server_exceptions=False) as client:
        answer = ask(client)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert tiny.service.metrics.count("requests_total", status=500) == 1


def test_the_page_takes_nothing_from_elsewhere_and_builds_no_html_from_text(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.findall(r"https?://|\bsrc=|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", PAGE)
    assert re.findall(r'href="([^"]*)"', PAGE) == ["data:,"]
