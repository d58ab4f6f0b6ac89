"""How many bytes does a workspace of files take, when at every step one of them is added or edited?

A dict of a hundred files of 4 KB in one channel (``growth.workspace``), checkpoint by checkpoint: the values alone, and
with each step's file as pending write, as a graph leaves it behind. Disk is all tables, with indexes, after
``VACUUM FULL``. Sizes do not vary, so each saver is measured once, whatever ``--rounds`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench import growth, peers, server
from bench.harness import Lab, Table
from bench.loads import write_thread
from bench.peers import Saver

_PEERS = (peers.PGCAIRN, peers.OFFICIAL)
_TARGET = 1 / 20
_MB = 1e6


async def run(lab: Lab) -> None:
    """Measure."""
    states, updates = zip(*growth.workspace(), strict=True)
    for title, writes in (("values alone", None), ("values and writes", updates)):

        async def work(saver: Saver, dsn: str, writes: Sequence[Any] | None = writes) -> dict[str, float]:
            wal = await server.wal_position(dsn, after_checkpoint=True)
            await write_thread(saver, "workspace", states, writes)
            wal = await server.wal_position(dsn) - wal
            return {"disk": await server.disk_bytes(dsn) / _MB, "wal": wal / _MB}

        found = await lab.collect(title, [(peer, work) for peer in _PEERS], rounds=1)
        lab.tables.append(
            Table(
                f"{growth.FILES} files of 4 KB and {growth.EDITS} edits, {len(states)} checkpoints, {title}",
                ("saver", "MB on disk", "MB of WAL", "disk bytes a checkpoint"),
                [
                    (
                        peer.label,
                        f"{found.median(peer, 'disk'):,.2f}",
                        f"{found.median(peer, 'wal'):,.2f}",
                        f"{found.median(peer, 'disk') * _MB / len(states):,.0f}",
                    )
                    for peer in _PEERS
                ],
            )
        )
        work_done = f"disk of a workspace, {len(states)} checkpoints, {title}"
        lab.judge_figure(work_done, found, "disk", peers.PGCAIRN, peers.OFFICIAL, _TARGET, "MB")
