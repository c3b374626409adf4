"""Rules that end a trial by what it records: `train.stop`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.config.train import TrainConfig
from pipeline.config.trial import TrialConfig
from pipeline.stopping import Watcher
from pipeline.training.part import Part


class StopRules(Part[TrainConfig]):
    """Judges the rows so far as a falsifier will judge the record."""

    def __init__(self, cfg: TrialConfig, settings: TrainConfig) -> None:
        super().__init__(cfg, settings)
        self._watcher = Watcher(settings.stop)

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return bool(cfg.train.stop)

    def recorded(self, step: int, values: Mapping[str, float]) -> None:
        self._watcher.observe(step, values)

    def stop(self) -> str | None:
        return self._watcher.broken()

    def state(self) -> dict[str, Any]:
        return self._watcher.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self._watcher.load(state)
