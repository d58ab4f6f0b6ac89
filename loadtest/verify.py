"""Is every acknowledged turn stored? Compares the client's journal with what a new saver reads from the database.

What an answer with status 200 claimed to be committed are the ids of messages. They must be in the latest state of
their thread, in the order of the answers. What a fork left behind must be in the history. Nothing is asked of the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from loadtest.journal import Entry

# How many threads are read at a time; guess.
_READERS = 16


@dataclass
class Claims:
    """What the service said about one thread.

    Attributes:
        latest: Ids that must be in the latest state, in this order.
        anywhere: Ids from before a fork: in the latest state, or in the history.
    """

    latest: list[str] = field(default_factory=list)
    anywhere: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """What was found.

    Attributes:
        turns: Acknowledged turns: chat turns, forks, interrupts; a resume ends one.
        messages: Ids that were looked for.
        missing: One line for each id that is not there, or not in its place.
        unclaimed: Turns in the latest states whose request failed or was never answered. They are no error: the client does
            not know, and the thread is not used again.
    """

    turns: int
    threads: int
    messages: int
    missing: tuple[str, ...]
    unclaimed: int

    @property
    def turns_missing(self) -> int:
        """How many turns have lost something."""
        return len({line.partition(":")[0] for line in self.missing})


def claims_of(entries: Iterable[Entry]) -> dict[str, Claims]:
    """What was acknowledged, by thread, from a journal's entries in the order of the answers."""
    found: dict[str, Claims] = {}
    for entry in entries:
        if not entry.is_acknowledged or not entry.ids:
            continue
        claims = found.setdefault(entry.thread, Claims())
        if entry.kind == "fork":
            claims.anywhere += claims.latest
            claims.latest = []
        claims.latest += [each for each in entry.ids if each not in claims.latest]
    return found


def missing_in(thread: str, claims: Claims, latest: Sequence[str], history: Iterable[str]) -> list[str]:
    """One line for each claimed message that is not where it should be.

    Args:
        latest: Ids of the messages of the latest state.
        history: Ids of the messages of all checkpoints; only asked if something from before a fork is not in the latest.
    """
    found = []
    position = 0
    for each in claims.latest:
        try:
            position = latest.index(each, position) + 1
        except ValueError:
            where = "out of its place" if each in latest else "missing"
            found.append(f"{turn_of(each)}: {each} is {where} in the latest state of {thread}")
    known = {*latest, *history}
    found += [
        f"{turn_of(each)}: {each} is missing in the history of {thread}"
        for each in claims.anywhere
        if each not in known
    ]
    return found


def turn_of(message_id: str) -> str:
    """The token of the turn that a message belongs to."""
    thread, turn, rest = message_id.rsplit(".", 2)
    return f"{thread}.{turn}.{rest.partition('-')[0]}"


async def verify(saver: BaseCheckpointSaver[Any], entries: Sequence[Entry]) -> Verdict:
    """Look everything up with a saver that has served nothing."""
    claims = claims_of(entries)
    failed = {entry.token for entry in entries if not entry.is_acknowledged and entry.token}
    readers = asyncio.Semaphore(_READERS)

    async def look(thread: str, mine: Claims) -> tuple[list[str], int]:
        async with readers:
            latest = await _latest(saver, thread)
            history: set[str] = set()
            if not set(mine.anywhere) <= set(latest):
                history = await _history(saver, thread)
            return missing_in(thread, mine, latest, history), len(failed.intersection(latest))

    found = await asyncio.gather(*(look(thread, mine) for thread, mine in claims.items()))
    return Verdict(
        turns=sum(1 for entry in entries if entry.is_acknowledged and entry.token),
        threads=len(claims),
        messages=sum(len(each.latest) + len(each.anywhere) for each in claims.values()),
        missing=tuple(line for lines, _ in found for line in lines),
        unclaimed=sum(unclaimed for _, unclaimed in found),
    )


async def _latest(saver: BaseCheckpointSaver[Any], thread: str) -> list[str]:
    found = await saver.aget_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    return [] if found is None else _ids(found.checkpoint["channel_values"])


async def _history(saver: BaseCheckpointSaver[Any], thread: str) -> set[str]:
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    return {each async for found in saver.alist(config) for each in _ids(found.checkpoint["channel_values"])}


def _ids(values: Mapping[str, Any]) -> list[str]:
    return [str(message.id) for message in values.get("messages", [])]
