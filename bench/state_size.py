"""What do saving and loading cost by the size of the state, from a kilobyte to five megabytes?

A lone caller; a state is a list of messages as dicts, 500 characters each. A first save is the first checkpoint of a
thread, a next one follows on the same thread with another last message. Client CPU is that of the whole process: of
AsyncSqliteSaver and InMemorySaver it is also the database's. A cell takes a tenth of ``--seconds``, and at least
three operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from bench import peers
from bench.harness import Figures, Lab, Table, timed
from bench.loads import MESSAGE_CHARACTERS, ThreadWriter, messages
from bench.peers import Saver

_PEERS = (
    peers.PGCAIRN,
    peers.PGCAIRN_ASYNCPG,
    peers.OFFICIAL,
    peers.OFFICIAL_SINGLE,
    peers.SQLITE,
    peers.IN_MEMORY,
)
_KILOBYTES = {1: "1 KB", 10: "10 KB", 100: "100 KB", 1_000: "1 MB", 5_000: "5 MB"}
_LAST_MESSAGES = 16  # that come in turn, so that no save has the state of the one before
_SHARE = 1 / 10
_OPERATIONS = ("first save", "next save", "load")
_COSTS = {"latency": "ms of latency (median)", "cpu": "ms of client CPU"}


async def run(lab: Lab) -> None:
    """Measure."""
    most = max(_KILOBYTES) * 1000 // MESSAGE_CHARACTERS
    all_messages = messages(most + _LAST_MESSAGES, as_objects=False)
    seconds = lab.seconds * _SHARE

    async def work(saver: Saver, _: str) -> dict[str, float]:
        found: dict[str, float] = {}
        await _cost_of(saver, "warm-up", all_messages[:2], all_messages[most:], 0.0)
        for kilobytes, size in _KILOBYTES.items():
            first = all_messages[: kilobytes * 1000 // MESSAGE_CHARACTERS]
            found |= await _cost_of(saver, size, first, all_messages[most:], seconds)
        return found

    found = await lab.collect("costs", [(peer, work) for peer in _PEERS])
    for operation in _OPERATIONS:
        for cost, title in _COSTS.items():
            lab.tables.append(_table(found, operation, cost, title))


async def _cost_of(
    saver: Saver, size: str, state: Sequence[Any], last: Sequence[Any], seconds: float
) -> dict[str, float]:
    numbers = itertools.count()
    states = itertools.cycle([[*state[:-1], message] for message in last])

    async def first_save() -> None:
        await ThreadWriter(saver, f"{size} {next(numbers)}").put(next(states))

    writer = ThreadWriter(saver, size)
    await writer.put(state)

    async def next_save() -> None:
        await writer.put(next(states))

    async def load() -> None:
        assert await saver.aget_tuple({"configurable": {"thread_id": size}}) is not None

    found: dict[str, float] = {}
    for name, operation in zip(_OPERATIONS, (first_save, next_save, load), strict=True):
        timing = await timed(operation, seconds=seconds)
        found[f"{size}, {name}, latency"] = timing.latency_ms
        found[f"{size}, {name}, cpu"] = timing.cpu_ms
    return found


def _table(found: Figures, operation: str, cost: str, title: str) -> Table:
    return Table(
        f"{operation.capitalize()}, {title}",
        ("saver", *_KILOBYTES.values()),
        [
            (
                peer.label,
                *(
                    f"{found.median(peer, f'{size}, {operation}, {cost}'):,.2f}"
                    for size in _KILOBYTES.values()
                ),
            )
            for peer in _PEERS
        ],
    )
