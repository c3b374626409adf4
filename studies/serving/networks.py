"""The networks that answer: newer weights are loaded beside the old, and take over between two batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import Gone, UserError
from pipeline.faults import in_words
from pipeline.models.loading import CausalLM
from studies.serving.metrics import Metrics
from studies.serving.revision import Revision
from studies.serving.sources import Source

REFERENCE = "reference"
"""How clients call the reference policy."""
LOOK_SECONDS = 1.0
"""Between two looks for newer weights."""
CLOSE_SECONDS = 10.0
"""To finish a look in, when the server ends."""


@dataclass(frozen=True)
class Networks:
    """What answers a batch from its first token to its last score."""

    revision: Revision
    policy: CausalLM
    reference: CausalLM | None

    def named(self, model: str | None) -> CausalLM:
        """The network that a client has asked for; the policy where it has named none."""
        if model != REFERENCE:
            return self.policy
        assert self.reference is not None
        return self.reference


class Holder:
    """The newest networks. Who has taken `now` keeps them for as long as the answer takes; the next one gets newer
    ones."""

    def __init__(
        self, source: Source, reference: CausalLM | None, metrics: Metrics, say: Callable[[str], None]
    ) -> None:
        """Loads the first weights. Raises `UserError` where there are none, `Fault`."""
        self._source, self._metrics, self._say = source, metrics, say
        self._mark, (revision, policy) = _first(source)
        self.now = Networks(revision, policy, reference)
        self.beside_training = source.trains()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follow", daemon=True)

    def follow(self) -> None:
        """Look for newer weights from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking, and wait for the end of a look: a process must not end while a thread of it is in torch."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def look(self) -> bool:
        """Take newer weights where there are any. What cannot be loaded is told once, and the old ones go on."""
        found = self._source.newest()
        if found is None or found.mark == self._mark:
            return False
        try:
            revision, policy = found.load()
        except Gone:  # newer ones have taken their place: the next look finds them
            return False
        except Exception as error:  # whatever is wrong with them, those that answer are sound
            self._mark = found.mark
            self._metrics.add("load_failures_total")
            self._say(f"newer weights cannot be loaded, those of {self.now.revision} go on: {in_words(error)}")
            return False
        self._mark, self.now = found.mark, Networks(revision, policy, self.now.reference)
        self._metrics.add("swaps_total")
        self._say(f"answering with {revision} ({revision.state})")
        return True

    def _follow(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            try:
                self.beside_training = self._source.trains()
                self.look()
            except Exception as error:  # a look must not end all later ones
                self._metrics.add("load_failures_total")
                self._say(f"cannot look for newer weights: {in_words(error)}")


def _first(source: Source) -> tuple[str, tuple[Revision, CausalLM]]:
    """The mark and the weights to begin with; found again where a trial has just deleted them for newer ones."""
    for last in (False, False, True):
        found = source.newest()
        if found is None:
            break
        try:
            return found.mark, found.load()
        except Gone:
            if last:
                raise
    raise UserError(f"'{source.name}' has no weights yet")
