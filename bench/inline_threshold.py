"""From which size on should a channel's value have a row of its own?

Source of the default of ``Settings.inline_max_bytes``. A state of two channels of one size: one changes at every
checkpoint, the other is set once. Inline, the second is stored again each time; in a row, the first costs an
index entry and a header each time. Sizes are on disk after the window, tables and indexes, per checkpoint.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import psycopg

from bench.harness import Lab, Load, Meter, Sample, Table
from bench.loads import STEPS_OF_A_THREAD, text
from bench.peers import Saver, pgcairn
from pgcairn.settings import Settings

_THRESHOLDS = (256, 1024, 4096)
_SIZES = (200, 600, 900, 2000, 3500)
_CALLERS = 128
_SIZE_SQL = """
SELECT sum(pg_total_relation_size(c.oid))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'pgcairn' AND c.relkind = 'r'
"""


def _puts(size: int) -> Load:
    constant = [text(size, 99)]
    changing = [[text(size, number)] for number in range(STEPS_OF_A_THREAD)]

    async def caller(saver: Saver, meter: Meter) -> None:
        while not meter.stopped:
            config: Any = {"configurable": {"thread_id": str(uuid.uuid4()), "checkpoint_ns": ""}}
            first = version = saver.get_next_version(None, None)
            for number in range(STEPS_OF_A_THREAD):
                if meter.stopped:
                    return
                config = await saver.aput(
                    config,
                    {
                        "v": 4,
                        "id": f"1f0{number:05x}-aaaa-6bbb-8ccc-ddddeeeeffff",
                        "ts": "2026-01-01T00:00:00.000000+00:00",
                        "channel_values": {"changing": changing[number], "constant": constant},
                        "channel_versions": {"changing": version, "constant": first},
                        "versions_seen": {},
                        "updated_channels": ["changing"],
                    },
                    {"source": "loop", "step": number, "parents": {}},
                    {"changing": version} if number else {"changing": version, "constant": first},
                )
                version = saver.get_next_version(version, None)
                meter.operations += 1

    async def load(saver: Saver, meter: Meter) -> None:
        await asyncio.gather(*(caller(saver, meter) for _ in range(_CALLERS)))

    return load


async def _stored(saver: Saver, dsn: str, _: Sample) -> dict[str, Any]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        cursor = await connection.execute(_SIZE_SQL)
        row = await cursor.fetchone()
    assert row is not None
    return {"bytes_per_checkpoint": int(row[0]) / saver.stats().checkpoints_written}  # type: ignore[attr-defined]


async def run(lab: Lab) -> None:
    """Measure."""
    contenders = {
        threshold: pgcairn(f"inline_max_bytes={threshold}", inline_max_bytes=threshold)
        for threshold in _THRESHOLDS
    }
    found = {}
    for size in _SIZES:
        load = _puts(size)
        found[size] = await lab.compare(
            f"values of {size} bytes", [(peer, load) for peer in contenders.values()], finish=_stored
        )
    lab.tables.append(
        Table(
            "Checkpoints/s (and bytes on disk of one) by the size of both values; the default is "
            f"{Settings().inline_max_bytes}",
            ("inline_max_bytes", *(f"{size:,} bytes" for size in _SIZES)),
            [
                (
                    f"{threshold:,}",
                    *(
                        f"{found[size].rate(peer):,.0f} ({found[size].extra(peer, 'bytes_per_checkpoint'):,.0f})"
                        for size in _SIZES
                    ),
                )
                for threshold, peer in contenders.items()
            ],
        )
    )
