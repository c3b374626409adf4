"""What the server counts, as the text that Prometheus reads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

SECONDS = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper ends of the histogram of answer times."""
HELP = {
    "requests_total": ("counter", "Requests for completions by status; 499: the client went away."),
    "tokens_total": ("counter", "Tokens drawn, by model."),
    "batches_total": ("counter", "Batches decoded."),
    "batch_completions_total": ("counter", "Completions in these batches."),
    "swaps_total": ("counter", "Times that newer weights took over."),
    "load_failures_total": ("counter", "Weights that could not be loaded; the old ones went on."),
    "waiting_completions": ("gauge", "Completions that wait for a batch."),
    "policy_step": ("gauge", "Gradient steps of the weights that answer."),
    "request_seconds": ("histogram", "Time from a request's arrival to the end of its answer."),
}
"""Every metric: its kind, and what it is."""


class Metrics:
    """Counters that any thread may raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._times = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0

    def add(self, name: str, amount: float = 1, **labels: object) -> None:
        """Raise a counter."""
        with self._lock:
            self._counts[name + _labels(labels)] += amount  # type: ignore[assignment]

    def took(self, seconds: float) -> None:
        """Note the time of an answer."""
        with self._lock:
            self._seconds += seconds
            self._times[sum(seconds > end for end in SECONDS)] += 1

    def count(self, name: str, **labels: object) -> float:
        """Where a counter stands."""
        with self._lock:
            return self._counts[name + _labels(labels)]

    def text(self, gauges: Mapping[str, float]) -> str:
        """Prometheus's text format, version 0.0.4."""
        with self._lock:
            counts, times, seconds = dict(self._counts), list(self._times), self._seconds
        lines = []
        for name, (kind, words) in HELP.items():
            lines += [f"# HELP ablate_{name} {words}", f"# TYPE ablate_{name} {kind}"]
            if kind == "histogram":
                ends = [*map(str, SECONDS), "+Inf"]
                lines += [f'ablate_{name}_bucket{{le="{end}"}} {sum(times[: i + 1])}' for i, end in enumerate(ends)]
                lines += [f"ablate_{name}_sum {seconds:.6f}", f"ablate_{name}_count {sum(times)}"]
            elif kind == "gauge":
                lines += [f"ablate_{name} {gauges[name]:.15g}"] if name in gauges else []
            else:
                own = {key: value for key, value in counts.items() if key.partition("{")[0] == name} or {name: 0}
                lines += [f"ablate_{key} {value:.15g}" for key, value in sorted(own.items())]
        return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    """``{a="b"}``, escaped; nothing without labels."""
    quoted = [
        f'{key}="{str(value).replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for key, value in labels.items()
    ]
    return "{" + ",".join(quoted) + "}" if quoted else ""
