"""How is measured: contenders in turn on fresh databases, medians of rounds, both sides of every ratio.

Owns the rules; the loads are in ``loads.py``, what is compared is in the benches. A load is told when the
measured window begins and ends and counts its operations; it is in full swing at both moments, so neither
start nor end of it counts.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import server
from bench.peers import Peer, Saver

# Long enough for prepared statements, grown pools and a first autovacuum look; guess.
_WARM_UP_FRACTION = 0.5
_WARM_UP_MIN_SECONDS = 0.5


class Meter:
    """What a load reports to: it counts, and says when to stop.

    Operations of several calls are counted by parts, call by call: callers that wait in one line move in waves,
    and a window of few waves would see one more or less.
    """

    def __init__(self) -> None:
        self.operations = 0.0
        self.stopped = False


Load = Callable[[Saver, Meter], Awaitable[None]]
"""Works until ``meter.stopped`` and adds to ``meter.operations`` what has been acknowledged."""


@dataclass(frozen=True)
class Sample:
    """One measured window.

    Attributes:
        cpu_seconds: Of this process, which is the client: user and system, all threads.
        extra: Whatever else a bench wants to keep.
    """

    operations: float
    seconds: float
    cpu_seconds: float
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Client CPU of one operation in milliseconds."""
        return self.cpu_seconds / self.operations * 1e3


async def sample(saver: Saver, load: Load, seconds: float) -> Sample:
    """Let a load work and measure a window of it."""
    meter = Meter()
    work = asyncio.ensure_future(load(saver, meter))
    try:
        await _pause(work, max(_WARM_UP_MIN_SECONDS, seconds * _WARM_UP_FRACTION))
        operations, started, cpu = meter.operations, time.perf_counter(), time.process_time()
        await _pause(work, seconds)
        while meter.operations == operations:  # slower than the window is long
            await _pause(work, seconds)
        return Sample(meter.operations - operations, time.perf_counter() - started, time.process_time() - cpu)
    finally:
        meter.stopped = True
        await work


@dataclass(frozen=True)
class Timing:
    """What one of several operations took.

    Attributes:
        latency_ms: Median.
        cpu_ms: Mean client CPU: user and system, all threads.
    """

    latency_ms: float
    cpu_ms: float


async def timed(
    operation: Callable[[], Awaitable[object]], *, seconds: float, least: int = 3, most: int | None = None
) -> Timing:
    """Repeat an operation, one after another.

    Args:
        operation: What is measured.
        seconds: For how long.
        least: How often, however long it takes.
        most: How often, however short it is; ``None`` for any number.
    """
    latencies: list[float] = []
    cpu, began = time.process_time(), time.perf_counter()
    while len(latencies) != most:
        started = time.perf_counter()
        if started >= began + seconds and len(latencies) >= least:
            break
        await operation()
        latencies.append(time.perf_counter() - started)
    cpu = time.process_time() - cpu
    return Timing(statistics.median(latencies) * 1e3, cpu / len(latencies) * 1e3)


async def _pause(work: asyncio.Future[None], seconds: float) -> None:
    done, _ = await asyncio.wait([work], timeout=seconds)
    if done:
        work.result()
        raise RuntimeError("The load ended before it was told to.")


@dataclass
class Comparison:
    """All samples of some contenders under one load."""

    samples: dict[str, list[Sample]]

    def rate(self, peer: Peer) -> float:
        """Median operations a second."""
        return statistics.median(each.rate for each in self.samples[peer.label])

    def cpu_ms(self, peer: Peer) -> float:
        """Median client CPU of an operation in milliseconds."""
        return statistics.median(each.cpu_ms for each in self.samples[peer.label])

    def extra(self, peer: Peer, name: str) -> float:
        """Median of an extra."""
        return statistics.median(each.extra[name] for each in self.samples[peer.label])

    def spread(self, peer: Peer) -> str:
        """Lowest and highest rate."""
        rates = [each.rate for each in self.samples[peer.label]]
        return f"{min(rates):,.0f}–{max(rates):,.0f}"

    def ratio(self, ours: Peer, theirs: Peer) -> float:
        """Median of one over median of the other."""
        return self.rate(ours) / self.rate(theirs)


Work = Callable[[Saver, str], Awaitable[dict[str, float]]]
"""Does something once, with a saver and the connection string of its database; returns figures by name."""


@dataclass
class Figures:
    """What some contenders' work measured, where it is not a rate: seconds, bytes."""

    samples: dict[str, list[dict[str, float]]]

    def median(self, peer: Peer, name: str) -> float:
        """Median of one figure."""
        return statistics.median(each[name] for each in self.samples[peer.label])


