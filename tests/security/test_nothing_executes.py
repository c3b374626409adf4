"""Poisoned files in every place that the program reads from outside: none of them runs."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors import SafetensorError
from tinynets import network

from pipeline.config.loading import load_config
from pipeline.config.yaml_files import PlainLoader, read_value, read_yaml
from pipeline.data.files import read_splits
from pipeline.errors import Fault, UserError
from pipeline.forecast.memory import shape_of
from pipeline.models.loading import load_head, load_snapshot, pretrained_model
from pipeline.models.out_of_memory import Room
from pipeline.models.tokenizers import load_tokenizer, pretrained_tokenizer, train_tokenizer
from pipeline.rewards.classifier import load as load_classifier
from pipeline.rewards.kinds import ClassifierSettings
from pipeline.rewards.ngrams import NGrams
from pipeline.run.layout import Layout, read_sealed
from pipeline.training import checkpoint
from studies.execution.score import read_sheet
from studies.importing.logs import read_table
from studies.serving.weights import ServedTrial
from studies.tracking import store

CPU = torch.device("cpu")
CODE = "from pathlib import Path\nPath({mark!r}).mkdir(exist_ok=True)\n"


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """The folder that exists where anything was executed."""
    yield tmp_path / "executed"
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def bomb(mark: Path) -> bytes:
    return pickle.dumps(Bomb(mark))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its tokenizer, as anyone publishes them."""
    folder = tmp_path_factory.mktemp("sound")
    network("qwen2", vocab_size=300).save_pretrained(folder)
    train_tokenizer(["The acting was superb.", "It was bad."] * 20, 290).save_pretrained(folder)
    return folder


def in_torch(folder: Path, mark: Path) -> bytes:
    torch.save({"weight": Bomb(mark)}, folder / "made.pt")
    return (folder / "made.pt").read_bytes()


def as_a_script(folder: Path, mark: Path) -> bytes:
    """Return a file of `torch.jit.save`, with a bomb for its data."""
    with zipfile.ZipFile(folder / "made.zip", "w") as archive:
        for name, content in (("data.pkl", pickle.dumps(Bomb(mark))), ("constants.pkl", b""), ("version", b"3\n")):
            archive.writestr(f"made/{name}", content)
    return (folder / "made.zip").read_bytes()


@pytest.mark.parametrize("made", [in_torch, as_a_script, lambda folder, mark: pickle.dumps(Bomb(mark))])
def test_checkpoints(made: Callable[[Path, Path], bytes], tmp_path: Path, mark: Path) -> None:
    content, folder = made(tmp_path, mark), tmp_path / "checkpoints"
    path = folder / f"update_00000001.{hashlib.sha256(content).hexdigest()[: checkpoint.DIGITS]}.pt"
    folder.mkdir()
    path.write_bytes(content)
    for read in (lambda: checkpoint.load_latest(folder, print), lambda: ServedTrial._checkpoint(Mock(), "k", path)):
        with pytest.raises(Exception, match=r"[Ww]eights.only|magic number|[Uu]npickl|[Tt]orch[Ss]cript|archive"):
            read()


TABLES = (".parquet", ".csv", ".json", ".jsonl")
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "head": ("head.safetensors", lambda path: load_head(path, CPU)),
    "n-grams": ("table.safetensors", NGrams.load),
    "record": ("record.json", read_sealed),
    "study": ("study.yaml", read_yaml),
    **{f"texts {end}": (f"train{end}", lambda path: read_splits(path, "data.local.path", ("text",))) for end in TABLES},
    **{f"answers {end}": (f"a{end}", read_sheet) for end in TABLES},
    **{f"log {end}": (f"a{end}", read_table) for end in TABLES},
}


@pytest.mark.parametrize("name", READERS)
def test_a_pickle_in_the_place_of_a_file_is_refused(name: str, bomb: bytes, tmp_path: Path, mark: Path) -> None:
    file, read = READERS[name]
    (tmp_path / file).write_bytes(bomb)
    with pytest.raises((UserError, Fault, SafetensorError)):
        read(tmp_path / file)


