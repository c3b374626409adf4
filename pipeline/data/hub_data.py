"""Data sets of the hub through `datasets`, at exactly the commit that is asked for; no code of theirs, no pickles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.data.files import TEXT_COLUMNS, require
from pipeline.data.settings import DataConfig
from pipeline.errors import UserError
from pipeline.faults import in_words
from pipeline.run.hub import absent, cause_of_absence

TABLES = ("Parquet", "Csv", "Json", "Arrow", "Cache")
"""Builders of `datasets` that read tables and nothing else."""


def check_reachable(cfg: DataConfig) -> None:
    """Refuse a hub data set that is neither in the cache nor to be had, by one short question. Raises `UserError`."""
    if cfg.source == "hub" and not _cached(cfg):
        cause = cause_of_absence("dataset", cfg.hub.name or "", cfg.hub.revision)
        if cause:
            raise _absent(cfg, cause)


def hub_splits(cfg: DataConfig) -> dict[str, Any]:
    """The texts by split, as data frames, from the cache or the network. Raises `UserError` for what cannot be
    had."""
    import datasets

    check_reachable(cfg)
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        builder = _builder(cfg)
        builder.download_and_prepare()
        data = builder.as_dataset()
    except UserError:
        raise
    except Exception as error:  # like the hub's client, `datasets` raises a dozen unrelated classes
        raise _absent(cfg, in_words(error)) from None
    if "train" not in data:
        raise UserError(f"data.hub.name = '{cfg.hub.name}': there is no split 'train'; it has {', '.join(data)}")
    wanted = [split for split in ("train", "test") if split in data]
    for split in wanted:
        require(TEXT_COLUMNS, data[split].column_names, f"data.hub.name = '{cfg.hub.name}', split '{split}'")
    return {split: data[split].select_columns(list(TEXT_COLUMNS)).to_pandas() for split in wanted}


def _builder(cfg: DataConfig) -> Any:
    from datasets import load_dataset_builder
    from datasets.packaged_modules.cache.cache import Cache

    name, cached = cfg.hub.name or "", _cached(cfg)
    if len(cached) == 1:
        # By its commit: left to itself, `datasets` tries the network first, for half a minute where there is none, and
        # then takes the newest copy of its cache, whichever commit was asked for.
        config, version, commit = cached[0].parts[-3:]
        return Cache(repo_id=name, dataset_name=name.split("/")[-1], config_name=config, version=version, hash=commit)
    builder = load_dataset_builder(name, revision=cfg.hub.revision)
    if Path(builder.cache_dir).name != cfg.hub.revision:
        raise _absent(cfg, f"the newest copy in the cache is of revision {Path(builder.cache_dir).name}")
    if not any(base.__name__ in TABLES for base in type(builder).__mro__):
        raise UserError(
            f"data.hub.name = '{name}': its files are no parquet, CSV or JSON but for {type(builder).__name__}; use"
            " another data set"
        )
    return builder


def _cached(cfg: DataConfig) -> list[Path]:
    """Folders ``<cache>/<data set>/<configuration>/<version>/<commit>``."""
    from datasets.config import HF_DATASETS_CACHE
    from datasets.naming import camelcase_to_snakecase

    *owner, last = (cfg.hub.name or "").split("/")
    folder = Path(HF_DATASETS_CACHE).expanduser() / "___".join([*owner, camelcase_to_snakecase(last)])
    return sorted(folder.glob(f"*/*/{cfg.hub.revision}"))


def _absent(cfg: DataConfig, cause: str) -> UserError:
    from datasets.config import HF_DATASETS_CACHE

    instead = "use data.source=local and data.local.path=<folder with train*.parquet and test*.parquet>"
    return UserError(absent("data.hub.name", cfg.hub.name or "", cfg.hub.revision, cause, HF_DATASETS_CACHE, instead))
