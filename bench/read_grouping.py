"""How many reads should one statement answer, and how many such statements be under way?

Source of the default of ``Settings.read_batch_rows`` and of the reader's number of slots.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.harness import Lab, Table
from bench.loads import latest_reads, written
from bench.peers import Peer, Saver, pgcairn
from pgcairn.settings import Settings

_ROWS = (1, 4, 16, 64, 256)
_SLOTS = (1, 2, 4, 8)
_CALLERS = (64, 256)
_THREADS = 256


def _with_slots(slots: int) -> Peer:
    ours = pgcairn()

    @asynccontextmanager
    async def open_it(dsn: str) -> AsyncIterator[Saver]:
        async with ours.open(dsn) as saver:
            saver._engine.reader._slots = slots  # type: ignore[attr-defined]  # no setting: this bench chose it
            yield saver

    return Peer(f"slots={slots}", open_it)


async def run(lab: Lab) -> None:
    """Measure."""
    by_rows = {rows: pgcairn(f"read_batch_rows={rows}", read_batch_rows=rows) for rows in _ROWS}
    by_slots = {slots: _with_slots(slots) for slots in _SLOTS}
    for name, contenders, title in (
        (
            "rows",
            by_rows,
            f"Reads/s by read_batch_rows; the default is {Settings().read_batch_rows}",
        ),
        ("slots", by_slots, "Reads/s by statements under way at once"),
    ):
        found = {}
        for callers in _CALLERS:
            load = latest_reads(callers, threads=_THREADS)
            found[callers] = await lab.compare(
                f"{name}, {callers} callers",
                [(peer, load) for peer in contenders.values()],
                prepare=written(threads=_THREADS, checkpoints=3),
            )
        lab.tables.append(
            Table(
                title,
                (name, *(f"{callers} callers" for callers in _CALLERS)),
                [
                    (str(value), *(f"{found[callers].rate(peer):,.0f}" for callers in _CALLERS))
                    for value, peer in contenders.items()
                ],
            )
        )
