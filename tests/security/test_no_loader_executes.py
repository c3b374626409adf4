"""No file of the program calls what can execute the content that it reads, nor names a place or an address that others
reach: ruff finds what banned.toml lists, and the rest is parsed here. Exceptions are listed in exceptions.yaml."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = [
    ROOT / "ablate.py",
    *(path for top in ("pipeline", "studies", "reports") for path in (ROOT / top).rglob("*.py")),
]
LISTS = yaml.safe_load((HERE / "exceptions.yaml").read_text("utf-8"))
ALLOWED = {(file, name) for file, names in LISTS["allowed"].items() for name in names}


def found_by_ruff(*paths: Path) -> Iterator[tuple[str, str]]:
    """File and name of what ruff finds; the name is the first that its message quotes, else its code."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--ignore-noqa", "--output-format", "json"]
    command += ["--config", str(HERE / "banned.toml"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode in (0, 1), done.stderr
    for one in json.loads(done.stdout):
        quoted = re.search(r"`([^`]+)`", one["message"])
        yield one["filename"], quoted[1] if quoted and one["code"] in ("TID251", "S506") else one["code"]


def found_in(source: str) -> Iterator[str]:
    """Names of calls that could execute what they read, and that ruff does not know."""
    nodes = list(ast.walk(ast.parse(source)))
    yield from ("a public address" for node in nodes if isinstance(node, ast.Constant) and node.value in ("::", "[::]"))
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        last = name.rpartition(".")[2]
        given = {one.arg: one.value.value if isinstance(one.value, ast.Constant) else ... for one in call.keywords}
        yield from (key for key in ("trust_remote_code", "allow_pickle") if given.get(key, False) is not False)
        if last in LISTS["methods"] or name in ("compile", "__import__"):
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


def found(*paths: Path) -> set[tuple[str, str]]:
    """Names by file, as `ALLOWED` lists them."""
    every = {
        *found_by_ruff(*paths),
        *((str(path), name) for path in paths for name in found_in(path.read_text("utf-8"))),
    }
    return {(file.removeprefix(f"{ROOT}/"), name) for file, name in every}


def test_nothing_that_the_program_reads_can_execute() -> None:
    assert found(*SOURCES) == ALLOWED, "a new call, or an exception that nothing needs any more"


def test_the_search_sees_each_of_them(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("\n".join(line for line, _ in LISTS["planted"]))
    (tmp_path / "clean.py").write_text("model.eval()\nimport re, subprocess\nre.compile(x)\nsubprocess.run([x])\n")
    seen = {(Path(file).name, name) for file, name in found(*tmp_path.iterdir())}
    assert {name for _, name in LISTS["planted"]} <= {name for _, name in seen}
    assert {file for file, _ in seen} == {"planted.py"}
