"""Does reading the latest state of a thread cost more when there are thousands of older checkpoints?"""

from __future__ import annotations

from bench import peers
from bench.harness import Lab, Table, Verdict
from bench.loads import latest_reads, written
from bench.peers import Peer

_PEERS = (peers.PGCAIRN, peers.OFFICIAL, peers.SQLITE)
_FEW, _MANY = _AGES = (20, 4000)
_TARGET = 1.25


async def run(lab: Lab) -> None:
    """Measure."""
    aged: dict[tuple[Peer, int], Peer] = {
        (peer, age): peers.prepared(
            peer, f"{peer.label}, {age:,} older", written(threads=1, checkpoints=age + 1)
        )
        for peer in _PEERS
        for age in _AGES
    }
    load = latest_reads(1, threads=1)
    found = await lab.compare("1 caller", [(peer, load) for peer in aged.values()])

    def milliseconds(peer: Peer, age: int) -> float:
        return 1e3 / found.rate(aged[peer, age])

    lab.tables.append(
        Table(
            "1 caller, 1 thread: ms of a read by the number of older checkpoints",
            ("saver", *(f"{age:,}" for age in _AGES), "ratio"),
            [
                (
                    peer.label,
                    *(f"{milliseconds(peer, age):.3f}" for age in _AGES),
                    f"{milliseconds(peer, _MANY) / milliseconds(peer, _FEW):.2f}",
                )
                for peer in _PEERS
            ],
        )
    )
    lab.verdicts.append(
        Verdict(
            "reading the latest state",
            aged[peers.PGCAIRN, _MANY].label,
            milliseconds(peers.PGCAIRN, _MANY),
            aged[peers.PGCAIRN, _FEW].label,
            milliseconds(peers.PGCAIRN, _FEW),
            _TARGET,
            "ms",
            at_most=True,
        )
    )
