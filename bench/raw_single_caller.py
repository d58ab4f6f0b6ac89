"""How many supersteps a second does a lone caller get, with nobody to share a transaction with?"""

from __future__ import annotations

from bench import peers
from bench.harness import Lab
from bench.loads import supersteps

_PEERS = (
    peers.PGCAIRN,
    peers.PGCAIRN_ASYNCPG,
    peers.PGCAIRN_SINGLE,
    peers.OFFICIAL,
    peers.OFFICIAL_SINGLE,
    peers.SQLITE,
    peers.IN_MEMORY,
)
_TARGET = 1.7


async def run(lab: Lab) -> None:
    """Measure."""
    for as_objects in (False, True):
        kind = "HumanMessage objects" if as_objects else "dicts"
        load = supersteps(1, as_objects=as_objects)
        title = f"1 caller, messages as {kind}"
        found = await lab.compare(title, [(peer, load) for peer in _PEERS])
        lab.rates(title, found, _PEERS, "supersteps", peers.OFFICIAL)
        work = f"raw supersteps, 1 caller, {kind}"
        lab.judge_rate(work, found, peers.PGCAIRN, peers.OFFICIAL, _TARGET, "supersteps")
