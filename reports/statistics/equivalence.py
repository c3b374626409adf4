"""Whether an effect is shown to be too small to matter: two one-sided tests against a stated difference."""

from __future__ import annotations

from typing import Protocol


class Uncertain(Protocol):
    """An estimate with the distribution of its error."""

    @property
    def value(self) -> float: ...

    def beyond(self, distance: float) -> float | None: ...


def equivalence_p(effect: Uncertain, smallest: float) -> float | None:
    """The larger p-value of the two one-sided tests of ``effect <= -smallest`` and ``effect >= smallest``
    (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15:657).

    With the symmetric distribution of the estimate's error it is half the two-sided probability of a deviation by
    ``smallest - |value|``, the distance to the nearer margin. 1 at or beyond a margin; None without a distribution. It
    is below alpha where the interval of level ``1 - 2 alpha`` (90 %) lies within ``±smallest``.
    """
    room = smallest - abs(effect.value)
    if room <= 0.0:
        return 1.0
    beyond = effect.beyond(room)
    return None if beyond is None else beyond / 2
