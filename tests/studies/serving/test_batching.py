from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tiny_service import NAME, Tiny, network, tokenizer

from pipeline.errors import Damaged, UserError
from pipeline.models.heads import log_probs
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import response_hidden
from pipeline.models.sampling import EagerSampler, decode, tokenize_prompts
from pipeline.models.seeding import uniforms
from studies.serving import batching


def test_a_seed_gives_the_same_text_whatever_the_batch_around() -> None:
    tiny = Tiny()
    alone = tiny.texts(n=3)
    others = [tiny.asked(["It", "The film moves and charms"], seed=seed) for seed in range(4)]
    among = tiny.server.answers([*others[:2], tiny.asked(n=3), *others[2:]])
    assert [choice["text"] for choice in among[2]["choices"]] == alone
    assert among[0]["choices"] == tiny.answer(["It", "The film moves and charms"], seed=0)
    assert len(set(alone)) == 3, "each completion has noise of its own"
    assert tiny.texts(n=5)[:3] == alone
    assert tiny.texts(seed=6, n=3) != alone
    assert tiny.texts(temperature=0.0, n=2) == [tiny.texts(temperature=0.0)[0]] * 2
    assert tiny.texts(["The acting", "It"], n=2)[:2] == tiny.texts(n=2), "answers stand in the order of the prompts"


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0, 1e-39])
def test_it_draws_what_the_sampler_of_training_draws_from_noise_of_seed_and_place(temperature: float) -> None:
    """Below 1e-6 logits divided by the temperature would not be finite: the likeliest token is taken."""
    queries, mask = tokenize_prompts(tokenizer(), ["The acting", "The acting", "It", "It"])
    noise = torch.cat([uniforms(1, 20, "serve", -3, place) for place in range(4)])
    sampler = EagerSampler(network(1), temperature, Room("rows", 64), tokenizer().eos_token_id, 0)
    episodes = sampler.sample(queries, mask, noise) if temperature > 1e-6 else sampler.greedy(queries, mask, 20)
    found = Tiny().answer(["The acting", "It"], n=2, seed=-3, max_tokens=20, temperature=temperature)
    assert [choice["text"] for choice in found] == decode(tokenizer(), episodes)
    assert [choice["finish_reason"] == "stop" for choice in found] == episodes.ended.tolist()


def test_an_answer_ends_by_eos_by_length_or_by_a_stop() -> None:
    tiny = Tiny()
    reasons = {choice["finish_reason"] for choice in tiny.answer(n=32, max_tokens=24)}
    assert reasons == {"stop", "length"}, "a random network draws EOS now and then"
    (whole,) = tiny.answer(max_tokens=24, logprobs=0)
    stop = whole["text"][3:5]
    (stopped,) = tiny.answer(max_tokens=24, stop=["never there", stop], logprobs=0)
    assert (stopped["text"], stopped["finish_reason"]) == (whole["text"][: whole["text"].index(stop)], "stop")
    shown, everything = stopped["logprobs"], whole["logprobs"]
    n = len(shown["token_logprobs"])
    assert shown["text_offset"][-1] < len(stopped["text"]) <= everything["text_offset"][n], "to the token with the cut"


@pytest.mark.parametrize("model", [NAME, "reference"])
def test_an_answer_is_measured_by_both_networks_row_by_row(model: str) -> None:
    tiny, whole = Tiny(), list[Any]()
    tiny.server._gold = lambda drawn: whole.append(drawn) or drawn.episodes.ended.float()
    how: dict[str, Any] = {"n": 12, "max_tokens": 24, "temperature": 0.8, "model": model}
    choices = tiny.answer(["The film moves and charms", "It"], measure=True, logprobs=0, **how)
    episodes = whole[0].episodes
    assert [choice["measured"]["gold"] for choice in choices] == episodes.ended.float().tolist()
    assert model != NAME or 0 < int(episodes.ended.sum()) < 24, "rows end at different times"
    for row, choice in enumerate(choices):
        one, found = episodes.take(slice(row, row + 1)), choice["measured"]
        with torch.no_grad():
            policy, other = (log_probs(lm, response_hidden(lm, one), 1.0) for lm in (network(1), network(0)))
        mine, theirs = (log_pi.gather(1, one.labels[:, None])[:, 0].tolist() for log_pi in (policy, other))
        assert found["policy_logprobs"] == pytest.approx(mine, abs=1e-4)
        assert found["reference_logprobs"] == pytest.approx(theirs, abs=1e-4)
        assert found["kl"] == pytest.approx((policy.exp() * (policy - other)).sum(1).tolist(), abs=1e-4)
        assert found["proxy"] == pytest.approx((len(choice["text"]) - 1) / 2)
        shown, own = choice["logprobs"], mine if model == NAME else theirs
        assert shown["token_logprobs"] == pytest.approx(own, abs=1e-4), "of softmax(logits), whatever the temperature"
        assert shown["text_offset"] == [len("".join(shown["tokens"][:i])) for i in range(len(own))]
        assert "\ufffd" in "".join(shown["tokens"]) or "".join(shown["tokens"]) == choice["text"]
    tiny.server._proxy = Mock(side_effect=UserError("no opponents for this prompt"))
    assert tiny.answer(measure=True)[0]["measured"]["proxy"] is None


