"""The kinds of cases, by name."""

from __future__ import annotations

import functools
import os
import random
import tempfile
from pathlib import Path

from fuzz import files
from fuzz.making import NAMES, Maker, bad_value, command, mutated_bytes, mutated_yaml, no_file, quoted, small_study
from fuzz.oracle import OUT, Case
from fuzz.requests import ask_server, request
from typer.testing import CliRunner

import ablate
from pipeline.config import loading
from pipeline.config.trial import flatten
from pipeline.run.layout import SAFE_NAME
from studies.definition import template as templates
from studies.definition.schema import STUDIES

_PROFILES = loading.PROFILES
_SHIPPED = sorted(STUDIES.glob("*.yaml"))
_DESIGNS = ("arms", "grid", "factors", "search")


def study(rng: random.Random, folder: Path) -> Case:
    """A study's file."""
    name = "mine.yaml"
    if rng.random() < 0.05:
        no_file(rng, folder / name)
    else:
        text = rng.choice(_SHIPPED).read_text("utf-8") if rng.random() < 0.8 else _template(rng)
        text = text.replace("profile: tiny", "profile: smoke") if rng.random() < 0.3 else text
        (folder / name).write_bytes(mutated_yaml(rng, text))
    return Case(command("plan", name + rng.choice(("", "", "", "", "+confirm"))))


def _template(rng: random.Random) -> str:
    from studies.definition.template import template

    return template(Path("mine.yaml"), rng.choice(_DESIGNS))


def profile(rng: random.Random, folder: Path) -> Case:
    """A profile's file, in the place of the shipped ones."""
    (folder / "profiles").mkdir()
    loading.PROFILES = folder / "profiles"
    own = folder / "profiles" / "smoke.yaml"
    if rng.random() < 0.05:
        no_file(rng, own)
    else:
        shipped = rng.choice(sorted(_PROFILES.glob("*.yaml")))
        own.write_bytes(mutated_yaml(rng, shipped.read_text("utf-8")))
    return Case(command("plan", small_study(folder)))


def setting(rng: random.Random, folder: Path) -> Case:
    """``--set``, with keys and values that are none."""
    changes: list[str] = []
    keys = [*loading.dotted_keys(), "algorithm", "kl", "reward.parts.x.weight", "judge.also.y.kind", "reward.ocr.font"]
    if rng.random() < 0.4:
        key, value = rng.choice(sorted(_numbers().items()))
        return Case(command("plan", small_study(folder), "--set", f"{key}={_other(rng, value)}"))
    for _ in range(rng.choice((1, 1, 2, 5))):
        key = rng.choice(keys) if rng.random() < 0.85 else rng.choice((*NAMES, bad_value(rng)))
        value = (
            bad_value(rng) if rng.random() < 0.8 else rng.choice(("grpo", "local", "classifier", "0.1", "8", "cuda"))
        )
        changes += ["--set", rng.choice((f"{key}={value}",) * 9 + (f"{key}{value}",))]
    return Case(command("plan", small_study(folder), *changes))


def _numbers() -> dict[str, int | float]:
    """The knobs that hold a number on the smallest profile, with it."""
    config = loading.load_config("smoke").model_dump()
    return {key: value for key, value in flatten(config) if isinstance(value, int | float)}


def _other(rng: random.Random, value: int | float) -> str:
    """Another number, small or much too large, of the same kind more often than not."""
    kind = type(value) if rng.random() < 0.8 else rng.choice((int, float))
    if kind is bool:
        return rng.choice(("true", "false", "1", "2"))
    if kind is int:
        return str(
            rng.choice((0, 1, 2, 3, 7, 64, value * 2, value * 1000, 10**5, 10**6, 10**7, 10**9, 10**12, 2**63 - 1, -1))
        )
    return str(rng.choice((0.0, 1.0, value * 2, value / 3, 1e-9, 1e-300, 1e9, 1.0e300, -1.0, 0.5)))


