"""The kinds of cases, by name: each a strategy."""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from fuzz import values as v
from fuzz.values import Draw, mostly, names, table, yaml_values
from fuzz.worker import ODD, OUT, Case
from hypothesis import strategies as st
from typer.testing import CliRunner

import ablate
from pipeline.config import loading
from pipeline.config.trial import flatten
from pipeline.errors import UserError
from pipeline.run.layout import SAFE_NAME
from studies.definition import template as templates
from studies.definition.schema import STUDIES

Files = dict[str, bytes | str]
STUDY = """\
question: Does it matter?
profile: smoke
baseline: none
seeds: [0, 1]
arms:
  none: {}
  weak: {kl.beta: 0.01}
"""
SMALL: Files = {"small.yaml": STUDY.encode()}
PROFILES = [path.read_text("utf-8") for path in sorted(loading.PROFILES.glob("*.yaml"))]
STUDY_TEXTS = [
    *(path.read_text("utf-8") for path in sorted(STUDIES.glob("*.yaml"))),
    *(templates.template(Path("mine.yaml"), design) for design in ("arms", "grid", "factors", "search")),
]
NUMBERS = {
    key: value for key, value in flatten(loading.load_config("smoke").model_dump()) if isinstance(value, int | float)
}
"""The knobs that hold a number on the smallest profile."""
KEYS = [*loading.dotted_keys(), "algorithm", "kl", "reward.parts.x.weight", "judge.also.y.kind", "reward.ocr.size"]
MAPPING = """\
program: trl-ppo
steps_per_update: 16
step: step
counts: updates
first_update: 1
length: 53
arm: arm
seed: seed
metrics:
  objective/kl: {key: objective/kl, unit: nats per sequence}
  objective/scores: {key: objective/scores, subtract: 1.2, factor: 0.5}
  policy/ratio: null
prompts: {policy_gold: policy_gold}
"""
odd = st.sampled_from(list(ODD))
formats = st.sampled_from(("csv", "jsonl", "parquet"))


def command(*words: str) -> tuple[str, ...]:
    return (*words, "--out", OUT)


def planned(*settings: str, files: Files | None = None) -> Case:
    """`plan` of a small study with settings."""
    changes = [part for one in settings for part in ("--set", one)]
    return Case(command("plan", "small.yaml", *changes), SMALL | (files or {}))


def study() -> st.SearchStrategy[Case]:
    content = st.sampled_from(STUDY_TEXTS).flatmap(v.mutated_yaml)
    ending = st.sampled_from(("", "", "", "", "+confirm"))
    return st.builds(
        lambda file, end: Case(command("plan", f"mine.yaml{end}"), {"mine.yaml": file}),
        mostly(content, odd, 20),
        ending,
    )


def profile() -> st.SearchStrategy[Case]:
    """In the place of the shipped ones."""
    content = st.sampled_from(PROFILES).flatmap(v.mutated_yaml)
    return mostly(content, odd, 20).map(lambda file: planned(files={"profiles/smoke.yaml": file}))


def setting() -> st.SearchStrategy[Case]:
    """`--set`, with keys and values that are none, and numbers that are small or much too large."""

    def another(key: str) -> st.SearchStrategy[str]:
        value = NUMBERS[key]
        whole = (0, 1, 2, 3, 7, 64, value * 2, value * 1000, 10**5, 10**6, 10**7, 10**9, 10**12, 2**63 - 1, -1)
        real = (0.0, 1.0, value * 2, value / 3, 1e-9, 1e-300, 1e9, 1.0e300, -1.0, 0.5)
        same = ("true", "false") if isinstance(value, bool) else whole if isinstance(value, int) else real
        other = mostly(st.sampled_from(same), st.sampled_from((*whole, *real)), 4)
        return other.map(lambda other: f"{key}={str(other).lower()}")

    value = mostly(yaml_values, st.sampled_from(("grpo", "local", "classifier", "0.1", "8", "cuda")), 4)
    odd_one = st.builds(
        "{}{}{}".format, mostly(st.sampled_from(KEYS), names | yaml_values), mostly("=", st.just("")), value
    )
    numbers = st.sampled_from(sorted(NUMBERS)).flatmap(another).map(lambda one: [one])
    return (numbers | st.lists(odd_one, min_size=1, max_size=4)).map(lambda settings: planned(*settings))