def test_newer_weights_take_over_before_a_batch_and_broken_ones_do_not(caplog: pytest.LogCaptureFixture) -> None:
    tiny = Tiny()
    server, source, asked = tiny.server, tiny.source, tiny.asked(max_tokens=20)
    (first,), _ = server._work([asked])
    source.step = 2
    (second,), _ = server._work([asked])
    assert [answer["system_fingerprint"] for answer in (first, second)] == ["kkkkkkkk@1", "kkkkkkkk@2"]
    assert first["choices"] != second["choices"]
    source.step, source.fault = 3, Damaged(Path("x"), "half of it")  # type: ignore[assignment]
    loads = source.loads
    for _ in range(2):
        assert server._work([asked])[0] == [second]
    assert source.loads == loads + 1, "what was damaged is not read again"
    assert caplog.text.count("newer weights cannot be loaded, those of kkkkkkkk@2 go on: Damaged") == 1
    spoilt = network(1)
    spoilt.get_input_embeddings().weight[3, 3] = torch.nan
    source.step = 4
    source._load = lambda: (server.revision._replace(step=4), spoilt)  # type: ignore[method-assign]
    assert server._work([asked])[0] == [second]
    assert "kkkkkkkk@4 is broken: its weights are not finite" in caplog.text


def test_requests_of_one_kind_that_arrive_together_share_a_batch_first_come_first_served() -> None:
    tiny = Tiny(share=1.0)
    kinds = [{"n": 2}, {"model": "reference"}, {"n": 62}, {"n": 2, "seed": 6}, {"temperature": 0.5}, {"max_tokens": 4}]
    requests = [tiny.asked(**kind) for kind in kinds]
    tiny.server._work = work = Mock(wraps=tiny.server._work)  # type: ignore[method-assign]
    answers = asyncio.run(together(tiny, requests))
    batches = [[requests.index(asked) for asked in call.args[0]] for call in work.call_args_list]
    assert batches == [[0, 2], [1], [3], [4], [5]]
    assert [len(answer["choices"]) for answer in answers] == [2, 1, 62, 2, 1, 1]
    assert answers[3] == tiny.server.answers([requests[3]])[0]


async def together(tiny: Tiny, requests: Any) -> list[Any]:
    task = asyncio.create_task(tiny.server.run())
    answers = await asyncio.gather(*map(tiny.server.answer, requests), return_exceptions=True)
    await asyncio.sleep(0.05)  # an idle server gives its thread no work
    task.cancel()
    return list(answers)


def test_a_fault_ends_its_requests_and_not_the_server_and_the_queue_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Tiny(share=1.0)
    monkeypatch.setattr(batching, "WAITING", 67)
    broken, sound = [tiny.asked("", temperature=0.5, n=n) for n in (1, 2)], tiny.asked(n=64)
    *faults, answer, refused = asyncio.run(together(tiny, [*broken, sound, tiny.asked()]))
    assert [type(fault) for fault in faults] == [RuntimeError, RuntimeError], "no network reads an empty prompt"
    assert len(answer["choices"]) == 64
    assert (refused.status_code, refused.headers) == (429, {"Retry-After": "1"})
    assert refused.detail == "67 completions wait already, of at most 67"


def test_beside_training_it_rests_in_proportion_to_what_a_batch_took(monkeypatch: pytest.MonkeyPatch) -> None:
    for training, share, rests in ((True, 0.2, 8.0), (True, 1.0, 0.0), (False, 0.2, 0.0)):
        tiny = Tiny(share=share)
        tiny.source.training = training
        monkeypatch.setattr(time, "thread_time", Mock(side_effect=[5.0, 7.0]))
        assert tiny.server._work([tiny.asked()])[1] == pytest.approx(rests)
