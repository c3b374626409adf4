from __future__ import annotations

import hashlib
import io
import json
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
from safetensors import SafetensorError
from tinynets import network

from pipeline.config.loading import load_config
from pipeline.config.yaml_files import read_value, read_yaml
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
Reader = Callable[[Path], Any]


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """The folder that exists where anything was executed."""
    yield tmp_path / "executed"
    assert not (tmp_path / "executed").exists()


def bomb(mark: Path) -> bytes:
    """A pickle that makes a folder when it is read."""
    return b"\x80" + f"\x02cos\nmkdir\n(V{mark}\ntR.".encode()


def archive(mark: Path, **parts: bytes) -> bytes:
    """A file of `torch.save` whose data are a bomb; of `torch.jit.save`, if constants are among its parts."""
    with zipfile.ZipFile(made := io.BytesIO(), "w") as file:
        for name, content in {"data.pkl": bomb(mark), "version": b"3\n", **parts}.items():
            file.writestr(f"made/{name}", content)
    return made.getvalue()


TAGS = ("object/apply:os.mkdir", "object/new:os.mkdir", "name:os.mkdir", "module:os")
HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "pickle": bomb,
    "torch": archive,
    "script": lambda mark: archive(mark, **{"constants.pkl": b""}),
    **{tag: lambda mark, tag=tag: f"a: !!python/{tag} [{mark}]".encode() for tag in TAGS},
}


@pytest.mark.parametrize("content", [bomb, archive])
def test_they_run_where_nothing_prevents_it(content: Callable[[Path], bytes], tmp_path: Path) -> None:
    with suppress(RuntimeError):  # a pickle that torch has not made is refused after it has run
        torch.load(io.BytesIO(content(tmp_path / "executed")), weights_only=False)
    assert (tmp_path / "executed").exists()


TABLES = (".parquet", ".csv", ".json", ".jsonl")
FILES: dict[str, tuple[str, Reader]] = {
    "checkpoint": ("update_00000001.{}.pt", lambda path: checkpoint.load_latest(path.parent, print)),
    "served checkpoint": ("update_00000001.{}.pt", lambda path: ServedTrial._checkpoint(Mock(), "k", path)),
    "head": ("head.safetensors", lambda path: load_head(path, CPU)),
    "n-grams": ("table.safetensors", NGrams.load),
    "record": ("record.json", read_sealed),
    "study": ("study.yaml", read_yaml),
    "command line": ("value.yaml", lambda path: read_value(path.read_text("latin-1"))),
    "MLflow's database": ("mlflow.db", lambda path: store.has_run(Layout(path.parent), "1", "run")),
    **{f"texts {end}": (f"train{end}", lambda path: read_splits(path, "data.local.path", ("text",))) for end in TABLES},
    **{f"answers {end}": (f"a{end}", read_sheet) for end in TABLES},
    **{f"log {end}": (f"a{end}", read_table) for end in TABLES},
}
"""Names, with a place for the digest of the content, and what reads them."""
REFUSED = (UserError, Fault, ValueError, RuntimeError, SafetensorError, pickle.UnpicklingError, IndexError)
WORDS = r"the tag '!!python|not a YAML value|header|[Ww]eights.only|magic number|[Tt]orch[Ss]cript|pop from empty list"
"""What is said of a text that has no file; the others are those of safetensors and torch."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("content", HOSTILE)
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_data(name: str, content: str, tmp_path: Path, mark: Path) -> None:
    (file, read), poison = FILES[name], HOSTILE[content](mark)
    path = tmp_path / file.format(hashlib.sha256(poison).hexdigest()[: checkpoint.DIGITS])
    path.write_bytes(poison)
    with pytest.raises(REFUSED, match=rf"{path.name}|{WORDS}"):
        read(path)


def test_types_that_a_parquet_file_brings_along(tmp_path: Path, mark: Path) -> None:
    poison = bomb(mark)
    theirs = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": poison}
    fields = [pa.field("text", pa.string(), metadata=theirs), pa.field("loss", pa.float64())]
    table = pa.table({"text": ["fine"], "loss": [1.0]}, schema=pa.schema(fields, {b"pandas": poison}))
    for kind in ("texts", "answers", "log"):
        file, read = FILES[f"{kind} .parquet"]
        pq.write_table(table, tmp_path / file)
        with suppress(Exception):
            read(tmp_path / file)


# --- folders of networks: the base model, a reward, a judge, an exported policy ---


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its tokenizer, as anyone publishes them."""
    folder = tmp_path_factory.mktemp("sound")
    network("qwen2", vocab_size=300).save_pretrained(folder)
    train_tokenizer(["The acting was superb.", "It was bad."] * 20, 290).save_pretrained(folder)
    return folder