@st.composite
def name(draw: Draw) -> Case:
    """Names and paths on the command line of every command that starts no training."""
    bad, other = draw(names), draw(names)
    scored = ("score", "a.csv", "--reward")
    calls = (
        command("plan", bad), command("plan", "small.yaml", "--profile", bad), ("plan", "small.yaml", "--out", bad),
        ("plan", "--memory", bad), command("report", bad), command("compare", bad, other), command("falsify", bad),
        command("falsify", "small.yaml", "--set", f"{bad}={other}"), command("sync", bad),
        command("export", bad, "there"), command("export", f"{bad}/{other}/0", "there"),
        command("export", "small/none/0", bad), command("score", bad, "--reward", "lexicon"), command(*scored, bad),
        command(*scored, "lexicon", "--to", bad), command(*scored, f"{bad}/{other}/0"),
        command(*scored, "lexicon", "--label", bad), command(*scored, "lexicon", "--judge", bad), (bad,),
        command("plan", bad, other), command("plan", "small.yaml", bad), command("plan", "small.yaml", f"--{bad}"),
        command("import", bad, "--name", "mine", "--map", "plain"),
        command("import", ".", "--name", bad, "--map", "plain"), command("import", ".", "--name", "mine", "--map", bad),
        ("new-study", bad, "--folder", "new"), ("new-study", "mine", "--design", bad, "--folder", "new"),
    )  # fmt: skip
    files = SMALL | {"a.csv": b"prompt,completion\nA,b\n"} | draw(st.sampled_from(({}, {"new": "folder"})))
    named = (f"{bad}.yaml", f"{bad}.map.yaml") if SAFE_NAME.fullmatch(bad) else ()
    return Case(draw(st.sampled_from(calls)), files, ("new", "mine.map.yaml", "a.scored.csv", *named))


@st.composite
def tables(draw: Draw, stem: str, rows: list[v.Row]) -> tuple[str, Files]:
    """A file, a folder of files, or something else: its path as it is given, and the files."""
    file, path = draw(formats), f"{stem}.{draw(formats)}"
    match draw(st.sampled_from(("file", "file", "file", "odd", "name", "folder", "folder"))):
        case "file":
            return path, {path: draw(table(rows, path.rpartition(".")[2]))}
        case "odd":
            return path, {path: draw(odd)}
        case "name":
            given = draw(
                names | st.sampled_from(("/", "/dev/zero", "/dev/stdin", "/proc/self/mem", "/etc", f"{path}/x"))
            )
            return given.replace("\0", "\\0"), {}
    more = draw(st.sampled_from(("train-2.csv", "test-2.jsonl", "train-3.parquet", "deep/train.csv", "other")))
    files: Files = {f"tables/train.{file}": draw(table(rows, file)), f"tables/{more}": draw(odd)}
    return "tables", files | {f"tables/test.{file}": draw(table(rows, file))}


@st.composite
def data(draw: Draw) -> Case:
    """Files of texts, and files to score."""
    if draw(st.integers(0, 2)) == 0:
        path, files = draw(tables("answers", v.ANSWERS))
        reward = draw(st.sampled_from(("lexicon", "grammar")))
        scored = tuple(f"answers.scored.{suffix}" for suffix in ("csv", "jsonl", "parquet"))
        return Case(command("score", path, "--reward", reward), files, scored)
    path, files = draw(tables("reviews", v.TEXTS))
    settings = ("data.source=local", f"data.local.path={json.dumps(path)}")
    return draw(st.sampled_from((Case(command("read-texts", path), files), planned(*settings, files=files))))


@st.composite
def preferences(draw: Draw) -> Case:
    """Files of pairs and of rankings."""
    ranked = draw(st.sampled_from((2, 2, 3, 3, 4)))
    path, files = draw(tables("pairs", v.RANKINGS if ranked > 2 else v.PAIRS))
    settings = [f"reward.preferences={json.dumps(path)}", *([f"reward.learned.ranked={ranked}"] if ranked > 2 else [])]
    read = Case(command("read-preferences", path, str(ranked)), files)
    return draw(st.sampled_from((read, planned(*settings, files=files))))


