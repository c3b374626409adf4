from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder, recorded, smoke, write_sealed
from tiny_service import network, tokenizer
from tinytrial import Killed, Killer

from pipeline.errors import Damaged, UserError
from pipeline.models.adapters import choose_trained
from pipeline.models.loading import load_snapshot
from pipeline.models.policy import padded_episodes
from pipeline.rewards.base import Completions
from pipeline.run.layout import Layout
from pipeline.run.store import Artifact, Store, write_manifest
from pipeline.training import checkpoint
from pipeline.trial import run_trial
from studies.definition.schema import single
from studies.serving.batching import Completion, Server
from studies.serving.weights import ServedTrial, find


def equal(a: Any, b: Any) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_folder_is_served_and_new_weights_in_it_are_taken(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    network(1).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    server = Server(find(str(folder), Layout(tmp_path)), 1.0)
    assert server.models == {"policy": "policy"}
    before = server.revision
    assert (before.step, before.state, len(before.trial)) == (None, "exported", 20)
    network(2).save_pretrained(tmp_path / "new")
    os.replace(tmp_path / "new" / "model.safetensors", folder / "model.safetensors")
    ((answer,), _) = server._work([Completion(prompt=["<|endoftext|> The film"], model="policy", max_tokens=4)])
    assert answer["revision"]["trial"] == server.revision.trial != before.trial
    assert equal(server._policy, network(2))
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"needs config.json, \*.safetensors and a tokenizer"):
        find(str(folder), Layout(tmp_path))


def trial_of(tmp_path: Path, **changes: Any) -> tuple[ServedTrial, Path, Path]:
    """A trial whose reference is network 0, and where its checkpoints and its end lie."""
    network(0).save_pretrained(tmp_path / "sft" / "model")
    store = Store(tmp_path / "store")
    trial = ServedTrial("a/b/0", smoke(**changes), store, lambda: [("train", "k")])
    trial.made = {name: Artifact(name, "s", tmp_path / name, "d") for name in ("prompts", "sft", "reward")}
    return trial, store.partial("train", "k") / "checkpoints", store.root / "train" / "k"


def loaded(trial: ServedTrial) -> tuple[Any, Any]:
    newest = trial.newest()
    assert newest is not None
    return newest[1]()


def test_the_newest_checkpoint_holds_the_policy_and_then_the_end_does(tmp_path: Path) -> None:
    trial, kept, final = trial_of(tmp_path)
    assert trial.newest() is None
    for update, seed in ((2, 1), (4, 2)):
        state = {f"lm.{name}": tensor for name, tensor in network(seed).named_parameters()}
        checkpoint.save(kept, update, {"taken": 4 * update, "actor": {**state, "value_head.weight": torch.ones(1, 16)}})
    (kept / ".writing").write_bytes(b"half of a checkpoint")
    # A training that is taken up again has ended before, with older weights.
    network(3).save_pretrained(final / "policy")
    write_manifest(final, "train", "k", {}, {"steps": 4, "status": "budget"})
    revision, policy = loaded(trial)
    assert (str(revision), revision.state) == ("k@16", "training")
    assert equal(policy, network(2))
    newest = checkpoint.checkpoints(kept)[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    with pytest.raises(Damaged, match="checksum differs"):
        loaded(trial)
    assert newest.exists(), "it is another's: nothing is set aside here"
    shutil.rmtree(kept.parent)
    revision, policy = loaded(trial)
    assert (str(revision), revision.state) == ("k@4", "budget")
    assert equal(policy, network(3))
    built = trial._store.build("train", "x", {}, lambda out: {"trains": trial.trains()}, resumable=False)
    assert (built.meta["trains"], trial.trains()) == (True, False)
    weights = final / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(Damaged):
        loaded(trial)


@pytest.mark.slow
def test_a_checkpoint_of_an_adapter_is_served_as_plain_weights(tmp_path: Path) -> None:
    trial, kept, _ = trial_of(tmp_path, adapter__kind="lora", adapter__rank=2)
    lm = choose_trained(network(0), trial.config)
    trained = {name: tensor for name, tensor in lm.named_parameters() if tensor.requires_grad}
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for tensor in trained.values():
            tensor.normal_()
    checkpoint.save(kept, 1, {"taken": 1, "actor": {f"lm.{name}": tensor for name, tensor in trained.items()}})
    _, policy = loaded(trial)
    ids = torch.tensor([[5, 9, 4, 7]])
    with torch.no_grad():
        expected = lm(ids).logits
        torch.testing.assert_close(policy(ids).logits, expected, atol=1e-3, rtol=1e-3)
        assert not torch.allclose(network(0)(ids).logits, expected, atol=0.1)


def started(layout: Layout, **changes: Any) -> str:
    """The name of the one smoke trial of a study that is pinned."""
    study = single("smoke", {key.replace("__", "."): value for key, value in changes.items()}, 0)
    content = {"study": study.model_dump(mode="json"), "source": "", "profile": "smoke", "overrides": {}}
    write_sealed(layout.study("demo", "smoke").study_file, content)
    return f"demo/{next(iter(study.arm_overrides()))}/0"


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "after", "step"), [({}, 5, 16), ({"reward__learned__rounds": 2}, 3, 8)])
def test_a_trial_is_followed_through_a_kill_to_its_end(
    smoke_layout: Layout, tmp_path: Path, changes: dict[str, Any], after: int, step: int
) -> None:
    layout = Layout(tmp_path / "out")
    shutil.copytree(smoke_layout.store, layout.store, ignore=shutil.ignore_patterns("train", "evaluate"))
    name = started(layout, **changes)
    with pytest.raises(Killed):
        run_trial(smoke(**changes), layout, Killer(after))
    server = Server(find(name, layout), 1.0)
    assert (server.revision.state, server.revision.step) == ("training", step), "of the last even update"
    outcome = run_trial(smoke(**changes), layout, Recorder())
    server.look()
    assert server.revision == (outcome.artifacts["train"].key, 32, "complete")
    assert equal(server._policy, load_snapshot(outcome.artifacts["train"].path / "policy", server.source.device))


@pytest.mark.slow
def test_a_recorded_trial_is_measured_as_its_evaluation_measured_it(smoke_layout: Layout, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "out")
    shutil.copytree(smoke_layout.store, layout.store)
    record = recorded(layout)
    started(layout)
    server = Server(find("demo/base/0", layout), 1.0)
    assert str(server.revision) == f"{record.stages['train'].key}@32"
    table = pd.read_parquet(layout.root / record.stages["evaluate"].path / "prompts.parquet").head(8)
    own, ended = server.tokenizer, torch.tensor(table["policy_eos"].to_numpy())
    queries, answers = (own(list(table[column]))["input_ids"] for column in ("prompt", "policy_completion"))
    answers = [tokens + [own.eos_token_id] * bool(end) for tokens, end in zip(answers, ended, strict=True)]
    episodes = padded_episodes(queries, answers, ended, own.pad_token_id)
    found = server._measured(Completions.of(own, episodes, list(table["prompt"])))
    assert [one["gold"] for one in found] == pytest.approx(table["policy_gold"].tolist())
    assert [one["proxy"] for one in found] == pytest.approx(table["policy_proxy"].tolist(), abs=1e-4)
    assert [sum(one["kl"]) for one in found] == pytest.approx(table["kl"].tolist(), abs=1e-4)
