"""No file of the program calls what can execute the content that it reads, nor names a place or an address that others
reach: the source is parsed, not searched."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PICKLING = ["pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle", "skops",
            "multiprocess", "multiprocessing"]  # fmt: skip
"""Modules that load objects by calling what a file names; those of the last two send objects so."""
EXECUTING = ["runpy", "imp", "code", "codeop", "pty", "logging.config"]

CALLS = {
    *("eval", "exec", "compile", "__import__"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *(f"os.{how}" for how in ("execl", "execle", "execlp", "execv", "execve", "execvp", "execvpe", "posix_spawn")),
    *("importlib.import_module", "importlib.util.spec_from_file_location", "importlib.util.module_from_spec"),
    *("concurrent.futures.ProcessPoolExecutor", "pkgutil.resolve_name"),
    *("torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "torch.utils.cpp_extension.load"),
    *(f"torch.distributed.{name}" for name in ("all_gather_object", "broadcast_object_list", "gather_object")),
    *(f"torch.distributed.{name}" for name in ("scatter_object_list", "recv_object_list")),
    *("accelerate.utils.gather_object", "accelerate.utils.broadcast_object_list"),
    *("pandas.read_pickle", "pandas.read_hdf", "pandas.eval"),
    *("yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all", "yaml.load_all"),
}
CALLS |= {"tempfile.mktemp", "tempfile.gettempdir"}
"""They give names that another user of the machine can guess."""
ANYWHERE = {"0.0.0.0", "::", "[::]"}
"""Addresses on which a server can be reached from other machines."""
METHODS = {"load_model", "enable_load_extension", "load_extension", "exec_module", "read_pickle", "eval_frame"}
"""Of whatever object: MLflow and sklearn unpickle models, SQLite loads libraries."""
SAFE_YAML = {"yaml.BaseLoader", "yaml.SafeLoader", "yaml.CSafeLoader", "PlainLoader"}
DANGEROUS_YAML = {"yaml.Loader", "yaml.FullLoader", "yaml.UnsafeLoader", "yaml.CLoader", "yaml.CFullLoader"}

OWN_PIPE = "objects between a process and the children that it started, over an anonymous pipe; no file, no port"
OWN_NAME = "imports a module of this package by a name that stands in the code"
ALLOWED = {
    ("studies/execution/hand.py", "multiprocessing"): OWN_PIPE,
    ("studies/execution/child.py", "multiprocessing"): OWN_PIPE,
    ("pipeline/training/launch.py", "multiprocessing"): OWN_PIPE,
    ("pipeline/run/dag.py", "importlib.import_module"): OWN_NAME,
    ("studies/console/plan.py", "importlib.import_module"): OWN_NAME,
    ("studies/execution/started.py", "importlib.import_module"): OWN_NAME,
    **{
        (f"{one}.py", "pkgutil.resolve_name"): OWN_NAME
        for one in (
            *("pipeline/algorithms/registry", "pipeline/config/base", "pipeline/rewards/learned"),
            *("pipeline/rewards/scorers", "pipeline/training/pairs", "pipeline/training/part"),
            *("pipeline/training/trainer",),
        )
    },
    ("pipeline/rewards/own.py", "importlib.import_module"): (
        "a class of the user's own, named by a study's file or --set, for the commands that train, score or serve"
    ),
    ("pipeline/faults.py", "tempfile.gettempdir"): "asks how full that disk is",
    ("pipeline/data/hub_data.py", "load_dataset_builder"): "datasets 5 knows no code of data sets, and has no switch",
}


def sources() -> list[Path]:
    return [
        ROOT / "ablate.py",
        *(path for top in ("pipeline", "studies", "reports") for path in (ROOT / top).rglob("*.py")),
    ]


def found_in(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of everything that could execute what it reads."""
    tree = ast.parse(source)
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, name) for name in _modules(node) if _within(name, [*PICKLING, *EXECUTING]))
        if isinstance(node, ast.Name | ast.Attribute) and (name := _dotted(node, names)) in CALLS | DANGEROUS_YAML:
            yield node.lineno, name
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((node.lineno, "a public address") for _ in range(node.value in ANYWHERE))
            yield from (
                (node.lineno, "a fixed place in /tmp") for _ in range(node.value.startswith(("/tmp", "/var/tmp")))
            )
        if isinstance(node, ast.Call):
            yield from ((node.lineno, name) for name in _called(node, names))


