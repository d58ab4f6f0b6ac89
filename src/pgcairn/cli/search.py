"""The search of ``pgcairn tune``: one setting after the other, by short runs that take turns.

Owns what is tried and what is chosen; measuring is handed in. A setting's candidates begin with its default; the first that is nearly
as good as the best is taken, so that noise does not change what works.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pgcairn.settings import Settings

Measure = Callable[[Settings], Awaitable[float]]
"""Runs the work once with these settings and returns requests per second."""

# How much of the best the default, or an earlier candidate, must reach. Medians of three runs vary by about this on a quiet machine.
_NEARLY = 0.93


@dataclass(frozen=True)
class Axis:
    """A setting, and what is tried for it, the default first."""

    name: str
    candidates: Sequence[float]

    def settings(self, settings: Settings, candidate: float) -> Settings:
        """The settings with this candidate. A pool has room for all lanes and one reader."""
        changed = settings.replace(**{self.name: candidate})
        return changed.replace(max_size=max(changed.max_size, changed.lanes + 1), min_size=0)


AXES = (
    Axis("lanes", (2, 1, 3, 4)),
    Axis("max_size", (10, 5, 3, 20)),
    Axis("max_batch_rows", (1000, 300, 100, 3000)),
    Axis("batch_delay_seconds", (0.0, 0.001, 0.003)),
    Axis("compression_level", (1, 3, -1, -5)),
)
# What a full sweep tries: every combination.
SWEEP = (
    Axis("lanes", (1, 2, 4)),
    Axis("max_size", (5, 10, 20)),
    Axis("max_batch_rows", (300, 1000)),
    Axis("compression_level", (1, -1)),
)


@dataclass(frozen=True)
class Curve:
    """What one setting does, with all others as they had been chosen until then.

    Attributes:
        name: The setting.
        rates: Median requests per second of each candidate.
        chosen: The candidate that was taken.
    """

    name: str
    rates: dict[float, float]
    chosen: float


async def alternate(measure: Measure, points: Sequence[Settings], rounds: int) -> list[float]:
    """Measure points by turns, in every round from another one on; return their medians."""
    found: list[list[float]] = [[] for _ in points]
    for number in range(rounds):
        start = number * len(points) // rounds
        for index in (*range(start, len(points)), *range(start)):
            found[index].append(await measure(points[index]))
    return [statistics.median(each) for each in found]


def nearly_best(candidates: Sequence[float], rates: Sequence[float]) -> float:
    """The first candidate that reaches nearly the best rate."""
    best = max(rates)
    return next(
        candidate for candidate, rate in zip(candidates, rates, strict=True) if rate >= _NEARLY * best
    )


async def search(
    measure: Measure, start: Settings, rounds: int, on_axis: Callable[[Axis], None]
) -> tuple[Settings, list[Curve]]:
    """Choose each setting in turn.

    Args:
        measure: See ``Measure``.
        start: Where to begin; settings without an axis stay.
        rounds: How often each candidate is measured.
        on_axis: Told before a setting is tried.
    """
    chosen = start
    curves: list[Curve] = []
    for axis in AXES:
        on_axis(axis)
        candidates = [each for each in axis.candidates if axis.name != "max_size" or each > chosen.lanes]
        points = [axis.settings(chosen, each) for each in candidates]
        rates = await alternate(measure, points, rounds)
        best = nearly_best(candidates, rates)
        chosen = axis.settings(chosen, best)
        curves.append(Curve(axis.name, dict(zip(candidates, rates, strict=True)), best))
    return chosen, curves


async def sweep(measure: Measure, recommended: Settings, rounds: int) -> tuple[Settings, float, float, int]:
    """Measure every combination beside the recommendation.

    Returns:
        The best of all, its rate, the rate of the recommendation, and how many points there were.
    """
    points = [recommended]
    for values in itertools.product(*(axis.candidates for axis in SWEEP)):
        point = recommended
        for axis, value in zip(SWEEP, values, strict=True):
            point = axis.settings(point, value)
        points.append(point)
    rates = await alternate(measure, points, rounds)
    index = max(range(len(points)), key=rates.__getitem__)
    return points[index], rates[index], rates[0], len(points)
