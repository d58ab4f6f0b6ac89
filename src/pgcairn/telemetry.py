"""Counters and the statistics object that ``saver.stats()`` returns.

Owns names and units: a counter ends in its unit or in what is counted, never resets while the saver lives,
and is only touched from the saver's event loop. Never logs and never exports; exporters read ``Stats``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

# Enough for stable p99s (1 % of 2,048 is 20 samples), few enough to sort whenever somebody asks.
_LATENCY_SAMPLES = 2048


class Latencies:
    """The last 2,048 durations of one kind of operation, in seconds."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_LATENCY_SAMPLES)

    def observe(self, seconds: float) -> None:
        self._samples.append(seconds)

    def percentiles(self, *quantiles: float) -> tuple[float, ...]:
        """Return the quantiles (0..1) of the samples in seconds; zeros when there are none."""
        if not self._samples:
            return (0.0,) * len(quantiles)
        ordered = sorted(self._samples)
        last = len(ordered) - 1
        return tuple(ordered[min(last, max(0, math.ceil(q * len(ordered)) - 1))] for q in quantiles)


@dataclass(slots=True)
class Counters:
    """Everything a saver counts. One instance per saver, shared by its layers."""

    statements: int = 0
    round_trips: int = 0
    sessions_opened: int = 0
    sessions_lost: int = 0
    checkpoints_written: int = 0
    writes_written: int = 0
    values_written: int = 0
    edits_written: int = 0
    base_cache_hits: int = 0
    base_cache_misses: int = 0
    written_bytes: int = 0
    batches: int = 0
    batch_rows_total: int = 0
    batch_rows_max: int = 0
    batches_split: int = 0
    items_rejected: int = 0
    items_reencoded: int = 0
    checkpoints_replaced: int = 0
    checkpoints_pruned: int = 0
    checkpoints_hidden: int = 0
    writes_pruned: int = 0
    values_pruned: int = 0
    threads_copied: int = 0
    retries: int = 0
    reads: int = 0
    read_batches: int = 0
    history_reads: int = 0
    read_bytes: int = 0
    backlog_rows: int = 0
    backlog_bytes: int = 0
    backlog_waits: int = 0
    backlog_refusals: int = 0
    snapshots_above_warn_bytes: int = 0
    snapshot_bytes_max: int = 0
    write_latency: Latencies = field(default_factory=Latencies)
    read_latency: Latencies = field(default_factory=Latencies)
    session_wait: Latencies = field(default_factory=Latencies)


@dataclass(frozen=True, slots=True)
class Stats:
    """What a saver did since it was made, and how it is now. Read it as often as you like: it is a copy.

    Counters only grow: ``*_total`` and plain counts. Instant values: ``backlog_*``, ``pool_*``,
    ``base_cache_bytes``, ``base_cache_entries``.
    Latencies are seconds over the last 2,048 operations of that kind, from the call to its answer.
    """

    statements: int
    """Statements sent to the server."""
    round_trips: int
    """Times the saver waited for the server."""
    sessions_opened: int
    """Sessions that the saver's own pool opened, first ones and replacements (0 for a pool of yours)."""
    sessions_lost: int
    """Sessions that broke while they were in use."""
    checkpoints_written: int
    """Checkpoints acknowledged as committed."""
    writes_written: int
    """Pending writes (rows) acknowledged as committed."""
    values_written: int
    """Large channel values (rows) acknowledged as committed."""
    edits_written: int
    """Those of them that were stored as edits of an earlier version."""
    base_cache_hits: int
    """Large values for which an earlier version was remembered when they came."""
    base_cache_misses: int
    """Large values for which none was; they are stored whole."""
    base_cache_bytes: int
    """Memory of the remembered versions right now, roughly."""
    base_cache_entries: int
    """Values of which a version is remembered right now."""
    written_bytes: int
    """Serialized payload acknowledged as committed, before compression."""
    batches: int
    """Transactions of the write path."""
    batch_rows_mean: float
    """Mean rows of a batch."""
    batch_rows_max: int
    """Rows of the largest batch so far."""
    batches_split: int
    """Batches that were split to find an item that PostgreSQL refused."""
    items_rejected: int
    """Calls that failed because PostgreSQL refused their data."""
    items_reencoded: int
    """Puts that were encoded again because a stored value they rested on had been deleted meanwhile."""
    checkpoints_replaced: int
    """Puts of an id that existed already."""
    checkpoints_pruned: int
    """Checkpoints that prunes and ``adelete_for_runs`` took out of sight."""
    checkpoints_hidden: int
    """Those of them that are kept out of sight, because a kept checkpoint is rebuilt from them."""
    writes_pruned: int
    """Pending writes (rows) deleted with their checkpoints; whole deleted threads are not counted."""
    values_pruned: int
    """Large channel values (rows) deleted because no checkpoint needed them any more."""
    threads_copied: int
    """Threads made by ``acopy_thread``."""
    retries: int
    """Statements repeated after a lost connection, a restart, a deadlock or a serialization failure."""
    reads: int
    """Checkpoints read by ``aget_tuple``."""
    read_batches: int
    """Statements that answered them."""
    history_reads: int
    """Histories of DeltaChannels read, each for all channels of a call."""
    read_bytes: int
    """Payload read, before decompression."""
    backlog_rows: int
    """Rows queued or at the server right now."""
    backlog_bytes: int
    """Payload queued or at the server right now."""
    backlog_waits: int
    """Calls that had to wait for room in the backlog."""
    backlog_refusals: int
    """Calls that got ``BacklogFull``."""
    snapshots_above_warn_bytes: int
    """Checkpoints larger than ``snapshot_warn_bytes``."""
    snapshot_bytes_max: int
    """Largest serialized checkpoint so far, as far as the saver had to serialize it."""
    write_p50_seconds: float
    write_p95_seconds: float
    write_p99_seconds: float
    read_p50_seconds: float
    read_p95_seconds: float
    read_p99_seconds: float
    session_wait_p50_seconds: float
    session_wait_p95_seconds: float
    session_wait_p99_seconds: float
    """How long the last 2,048 users of a session waited for it; much above a millisecond means that ``max_size`` is too
    low, or that sessions are being opened."""
    pool_size: int
    """Sessions of the pool right now."""
    pool_idle: int
    """Sessions of the pool that nobody uses right now."""


