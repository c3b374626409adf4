"""Availability of hub repositories, checked in one short call before anything is started or downloaded."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pipeline.config.base import COMMIT
from pipeline.errors import UserError
from pipeline.wording import in_words

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
TIMEOUT_S = 10.0
Kind = Literal["dataset", "model"]


def check_model(key: str, model: str, revision: str | None, *, pinned: bool) -> None:
    """Refuse a model that is neither a folder with safetensors nor available from the hub.

    `key` is the key of the configuration, for the message; with `pinned` a hub id needs a commit. Raises `UserError`.
    """
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            raise UserError(
                f"{key} = '{model}': the folder must hold config.json and *.safetensors (pickled weights are never"
                " read)"
            )
        return
    if folder.exists() or not HUB_ID.fullmatch(model):
        raise UserError(f"{key} = '{model}' is neither a folder nor the id of a model on the hub")
    if pinned and not COMMIT.fullmatch(revision or ""):
        raise UserError(
            f"{key} = '{model}': the revision {revision!r} does not pin it; set {key.rpartition('.')[0]}.revision to a"
            " commit, 40 hexadecimal digits (if it was meant as a folder, there is none of that name)"
        )
    if cause := cause_of_absence("model", model, revision):
        from huggingface_hub.constants import HF_HUB_CACHE

        instead = f"set {key} to a folder with config.json, *.safetensors, tokenizer"
        raise UserError(absent(key, model, revision, cause, HF_HUB_CACHE, instead))


def absent(key: str, name: str, revision: str | None, cause: str, cache: object, instead: str) -> str:
    """One line for a repository that is available neither from the network nor from a cache."""
    at = f" at revision {revision}" if revision else ""
    return (
        f"{key} = '{name}'{at} is not in the cache {cache} and could not be downloaded from the hub ({cause}). With a"
        f" copy on disk, {instead}"
    )


@lru_cache(maxsize=64)
def cause_of_absence(kind: Kind, name: str, revision: str | None) -> str:
    """Return why a repository is not available from the hub; empty where it is, or where the cache has the weights of a
    model. The hub is tried once in a process."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    files = WEIGHTS if kind == "model" else ()
    if any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in files):
        return ""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so the network was not asked"
    try:
        info = HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=TIMEOUT_S)
    except Exception as error:  # its client raises a dozen unrelated classes for "not available"
        return in_words(error)
    there = [sibling.rfilename for sibling in getattr(info, "siblings", None) or []]
    without = kind == "model" and not any(file.endswith(".safetensors") for file in there)
    return "it has no *.safetensors, and pickled weights are never read" if without else ""
