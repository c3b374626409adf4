from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fakehub
import pandas as pd
import pytest
from helpers import Recorder, smoke

from pipeline.errors import UserError
from pipeline.run.hub import cause_of_absence, check_model
from pipeline.run.layout import Layout
from pipeline.stages.sources import check_sources
from pipeline.trial import plan_trial, run_trial

CARD = """---
dataset_info:
  config_name: plain_text
  features:
  - {name: text, dtype: string}
  - {name: label, dtype: {class_label: {names: {'0': neg, '1': pos}}}}
configs:
- config_name: plain_text
  default: true
  data_files: [{split: train, path: plain_text/train-*}, {split: test, path: plain_text/test-*}]
---
"""
PROGRAM = """
import sys
from pipeline.data.settings import DataConfig
from pipeline.data.corpus import load_corpus
from pipeline.data.settings import HubSettings
from pipeline.errors import UserError
try:
    corpus = load_corpus(DataConfig(source="hub", hub=HubSettings(name="some-org/MovieReviews", revision=sys.argv[1])))
    print(corpus.counts["in_both_splits"], len(corpus.train), corpus.heldout)
except UserError as error:
    print(error)
"""
OTHER = "1" * 40


def ask(revision: str, home: Path, program: str = PROGRAM, **env: str) -> str:
    surroundings = {**os.environ, "HF_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path), **env}
    return subprocess.run(
        [sys.executable, "-c", program, revision], env=surroundings, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_a_hub_data_set_is_read_at_its_commit_online_and_from_the_cache_alone(tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "plain_text"
    folder.mkdir(parents=True)
    (folder.parent / "README.md").write_text(CARD)
    # Sorted by label, as IMDb is; one text is in both splits.
    train = pd.DataFrame({"text": [f"Training text {i} here." for i in range(20)], "label": [0] * 10 + [1] * 10})
    test = pd.DataFrame({"text": ["Training text 3 here.", "Held out."], "label": [0, 1]})
    train.to_parquet(folder / "train-00000-of-00001.parquet", index=False)
    test.to_parquet(folder / "test-00000-of-00001.parquet", index=False)
    wanted = "1 20 ['Held out.']"
    with fakehub.serve("some-org/MovieReviews", folder.parent) as (address, log):
        assert ask(fakehub.COMMIT, tmp_path / "home", HF_ENDPOINT=address, HF_HUB_OFFLINE="0") == wanted
        log.clear()
        # The copy at hand is taken without asking, and never for another commit.
        assert ask(fakehub.COMMIT, tmp_path / "home", HF_ENDPOINT=address, HF_HUB_OFFLINE="0") == wanted
        assert not [line for line in log if "MovieReviews" in line]
    offline = ask(OTHER, tmp_path / "home", HF_HUB_OFFLINE="1")
    assert offline.startswith(
        f"data.hub.name = 'some-org/MovieReviews' at revision {OTHER} is not in the cache {tmp_path / 'home'}"
    )
    assert "HF_HUB_OFFLINE" in offline
    assert "data.source=local" in offline


HUB = {"data__source": "hub", "data__hub__name": "no-such-org/no-such-data", "data__hub__revision": OTHER}
JUDGE = {"judge__kind": "classifier", "judge__classifier__model": "some/judge"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (HUB, f"data.hub.name = 'no-such-org/no-such-data' at revision {OTHER} is not in the cache"),
        ({"model__base": "no-such-org/no-such-model"}, "model.base = 'no-such-org/no-such-model' is not in the cache"),
        (JUDGE, "judge.classifier.model = 'some/judge': the revision None does not pin it"),
        (
            {**JUDGE, "judge__classifier__revision": OTHER},
            f"judge.classifier.model = 'some/judge' at revision {OTHER} is not in the cache",
        ),
        (
            {**JUDGE, "judge__classifier__model": "/absent/folder"},
            "judge.classifier.model = '/absent/folder' is neither a folder nor the id",
        ),
        (
            {"reward__preferences": "/absent/pairs.parquet"},
            "reward.preferences = '/absent/pairs.parquet': there is no such file",
        ),
    ],
)
def test_what_is_absent_is_refused_before_anything_is_started(
    tmp_path: Path, changes: dict[str, str], says: str
) -> None:
    for start in (plan_trial, lambda config, layout: run_trial(config, layout, Recorder())):
        with pytest.raises(UserError) as error:
            start(smoke(**changes), Layout(tmp_path))
        assert says in str(error.value)
        assert "\n" not in str(error.value)
    assert not any(tmp_path.iterdir())


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"must hold config\.json and \*\.safetensors"):
        check_model("judge.classifier.model", str(tmp_path), None, pinned=True)
    (tmp_path / "model.safetensors").write_bytes(b"")
    check_model("judge.classifier.model", str(tmp_path), None, pinned=True)


def test_what_is_built_already_needs_no_source() -> None:
    config = smoke(**HUB)
    check_sources(config, ["sft", "reward", "train", "evaluate"])
    with pytest.raises(UserError, match="no-such-data"):
        check_sources(config, ["prompts"])


def test_a_model_with_pickles_alone_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"some/pickles": "pytorch_model.bin", "some/tensors": "model.safetensors"}
    siblings = {name: SimpleNamespace(siblings=[SimpleNamespace(rfilename=file)]) for name, file in files.items()}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda self, name, **_: siblings[name])
    assert "no *.safetensors" in cause_of_absence("model", "some/pickles", OTHER)
    assert cause_of_absence("model", "some/tensors", OTHER) == ""
    assert cause_of_absence("model", "some/absent", OTHER) == "KeyError: 'some/absent'"
