"""Where weights come from: whole ones alone, the newest, and never a pickle."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder, smoke
from safetensors.torch import load_file, save_file
from smoke_record import recorded
from starlette.testclient import TestClient
from tiny_service import CPU, States, Tiny, network, tokenizer
from tinytrial import Killed, Killer

from pipeline.errors import Damaged, Gone, UserError
from pipeline.models.adapters import choose_trained
from pipeline.models.loading import load_snapshot
from pipeline.run import dag
from pipeline.run.layout import Layout, sealed, write_atomic
from pipeline.run.store import Artifact, Store, write_manifest
from pipeline.stages import STAGES
from pipeline.training import checkpoint
from studies.definition.schema import single
from studies.serving.app import create_app
from studies.serving.finding import find_source
from studies.serving.metrics import Metrics
from studies.serving.networks import Holder
from studies.serving.server import build, stop
from studies.serving.sources import FolderSource, Training, TrialSource, read_checkpoint


class Asking(Recorder):
    """Asks whenever a training tells how far it has come."""

    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__()
        self._ask = ask

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage.startswith("train"):
            self._ask()


def equal(a: Any, b: Any) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    network(1).save_pretrained(tmp_path / "policy")
    tokenizer().save_pretrained(tmp_path / "policy")
    return tmp_path / "policy"


def test_a_folder_is_served_and_new_weights_in_it_are_taken(folder: Path) -> None:
    said: list[str] = []
    service = build(FolderSource(folder, CPU), said.append)
    assert (service.name, service.models) == ("policy", {"policy": "policy"})
    assert service.unmeasured is not None
    service.worker.thread.start()
    body = {"prompt": ["<|endoftext|> The film", "<eos> Ze\u0301ro"], "max_tokens": 4}
    client = TestClient(create_app(service), "http://127.0.0.1")
    assert client.post("/v1/completions", json=body).status_code == 200
    before = service.holder.now.revision
    assert (before.step, before.state, len(before.key)) == (None, "exported", 20)
    assert not service.holder.look()
    beside = folder / ".new"
    save_file(load_file(folder / "model.safetensors") | {}, beside)
    save_file({name: tensor + 1 for name, tensor in load_file(beside).items()}, beside, metadata={"format": "pt"})
    os.replace(beside, folder / "model.safetensors")
    assert service.holder.look()
    assert service.holder.now.revision.key != before.key
    assert service.metrics.count("swaps_total") == 1
    assert equal(service.holder.now.policy, load_snapshot(folder, CPU))
    stop(service)


def test_weights_that_are_not_whole_leave_the_old_ones_in_place(folder: Path) -> None:
    said: list[str] = []
    holder = Holder(FolderSource(folder, CPU), None, Metrics(), said.append)
    before = holder.now
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:500])
    assert not holder.look()
    assert not holder.look()
    assert holder.now is before
    assert len(said) == 1, "told once"
    assert "newer weights cannot be loaded" in said[0]
    (folder / "model.safetensors").write_bytes(whole)
    assert holder.look()


def test_newer_weights_that_vanish_are_looked_for_again() -> None:
    source = States()
    tiny = Tiny(source)
    source.step, source.fault = 2, Gone(Path("x"), "no such file")
    assert not tiny.service.holder.look()
    source.fault = None
    assert tiny.service.holder.look()
    source.step, source.fault = 3, Damaged(Path("x"), "half of it")
    assert not tiny.service.holder.look()
    source.fault = None
    assert not tiny.service.holder.look(), "what was damaged is not read again"
    assert tiny.said[-1].startswith("newer weights cannot be loaded, those of kkkkkkkk@2 go on")


def test_a_checkpoint_is_read_when_it_is_what_was_written(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 3, {"taken": 12, "actor": {"lm.a": torch.ones(2)}})
    (path,) = checkpoint.checkpoints(tmp_path)
    assert read_checkpoint(path)["taken"] == 12
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    with pytest.raises(Damaged, match="checksum differs"):
        read_checkpoint(path)
    assert path.exists(), "it is another's: nothing is set aside here"
    path.unlink()
    with pytest.raises(Gone):
        read_checkpoint(path)


def trial_of(tmp_path: Path, **changes: Any) -> tuple[TrialSource, Path, Path]:
    """A trial whose reference is network 0, and where its checkpoints and its end lie."""
    network(0).save_pretrained(tmp_path / "sft" / "model")
    store = Store(tmp_path / "store")
    made = {"sft": Artifact("sft", "s", tmp_path / "sft", "d", {})}
    source = TrialSource("a/b/0", smoke(**changes), store, made, 1, lambda: [Training("train", "k")], CPU)
    return source, store.partial("train", "k") / "checkpoints", store.root / "train" / "k"


def test_the_newest_checkpoint_holds_the_policy(tmp_path: Path) -> None:
    source, kept, final = trial_of(tmp_path)
    assert source.newest() is None
    for update, seed in ((2, 1), (4, 2)):
        state = {f"lm.{name}": tensor for name, tensor in network(seed).named_parameters()}
        checkpoint.save(kept, update, {"taken": 4 * update, "actor": state})
    (kept / ".writing").write_bytes(b"half of a checkpoint")
    # A training that is taken up again has ended before, with older weights.
    network(3).save_pretrained(final / "policy")
    write_manifest(final, "train", "k", {}, {"steps": 4, "status": "complete"})
    newest = source.newest()
    assert newest is not None
    revision, policy = newest.load()
    assert (str(revision), revision.state) == ("k@16", "training")
    assert equal(policy, network(2))
    shutil.rmtree(kept.parent)
    newest = source.newest()
    assert newest is not None
    revision, policy = newest.load()
    assert (str(revision), revision.state) == ("k@4", "complete")
    assert equal(policy, load_snapshot(final / "policy", CPU))
    weights = final / "policy" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(Damaged):
        newest.load()


@pytest.mark.slow
def test_a_checkpoint_of_an_adapter_is_served_as_plain_weights(tmp_path: Path) -> None:
    source, kept, _ = trial_of(tmp_path, adapter__kind="lora", adapter__rank=2)
    lm = choose_trained(network(0), source.config)
    trained = {name: tensor for name, tensor in lm.named_parameters() if tensor.requires_grad}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in trained.values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    checkpoint.save(kept, 1, {"taken": 1, "actor": {f"lm.{name}": tensor for name, tensor in trained.items()}})
    newest = source.newest()
    assert newest is not None
    _, policy = newest.load()
    assert policy.state_dict().keys() == network(0).state_dict().keys()
    ids = torch.tensor([[5, 9, 4, 7]])
    with torch.no_grad():
        expected = lm(ids).logits
        torch.testing.assert_close(policy(ids).logits, expected, atol=1e-3, rtol=1e-3)
        assert not torch.allclose(network(0)(ids).logits, expected, atol=0.1)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/unpickled-by-serve",)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"taken": 1, "actor": Evil()})
    (path,) = checkpoint.checkpoints(tmp_path)
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        read_checkpoint(path)
    assert not Path("/tmp/unpickled-by-serve").exists()


def test_what_cannot_be_served_is_said_in_one_line(layout: Layout, tmp_path: Path) -> None:
    folder = layout.study("demo", "smoke")
    study = single("smoke", {}, 0)
    folder.path.mkdir(parents=True)
    write_atomic(
        folder.study_file,
        sealed({"study": study.model_dump(mode="json"), "source": "", "profile": "smoke", "overrides": {}}),
    )
    (tmp_path / "empty").mkdir()
    for name, message in {
        "demo": "'demo' is neither a trial nor a folder: write STUDY/ARM/SEED",
        "demo/smoke/\u00b2": "'demo/smoke/\u00b2' is neither a trial nor a folder: write STUDY/ARM/SEED",
        "demos/smoke/0": "study 'demos' has not been started in .*; did you mean 'demo'\\?; studies there: demo",
        "demo/smok/0": "trial 'demo/smok/0': the study has none; did you mean 'smoke/0'\\?; there are: smoke/0",
        "demo/smoke/1": "the study has none; did you mean 'smoke/0'\\?",
        "demo/smoke/0": (
            "trial 'demo/smoke/0' has not begun to train \\(prompts, sft, reward have still to run\\); start it with:"
            " ablate study demo"
        ),
        str(tmp_path / "empty"): "a served folder holds config.json, \\*.safetensors and a tokenizer",
    }.items():
        with pytest.raises(UserError, match=message):
            find_source(name, layout, CPU)
    with pytest.raises(UserError, match="has not been started on profile 'tiny'; started on: smoke"):
        find_source("demo/smoke/0", layout, CPU, "tiny")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "after", "step"),
    [({}, 5, 16), ({"adapter__kind": "lora", "adapter__rank": 4}, 5, 16), ({"reward__rounds": 2}, 3, 8)],
)
def test_a_trial_is_followed_through_a_kill_to_its_end(
    smoke_layout: Layout, tmp_path: Path, changes: dict[str, Any], after: int, step: int
) -> None:
    """Its newest checkpoint while it trains, the same weights after it was killed, what it leaves at its end."""
    from pipeline.trial import run_trial

    layout = Layout(tmp_path / "out")
    shutil.copytree(smoke_layout.store, layout.store, ignore=shutil.ignore_patterns("train", "evaluate"))
    config = smoke(**changes)
    study = single("smoke", {key.replace("__", "."): value for key, value in changes.items()}, 0)
    folder = layout.study("demo", "smoke")
    folder.path.mkdir(parents=True)
    content = {"study": study.model_dump(mode="json"), "source": "", "profile": "smoke", "overrides": {}}
    write_atomic(folder.study_file, sealed(content))
    arm = next(iter(study.arms or {}))
    with pytest.raises(Killed):
        run_trial(config, layout, Killer(after))
    source = find_source(f"demo/{arm}/0", layout, CPU)
    assert isinstance(source, TrialSource)
    service = build(source, print)
    first = service.holder.now.revision
    assert first.state == "training"
    assert first.step == step, "of the last even update, after four gradient steps each"
    assert not source.trains()
    trains = list[bool]()
    run_trial(config, layout, Asking(lambda: trains.append(source.trains())))
    assert set(trains) == {True}
    assert not source.trains()
    assert service.holder.look()
    last = service.holder.now.revision
    assert (last.step, last.state) == (32, "complete")
    plan = dag.plan(STAGES, config, Store(layout.store))
    key = next(one.key for one in plan if one.stage == "train")
    assert last.key == key
    assert (first.key == key) == (config.rounds == 1)
    assert equal(service.holder.now.policy, load_snapshot(layout.store / "train" / str(key) / "policy", CPU))


@pytest.mark.slow
def test_a_recorded_trial_is_measured_as_its_evaluation_measured_it(smoke_layout: Layout, tmp_path: Path) -> None:
    import pandas as pd

    from pipeline.models.pretrained_tokenizer import load_tokenizer
    from studies.serving.measuring import Answer

    layout = Layout(tmp_path / "out")
    shutil.copytree(smoke_layout.store, layout.store)
    record = recorded(layout)
    source = find_source("demo/base/0", layout, CPU)
    service = build(source, print)
    assert str(service.holder.now.revision) == f"{record.stages['train'].key}@32"
    table = pd.read_parquet(layout.root / record.stages["evaluate"].path / "prompts.parquet").head(8)
    own = load_tokenizer(source.tokenizer)
    rows = [
        (row.prompt, own(row.prompt)["input_ids"], own(row.policy_completion)["input_ids"], bool(row.policy_eos))
        for row in table.itertuples()
    ]
    answers = [
        Answer(prompt, query, tokens + [own.eos_token_id] * ended, ended) for prompt, query, tokens, ended in rows
    ]
    measurer = service.worker._measurer
    assert measurer is not None
    found = measurer.measure(service.holder.now, answers)
    assert [one["gold"] for one in found] == pytest.approx(table["policy_gold"].tolist())
    assert [one["proxy"] for one in found] == pytest.approx(table["policy_proxy"].tolist(), abs=1e-4)
    assert [sum(one["kl"]) for one in found] == pytest.approx(table["kl"].tolist(), abs=1e-4)
