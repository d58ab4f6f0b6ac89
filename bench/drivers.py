"""Does it matter which driver is under the saver?"""

from __future__ import annotations

from bench import peers
from bench.harness import Lab
from bench.loads import supersteps

_PEERS = (
    peers.PGCAIRN,
    peers.PGCAIRN_ASYNCPG,
    peers.PGCAIRN_SINGLE,
    peers.PGCAIRN_ASYNCPG_SINGLE,
)
_TARGET = 0.75  # asyncpg within 25 % of psycopg, or better


async def run(lab: Lab) -> None:
    """Measure."""
    for callers in (256, 1):
        load = supersteps(callers)
        title = f"{callers} concurrent threads" if callers > 1 else "1 caller"
        found = await lab.compare(title, [(peer, load) for peer in _PEERS])
        lab.rates(title, found, _PEERS, "supersteps", peers.PGCAIRN)
        if callers == 256:
            work = f"raw supersteps, {callers} threads, asyncpg against psycopg"
            lab.judge_rate(work, found, peers.PGCAIRN_ASYNCPG, peers.PGCAIRN, _TARGET, "supersteps")
