"""How long does the event loop stand still while a state of five megabytes is saved and loaded?

A task that sleeps a millisecond at a time notes how much later than that it wakes up. *First save* is ``aput`` on a
new thread; *next save* is ``aput_writes`` of a change, then ``aput`` of the changed state; *load* is ``aget_tuple``
by a saver that has not seen the thread. Beside them stands LangGraph's serializer alone, on the loop, with the same
values: no saver on this loop that uses it can do better. The task sees up to a millisecond too little of each stall,
everybody's alike; what is less than a millisecond late does not count.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from bench import peers
from bench.harness import Figures, Lab, Table, Verdict, Work
from bench.loads import ThreadWriter, text
from bench.peers import Peer, Saver

_SAVERS = (peers.PGCAIRN, peers.PGCAIRN_ASYNCPG, peers.OFFICIAL)
_OURS = _SAVERS[:2]
_SERIALIZER = replace(peers.IN_MEMORY, label="serializer alone")  # the saver itself is not used
_PEERS = (*_SAVERS, _SERIALIZER)
_BYTES = 5_000_000
_PIECE_BYTES = 2_000
_DOCUMENTS = 100
_TICK_SECONDS = 0.001
_REPEATS = 5
_TARGET = 1.5
_OPERATIONS = ("first save", "next save", "load")


class _State(NamedTuple):
    """A value, the next one, and what is written to get there."""

    value: Any
    following: Any
    update: Any


def _states() -> dict[str, _State]:
    count = _BYTES // _PIECE_BYTES
    prose = [text(_PIECE_BYTES, number) for number in range(count + 1)]
    draw = random.Random(0)
    noise = [base64.b64encode(draw.randbytes(_PIECE_BYTES * 3 // 4)).decode() for _ in range(count + 1)]
    made = {}
    for content, pieces in (("text", prose), ("base64", noise)):
        made[f"messages, {content}"] = _as_messages(pieces)
        made[f"a dict, {content}"] = _as_dict(pieces)
        made[f"a string, {content}"] = _as_string(pieces)
    return made


def _as_messages(pieces: Sequence[str]) -> _State:
    made = [HumanMessage(piece, id=f"message-{number}") for number, piece in enumerate(pieces)]
    return _State(made[:-1], made, made[-1:])


def _as_dict(pieces: Sequence[str]) -> _State:
    each = len(pieces) // _DOCUMENTS
    made = {f"doc-{n}": "".join(pieces[n * each : (n + 1) * each]) for n in range(_DOCUMENTS)}
    update = {"doc-0": made["doc-0"] + pieces[-1]}
    return _State(made, made | update, update)


def _as_string(pieces: Sequence[str]) -> _State:
    following = "".join(pieces)
    return _State("".join(pieces[:-1]), following, following)


@dataclass
class _Stalls:
    """What the loop stood still for, in milliseconds: at once, and in all."""

    longest: float = 0.0
    total: float = 0.0


async def _watch(operation: Callable[[], Awaitable[object]]) -> _Stalls:
    found = _Stalls()

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.perf_counter()
            late = now - last - _TICK_SECONDS
            if late > _TICK_SECONDS:
                found.longest = max(found.longest, late * 1e3)
                found.total += late * 1e3
            last = now

    ticking = asyncio.ensure_future(tick())
    try:
        await asyncio.sleep(2 * _TICK_SECONDS)
        await operation()
        await asyncio.sleep(2 * _TICK_SECONDS)  # until it has seen the last stall
    finally:
        ticking.cancel()
    return found


async def run(lab: Lab) -> None:
    """Measure."""
    states = _states()
    contenders = [(peer, _saving(peer, states)) for peer in _SAVERS]
    found = await lab.collect("stalls", [*contenders, (_SERIALIZER, _serializing(states))])
    for name in states:
        lab.tables.append(_table(found, name))
    lab.notes.append(
        "A ratio has a millisecond where less was seen. Dicts and strings cost the serializer little more than a copy."
    )
    for peer in _OURS:
        for name in states:
            lab.verdicts.append(_verdict(found, peer, name))


def _saving(peer: Peer, states: dict[str, _State]) -> Work:
    async def work(saver: Saver, dsn: str) -> dict[str, float]:
        seen: list[tuple[str, _Stalls]] = []
        async with peer.open(dsn) as reader:
            await _save_and_load(saver, reader, "warm-up", _State([""], ["", ""], [""]))
            for name, state in states.items():
                for number in range(_REPEATS):
                    gc.collect()
                    stalls = await _save_and_load(saver, reader, f"{name} {number}", state)
                    seen += ((f"{name}, {operation}", each) for operation, each in stalls)
        return _medians(seen)

    return work


async def _save_and_load(
    saver: Saver, reader: Saver, thread_id: str, state: _State
) -> list[tuple[str, _Stalls]]:
    writer = ThreadWriter(saver, thread_id)

    async def next_save() -> None:
        await writer.put_writes(state.update)
        await writer.put(state.following)

    operations = (
        lambda: writer.put(state.value),
        next_save,
        lambda: reader.aget_tuple({"configurable": {"thread_id": thread_id}}),
    )
    return [(name, await _watch(each)) for name, each in zip(_OPERATIONS, operations, strict=True)]


def _serializing(states: dict[str, _State]) -> Work:
    serializer = JsonPlusSerializer()

    async def work(_: Saver, __: str) -> dict[str, float]:
        seen: list[tuple[str, _Stalls]] = []
        for name, state in states.items():
            dumped = serializer.dumps_typed(state.following)

            async def dump(*values: Any) -> None:
                for value in values:
                    serializer.dumps_typed(value)
                    await asyncio.sleep(0)

            async def load(dumped: tuple[str, bytes] = dumped) -> None:
                serializer.loads_typed(dumped)

            operations = (
                lambda state=state: dump(state.value),
                lambda state=state: dump(state.update, state.following),
                load,
            )
            for _number in range(_REPEATS):
                gc.collect()
                for operation, each in zip(_OPERATIONS, operations, strict=True):
                    seen.append((f"{name}, {operation}", await _watch(each)))
        return _medians(seen)

    return work


def _medians(seen: Sequence[tuple[str, _Stalls]]) -> dict[str, float]:
    by_name: dict[str, list[_Stalls]] = {}
    for name, stalls in seen:
        by_name.setdefault(name, []).append(stalls)
    found: dict[str, float] = {}
    for name, each in by_name.items():
        found[f"{name}, longest"] = statistics.median(stalls.longest for stalls in each)
        found[f"{name}, total"] = statistics.median(stalls.total for stalls in each)
    return found


def _at_least_a_tick(stall_ms: float) -> float:
    return max(stall_ms, _TICK_SECONDS * 1e3)


def _ratio(found: Figures, peer: Peer, name: str, operation: str) -> float:
    ours, theirs = (
        _at_least_a_tick(found.median(each, f"{name}, {operation}, longest")) for each in (peer, _SERIALIZER)
    )
    return ours / theirs


def _table(found: Figures, name: str) -> Table:
    return Table(
        f"{name[0].upper()}{name[1:]}: ms of stall, longest (total), and the longest ÷ that of the serializer",
        ("saver", *(title for operation in _OPERATIONS for title in (operation, "÷"))),
        [
            (
                peer.label,
                *(
                    cell
                    for operation in _OPERATIONS
                    for cell in (
                        f"{found.median(peer, f'{name}, {operation}, longest'):,.1f} "
                        f"({found.median(peer, f'{name}, {operation}, total'):,.1f})",
                        f"{_ratio(found, peer, name, operation):.2f}",
                    )
                ),
            )
            for peer in _PEERS
        ],
    )


def _verdict(found: Figures, peer: Peer, name: str) -> Verdict:
    """On the operation with the worst ratio. What the task cannot see counts as a millisecond."""
    worst = max(_OPERATIONS, key=lambda operation: _ratio(found, peer, name, operation))
    ours, theirs = (
        _at_least_a_tick(found.median(each, f"{name}, {worst}, longest")) for each in (peer, _SERIALIZER)
    )
    work = f"longest stall, {name}, {worst}"
    return Verdict(work, peer.label, ours, _SERIALIZER.label, theirs, _TARGET, "ms", at_most=True)
