from __future__ import annotations

import errno
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import yaml
from helpers import wait_until
from light_study import Write
from rich.console import Console

from pipeline.errors import UserError
from pipeline.run.layout import Layout, TrialRecord
from reports.records.load import load_records
from studies.definition.design import cells
from studies.definition.schema import STUDIES, Study, load_study
from studies.definition.trainer import filled
from studies.execution.study import executor, run_study
from studies.faults import DiskFull
from studies.importing import command

TRAIN = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
what, lr, seed, out, *more = sys.argv[1:]
out = Path(out)
with Path("calls").open("a") as calls:
    print(what, lr, seed, *more, file=calls)
if what == "no_log" or (more and not (out / "checkpoint-1").exists()):
    sys.exit()
log = (out / "metrics.jsonl").open("a")
for step in range(1, 21):
    score = float("nan") if what == "nan" and step > 6 else step + float(lr)
    print(json.dumps({"step": step, "reward": score}), file=log, flush=True)
    if what == "climb" and step == 6:
        time.sleep(600)
if what == "half":
    log.write('{"step": 21, "rew')
if what in ("exit", "nan"):
    sys.exit(3)
if what == "signal" or (what == "killed_once" and not more):
    (out / "checkpoint-1").mkdir(exist_ok=True)
    os.kill(os.getpid(), signal.SIGKILL)
