"""Commands in hints: as targets of make where the current folder has the project's Makefile, else of `ablate`."""

from __future__ import annotations

from pathlib import Path


def command(name: str, study: str | None = None, profile: str | None = None) -> str:
    """Return the text to type for a command, on a study and on another profile than its own."""
    if _makefile():
        return " ".join(
            [f"make {name}", *([f"STUDY={study}"] if study else []), *([f"PROFILE={profile}"] if profile else [])]
        )
    return " ".join([f"ablate {name}", *([study] if study else []), *([f"--profile {profile}"] if profile else [])])


def _makefile() -> bool:
    """Return whether `make` runs our commands from here."""
    try:
        return "ABLATE := " in Path("Makefile").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