def name(rng: random.Random, folder: Path) -> Case:
    """Names and paths on the command line of every command that starts no training."""
    small_study(folder)
    bad, other = rng.choice(NAMES), rng.choice(NAMES)
    (folder / "a.csv").write_text("prompt,completion\nA,b\n")
    calls: tuple[tuple[str, ...], ...] = (
        command("plan", bad), command("plan", "small.yaml", "--profile", bad), ("plan", "small.yaml", "--out", bad),
        ("plan", "--memory", bad), command("report", bad),
        command("compare", bad, other), command("falsify", bad),
        command("falsify", "small.yaml", "--set", f"{bad}={other}"), command("sync", bad),
        command("export", bad, "there"), command("export", f"{bad}/{other}/0", "there"),
        command("export", "small/none/0", bad), command("score", bad, "--reward", "lexicon"),
        command("score", "a.csv", "--reward", bad), command("score", "a.csv", "--reward", "lexicon", "--to", bad),
        command("score", "a.csv", "--reward", f"{bad}/{other}/0"),
        command("score", "a.csv", "--reward", "lexicon", "--label", bad), (bad,), command("plan", bad, other),
        command("import", bad, "--name", "mine", "--map", "plain"), ("new-study", bad, "--folder", "new"),
        command("import", ".", "--name", bad, "--map", "plain"), command("import", ".", "--name", "mine", "--map", bad),
        ("new-study", "mine", "--design", bad, "--folder", "new"),
        command("score", "a.csv", "--reward", "lexicon", "--judge", bad), command("plan", "small.yaml", bad),
        command("plan", "small.yaml", f"--{bad}"),
    )  # fmt: skip
    if rng.random() < 0.5:
        (folder / "new").mkdir()
    named = (f"{bad}.yaml", f"{bad}.map.yaml") if SAFE_NAME.fullmatch(bad) else ()
    return Case(rng.choice(calls), ("new", "mine.map.yaml", "a.scored.csv", *named))


def data(rng: random.Random, folder: Path) -> Case:
    """Files of texts, and files to score."""
    if rng.random() < 0.3:
        path = files.table_or_worse(rng, folder, "answers", files.completions(rng))
        reward = rng.choice(("lexicon", "grammar"))
        return Case(
            command("score", path, "--reward", reward),
            ("answers.scored.csv", "answers.scored.jsonl", "answers.scored.parquet"),
        )
    path = files.table_or_worse(rng, folder, "reviews", files.texts(rng))
    if rng.random() < 0.5:
        return Case(command("read-texts", path))
    changes = ("--set", "data.source=local", "--set", f"data.path={quoted(path)}")
    return Case(command("plan", small_study(folder), *changes))


def preferences(rng: random.Random, folder: Path) -> Case:
    """Files of pairs and of rankings."""
    ranked = rng.choice((2, 2, 3, 3, 4))
    rows = files.rankings(rng) if ranked > 2 else files.pairs(rng)
    path = files.table_or_worse(rng, folder, "pairs", rows)
    if rng.random() < 0.5:
        return Case(command("read-preferences", path, str(ranked)))
    changes = ["--set", f"reward.preferences={quoted(path)}"] + ["--set", f"reward.ranked={ranked}"] * (ranked > 2)
    return Case(command("plan", small_study(folder), *changes))


def reward(rng: random.Random, folder: Path) -> Case:
    """Folders of classifiers, and the files that rewards are given."""
    files.write_classifier(rng, folder / "scorer")
    (folder / "answers.csv").write_text("prompt,completion\nA film, is great.\n")
    where = "scorer" if rng.random() < 0.9 else rng.choice(NAMES)
    roll = rng.random()
    if roll < 0.5:
        label = ("--label", rng.choice(("yes", "no", *NAMES)))
        return Case(command("score", "answers.csv", "--reward", where, *label), ("answers.scored.csv",))
    if roll < 0.8:
        changes = {"kind": "classifier", "model": quoted(where), "label": rng.choice(("yes", "maybe", bad_value(rng)))}
        settings = [part for key, value in changes.items() for part in ("--set", f"reward.{key}={value}")]
        return Case(command("plan", small_study(folder), *settings))
    font = f"own.{rng.choice(('ttf', 'otf', 'onnx', 'txt'))}"
    no_file(rng, folder / font)
    if not (folder / font).is_symlink() and not (folder / font).exists():
        (folder / font).write_bytes(mutated_bytes(rng, b"\0\1\0\0font"))
    key = rng.choice(("font", "detector", "recogniser"))
    return Case(command("plan", small_study(folder), "--set", "reward.kind=ocr", "--set", f"reward.ocr.{key}={font}"))


