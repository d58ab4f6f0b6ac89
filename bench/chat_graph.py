"""How many turns a second does a chat graph of two nodes get, with LangGraph's own work in the account?"""

from __future__ import annotations

from bench import peers
from bench.harness import Lab
from bench.loads import chat_turns

_PEERS = (peers.PGCAIRN, peers.OFFICIAL, peers.OFFICIAL_SINGLE, peers.IN_MEMORY)
_CALLERS = 64
_TARGET_OFFICIAL = 4.0
_TARGET_IN_MEMORY = 0.75


async def run(lab: Lab) -> None:
    """Measure."""
    title = f"{_CALLERS} concurrent threads"
    load = chat_turns(_CALLERS)
    found = await lab.compare(title, [(peer, load) for peer in _PEERS])
    lab.rates(title, found, _PEERS, "turns", peers.OFFICIAL)
    work = f"chat graph, {_CALLERS} threads"
    lab.judge_rate(work, found, peers.PGCAIRN, peers.OFFICIAL, _TARGET_OFFICIAL, "turns")
    lab.judge_rate(work, found, peers.PGCAIRN, peers.IN_MEMORY, _TARGET_IN_MEMORY, "turns")
