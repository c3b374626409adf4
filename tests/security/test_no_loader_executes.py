"""No file of the program calls what can execute the content that it reads, nor names a place or an address that others
reach: ruff finds what banned.toml lists, and the rest is parsed here."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("ablate.py", "pipeline", "studies", "reports")
METHODS = {"load_model", "enable_load_extension", "load_extension", "exec_module", "read_pickle", "eval_frame",
           "load_dataset", "load_dataset_builder", "dataset_module_factory"}  # fmt: skip
"""Methods of any object: MLflow and sklearn unpickle models, SQLite loads libraries, data sets may bring code."""

OWN_PIPE = "objects between a process and the children that it started, over an anonymous pipe; no file, no port"
OWN_NAME = "imports a module of this package by a name that stands in the code"
SAFE = "makes plain values only"
RESOLVING = ("algorithms/base", "config/base", "rewards/learned", "rewards/scorers", "training/pairs",
             "training/part", "training/trainer")  # fmt: skip
ALLOWED = {
    ("studies/execution/hand.py", "multiprocessing"): OWN_PIPE,
    ("studies/execution/child.py", "multiprocessing"): OWN_PIPE,
    ("pipeline/training/launch.py", "multiprocessing"): OWN_PIPE,
    ("pipeline/run/dag.py", "importlib.import_module"): OWN_NAME,
    ("studies/console/plan.py", "importlib.import_module"): OWN_NAME,
    ("studies/execution/started.py", "importlib.import_module"): OWN_NAME,
    **{(f"pipeline/{one}.py", "pkgutil.resolve_name"): OWN_NAME for one in RESOLVING},
    ("pipeline/rewards/own.py", "importlib.import_module"): (
        "a class of the user's own, named by a study's file or --set, for the commands that train, score or serve"
    ),
    ("pipeline/config/yaml_files.py", "PlainLoader"): SAFE,
    ("studies/execution/slurm.py", "BaseLoader"): SAFE,
    ("pipeline/faults.py", "tempfile.gettempdir"): "asks how full that disk is",
    ("pipeline/data/hub_data.py", "load_dataset_builder"): "datasets 5 knows no code of data sets, and has no switch",
}


def found_by_ruff(*what: str, source: str | None = None) -> Iterator[tuple[str, str]]:
    """File and name of what ruff finds; the name is the first that its message quotes, else its code."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--ignore-noqa", "--output-format", "json"]
    config = str(Path(__file__).with_name("banned.toml"))
    done = subprocess.run(
        [*command, "--config", config, *what], input=source, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    for one in json.loads(done.stdout):
        quoted = re.search(r"`([^`]+)`", one["message"])
        name = quoted[1] if quoted and one["code"] in ("TID251", "S506") else one["code"]
        yield Path(one["filename"]).relative_to(ROOT).as_posix(), name


def found_in(source: str) -> Iterator[str]:
    """Names of calls that could execute what they read, and that ruff does not know."""
    nodes = list(ast.walk(ast.parse(source)))
    yield from ("a public address" for node in nodes if isinstance(node, ast.Constant) and node.value in ("::", "[::]"))
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        last = name.rpartition(".")[2]
        given = {one.arg: one.value.value if isinstance(one.value, ast.Constant) else ... for one in call.keywords}
        yield from (key for key in ("trust_remote_code", "allow_pickle") if given.get(key, False) is not False)
        if last in METHODS or name in ("compile", "__import__"):
            yield last
        if name == "torch.load" and given.get("weights_only") is not True:
            yield name
        if last == "from_pretrained" or (last == "from_config" and "Auto" in name):
            if given.get("trust_remote_code", ...) is not False:
                yield last
            if last == "from_pretrained" and "Model" in name and given.get("use_safetensors") is not True:
                yield "from_pretrained without safetensors"
    if re.search(r"from torch import .*\bload\b", source):
        yield "torch.load"


def test_nothing_that_the_program_reads_can_execute() -> None:
    found = set(found_by_ruff(*SOURCES))
    for path in (path for top in SOURCES for path in ((ROOT / top).rglob("*.py") if "." not in top else [ROOT / top])):
        found |= {(path.relative_to(ROOT).as_posix(), name) for name in found_in(path.read_text("utf-8"))}
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "exceptions that nothing needs any more"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("from pickle import loads as safe", "pickle"),
        ("from torch import load\nload('x', weights_only=False)", "torch.load"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", "allow_pickle"),
        ("import pandas as pd\nread = pd.read_pickle", "pandas.read_pickle"),
        ("import yaml\nyaml.load(x)", "yaml.load"),
        ("from yaml import full_load\nfull_load(x)", "yaml.full_load"),
        ("eval(x)", "S307"),
        ("compile(x, '', 'exec')", "compile"),
        ("import subprocess\nsubprocess.run(x, shell=True)", "S602"),
        ("A.from_pretrained(x, trust_remote_code=flag)", "from_pretrained"),
        ("AutoModel.from_pretrained(x, trust_remote_code=False)", "from_pretrained without safetensors"),
        ("host = '0.0.0.0'", "S104"),
        ("host = '::'", "a public address"),
        ("open('/tmp/ablate.txt')", "S108"),
        ("model.eval()\nimport re, subprocess\nre.compile(x)\nsubprocess.run([x])", None),
    ],
)
def test_the_search_sees_each_of_them(source: str, what: str | None) -> None:
    names = {name for _, name in found_by_ruff("-", "--stdin-filename", "pipeline/x.py", source=source)}
    assert names | set(found_in(source)) >= {what} - {None}
    assert what is not None or not names
