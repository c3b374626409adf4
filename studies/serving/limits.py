"""What one client may ask for, so that none takes the server from the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of requests, and of what waits."""

    body_bytes: int = 2**18
    body_seconds: float = 10.0
    """To send a body in."""
    max_tokens: int = 1024
    """Of one completion; the network's own positions are the other bound."""
    completions: int = 64
    """Of one request (prompts x n). A batch has as many rows at most, so a request is never split."""
    waiting: int = 256
    """Completions that wait for a batch."""
    stops: int = 4
    stop_characters: int = 100
    collect_seconds: float = 0.004
    """How long the first request of a batch waits for others."""
    share: float = 0.2
    """Of the time that the server may compute while trials train beside it: after each batch it rests, and what comes
    meanwhile makes the next batch."""