def log(rng: random.Random, folder: Path) -> Case:
    """Logs of other programs, and mappings of them."""
    logs = folder / "logs"
    logs.mkdir()
    for arm in ("a", "b"):
        suffix = rng.choice(("csv", "jsonl", "json", "parquet"))
        place = rng.choice(
            (f"{arm}/seed_0.{suffix}", f"{arm}-seed1.{suffix}", f"{arm}/trainer_state.json", f"seed_0/{arm}.{suffix}")
        )
        rows = files.log(rng) if rng.random() < 0.85 else files.outcomes(rng)
        files.write_table(rng, logs / place, rows)
    if rng.random() < 0.25:
        strange = rng.choice([one for one in NAMES if one.strip("./") and "\0" not in one and not one.startswith("/")])
        short = strange.encode("utf-8", "replace")[:200].decode("utf-8", "ignore")
        path = logs / f"{short.replace('..', '_')}-seed3.csv"
        files.write_table(rng, path, files.log(rng))
    if rng.random() < 0.25:
        no_file(rng, logs / rng.choice(("c-seed0.csv", "c-seed1.jsonl", "c/seed_2.json", "c-seed4.parquet")))
    mapped = ("--map", rng.choice(("plain", "trl-ppo", "verl")))
    if rng.random() < 0.4:
        (folder / "map.yaml").write_bytes(mutated_yaml(rng, MAPPING))
        mapped = ("--map", "map.yaml")
    where = "logs" if rng.random() < 0.95 else rng.choice(("logs/a", "logs/a-seed1.csv", "/dev/zero", "/dev/null"))
    return Case(command("import", where, "--name", "mine", *mapped), ("mine.yaml",))


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


def _beside_shipped_profiles(maker: Maker) -> Maker:
    """The maker, without what a case before it put in the place of the shipped profiles."""

    @functools.wraps(maker)
    def make(rng: random.Random, folder: Path) -> Case:
        loading.PROFILES = _PROFILES
        return maker(rng, folder)

    return make


_MAKERS = {"study": study, "profile": profile, "set": setting, "name": name, "data": data, "preferences": preferences,
           "reward": reward, "log": log, "request": request}  # fmt: skip
KINDS = {kind: _beside_shipped_profiles(maker) for kind, maker in _MAKERS.items()}


SOUND = (
    ("plan", "small.yaml"),
    ("score", "a.csv", "--reward", "scorer", "--label", "yes"),
    ("import", "logs", "--name", "mine", "--map", "plain"),
    ("plan", "absent"),
    ("read-texts", "a.csv"),
)


def prepare() -> None:
    """Load what the commands load, and add commands that read a file as a trial does."""
    import torch

    import studies.execution.score  # noqa: F401

    torch.set_num_threads(1)
    os.environ.pop("ABLATE_HOME", None)
    templates.write_schema = lambda: None  # it lies beside the studies, for editors
    added = {"read-texts": _read_texts, "read-preferences": _read_preferences, "ask-server": ask_server}
    for command_name, function in added.items():
        if command_name not in [one.name for one in ablate.app.registered_commands]:
            ablate.app.command(command_name)(ablate.guarded(function))
    _warm_up()


def _warm_up() -> None:
    """One sound case of each kind of command, so that what is loaded late counts for no case."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files.sound_classifier(folder / "scorer")
        files.many_rows()
        (folder / "a.csv").write_text("prompt,completion,text,label\nA film, is great.,a,1\n")
        small_study(folder)
        (folder / "logs").mkdir()
        (folder / "logs" / "a-seed0.csv").write_text("step,reward\n1,0.5\n2,0.6\n")
        before = Path.cwd()
        os.chdir(folder)
        try:
            for case in SOUND:
                done = CliRunner().invoke(ablate.app, list(command(*case)))
                assert done.exit_code in (0, 2), done.output
        finally:
            os.chdir(before)


def _read_texts(path: str, out: str = OUT) -> None:
    from pipeline.config.data import DataConfig
    from pipeline.data.corpus import load_corpus

    corpus = load_corpus(DataConfig(source="local", path=path))
    corpus.require_both_classes()


def _read_preferences(path: str, ranked: int, out: str = OUT) -> None:
    from pipeline.data.preferences import read_preferences, read_rankings

    if ranked == 2:
        read_preferences(Path(path), "reward.preferences")
    else:
        read_rankings(Path(path), "reward.preferences", ranked)
