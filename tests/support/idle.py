"""What stands in for a session where nobody looks at it."""

from __future__ import annotations

import math


class IdleSession:
    """A session that is lent and not used.

    Attributes:
        limits: What ``limit`` was called with.
    """

    def __init__(self) -> None:
        self.limits: list[float] = []

    def limit(self, seconds: float) -> None:
        """See ``Session.limit``."""
        assert 0 < seconds <= math.inf
        self.limits.append(seconds)