def _within(name: str, modules: list[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Modules that a statement imports, by their banned ancestor."""
    if isinstance(node, ast.Import):
        full = [one.name for one in node.names]
    else:
        full = [node.module or "", *(f"{node.module}.{one.name}" for one in node.names)]
    banned = [*PICKLING, *EXECUTING]
    return sorted({next((module for module in banned if _within(name, [module])), name) for name in full})


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What the names of a file stand for, wherever they were imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (one.asname or one.name.partition(".")[0], one.name if one.asname else one.name.partition(".")[0])
                for one in node.names
            )
        if isinstance(node, ast.ImportFrom):
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """``np.load`` as ``numpy.load``; of a method of an expression, its last name with a dot before it."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    return ""


def _called(call: ast.Call, names: dict[str, str]) -> Iterator[str]:
    name = _dotted(call.func, names)
    last = name.rpartition(".")[2]
    given = {one.arg: one.value.value if isinstance(one.value, ast.Constant) else ... for one in call.keywords}
    if last in METHODS:
        yield last
    for key in ("shell", "trust_remote_code", "allow_pickle"):
        if given.get(key, False) is not False:
            yield key
    if name == "torch.load" and given.get("weights_only") is not True:
        yield name
    if name == "yaml.load":
        loaders = [one.value for one in call.keywords if one.arg == "Loader"] or call.args[1:2]
        if not loaders or _dotted(loaders[0], names) not in SAFE_YAML:
            yield name
    if last == "from_pretrained" or (last == "from_config" and "Auto" in name):
        if given.get("trust_remote_code", ...) is not False:
            yield last
        if last == "from_pretrained" and "Model" in name and given.get("use_safetensors") is not True:
            yield "from_pretrained without safetensors"
    if last in ("load_dataset", "load_dataset_builder", "dataset_module_factory"):
        yield last


def test_nothing_that_the_program_reads_can_execute() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), what): line
        for path in sources()
        for line, what in found_in(path.read_text("utf-8"))
    }
    assert {f"{path}:{line} {what}" for (path, what), line in found.items() if (path, what) not in ALLOWED} == set()
    assert ALLOWED.keys() - found.keys() == set(), "exceptions that nothing needs any more"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("from pickle import loads as safe", "pickle"),
        ("from torch import load\nload('x', weights_only=False)", "torch.load"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", "allow_pickle"),
        ("import pandas as pd\nread = pd.read_pickle", "pandas.read_pickle"),
        ("import yaml\nyaml.load(x)", "yaml.load"),
        ("from yaml import full_load\nfull_load(x)", "yaml.full_load"),
        ("eval(x)", "eval"),
        ("import subprocess\nsubprocess.run(x, shell=True)", "shell"),
        ("A.from_pretrained(x, trust_remote_code=flag)", "from_pretrained"),
        ("AutoModel.from_pretrained(x, trust_remote_code=False)", "from_pretrained without safetensors"),
        ("host = '0.0.0.0'", "a public address"),
        ("open('/tmp/ablate.txt')", "a fixed place in /tmp"),
        ("model.eval()\nimport re, subprocess\nre.compile(x)\nsubprocess.run([x])", None),
    ],
)
def test_the_search_sees_each_of_them(source: str, what: str | None) -> None:
    assert {name for _, name in found_in(source)} >= {what} - {None}
    assert what is not None or not list(found_in(source))
