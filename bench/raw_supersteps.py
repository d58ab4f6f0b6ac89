"""How many supersteps a second do 256 concurrent threads get, and 64?

Messages as dicts and, separately, as LangChain's ``HumanMessage``, which cost the serializer more. The same for
every saver; what InMemorySaver gets is what is left when nothing is stored.
"""

from __future__ import annotations

from bench import peers
from bench.harness import Lab
from bench.loads import supersteps

_PEERS = (
    peers.PGCAIRN,
    peers.PGCAIRN_SINGLE,
    peers.OFFICIAL,
    peers.OFFICIAL_SINGLE,
    peers.SQLITE,
    peers.IN_MEMORY,
)
_TARGET = 10.0


async def run(lab: Lab) -> None:
    """Measure."""
    for callers, as_objects in ((256, False), (256, True), (64, False)):
        kind = "HumanMessage objects" if as_objects else "dicts"
        load = supersteps(callers, as_objects=as_objects)
        title = f"{callers} concurrent threads, messages as {kind}"
        found = await lab.compare(title, [(peer, load) for peer in _PEERS])
        lab.rates(title, found, _PEERS, "supersteps", peers.OFFICIAL)
        if callers == 256:
            work = f"raw supersteps, {callers} threads, {kind}"
            lab.judge_rate(work, found, peers.PGCAIRN, peers.OFFICIAL, _TARGET, "supersteps")
