"""How much memory does a process keep of ten thousand threads that were touched once and are idle?

Each thread gets one ``aput`` of a state of 32 KB and one ``aget_tuple``; every contender in a process of its own.
Memory is the process's resident set after ``gc.collect()``, before the first of these threads and after the last. All
states together are larger than what pgcairn may remember, so its bound is reached. It does not vary much, so each is
measured once, whatever ``--rounds`` says.
"""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from collections.abc import Iterator
from typing import Any

import psutil
from langchain_core.messages import HumanMessage

from bench import child as processes
from bench import machine, peers
from bench.harness import Lab, Table, Verdict
from bench.loads import ThreadWriter, text
from bench.peers import Peer, Saver
from pgcairn.settings import Settings

_PEERS = {
    peer.label: peer for peer in (peers.PGCAIRN, peers.PGCAIRN_ASYNCPG, peers.OFFICIAL, peers.IN_MEMORY)
}
_OURS = (peers.PGCAIRN, peers.PGCAIRN_ASYNCPG)
_THREADS = 10_000
_WARM_UP_THREADS = 64
_CALLERS = 64
_MESSAGES, _CHARACTERS = 16, 2000
_ALLOWED_MB = 100.0  # beyond the caches: pool, batches under way, what the allocator does not give back
_PLACEMENT_BYTES = 300  # of an entry, as the setting's description has it
_MB = 1e6


async def run(lab: Lab) -> None:
    """Measure."""
    contenders = []
    for peer in _PEERS.values():

        async def work(_: Saver, dsn: str, label: str = peer.label) -> dict[str, float]:
            found: dict[str, float] = await asyncio.to_thread(processes.call, __name__, dsn, [label])
            return found

        contenders.append((peer, work))
    found = await lab.collect("memory", contenders, rounds=1)
    median = found.median
    lab.tables.append(
        Table(
            f"{_THREADS:,} threads, resident MB",
            ("saver", "before", "after", "growth", "KB a thread", "seconds of touching"),
            [
                (
                    peer.label,
                    f"{median(peer, 'before'):,.0f}",
                    f"{median(peer, 'after'):,.0f}",
                    f"{median(peer, 'growth'):,.0f}",
                    f"{median(peer, 'growth') * 1e3 / _THREADS:.1f}",
                    f"{median(peer, 'seconds'):.1f}",
                )
                for peer in _PEERS.values()
            ],
        )
    )
    settings = Settings()
    bound = (settings.base_cache_bytes + settings.placement_cache_entries * _PLACEMENT_BYTES) / _MB
    lab.notes.append(
        f"The bound of pgcairn's caches is {bound:.0f} MB: base_cache_bytes = {settings.base_cache_bytes:,}, and "
        f"placement_cache_entries = {settings.placement_cache_entries:,} of {_PLACEMENT_BYTES} bytes."
    )
    for peer in _OURS:
        lab.verdicts.append(
            Verdict(
                f"memory of {_THREADS:,} idle threads",
                peer.label,
                median(peer, "growth"),
                f"the caches' bound and {_ALLOWED_MB:.0f} MB",
                bound + _ALLOWED_MB,
                1.0,
                "MB",
                at_most=True,
            )
        )


def child(dsn: str, label: str) -> dict[str, float]:
    """The process that is measured."""
    found: dict[str, float] = machine.run(_touch(_PEERS[label], dsn))
    return found


async def _touch(peer: Peer, dsn: str) -> dict[str, float]:
    states = _states()
    async with peer.open(dsn) as saver:

        async def touch(threads: Iterator[int]) -> None:
            for number in threads:
                thread_id = f"thread-{number}"
                await ThreadWriter(saver, thread_id).put(next(states))
                assert await saver.aget_tuple({"configurable": {"thread_id": thread_id}}) is not None
                await asyncio.sleep(0)

        async def touch_all(threads: Iterator[int]) -> None:
            await asyncio.gather(*(touch(threads) for _ in range(_CALLERS)))

        await touch_all(iter(range(-_WARM_UP_THREADS, 0)))
        before = _resident_mb()
        started = time.perf_counter()
        await touch_all(iter(range(_THREADS)))
        seconds = time.perf_counter() - started
        after = _resident_mb()
    return {"before": before, "after": after, "growth": after - before, "seconds": seconds}


def _states() -> Iterator[list[Any]]:
    """Endless states that share nothing: messages cut from one text at places of their own."""
    size = _MESSAGES * _CHARACTERS
    source = text(4 * size, 0)
    start = 0
    while True:
        start = (start + 97) % (3 * size)
        yield [
            HumanMessage(source[at : at + _CHARACTERS], id=str(uuid.uuid4()))
            for at in range(start, start + size, _CHARACTERS)
        ]


def _resident_mb() -> float:
    gc.collect()
    resident: int = psutil.Process().memory_info().rss
    return resident / _MB