if what in ("hang", "memory"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (out / "checkpoint-1").mkdir(exist_ok=True)
    Path("pids").write_text(f"{os.getpid()} {child.pid}")
    kept = bytearray(300 << 20) if what == "memory" else None
    time.sleep(0 if more else 600)
if what == "fill":
    (out / "weights").write_bytes(bytes(8 << 20))
rows = [f"{prompt},{prompt + float(lr)}" for prompt in range(5)]
(out / "eval.csv").write_text("\\n".join(["prompt_id,score", *rows]))
"""
WORDS = ["{python}", "train.py", "{what}", "{lr}", "{seed}", "{out}"]
BASE: dict[str, Any] = {
    "question": "Does it matter?", "trainer": {"command": WORDS, "evaluation": "eval.csv"},
    "parameters": {"what": "run", "lr": 0.5}, "arms": {"slow": {"lr": "1e-6"}, "fast": {"lr": 2}}, "baseline": "slow",
    "seeds": [0, 1], "objective": {"metric": "objective/scores", "worst": -7.0},
}  # fmt: skip
ALONE = {"evaluation": None, "resume": {"if": "checkpoint-*", "add": ["again", "{lr}"]}}


@pytest.fixture
def write(tmp_path: Path, no_mlflow: None, monkeypatch: pytest.MonkeyPatch) -> Write:
    """``write(what, key=..., trainer={...})``: the study, or one trial that does `what`, beside the script."""
    monkeypatch.setattr(command, "LOOK_SECONDS", 0.1)
    (tmp_path / "train.py").write_text(TRAIN)

    def of(what: str = "", **changes: Any) -> Study:
        one = {"arms": {"one": {"what": what}}, "baseline": "one", "seeds": [0]} if what else {}
        content = {**BASE, **one, **changes, "trainer": {**BASE["trainer"], **changes.get("trainer", {})}}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return load_study(tmp_path / "mine.yaml")

    return of


def go(study: Study, layout: Layout, name: str = "inline") -> tuple[dict[str, TrialRecord], str]:
    text = io.StringIO()
    result = run_study(study, layout, None, {}, executor(name, 2), 2, Console(file=text, width=400))
    return {record.arm: record for record in result.records}, text.getvalue()


def calls() -> list[str]:
    found = sorted(Path("calls").read_text().splitlines()) if Path("calls").exists() else []
    Path("calls").unlink(missing_ok=True)
    return found


def alive() -> list[int]:
    found = [int(pid) for pid in Path("pids").read_text().split()]
    return [pid for pid in found if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("name", ["inline", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_cell_runs_again_only_for_what_it_depends_on(write: Write, layout: Layout, name: str) -> None:
    records, _ = go(write(), layout, name)
    assert calls() == ["run 1e-06 0", "run 1e-06 1", "run 2 0", "run 2 1"]
    assert records["fast"].ends["objective/scores"] == 21.5, "the last tenth of the series"
    assert records["fast"].summary["eval/proxy"] == pytest.approx(4.0)
    table = load_records(layout.study("mine", "trainer"), write()).trials.set_index("arm")
    assert set(table.loc["fast", "objective/scores"]) == {21.5}
    go(write(), layout, name)
    go(write(seeds=[0, 1, 2], arms={**BASE["arms"], "more": {"lr": 3.0}}), layout, name)
    assert calls() == ["run 1e-06 2", "run 2 2", "run 3.0 0", "run 3.0 1", "run 3.0 2"]
    Path("names.yaml").write_text("program: plain\nmetrics: {objective/gold: reward}\n")
    records, _ = go(write(trainer={"logs": {"names": "names.yaml"}}), layout, name)
    assert calls() == [], "another map reads again, and runs nothing"
    assert records["fast"].ends["objective/gold"] == 21.5
    Path("train.py").write_text(TRAIN + "# changed\n")
    go(write(), layout, name)
    assert len(calls()) == 4


def test_words_of_a_command(write: Write, layout: Layout) -> None:
    values = {"lr": 1e-6, "on": True, "name": "a b; $HOME", "n": 3}
    for word, expected in {
        "--lr={lr}": "--lr=1e-06", "{on} {n}": "True 3", "{name}": "a b; $HOME", "{{n}} {n}": "{n} 3",
        '{"a": {"b": {n}}}': '{"a": {"b": 3}}', "{ n } {}": "{ n } {}",
    }.items():  # fmt: skip
        assert filled(word, values) == expected
    first: Any = cells(write())[0].config
    assert first.words == ["{python}", "train.py", "run", "1e-06", "0", "{out}"], "the key holds no path"
    assert first.filled(["{{out}}", "{out}"], "/o") == ["{out}", "/o"]
    Path("words").touch()  # it adds to the words of a key
    plan = cells(write(trainer={"code": ["words"]}))
    assert len({command.plan_trial(cast(Any, cell.config), layout)[0].key for cell in plan}) == len(plan)


def test_a_parameter_may_have_the_name_of_a_setting_of_ours(write: Write) -> None:
    study = write(
        trainer={"command": [*WORDS, "{algorithm}"]}, parameters={**BASE["parameters"], "algorithm": "ppo"},
        arms={"slow": {"algorithm": "ppo"}, "fast": {"algorithm": "grpo"}},
    )  # fmt: skip
    assert [cast(Any, cell.config).words[-1] for cell in cells(study)] == ["ppo", "grpo"] * 2


@pytest.mark.slow
def test_a_full_disk_ends_the_study_and_the_same_command_goes_on(write: Write, layout: Layout) -> None:
    layout.root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "ablate-command", layout.root]).returncode:
        pytest.skip("no small disk can be mounted here, which takes root")
    try:
        with pytest.raises(DiskFull, match="run the same command again"):
            go(write("fill"), layout)
        subprocess.run(["mount", "-o", "remount,size=60m", layout.root], check=True)
        assert go(write("fill"), layout)[0]["one"].status == "complete"
    finally:
        subprocess.run(["umount", "-l", layout.root], check=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": {"command": [*WORDS, "{lrr}"]}}, r"trainer\.command: no parameter is named 'lrr'; did you mean"),
        ({"parameters": {**BASE["parameters"], "beta": 1}}, r"\{beta\} stands in no word .* arms would not differ"),
        ({"trainer": {"command": ["{what}", "{lr}", "{out}"]}}, r"\{seed\} stands in no word .* runs would not differ"),
        ({"arms": {"slow": {"lrr": 1}}}, r"'lrr' is no parameter; did you mean 'lr'"),
        ({"arms": {"slow": {"lr": 1e-6}, "same": {"lr": "1e-6"}}}, "arms 'slow' and 'same' are the same run"),
        ({"search": {"space": {"lr": [0, 1]}}}, r"line \d+: search: a search runs our own trials"),
        ({"trainer": {"command": ["no_such_program", *WORDS]}}, "no program 'no_such_program'"),
        ({"trainer": {"code": ["*.jl"]}}, r"trainer\.code: no file '\*\.jl'"),
        ({"trainer": {"logs": {"names": "verl"}}}, "verl counts updates; name a .yaml file with"),
    ],
)
def test_mistakes_are_refused(write: Write, layout: Layout, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        go(write(**changes), layout)
    assert not layout.study("mine", "trainer").path.exists()


def test_how_a_command_can_end(write: Write, layout: Layout) -> None:
    arms = {name: {"what": name} for name in ("run", "exit", "signal", "no_log", "nan", "half", "killed_once")}
    study = write(arms=arms, seeds=[0], baseline="run", trainer=ALONE)
    records, text = go(study, layout)
    assert {arm: (one.status, one.steps) for arm, one in records.items() if one.status != "failed"} == {
        "run": ("complete", 20), "nan": ("diverged", 6), "half": ("complete", 20), "killed_once": ("complete", 20),
    }  # fmt: skip
    for arm, reason in {"exit": "exit code 3", "signal": "killed by SIGKILL", "no_log": "left no file"}.items():
        assert reason in str(records[arm].reason), text
    found = [line for line in calls() if line.startswith(("killed_once", "run", "nan"))]
    assert found == ["killed_once 0.5 0", "killed_once 0.5 0 again 0.5", "nan 0.5 0", "run 0.5 0"]
    table = load_records(layout.study("mine", "trainer"), study).trials.set_index("arm")["objective/scores"]
    assert (table["nan"], table["run"], table["exit"]) == (-7.0, 20.0, pytest.approx(float("nan"), nan_ok=True))
    records, _ = go(write("run", trainer={**ALONE, "evaluation": "other.csv"}), layout)
    assert "left no file other.csv" in str(records["one"].reason)


@pytest.mark.parametrize(
    ("what", "cap", "low"),
    [("hang", "wall_clock_h", 6.0 / 3600), pytest.param("memory", "memory_gib", 0.2, marks=pytest.mark.slow)],
)
def test_a_cap_ends_the_whole_tree(write: Write, layout: Layout, what: str, cap: str, low: float) -> None:
    records, _ = go(write(what, trainer={**ALONE, cap: low}), layout)
    one = records["one"]
    assert (one.status, one.steps, str(one.reason).partition(":")[0]) == ("budget", 20, f"trainer.{cap}")
    assert alive() == [], "one of them has left the session"
    records, _ = go(write(what, trainer=ALONE), layout)
    assert (records["one"].status, calls()) == ("complete", [f"{what} 0.5 0", f"{what} 0.5 0 again 0.5"])


def test_a_refuted_claim_with_stop_ends_the_command(write: Write, layout: Layout) -> None:
    claim = {"name": "low", "claim": "it stays low", "metric": "objective/scores", "op": ">", "threshold": 3.2}
    claim |= {"before_step": 10, "stop": True}
    study = write("climb", falsifiers=[claim])
    records, _ = go(study, layout)  # ended before its evaluation
    found = load_records(layout.study("mine", "trainer"), study)
    assert (len(found.prompts), len(found.notes)) == (0, 1), "the note that another program trained"
    assert (records["one"].status, records["one"].steps) == ("pruned", 6)
    live = next(layout.root.glob("commands/*/live.jsonl")).read_text().splitlines()
    assert [json.loads(line)["step"] for line in live] == [1, 2, 3, 4, 5], "the sixth may still grow"


def test_a_command_ends_where_its_records_find_no_room(
    write: Write, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        wait_until(lambda: Path("pids").exists() and Path("pids").read_text(), 60, "the trainer's child")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(command, "MetricsLog", full)
    with pytest.raises(DiskFull):
        go(write("hang"), layout)
    pids = set(map(int, Path("pids").read_text().split()))
    assert not pids & {child.pid for child in psutil.Process().children()}, "not even a zombie is left"


def test_a_command_ends_with_a_program_that_is_killed_and_is_resumed(write: Write, layout: Layout) -> None:
    study = write("hang", trainer=ALONE)
    words = [sys.executable, str(STUDIES.parent / "ablate.py"), "study", "mine.yaml", "--out", str(layout.root)]
    running = subprocess.Popen([*words, "--executor", "inline"], stdout=subprocess.DEVNULL)
    wait_until(lambda: Path("pids").exists() and Path("pids").read_text(), 120, "the trainer")
    running.kill()
    running.wait()
    wait_until(lambda: len(alive()) == 1, 60, "the end of the command, though not of its child")
    records, _ = go(study, layout)
    assert (records["one"].status, calls()) == ("complete", ["hang 0.5 0", "hang 0.5 0 again 0.5"])
    assert alive() == [], "what was left is ended before the next start"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reinforce", "trl_grpo"])
def test_the_examples(run: Callable[..., str], tmp_path: Path, layout: Layout, name: str) -> None:
    if name == "trl_grpo":
        pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[bench]'")
    shutil.copytree(STUDIES / "examples", tmp_path / "examples")
    path = tmp_path / "examples" / f"{name}.yaml"
    path.write_text(path.read_text().replace("[0, 1, 2", "[0] # [2").replace("steps: 40", "steps: 8"))
    run(0, "study", path, "--jobs", 2)
    run(0, "report", path)
    records = load_records(layout.study(name, "trainer"), load_study(path))
    assert set(records.trials["status"]) == {"complete"}
    page = (layout.study(name, "trainer").report / "index.html").read_text()
    assert "std of reference" not in page


@pytest.mark.slow
def test_the_example_goes_on_from_its_checkpoint_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    words = [sys.executable, STUDIES / "examples" / "reinforce.py", "--beta", "0.2", "--lr", "0.05", "--seed", "0"]
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    subprocess.run([*words, "--output_dir", "whole"], check=True)
    running = subprocess.Popen([*words, "--output_dir", "cut"])
    wait_until(Path("cut/checkpoint.pt").exists, 60, "a checkpoint")
    running.kill()
    running.wait()
    subprocess.run([*words, "--output_dir", "cut", "--resume"], check=True)
    for name in ("metrics.jsonl", "eval.csv"):
        assert Path("cut", name).read_bytes() == Path("whole", name).read_bytes()
