"""The first look at a machine: what it offers, what each profile would take of it, and what to install."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.config.loading import load_config, profile_names
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.faults import existing, in_words
from pipeline.resources import diagnosis
from pipeline.resources.device import gpu_visible
from pipeline.resources.diagnosis import Finding
from pipeline.run.hub import available, cause_of_absence
from pipeline.run.layout import Layout

SIGNS = {"ok": ("ok", "green"), "note": ("-", "yellow"), "missing": ("MISSING", "bold red")}
ASKED = "t4"
"""The profile by whose model the hub is asked whether it answers."""


def examine(layout: Layout) -> list[Finding]:
    """All that can be said of this machine. The hub is asked while the rest is looked at."""
    asked = load_config(ASKED, {}).model
    with ThreadPoolExecutor(1) as background:
        answer = background.submit(cause_of_absence, "model", str(asked.base), asked.revision)
        packages = list(diagnosis.packages())
        found = [diagnosis.python(), *packages]
        if packages[0].state == "missing":
            return found
        found += [*_torch()]
        if found[-1].state == "missing":
            return found
        found += [diagnosis.memory(), diagnosis.disk(layout.root), hub(answer)]
        return [*found, *map(profile_finding, profile_names())]


def _torch() -> Iterator[Finding]:
    try:
        import torch

        from pipeline.models.precision import HOW, mixed_precision
    except (ImportError, OSError) as error:  # its files are there, but a library that they need is not
        yield Finding("torch", "missing", in_words(error), "delete .venv and run make setup")
        return
    yield Finding("torch", "ok", torch.__version__)
    yield from diagnosis.cards(lambda number: HOW[mixed_precision(torch.device("cuda", number))])


def hub(answer: Future[str]) -> Finding:
    """Whether models and data can be downloaded."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cause = answer.result()
    if not cause and not os.access(existing(Path(HF_HUB_CACHE)), os.W_OK):
        found = f"answers, but {HF_HUB_CACHE}, where downloads go, cannot be written"
        return Finding("hub", "note", found, "set HF_HOME to a folder that can be written")
    if not cause:
        return Finding("hub", "ok", f"answers; downloads go to {HF_HUB_CACHE}")
    return Finding(
        "hub",
        "note",
        f"not reachable ({cause}); what is in {HF_HUB_CACHE} can be used",
        "tiny and smoke need no hub; for others name folders by data.local.path and model.base",
    )


def profile_finding(name: str) -> Finding:
    """What a trial of a profile takes and what keeps it from running here."""
    from pipeline.forecast.advice import hours, predict

    config = load_config(name, {})
    budget = predict(config)
    found = lacking = list(lacks(config))
    if budget is not None:
        time = f", {hours(budget.t4_hours)} on a T4 (predicted)" * (config.runtime.device == "cuda")
        takes = f"{budget.total_gib:.2f} GiB of memory{time}"
        found = [*lacking, f"a trial takes {takes}"]
    return Finding(f"profile {name}", "note" if lacking else "ok", "; ".join(found))


def lacks(config: TrialConfig) -> Iterator[str]:
    """What a profile needs and this machine does not have."""
    from pipeline.data.hub_data import check_reachable

    given = {"data.local.path": config.data.local.path, "model.base": config.model.base}
    if unset := [key for key, value in given.items() if value == f"set-{key}"]:
        yield f"{' and '.join(unset)} are yours to give (pipeline/profiles says how)"
        return
    if config.runtime.device == "cuda" and not gpu_visible():
        yield "no card"
    base = config.model.base
    if base is not None and not available(base, config.model.revision):
        yield f"{base} is not in the cache and the hub does not give it"
    try:
        check_reachable(config.data)
    except UserError:
        yield f"{config.data.hub.name} is not in the cache and the hub does not give it"


def show(console: Console, found: Sequence[Finding]) -> None:
    """One line a finding, and below it what to do."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in found:
        sign, style = SIGNS[finding.state]
        words = Text(finding.found)
        if finding.advice:
            words.append(f"\n-> {finding.advice}", "bold")
        table.add_row(Text(sign, style), Text(finding.what), words)
    console.print(table)
    missing = [finding.what for finding in found if finding.state == "missing"]
    if missing:
        console.print(Text(f"Not ready: {', '.join(missing)}", "bold red"))
    else:
        console.print(Text("Ready: make study STUDY=kl_ablation", "bold"))
