"""What a trial asks of SLURM, by its caps and by a file; no SLURM is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import trial_config

from pipeline.errors import UserError
from studies.execution.slurm_options import SlurmOptions, options_in, read_options, seconds_of

USAGE = """Usage: sbatch [OPTIONS(0)...] [ : [OPTIONS(N)...]] script(0) [args(0)...]

  -a, --array=indexes         job array index values
  -A, --account=name          charge job to specified account
      --bb=<spec>             burst buffer specifications
      --exclusive[=user]      allocate nodes in exclusive mode when
                              --mem >= --mem-per-cpu if --mem is specified.
      --mem=MB                minimum amount of real memory
      --mem-per-gpu=n         real memory required per allocated GPU
  -B  --extra-node-info=S[:C[:T]]  combine request of sockets per node,
  -G, --gpus=n                count of GPUs required for the job
  -p, --partition=partition   partition requested
      --requeue               if set, permit the job to be requeued
  -t, --time=minutes          time limit
  -x, --exclude=hosts...      exclude a specific list of hosts
"""
"""Lines of ``sbatch --help`` of SLURM 22.05."""
KNOWN = options_in(USAGE)


def read(folder: Path, text: str) -> SlurmOptions:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return read_options(path, KNOWN)


def test_the_options_are_those_of_the_sbatch_at_hand() -> None:
    wanted = {"array", "account", "bb", "exclusive", "mem", "mem-per-gpu", "extra-node-info", "gpus", "partition"}
    assert wanted | {"requeue", "time", "exclude"} == KNOWN


def test_the_caps_say_what_a_trial_needs() -> None:
    config = trial_config(
        caps__wall_clock_h=1.5, caps__memory_gib=4.0, runtime__threads=3, runtime__processes=2, runtime__device="cpu"
    )
    assert SlurmOptions().asked(config, 0) == ["--cpus-per-task=6", "--mem=12288M", "--time=120"]
    assert SlurmOptions().asked(config, 2)[-1] == "--gres=gpu:2"


def test_a_file_goes_before_the_caps_and_leaves_out_what_it_replaces(tmp_path: Path) -> None:
    text = "account: lab\npartition: [long, short]\nexclusive: true\nmem: false\ntime: 1:30:00\ngpus: a100:1\n"
    config = trial_config(runtime__device="cpu")
    assert read(tmp_path, text).asked(config, 1) == [
        "--cpus-per-task=1",
        "--time=1:30:00",
        "--account=lab",
        "--partition=long,short",
        "--exclusive",
        "--gpus=a100:1",
    ]
    assert "--mem-per-gpu=8G" in (asked := read(tmp_path, "mem-per-gpu: 8G\n").asked(config, 1))
    assert not [one for one in asked if one.startswith("--mem=")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("account: lab\nparttition: x\n", "line 2: 'parttition' is no option of sbatch; did you mean 'partition'?"),
        ("requeue: true\n", "line 1: 'requeue' cannot be set: a trial is requeued at its time limit and after"),
        ("array: 1-9\n", "'array' cannot be set: each trial is a job of its own"),
        ("mem: {a: 1}\n", "line 1: 'mem' must be a text, a number, true, false or a list of them"),
        ("mem: []\n", "'mem' must be a text, a number"),
        ("mem:\n", "'mem' must be a text, a number"),
        ('account: "a\\nb"\n', "'account' must be printable and not empty"),
        ("1: 2\n", "'1' is no option of sbatch"),
        ("- account\n", "must be a mapping"),
        ("account: !!python/object/apply:os.system [ls]\n", "the tag '!!python/object/apply:os.system' is not read"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)
    assert str(tmp_path / "cluster.yaml") in str(refused.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, "acount: a\nwrap: ls\n")
    assert len(str(refused.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("120", 7200),
        ("2:30", 150),
        ("1:00:01", 3601),
        ("1-1", 90000),
        ("1-1:1:1", 90061),
        ("UNLIMITED", None),
        ("", None),
        (None, None),
    ],
)
def test_a_time_limit_is_read_as_sbatch_reads_it(time: str | None, seconds: float | None) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(("time", "lead"), [("1", 30), ("20", 120), ("1-0", 300), ("UNLIMITED", 300)])
def test_a_trial_is_warned_a_tenth_of_its_time_before_the_limit_within_bounds(time: str, lead: int) -> None:
    assert SlurmOptions({"time": time}).lead_seconds(trial_config()) == lead