def snapshot(
    counters: Counters, *, pool_size: int, pool_idle: int, base_cache_bytes: int, base_cache_entries: int
) -> Stats:
    """Freeze the counters together with the instant values of pool and cache."""
    write_p50, write_p95, write_p99 = counters.write_latency.percentiles(0.5, 0.95, 0.99)
    read_p50, read_p95, read_p99 = counters.read_latency.percentiles(0.5, 0.95, 0.99)
    wait_p50, wait_p95, wait_p99 = counters.session_wait.percentiles(0.5, 0.95, 0.99)
    return Stats(
        statements=counters.statements,
        round_trips=counters.round_trips,
        sessions_opened=counters.sessions_opened,
        sessions_lost=counters.sessions_lost,
        checkpoints_written=counters.checkpoints_written,
        writes_written=counters.writes_written,
        values_written=counters.values_written,
        edits_written=counters.edits_written,
        base_cache_hits=counters.base_cache_hits,
        base_cache_misses=counters.base_cache_misses,
        base_cache_bytes=base_cache_bytes,
        base_cache_entries=base_cache_entries,
        written_bytes=counters.written_bytes,
        batches=counters.batches,
        batch_rows_mean=counters.batch_rows_total / counters.batches if counters.batches else 0.0,
        batch_rows_max=counters.batch_rows_max,
        batches_split=counters.batches_split,
        items_rejected=counters.items_rejected,
        items_reencoded=counters.items_reencoded,
        checkpoints_replaced=counters.checkpoints_replaced,
        checkpoints_pruned=counters.checkpoints_pruned,
        checkpoints_hidden=counters.checkpoints_hidden,
        writes_pruned=counters.writes_pruned,
        values_pruned=counters.values_pruned,
        threads_copied=counters.threads_copied,
        retries=counters.retries,
        reads=counters.reads,
        read_batches=counters.read_batches,
        history_reads=counters.history_reads,
        read_bytes=counters.read_bytes,
        backlog_rows=counters.backlog_rows,
        backlog_bytes=counters.backlog_bytes,
        backlog_waits=counters.backlog_waits,
        backlog_refusals=counters.backlog_refusals,
        snapshots_above_warn_bytes=counters.snapshots_above_warn_bytes,
        snapshot_bytes_max=counters.snapshot_bytes_max,
        write_p50_seconds=write_p50,
        write_p95_seconds=write_p95,
        write_p99_seconds=write_p99,
        read_p50_seconds=read_p50,
        read_p95_seconds=read_p95,
        read_p99_seconds=read_p99,
        session_wait_p50_seconds=wait_p50,
        session_wait_p95_seconds=wait_p95,
        session_wait_p99_seconds=wait_p99,
        pool_size=pool_size,
        pool_idle=pool_idle,
    )
