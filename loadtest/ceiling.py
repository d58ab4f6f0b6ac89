"""The highest rate that is sustained: doubled roughly until it is too much, then halved in between.

Knows nothing of how a rate is tried. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_GROWTH = 1.5
# How near the highest good rate and the lowest bad one must be.
_CLOSE = 1.06
_LOWEST_RPS = 5.0


@dataclass
class Search:
    """Which rate to try next.

    A rate that failed is tried a second time before it counts as bad, so that one hiccup of the machine does not decide.

    Attributes:
        start_rps: Where to begin.
        best_rps: The highest rate that was good; 0 until there is one.
    """

    start_rps: float
    best_rps: float = 0.0
    _bad: float | None = field(default=None, init=False)
    _failed_once: float | None = field(default=None, init=False)

    def next_rps(self) -> float | None:
        """The rate to try; ``None`` when it is known well enough."""
        if self._failed_once is not None:
            return self._failed_once
        if self._bad is None:
            return self.start_rps if not self.best_rps else float(round(self.best_rps * _GROWTH))
        if not self.best_rps:
            lower = float(round(self._bad / _GROWTH))
            return lower if lower >= _LOWEST_RPS else None
        if self._bad / self.best_rps <= _CLOSE:
            return None
        between = float(round((self.best_rps * self._bad) ** 0.5))
        return between if self.best_rps < between < self._bad else None

    def told(self, rps: float, is_good: bool) -> None:
        """What came out of trying a rate."""
        if is_good:
            self._failed_once = None
            self.best_rps = max(self.best_rps, rps)
        elif self._failed_once == rps:
            self._failed_once = None
            self._bad = rps
        else:
            self._failed_once = rps
