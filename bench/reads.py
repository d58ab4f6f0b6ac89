"""How many latest states a second can be read, and does it matter how many older checkpoints there are?

``aget_tuple`` without a checkpoint id, on threads whose latest state holds ten messages.
"""

from __future__ import annotations

from bench import peers
from bench.harness import Lab, Table
from bench.loads import latest_reads, written

_PEERS = (peers.PGCAIRN, peers.PGCAIRN_SINGLE, peers.OFFICIAL, peers.SQLITE, peers.IN_MEMORY)
_THREADS = 64
_AGES = (1, 1000)


async def run(lab: Lab) -> None:
    """Measure."""
    for callers in (1, 64):
        title = f"{callers} concurrent callers" if callers > 1 else "1 caller"
        load = latest_reads(callers, threads=_THREADS)
        found = await lab.compare(
            title,
            [(peer, load) for peer in _PEERS],
            prepare=written(threads=_THREADS, checkpoints=5),
        )
        lab.rates(title, found, _PEERS, "reads", peers.OFFICIAL)
    against_age = (peers.PGCAIRN, peers.OFFICIAL, peers.SQLITE)
    load = latest_reads(1, threads=1)
    ages = {
        age: await lab.compare(
            f"after {age} checkpoints",
            [(peer, load) for peer in against_age],
            prepare=written(threads=1, checkpoints=age),
        )
        for age in _AGES
    }
    few, many = _AGES
    lab.tables.append(
        Table(
            "1 caller, 1 thread: reads/s by the number of its checkpoints",
            ("saver", f"{few}", f"{many:,}", "ratio"),
            [
                (
                    peer.label,
                    f"{ages[few].rate(peer):,.0f}",
                    f"{ages[many].rate(peer):,.0f}",
                    f"{ages[many].rate(peer) / ages[few].rate(peer):.2f}",
                )
                for peer in against_age
            ],
        )
    )
