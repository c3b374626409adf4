"""Answers of a batch: what they depend on, where they stop, and that none mixes two revisions."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from tiny_service import CPU, States, Tiny, network, together, tokenizer

from pipeline.models.policy import log_probs, padded_episodes, response_hidden
from studies.serving.limits import Limits
from studies.serving.networks import REFERENCE
from studies.serving.refusal import Refusal


def tokens_of(text: str) -> list[int]:
    return list(tokenizer()(text)["input_ids"])


def test_a_seed_gives_the_same_text_whatever_the_batch_around() -> None:
    tiny = Tiny()
    alone = tiny.texts(n=3)
    others = [tiny.job(prompt=["It", "The film moves and charms"], seed=seed, max_tokens=9 + seed) for seed in range(4)]
    among = tiny.answers(*others[:2], tiny.job(n=3), *others[2:])[2]
    assert [choice["text"] for choice in among] == alone
    assert len(set(alone)) == 3, "each completion has noise of its own"
    assert tiny.texts(n=5)[:3] == alone
    assert tiny.texts(seed=6, n=3) != alone
    assert tiny.texts(temperature=0.0, n=2) == [tiny.texts(temperature=0.0)[0]] * 2


def test_a_longer_answer_begins_with_the_shorter() -> None:
    tiny = Tiny()
    (short,), (long,) = tiny.answer(max_tokens=4), tiny.answer(max_tokens=20)
    assert long["text"].startswith(short["text"].rstrip("\ufffd"))
    assert short["finish_reason"] == "length"


def test_prompts_of_a_list_are_answered_in_their_order() -> None:
    tiny = Tiny()
    choices = tiny.answer(prompt=["The acting", "It"], n=2)
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [choice["text"] for choice in choices[:2]] == tiny.texts(n=2)


def test_an_answer_ends_by_eos_by_length_or_by_a_stop() -> None:
    tiny = Tiny()
    whole = tiny.answer(n=32, max_tokens=24)
    reasons = {choice["finish_reason"] for choice in whole}
    assert reasons == {"stop", "length"}, "a random network draws EOS now and then"
    (first,) = tiny.answer(max_tokens=24)
    stop = first["text"][3:5]
    (stopped,) = tiny.answer(max_tokens=24, stop=["never there", stop])
    assert stopped == {**first, "text": first["text"][: first["text"].index(stop)], "finish_reason": "stop"}


@pytest.mark.parametrize("body", [{}, {"stop": "XX"}, {"logprobs": 0}, {"logprobs": 3}, {"temperature": 0.4}])
def test_a_stream_says_what_the_whole_answer_says(body: dict[str, Any]) -> None:
    tiny = Tiny()
    if body.get("stop"):
        body = {"stop": [tiny.answer(n=4, max_tokens=30)[2]["text"][4:7]]}
    settings = {"n": 4, "max_tokens": 30, **body}
    chunks = tiny.streamed(**settings)
    for found, whole in zip(map(together, chunks), tiny.answer(**settings), strict=True):
        expected = whole["logprobs"] and {name: said for name, said in whole["logprobs"].items() if said is not None}
        assert found == {**whole, "logprobs": expected}
    assert any(len(own) > 5 for own in chunks), "as it is drawn, and not at the end"
    assert all(chunk["finish_reason"] is None for own in chunks for chunk in own[:-1])


def test_log_probs_are_those_of_the_training_forward() -> None:
    tiny = Tiny()
    job = tiny.job(logprobs=2, temperature=0.5, n=3, max_tokens=20)
    choices = tiny.answers(job)[0]
    rows = [row.query for row in job.rows], [row.tokens for row in job.rows]
    episodes = padded_episodes(*rows, torch.zeros(3, dtype=torch.bool), 0)
    with torch.no_grad():
        policy = network(1)
        log_pi = log_probs(policy, response_hidden(policy, episodes), 1.0)
    said = torch.tensor([value for choice in choices for value in choice["logprobs"]["token_logprobs"]])
    torch.testing.assert_close(said, log_pi.gather(1, episodes.labels[:, None]).squeeze(1), atol=1e-4, rtol=0)
    best = torch.tensor([list(top.values()) for choice in choices for top in choice["logprobs"]["top_logprobs"]
                         if len(top) == 2])  # fmt: skip
    assert len(best) > 10
    assert bool((best[:, 0] >= best[:, 1]).all())
    for choice in choices:
        found = choice["logprobs"]
        assert "".join(found["tokens"]) == choice["text"]
        ends = [at + len(token) for at, token in zip(found["text_offset"], found["tokens"], strict=True)]
        assert [0, *ends[:-1]] == found["text_offset"]


def test_of_tokens_with_one_text_the_likeliest_is_told() -> None:
    """Bytes that are no character by themselves have the same text."""
    tiny = Tiny()
    job = tiny.job(logprobs=5, n=8, max_tokens=20)
    (choices,) = tiny.answers(job)
    told = [top for choice in choices for top in choice["logprobs"]["top_logprobs"]]
    best = [top for row in job.rows for top in row.tops]
    assert any(len(top) < 5 for top in told), "or nothing is tested here"
    for found, top in zip(told, best, strict=False):
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert max(found.values()) == top[0][1]


def test_both_networks_proxy_and_gold_measure_an_answer() -> None:
    tiny = Tiny()
    heard: list[Any] = []
    mine, theirs = tiny.job(heard.append, measure=True, logprobs=0), tiny.job(measure=True, logprobs=0, model=REFERENCE)
    tiny.service.worker.answer([mine])
    tiny.service.worker.answer([theirs])
    assert heard == [mine]
    assert mine.measured
    assert theirs.measured
    for job, own, other in ((mine, "policy", "reference"), (theirs, "reference", "policy")):
        (found,), (choice,) = job.measured or [], job.choices
        decoded = torch.tensor(choice["logprobs"]["token_logprobs"])
        torch.testing.assert_close(torch.tensor(found[f"{own}_logprobs"]), decoded, atol=1e-4, rtol=0)
        assert not torch.allclose(torch.tensor(found[f"{other}_logprobs"]), decoded, atol=1e-2)
        assert min(found["kl"]) >= 0
        assert found["proxy"] == pytest.approx((len(choice["text"]) - 1) / 2)
        assert found["gold"] == sum(letter in "aeiou" for letter in choice["text"])
    assert mine.choices[0]["text"] != theirs.choices[0]["text"]


def test_new_weights_wait_for_the_next_batch() -> None:
    """They come while an answer is drawn: it is that of the old ones to its last token and score."""
    expected = {step: (Tiny(), step) for step in (1, 2)}
    for tiny, step in expected.values():
        tiny.source.step = step
        tiny.service.holder.look()
    old, new = (tiny.texts(max_tokens=20, n=2) for tiny, _ in expected.values())
    assert old != new
    tiny, swapped = Tiny(), []

    def swap(event: Any) -> None:
        if not swapped:
            tiny.source.step = 2
            swapped.append(tiny.service.holder.look())

    reads_along = tiny.job(swap, stream=True, max_tokens=20, n=2)
    beside = tiny.job(max_tokens=20, n=2, measure=True)
    tiny.service.worker.answer([reads_along, beside])
    after = tiny.job(max_tokens=20, n=2)
    tiny.service.worker.answer([after])
    assert swapped == [True]
    assert [row.text() for row in reads_along.rows] == [choice["text"] for choice in beside.choices] == old
    assert [choice["text"] for choice in after.choices] == new
    assert [str(job.revision) for job in (reads_along, beside, after)] == ["kkkkkkkk@1", "kkkkkkkk@1", "kkkkkkkk@2"]
    measured_by = expected[1][0].job(max_tokens=20, n=2, measure=True)
    expected[1][0].service.worker.answer([measured_by])
    assert beside.measured == measured_by.measured


def test_who_goes_away_leaves_the_batch_at_once() -> None:
    tiny = Tiny()
    seen: list[int] = []

    def leave(event: Any) -> None:
        seen.append(len(leaver.rows[0].tokens))
        tiny.service.waiting.drop(leaver)

    leaver, stays = tiny.job(leave, stream=True, max_tokens=60, seed=2), tiny.job(max_tokens=12)
    choices = tiny.answers(leaver, stays)[1]
    assert [choice["text"] for choice in choices] == tiny.texts(max_tokens=12)
    assert len(leaver.rows[0].tokens) <= seen[0] + 1, "its next token is its last one"
    assert not leaver.answered


def test_the_queue_has_an_end_and_a_dropped_request_frees_its_place() -> None:
    tiny = Tiny(limits=Limits(waiting=5, completions=4))
    waiting, first = tiny.service.waiting, tiny.job(n=3)
    waiting.put(first)
    with pytest.raises(Refusal) as caught:
        waiting.put(tiny.job(n=3))
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
    assert caught.value.message == "3 completions wait already, of at most 5"
    twin = tiny.job(n=2)
    waiting.put(twin)
    waiting.drop(twin)
    assert (waiting.completions, twin.cancelled, first.cancelled) == (3, True, False)
    waiting.drop(first)
    assert waiting.completions == 0
    same = [tiny.job(), tiny.job(), tiny.job()]
    for job in same:
        waiting.put(job)
    waiting.drop(same[1])
    assert waiting.take() == [same[0], same[2]], "equal requests are two requests"
    waiting.put(tiny.job(n=4))
    waiting.close()
    with pytest.raises(Refusal) as caught:
        waiting.put(tiny.job())
    assert caught.value.status == 503


def test_a_batch_holds_requests_for_one_network_first_come_first_served() -> None:
    tiny = Tiny(limits=Limits(completions=4, waiting=64))
    jobs = [tiny.job(n=2), tiny.job(model=REFERENCE), tiny.job(n=3), tiny.job(n=1), tiny.job(n=1, model="study/arm/0")]
    for job in jobs:
        tiny.service.waiting.put(job)
    batches = [tiny.service.waiting.take() for _ in range(3)]
    assert batches == [[jobs[0], jobs[3], jobs[4]], [jobs[1]], [jobs[2]]]
    assert [job.request.model for job in (jobs[1], jobs[4])] == [REFERENCE, None]


def test_the_first_of_a_batch_waits_a_little_for_others() -> None:
    tiny = Tiny(limits=Limits(collect_seconds=0.2))
    job = tiny.job()
    tiny.service.waiting.put(job)
    assert tiny.service.waiting.take() == [job]
    assert time.monotonic() - job.arrived >= 0.2
    tiny.service.waiting.close()
    assert tiny.service.waiting.take() == []


def test_a_fault_ends_its_requests_and_not_the_server(caplog: pytest.LogCaptureFixture) -> None:
    tiny = Tiny()
    heard: list[Any] = []
    broken = tiny.job(heard.append)
    broken.rows[0].query = [10**9]
    tiny.service.worker.answer([broken])
    assert [(event.status, event.body["error"]["type"]) for event in heard] == [(500, "server_error")]
    assert "a batch failed" in caplog.text
    assert len(tiny.texts()) == 1


def test_a_network_without_numbers_is_said_to_be_broken() -> None:
    tiny, heard = Tiny(), list[Any]()
    with torch.no_grad():
        tiny.service.holder.now.policy.get_input_embeddings().weight.fill_(torch.nan)
    tiny.service.worker.answer([tiny.job(heard.append)])
    assert [(event.status, event.message) for event in heard] == [
        (503, "the logits of kkkkkkkk@1 are not finite: the policy is broken")
    ]
    assert len(tiny.texts(model=REFERENCE)) == 1


@pytest.mark.parametrize(("logit", "heard"), [(torch.inf, [503]), (-torch.inf, [])])
def test_an_infinite_logit_breaks_a_softmax_and_one_that_can_never_come_does_not(
    monkeypatch: pytest.MonkeyPatch, logit: float, heard: list[int]
) -> None:
    from studies.serving import batching

    def decoded(*arguments: Any) -> None:
        arguments[-1]([0], [2], torch.tensor([[0.0, logit, 1.0]]))

    monkeypatch.setattr(batching, "decode_rows", decoded)
    events = list[Any]()
    tiny = Tiny()
    tiny.service.worker.answer([tiny.job(events.append)])
    assert [event.status for event in events] == heard


def test_too_little_memory_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from studies.serving import batching

    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(batching, "decode_rows", full)
    heard: list[Any] = []
    tiny = Tiny()
    tiny.service.worker.answer([tiny.job(heard.append, n=3), tiny.job()])
    assert [(event.status, event.message) for event in heard] == [(503, "out of memory with 4 completions at once")]


def test_a_prompt_without_opponents_has_no_proxy_and_says_why() -> None:
    from pipeline.errors import UserError

    tiny = Tiny()
    measurer = tiny.service.worker._measurer
    assert measurer is not None
    assert measurer.device == CPU

    class Unknown:
        def explained(self, completions: Any) -> Any:
            raise UserError("no opponents")

    measurer.proxy = Unknown()  # type: ignore[assignment]
    job = tiny.job(measure=True)
    tiny.service.worker.answer([job])
    assert job.measured
    assert (job.measured[0]["proxy"], job.measured[0]["proxy_why"]) == (None, "no opponents")
    assert job.measured[0]["gold"] is not None


@pytest.mark.parametrize(("training", "share", "rests"), [(True, 0.2, 8.0), (True, 1.0, 0.0), (False, 0.2, 8.0)])
def test_beside_training_it_rests_in_proportion_to_what_a_batch_took(
    training: bool, share: float, rests: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.serving import batching

    tiny, now, rested = Tiny(States(training=training), Limits(share=share)), [5.0], list[Any]()
    worker = tiny.service.worker
    answer = worker.answer

    def slowly(jobs: Any) -> None:
        answer(jobs)
        now[0] += 2.0

    monkeypatch.setattr(worker, "answer", slowly)
    monkeypatch.setattr(worker._waiting, "rest", lambda seconds, needed: rested.append((seconds, needed())))
    job = tiny.job()
    monkeypatch.setattr(batching.time, "thread_time", lambda: now[0])
    worker.answer_and_rest([job])
    assert job.answered
    assert rested == [(pytest.approx(rests), training)]


def test_a_rest_ends_with_the_training() -> None:
    waiting = Tiny().service.waiting
    answers = iter([True, False])
    waiting.rest(3600.0, lambda: next(answers))
    assert list(answers) == []


def test_the_end_of_the_server_ends_its_rest_and_what_waits_is_answered() -> None:
    tiny = Tiny(States(training=True), Limits(share=1e-6))
    worker, waiting = tiny.service.worker, tiny.service.waiting
    first, second, third = (tiny.job() for _ in range(3))
    worker.thread.start()
    waiting.put(first)
    deadline = time.monotonic() + 60
    while not first.answered and time.monotonic() < deadline:
        time.sleep(0.01)
    waiting.put(second)
    waiting.put(third)
    worker.thread.join(0.3)
    assert (first.answered, second.answered, waiting.completions) == (True, False, 2), "it rests for an hour"
    waiting.close()
    worker.thread.join(60)
    assert (second.answered, third.answered) == (True, True)


def test_whether_trials_train_is_asked_at_every_look() -> None:
    tiny = Tiny()
    holder = tiny.service.holder
    assert not holder.beside_training
    tiny.source.training = True
    holder.follow()
    deadline = time.monotonic() + 60
    while not holder.beside_training and time.monotonic() < deadline:
        time.sleep(0.01)
    holder.close()
    assert holder.beside_training
