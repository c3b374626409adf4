"""The algorithms by the name that a configuration gives them; their settings are in `pipeline.config.presets`."""

from __future__ import annotations

from pipeline.algorithms.base import Algorithm
from pipeline.algorithms.ppo import PPO
from pipeline.algorithms.rloo import RLOO

ALGORITHMS: dict[str, Algorithm] = {
    "ppo": PPO,
    "rloo": RLOO,
}