def poisons(folder: Path, mark: Path) -> dict[str, dict[str, Any]]:
    """Files of a poisoned folder by the kind of poison: bytes, additions to a JSON file, or None where one goes."""
    pickled, runs = archive(mark), f"from pathlib import Path\nPath({str(mark)!r}).mkdir(exist_ok=True)\n".encode()
    classes = b"class Config: pass\nclass Model: pass\nclass Tokenizer: pass\n"
    heads = dict.fromkeys(("AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification"), "evil.Model")
    config = {"auto_map": {"AutoConfig": "evil.Config", **heads}}
    words = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}}
    odd_config, odd_words = config | {"model_type": "evil"}, words | {"tokenizer_class": "EvilTokenizer"}
    code = {"evil.py": runs + classes, "custom_generate/generate.py": runs}
    adapter = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "base_model_name_or_path": str(folder)}
    places = dict.fromkeys(("model.embed_tokens.weight", "model.norm.weight"), "pytorch_model.bin")
    return {
        "code": {**code, "config.json": config, "tokenizer_config.json": words},
        "code of an unknown kind": {**code, "config.json": odd_config, "tokenizer_config.json": odd_words},
        "adapter": {"adapter_model.bin": pickled, "adapter_config.json": adapter},
        "pickled weights": {"model.safetensors": None},
        "pickled index": {"model.safetensors": None, "model.safetensors.index.json": {"weight_map": places}},
        "pickle by another name": {"model.safetensors": pickled},
    }


FOLDERS: dict[str, Reader] = {
    "base": lambda folder: pretrained_model(str(folder), None),
    "its tokenizer": lambda folder: pretrained_tokenizer(str(folder), None),
    "its shape": lambda folder: shape_of(load_config("t4", {"model.base": str(folder), "model.revision": None})),
    "an artifact or an export": lambda folder: load_snapshot(folder, CPU),
    "its own tokenizer": load_tokenizer,
    "a reward": lambda folder: load_classifier(
        "reward", ClassifierSettings(model=str(folder), label="GOOD"), CPU, Room("rows", 8)
    ),
}


@pytest.mark.parametrize("kind", poisons(Path(), Path()))
def test_folders_of_networks(kind: str, sound: Path, tmp_path: Path, mark: Path) -> None:
    folder, loaded = tmp_path / "folder", set()
    shutil.copytree(sound, folder)
    (folder / "custom_generate").mkdir()
    for name, change in {"pytorch_model.bin": archive(mark), **poisons(folder, mark)[kind]}.items():
        path = folder / name
        if isinstance(change, dict):
            path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {"metadata": {}}) | change))
        elif change is None:
            path.unlink()
        else:
            path.write_bytes(change)
    for name, read in FOLDERS.items():
        with suppress(Exception):
            read(folder)
            loaded.add(name)
        assert not mark.exists(), name
    if kind == "code":
        assert {"base", "its tokenizer"} <= loaded, "a class that is known here is taken instead of theirs"
    if kind.startswith("pickle"):
        assert not loaded & {"base", "an artifact or an export", "a reward"}
