"""What do saving, loading and listing cost when the thread has ten, and when it has ten thousand checkpoints?

A lone caller: ``aput`` of the next checkpoint, ``aget_tuple`` of the latest, ``alist`` of the latest ten. States hold
ten messages. Saving makes a thread longer, so a thread gets at most a tenth more checkpoints; there are several short
ones. A cell takes a tenth of ``--seconds`` at most; writing the histories takes most of the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from bench import peers
from bench.harness import Figures, Lab, Table, Verdict, timed
from bench.loads import ThreadWriter, messages
from bench.peers import Saver

_PEERS = (
    peers.PGCAIRN,
    peers.PGCAIRN_ASYNCPG,
    peers.OFFICIAL,
    peers.OFFICIAL_SINGLE,
    peers.SQLITE,
    peers.IN_MEMORY,
)
_OURS = (peers.PGCAIRN, peers.PGCAIRN_ASYNCPG)
_AGES = {10: 20, 100: 4, 1_000: 1, 10_000: 1}  # how many threads of each
_MESSAGES = 10
_LAST_MESSAGES = 16  # that come in turn, so that no save has the state of the one before
_LISTED = 10
_SHARE = 1 / 10
_OPERATIONS = ("save", "load", "list")
_TARGET = 1.25  # as in bench/read_history.py


async def run(lab: Lab) -> None:
    """Measure."""
    made = messages(_MESSAGES + _LAST_MESSAGES, as_objects=False)
    states = [[*made[: _MESSAGES - 1], last] for last in made[_MESSAGES:]]
    seconds = lab.seconds * _SHARE

    async def work(saver: Saver, _: str) -> dict[str, float]:
        found: dict[str, float] = {}
        await _cost_at(saver, 1, 1, states, 0.0)  # the first of everything
        for age, threads in _AGES.items():
            found |= await _cost_at(saver, age, threads, states, seconds)
        return found

    found = await lab.collect("costs", [(peer, work) for peer in _PEERS])
    for operation in _OPERATIONS:
        lab.tables.append(_table(found, operation))
    few, many = min(_AGES), max(_AGES)
    for peer in _OURS:
        for operation in _OPERATIONS:
            lab.verdicts.append(
                Verdict(
                    f"{operation} on a thread with a long history",
                    f"{peer.label}, {many:,} checkpoints",
                    found.median(peer, f"{operation}, {many}, latency"),
                    f"{few} checkpoints",
                    found.median(peer, f"{operation}, {few}, latency"),
                    _TARGET,
                    "ms",
                    at_most=True,
                )
            )


async def _cost_at(
    saver: Saver, age: int, threads: int, states: Sequence[Any], seconds: float
) -> dict[str, float]:
    writers = [ThreadWriter(saver, f"{age} {number}") for number in range(threads)]
    next_state = itertools.cycle(states)
    for writer in writers:
        for _ in range(age):
            await writer.put(next(next_state))
    turn = itertools.cycle(writers)

    def latest() -> Any:
        return {"configurable": {"thread_id": next(turn).thread_id, "checkpoint_ns": ""}}

    async def save() -> None:
        await next(turn).put(next(next_state))

    async def load() -> None:
        assert await saver.aget_tuple(latest()) is not None

    async def list_latest() -> None:
        assert len([each async for each in saver.alist(latest(), limit=_LISTED)]) == min(age, _LISTED)

    found: dict[str, float] = {}
    # Saves come last, and are few, because they make the threads longer.
    for name, operation, most in (
        ("load", load, None),
        ("list", list_latest, None),
        ("save", save, threads * max(1, age // 10)),
    ):
        timing = await timed(operation, seconds=seconds, most=most)
        found[f"{name}, {age}, latency"] = timing.latency_ms
        found[f"{name}, {age}, cpu"] = timing.cpu_ms
    return found


def _table(found: Figures, operation: str) -> Table:
    return Table(
        f"{operation.capitalize()}: ms of latency (median), and of client CPU, by the number of checkpoints",
        (
            "saver",
            *(f"{age:,}" for age in _AGES),
            *(f"CPU, {age:,}" for age in _AGES),
            "latency, last ÷ first",
        ),
        [
            (
                peer.label,
                *(
                    f"{found.median(peer, f'{operation}, {age}, {cost}'):,.2f}"
                    for cost in ("latency", "cpu")
                    for age in _AGES
                ),
                f"{_growth(found, peer, operation):.2f}",
            )
            for peer in _PEERS
        ],
    )


def _growth(found: Figures, peer: peers.Peer, operation: str) -> float:
    few, many = (found.median(peer, f"{operation}, {age}, latency") for age in (min(_AGES), max(_AGES)))
    return many / few