@functools.cache
def classifier() -> dict[str, bytes]:
    """The files of a small sequence classifier."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    torch.manual_seed(0)
    words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "A", "film", "is", "great", "dull", "."])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=64, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1}, pad_token_id=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        BertForSequenceClassification(config).save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
            folder
        )
        return {f"scorer/{path.name}": path.read_bytes() for path in sorted(Path(folder).iterdir())}


@st.composite
def reward(draw: Draw) -> Case:
    """Folders of classifiers with up to two files broken."""
    files: Files = {**classifier(), "answers.csv": b"prompt,completion\nA film, is great.\n"}
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2)))):
        name = draw(st.sampled_from([*classifier(), "scorer/pytorch_model.bin", "scorer/added_tokens.json"]))
        content = classifier().get(name, b"")
        if name.endswith(".json") and (found := list(re.finditer(rb'(?<=: )("[^"]*"|[^\s,\[\]{}]+)', content))):
            one = draw(st.sampled_from(found))  # a value becomes another
            files[name] = content[: one.start()] + draw(v.json_values).encode() + content[one.end() :]
        files[name] = draw(mostly(files.get(name, b""), v.damaged(content) | odd, 1))
    where = draw(mostly("scorer", names))
    label = draw(mostly(st.sampled_from(("yes", "no")), names, 3))
    scored = Case(command("score", "answers.csv", "--reward", where, "--label", label), files, ("answers.scored.csv",))
    settings = (
        f"reward.classifier.model={json.dumps(where)}",
        f"reward.classifier.label={draw(mostly('yes', yaml_values, 2))}",
    )
    configured = planned("reward.kind=classifier", *settings, files=files)
    return draw(st.sampled_from((scored, scored, configured)))


@st.composite
def log(draw: Draw) -> Case:
    """Logs of other programs, and mappings of them."""
    files: Files = {}
    for arm in ("a", "b", draw(names).replace("..", "_").strip("/")[:60]):
        suffix = draw(st.sampled_from(("csv", "jsonl", "json", "parquet")))
        paths = (
            f"{arm}/seed_0.{suffix}",
            f"{arm}-seed1.{suffix}",
            f"{arm}/trainer_state.json",
            f"seed_0/{arm}.{suffix}",
        )
        path = draw(st.sampled_from(paths))
        rows = draw(mostly(st.just(v.LOG), st.just(v.OUTCOMES), 6))
        files[f"logs/{path}"] = draw(mostly(table(rows, path.rpartition(".")[2]), odd))
    files["map.yaml"] = draw(v.mutated_yaml(MAPPING))
    mapped = draw(st.sampled_from(("plain", "trl-ppo", "verl", "map.yaml", "map.yaml")))
    where = draw(mostly("logs", st.sampled_from(("logs/a", "logs/a-seed1.csv", "/dev/zero", "/dev/null")), 20))
    return Case(command("import", where, "--name", "mine", "--map", mapped), files, ("mine.yaml",))


# --- requests to `serve` -------------------------------------------------------------------------------------------

PATH = "/v1/completions"
PATHS = ("/", "/health", "/metrics", "/v1/models", "/v1/models/", "/v1/completion", "/v1/chat/completions", "/docs",
         "/openapi.json", "/v1/models/../../health", "/v1/models/%2e%2e", "/%00", "/%ff", "//etc/passwd",
         "/" + "a" * 4096, *(f"/v1/models/{one}" for one in v.NAMES))  # fmt: skip
METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE")
TYPES = ("text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonn")
FIELDS = ("prompt", "model", "max_tokens", "temperature", "n", "seed", "logprobs", "stop", "stream", "stream_options",
          "measure", "user", "top_p", "top_k", "logit_bias", "best_of", "echo", "suffix", "presence_penalty", "promt",
          "max_new_tokens")  # fmt: skip


@st.composite
def request(draw: Draw) -> Case:
    """A request with up to three things wrong."""
    fields = {"prompt": '"The acting"', "max_tokens": "12", "seed": "5"}
    fields |= draw(st.dictionaries(mostly(st.sampled_from(FIELDS), names), v.json_values, max_size=3))
    items = [f"{json.dumps(key)}: {value}" for key, value in fields.items()]
    items = draw(mostly(items, st.sampled_from((items[1:], items + items[:1])), 10))  # no prompt, or the key twice
    text = draw(mostly("{" + ", ".join(items) + "}", v.json_values, 20)).encode("utf-8", "surrogatepass")
    method, path = draw(mostly("POST", st.sampled_from(METHODS), 14)), draw(mostly(PATH, st.sampled_from(PATHS), 14))
    kind = draw(mostly("application/json", st.sampled_from(TYPES), 20))
    words = ("ask-server", "--method", method, "--path", f"={path}", "--kind", f"={kind}")
    return Case(command(*words), {"body": draw(mostly(text, v.damaged(text), 7))})


def ask_server(method: str = "POST", path: str = f"={PATH}", kind: str = "=", out: str = OUT) -> None:
    """Send the file ``body``; a refusal of the server is one of the user's errors. What follows ``=`` is meant."""
    from urllib.parse import quote

    headers = {"Content-Type": kind[1:]} if kind[1:] else {}
    where = quote(path[1:].encode("utf-8", "surrogatepass"), safe="/%")
    answer = _client().request(method, where, content=Path("body").read_bytes(), headers=headers)
    if answer.status_code >= 500:
        raise RuntimeError(f"status {answer.status_code}: {answer.text[:300]}")
    if answer.status_code >= 400 and method != "HEAD":
        content = answer.json()
        if set(content) != {"error"} or set(content["error"]) != {"message", "type", "param", "code"}:
            raise ValueError(f"a refusal of another shape: {content}")
        raise UserError(str(content["error"]["message"]))
    if path == f"={PATH}" and method == "POST":  # text, and a reason to end
        parts = [answer.text]
        if answer.headers["content-type"].startswith("text/event-stream"):
            *parts, last = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
            assert last == "[DONE]", "a stream without its end"
        ends = [one["finish_reason"] for part in parts for one in json.loads(part).get("choices", ())]
        assert {"stop", "length"} & set(ends), f"a choice without its end: {answer.text[-300:]}"