def with_code(folder: Path, mark: Path, *, known: bool) -> None:
    """Code in a folder of a network, in every place from which libraries may import it."""
    code = CODE.format(mark=str(mark))
    (folder / "evil.py").write_text(f"{code}class Config: pass\nclass Model: pass\nclass Tokenizer: pass\n")
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)
    heads = ("AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification")
    config: dict[str, Any] = {"auto_map": {"AutoConfig": "evil.Config", **dict.fromkeys(heads, "evil.Model")}}
    tokenizer: dict[str, Any] = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}}
    if not known:
        config["model_type"], tokenizer["tokenizer_class"] = "evil", "EvilTokenizer"
    for name, change in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | change))


def index_of_pickles(folder: Path) -> None:
    places = dict.fromkeys(("model.embed_tokens.weight", "model.norm.weight"), "pytorch_model.bin")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "model.safetensors").unlink()


def adapter_of_pickles(folder: Path) -> None:
    shutil.copy(folder / "pytorch_model.bin", folder / "adapter_model.bin")
    adapter = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "base_model_name_or_path": str(folder)}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


POISONS: dict[str, Callable[[Path, Path], object]] = {
    "code": lambda folder, mark: with_code(folder, mark, known=True),
    "code of an unknown kind": lambda folder, mark: with_code(folder, mark, known=False),
    "adapter": lambda folder, mark: adapter_of_pickles(folder),
    "pickled weights": lambda folder, mark: (folder / "model.safetensors").unlink(),
    "pickled index": lambda folder, mark: index_of_pickles(folder),
    "pickle by another name": lambda folder, mark: shutil.copy(
        folder / "pytorch_model.bin", folder / "model.safetensors"
    ),
}


@pytest.mark.parametrize("kind", POISONS)
def test_folders_of_networks(kind: str, sound: Path, tmp_path: Path, mark: Path) -> None:
    """The base model, a reward, a judge, an exported policy."""
    folder = tmp_path / "folder"
    shutil.copytree(sound, folder)
    (folder / "pytorch_model.bin").write_bytes(in_torch(tmp_path, mark))
    POISONS[kind](folder, mark)
    scorer = ClassifierSettings(model=str(folder), label="GOOD")
    readers: dict[str, Callable[[], Any]] = {
        "base": lambda: pretrained_model(str(folder), None),
        "its tokenizer": lambda: pretrained_tokenizer(str(folder), None),
        "its shape": lambda: shape_of(load_config("t4", {"model.base": str(folder), "model.revision": None})),
        "an artifact or an export": lambda: load_snapshot(folder, CPU),
        "its own tokenizer": lambda: load_tokenizer(folder),
        "a reward": lambda: load_classifier("reward", scorer, CPU, Room("rows", 8)),
    }
    loaded = set()
    for name, read in readers.items():
        with suppress(Exception):
            read()
            loaded.add(name)
        assert not mark.exists(), name
    if kind == "code":
        assert {"base", "its tokenizer"} <= loaded, "a class that is known here is taken instead of theirs"
    if kind.startswith("pickle"):
        assert not loaded & {"base", "an artifact or an export", "a reward"}


def test_types_that_a_parquet_file_brings_along(bomb: bytes, tmp_path: Path, mark: Path) -> None:
    theirs = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": bomb}
    schema = pa.schema(
        [pa.field("text", pa.string(), metadata=theirs), pa.field("loss", pa.float64())], {b"pandas": bomb}
    )
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"text": ["fine"], "loss": [1.0]}, schema=schema), path)
    for read in (lambda: read_splits(path, "data.local.path", ("text",)), lambda: read_table(path)):
        with suppress(Exception):
            read()


def test_settings(tmp_path: Path, mark: Path) -> None:
    assert issubclass(PlainLoader, yaml.SafeLoader)
    for tag in ("object/apply:os.mkdir", "object/new:os.mkdir", "name:os.mkdir", "module:os"):
        text = f"a: !!python/{tag} [{mark}]"
        (tmp_path / "study.yaml").write_text(text)
        with pytest.raises(UserError):
            read_yaml(tmp_path / "study.yaml")
        with pytest.raises(ValueError):
            read_value(text)


def test_the_database_of_mlflow(bomb: bytes, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(bomb)
    with pytest.raises(RuntimeError, match=r"mlflow\.db is damaged: file is not a database"):
        store.has_run(Layout(tmp_path), "1", "run")
