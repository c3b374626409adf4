"""No file of the program calls what can execute the content that it reads, shows a text as markup, or names a place
or an address that others reach.

Ruff finds what banned.toml lists, and the rest is parsed here; exceptions are listed in exceptions.yaml.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from pipeline.config.yaml_files import PlainLoader

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = [
    ROOT / "ablate.py",
    *(path for top in ("pipeline", "studies", "reports") for path in (ROOT / top).rglob("*")),
]
LISTS = yaml.safe_load((HERE / "exceptions.yaml").read_text("utf-8"))
ALLOWED = {(file, name) for file, names in LISTS["allowed"].items() for name in names}


def found_by_ruff(*paths: Path) -> Iterator[tuple[str, str]]:
    """File and name of what ruff finds; the name is the first that its message quotes, else its code."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--ignore-noqa", "--output-format", "concise"]
    command += ["--config", str(HERE / "banned.toml"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode in (0, 1), done.stderr
    for file, code, quoted in re.findall(r"^(.+?):\d+:\d+: (\w+) [^`\n]*(?:`([^`]+)`)?", done.stdout, re.MULTILINE):
        yield file, quoted if code in ("TID251", "S506") else code


def found_in(source: str) -> Iterator[str]:
    """Names of calls that could execute what they read, and that ruff does not know."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in ("::", "[::]"):
            yield "a public address"
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            yield from ("torch.load" for one in node.names if one.name == "load")
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            given = {one.arg: getattr(one.value, "value", ...) for one in node.keywords}
            yield from (key for key in ("trust_remote_code", "allow_pickle") if given.get(key, False) is not False)
            if last in LISTS["methods"] or name in ("compile", "__import__"):
                yield last
            for pattern, (key, value) in LISTS["needed"].items():
                if re.fullmatch(pattern, name) and given.get(key, ...) is not value:
                    yield f"{last} without {key}"


def found(*paths: Path) -> set[tuple[str, str]]:
    """Names by file, as `ALLOWED` lists them."""
    own = {(str(path), name) for path in paths for name in found_in(path.read_text("utf-8"))}
    return {(file.removeprefix(f"{ROOT}/"), name) for file, name in {*found_by_ruff(*paths), *own}}


def test_nothing_that_the_program_reads_can_execute() -> None:
    every = found(*(path for path in SOURCES if path.suffix == ".py"))
    assert every == ALLOWED, "a new call, or an exception that nothing needs any more"
    assert issubclass(PlainLoader, yaml.SafeLoader), "exceptions.yaml calls it safe"


def test_the_search_sees_each_of_them(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("\n".join(line for line, _ in LISTS["planted"]))
    (tmp_path / "clean.py").write_text("model.eval()\nimport re, subprocess\nre.compile(x)\nsubprocess.run([x])\n")
    seen = {(Path(file).name, name) for file, name in found(*tmp_path.iterdir())}
    assert {name for _, name in LISTS["planted"]} <= {name for _, name in seen}
    assert {file for file, _ in seen} == {"planted.py"}


def test_no_template_and_no_page_makes_markup_of_a_text() -> None:
    pages = [path for path in SOURCES if path.parent.name == "templates" or path.suffix == ".html"]
    assert {path.relative_to(ROOT).parts[0] for path in pages} == {"reports", "studies"}
    assert not [path for path in pages if re.search("|".join(LISTS["markup"]), path.read_text("utf-8"))]
