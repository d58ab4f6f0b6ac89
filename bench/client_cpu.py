"""How much of the client's CPU does a superstep cost?

User and system time of the client's process over the window, divided by the supersteps in it. The harness's own
part is in it, for everybody alike.
"""

from __future__ import annotations

from bench import peers
from bench.harness import Lab, Table, Verdict
from bench.loads import supersteps

_PEERS = (peers.PGCAIRN, peers.PGCAIRN_ASYNCPG, peers.OFFICIAL, peers.IN_MEMORY)
_CALLERS = (1, 64, 256)
_TARGET = 1 / 6


async def run(lab: Lab) -> None:
    """Measure."""
    found = {}
    for callers in _CALLERS:
        load = supersteps(callers)
        found[callers] = await lab.compare(f"{callers} threads", [(peer, load) for peer in _PEERS])
    lab.tables.append(
        Table(
            "Client CPU, ms per superstep (messages as dicts)",
            ("saver", *("1 caller" if callers == 1 else f"{callers} threads" for callers in _CALLERS)),
            [
                (peer.label, *(f"{found[callers].cpu_ms(peer):.3f}" for callers in _CALLERS))
                for peer in _PEERS
            ],
        )
    )
    most = found[256]
    lab.verdicts.append(
        Verdict(
            "client CPU of a raw superstep, 256 threads",
            peers.PGCAIRN.label,
            most.cpu_ms(peers.PGCAIRN),
            peers.OFFICIAL.label,
            most.cpu_ms(peers.OFFICIAL),
            _TARGET,
            "ms",
            at_most=True,
        )
    )
