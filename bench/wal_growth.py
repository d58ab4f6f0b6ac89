"""How many bytes of WAL does a superstep write, and by how many bytes do the tables grow?

A superstep is one ``aput`` with a list of messages that has grown by one, and one ``aput_writes``: threads of 8
supersteps, one after another and 64 at once, which share transactions where a saver has them shared. Tables are
measured as they have become, with indexes and without a VACUUM. WAL begins after a CHECKPOINT. Neither varies much,
so each saver is measured once, whatever ``--rounds`` says. A single long chat is the question of ``storage_chat``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bench import peers, server
from bench.harness import Figures, Lab, Table
from bench.loads import FIRST_MESSAGES, STEPS_OF_A_THREAD, messages, write_thread
from bench.peers import Saver

_PEERS = (
    peers.PGCAIRN,
    peers.PGCAIRN_ASYNCPG,
    peers.PGCAIRN_SINGLE,
    peers.OFFICIAL,
    peers.OFFICIAL_SINGLE,
)
_THREADS = 256
_CALLERS = (1, 64)
_TARGET = 1.0


async def run(lab: Lab) -> None:
    """Measure."""
    made = messages(FIRST_MESSAGES + STEPS_OF_A_THREAD, as_objects=True)
    states = [made[: FIRST_MESSAGES + number + 1] for number in range(STEPS_OF_A_THREAD)]
    updates = [state[-1:] for state in states]
    supersteps = _THREADS * STEPS_OF_A_THREAD
    for callers in _CALLERS:

        async def work(saver: Saver, dsn: str, callers: int = callers) -> dict[str, float]:
            async def write(threads: Iterator[int]) -> None:
                for number in threads:
                    await write_thread(saver, f"thread-{number}", states, updates)

            size = await server.disk_bytes(dsn, vacuumed=False)
            wal = await server.wal_position(dsn, after_checkpoint=True)
            threads = iter(range(_THREADS))
            await asyncio.gather(*(write(threads) for _ in range(callers)))
            wal = await server.wal_position(dsn) - wal
            size = await server.disk_bytes(dsn, vacuumed=False) - size
            return {"wal": wal / supersteps, "tables": size / supersteps}

        title = f"{callers} concurrent threads" if callers > 1 else "1 caller"
        found = await lab.collect(title, [(peer, work) for peer in _PEERS], rounds=1)
        lab.tables.append(_table(found, title))
        for name, what in (("wal", "WAL"), ("tables", "tables")):
            work_done = f"{what} of a superstep, {title}"
            lab.judge_figure(work_done, found, name, peers.PGCAIRN, peers.OFFICIAL, _TARGET, "bytes")


def _table(found: Figures, title: str) -> Table:
    official = peers.OFFICIAL
    return Table(
        f"{title}, bytes of a superstep",
        ("saver", "WAL", f"÷ {official.label}", "tables", f"÷ {official.label}"),
        [
            (
                peer.label,
                *(
                    cell
                    for name in ("wal", "tables")
                    for cell in (
                        f"{found.median(peer, name):,.0f}",
                        f"{found.median(peer, name) / found.median(official, name):.2f}",
                    )
                ),
            )
            for peer in _PEERS
        ],
    )