@dataclass(frozen=True)
class Table:
    """Cells are text already; a generator of documents adds nothing."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Verdict:
    """A target, and both sides of what was reached.

    Attributes:
        work: What was done.
        ours: Median of the first side.
        theirs: Median of the second side.
        ratio: ``ours / theirs``.
        target: What the ratio should be.
        at_most: Whether the target is an upper bound.
        unit: Of both sides.
    """

    work: str
    ours_label: str
    ours: float
    theirs_label: str
    theirs: float
    target: float
    unit: str
    at_most: bool = False

    @property
    def ratio(self) -> float:
        """The first side over the second."""
        return self.ours / self.theirs

    @property
    def met(self) -> bool:
        """Whether the target was reached; not rounded first."""
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target


@dataclass
class Lab:
    """What a bench gets to work with, and where it puts what it found.

    Attributes:
        dsn: The server.
        rounds: How often each contender is measured.
        seconds: Length of a measured window.
        conversations: The file of chats to take text from; ``None`` for the sample beside this file.
    """

    dsn: str
    rounds: int
    seconds: float
    conversations: Path | None = None
    tables: list[Table] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)

    async def compare(
        self,
        title: str,
        contenders: Sequence[tuple[Peer, Load]],
        *,
        reach: Callable[[str], str] = lambda dsn: dsn,
        prepare: Callable[[Saver], Awaitable[None]] | None = None,
        finish: Callable[[Saver, str, Sample], Awaitable[dict[str, Any]]] | None = None,
    ) -> Comparison:
        """Measure contenders alternately, in every round from another one on.

        Args:
            title: Name of the samples in the results.
            contenders: Who, and under which load; loads are the same unless the load is the question.
            reach: Changes the connection string that savers get, for a proxy.
            prepare: Called with each saver before its load begins.
            finish: Called after a window, with the saver still open; gives the sample's extras.
        """
        found: dict[str, list[Sample]] = {peer.label: [] for peer, _ in contenders}
        for number in range(self.rounds):
            start = number % len(contenders)
            for peer, load in (*contenders[start:], *contenders[:start]):
                found[peer.label].append(await self._measure(peer, load, reach, prepare, finish))
        self.samples[title] = {label: [asdict(each) for each in samples] for label, samples in found.items()}
        return Comparison(found)

    async def collect(
        self, title: str, contenders: Sequence[tuple[Peer, Work]], *, rounds: int | None = None
    ) -> Figures:
        """Let contenders work once a round, alternately, each time on a fresh database.

        Args:
            title: Name of the samples in the results.
            contenders: Who, and what is to be done.
            rounds: How often; 1 for what does not vary. Default: as often as everything else.
        """
        found: dict[str, list[dict[str, float]]] = {peer.label: [] for peer, _ in contenders}
        for number in range(self.rounds if rounds is None else rounds):
            start = number % len(contenders)
            for peer, work in (*contenders[start:], *contenders[:start]):
                async with self._opened(peer) as (saver, dsn):
                    gc.collect()
                    found[peer.label].append(await work(saver, dsn))
        self.samples[title] = dict(found)
        return Figures(found)

    async def _measure(self, peer: Peer, load: Load, reach: Any, prepare: Any, finish: Any) -> Sample:
        async with self._opened(peer, reach) as (saver, dsn):
            if prepare is not None:
                await prepare(saver)
            gc.collect()
            measured = await sample(saver, load, self.seconds)
            if finish is not None:
                measured.extra.update(await finish(saver, dsn, measured))
            return measured

    @asynccontextmanager
    async def _opened(
        self, peer: Peer, reach: Callable[[str], str] = lambda dsn: dsn
    ) -> AsyncIterator[tuple[Saver, str]]:
        """A saver on a fresh database, and the database's connection string, empty if it needs none."""
        async with AsyncExitStack() as stack:
            dsn = ""
            if peer.needs_server:
                dsn = await stack.enter_async_context(server.fresh_database(self.dsn))
            yield await stack.enter_async_context(peer.open(reach(dsn))), dsn

    def rates(
        self, title: str, comparison: Comparison, peers: Sequence[Peer], unit: str, against: Peer
    ) -> None:
        """Add the table of rates, ratios and client CPU."""
        self.tables.append(
            Table(
                title,
                (
                    "saver",
                    f"{unit}/s (median)",
                    "lowest–highest",
                    f"÷ {against.label}",
                    f"client CPU ms/{unit.removesuffix('s')}",
                ),
                [
                    (
                        peer.label,
                        f"{comparison.rate(peer):,.0f}",
                        comparison.spread(peer),
                        f"{comparison.ratio(peer, against):.2f}",
                        f"{comparison.cpu_ms(peer):.3f}",
                    )
                    for peer in peers
                ],
            )
        )

    def judge_rate(
        self, work: str, comparison: Comparison, ours: Peer, theirs: Peer, target: float, unit: str
    ) -> None:
        """Add a verdict on the ratio of two median rates."""
        self.verdicts.append(
            Verdict(
                work,
                ours.label,
                comparison.rate(ours),
                theirs.label,
                comparison.rate(theirs),
                target,
                f"{unit}/s",
            )
        )

    def judge_figure(
        self, work: str, found: Figures, name: str, ours: Peer, theirs: Peer, most: float, unit: str
    ) -> None:
        """Add a verdict on the ratio of two medians, which should be at most ``most``."""
        self.verdicts.append(
            Verdict(
                work,
                ours.label,
                found.median(ours, name),
                theirs.label,
                found.median(theirs, name),
                most,
                unit,
                at_most=True,
            )
        )