@functools.cache
def _client() -> Any:
    """A client of a server around two tiny networks; it ends with this process."""
    from starlette.testclient import TestClient
    from tiny_service import Tiny

    from studies.serving.app import create_app

    client = TestClient(create_app(Tiny().server, ["testserver"]), raise_server_exceptions=False)
    client.__enter__()  # one event loop for all requests
    return client


KINDS: dict[str, st.SearchStrategy[Case]] = {
    "study": study(), "profile": profile(), "set": setting(), "name": name(), "data": data(),
    "preferences": preferences(), "reward": reward(), "log": log(), "request": request(),
}  # fmt: skip


def read_texts(path: str, out: str = OUT) -> None:
    from pipeline.data.corpus import load_corpus
    from pipeline.data.settings import DataConfig

    load_corpus(DataConfig.model_validate({"source": "local", "local": {"path": path}}))


def read_preferences(path: str, ranked: int, out: str = OUT) -> None:
    from pipeline.data.preferences import read_preferences

    read_preferences(Path(path), "reward.preferences", ranked)


def prepare() -> None:
    """Add commands that read a file as a trial does, and call one sound case of each kind of command, so that what is
    loaded late counts for no case."""
    import torch

    torch.set_num_threads(1)
    os.environ.pop("ABLATE_HOME", None)
    templates.write_schema = lambda: None  # it lies beside the studies, for editors
    for function in (read_texts, read_preferences, ask_server):
        ablate.app.command(function.__name__.replace("_", "-"))(ablate.guarded(function))
    v.many_rows()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("small.yaml").write_text(STUDY)
        Path("a.csv").write_text("prompt,completion,text,label\nA film, is great.,a,1\n")
        for name, content in (classifier() | {"logs/a-seed0.csv": b"step,reward\n1,0.5\n2,0.6\n"}).items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(content)
        sound = ("plan small.yaml", "score a.csv --reward scorer --label yes", "read-texts a.csv", "plan absent",
                 "import logs --name mine --map plain")  # fmt: skip
        try:
            for line in sound:
                done = CliRunner().invoke(ablate.app, list(command(*line.split())))
                assert done.exit_code in (0, 2), done.output
        finally:
            os.chdir(before)
