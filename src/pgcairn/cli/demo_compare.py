"""Third part of the demo: this saver, the official one and the in-memory one, measured in the same run.

They take turns, three rounds each, so that whatever else the machine does meets all of them. Each plays the
same conversations in threads of its own, without time for the model to think.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver as OfficialSaver
from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from rich.console import Console
from rich.table import Table

from pgcairn.cli.agent import build_agent, turn_input
from pgcairn.cli.conversations import Conversation
from pgcairn.cli.demo_databases import new_database, table_bytes
from pgcairn.cli.demo_kill import progress_on
from pgcairn.cli.demo_worker import config_of
from pgcairn.saver import AsyncPostgresSaver

_ROUNDS = 3
_OFFICIAL_POOL = 10
_OFFICIAL = "official, pool of 10"


class Player:
    """One of the concurrent callers: plays a conversation turn by turn, then the next in a new thread."""

    def __init__(self, number: int, conversations: Sequence[Conversation]) -> None:
        self._number = number
        self._conversations = conversations
        self._played = 0
        self._turn = 0

    async def play_turn(self, graph: Any) -> None:
        """One turn."""
        chosen = (self._number + self._played) % len(self._conversations)
        conversation = self._conversations[chosen]
        thread = f"{self._number}/{self._played}/{chosen}"
        await graph.ainvoke(turn_input(conversation, self._turn), config_of(thread))
        self._turn += 1
        if self._turn == len(conversation.turns):
            self._played, self._turn = self._played + 1, 0


@dataclass
class Peer:
    """A saver and what was measured."""

    name: str
    graph: Any
    players: list[Player]
    size: Callable[[], Any] | None  # bytes on disk; None: keeps nothing
    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of every turn
    empty_bytes: int = 0
    bytes: int = 0
    turns: int = 0  # all of them, warm-up too

    async def round(self, seconds: float, *, measured: bool = True) -> None:
        """Let all players play; nobody begins a turn after so many seconds."""
        latencies: list[float] = []
        begin = time.perf_counter()

        async def play(player: Player) -> None:
            while (before := time.perf_counter()) < begin + seconds:
                await player.play_turn(self.graph)
                latencies.append(time.perf_counter() - before)

        await asyncio.gather(*map(play, self.players))
        self.turns += len(latencies)
        if measured:
            self.rates.append(len(latencies) / (time.perf_counter() - begin))
            self.seconds += latencies


async def compare(
    console: Console,
    dsn: str,
    conversations: Sequence[Conversation],
    threads: int,
    seconds: float,
    *,
    keep: bool,
) -> None:
    """Measure the three savers, and print the table."""
    async with AsyncExitStack() as stack:

        def peer(name: str, saver: BaseCheckpointSaver[Any], size: Callable[[], Any] | None = None) -> Peer:
            builder = build_agent(lambda thread: conversations[int(thread.rpartition("/")[2])])
            graph = builder.compile(checkpointer=saver)
            return Peer(name, graph, [Player(n, conversations) for n in range(threads)], size)

        ours = await stack.enter_async_context(new_database(dsn, "pgcairn", keep=keep))
        theirs = await stack.enter_async_context(new_database(dsn, "official", keep=keep))
        saver = await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(ours))
        await saver.setup()
        official = await stack.enter_async_context(_official(theirs))
        peers = [
            peer("pgcairn", saver, lambda: table_bytes(ours, "pgcairn")),
            peer(_OFFICIAL, official, lambda: table_bytes(theirs, "public")),
            peer("in memory", InMemorySaver()),
        ]
        for each in peers:
            each.empty_bytes = await each.size() if each.size else 0
        with progress_on(console) as progress:
            bar = progress.add_task("warming up", total=_ROUNDS * len(peers))
            for each in peers:
                await each.round(min(0.3, seconds / _ROUNDS), measured=False)
            for _ in range(_ROUNDS):
                for each in peers:
                    progress.update(bar, description=each.name)
                    await each.round(seconds / _ROUNDS)
                    progress.advance(bar)
        for each in peers:
            each.bytes = await each.size() - each.empty_bytes if each.size else 0
    _show(console, peers, threads)


@asynccontextmanager
async def _official(dsn: str) -> AsyncIterator[OfficialSaver]:
    pool: AsyncConnectionPool[AsyncConnection[dict[str, Any]]] = AsyncConnectionPool(
        dsn,
        min_size=_OFFICIAL_POOL,
        max_size=_OFFICIAL_POOL,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
        open=False,
    )
    async with pool:
        saver = OfficialSaver(pool)
        await saver.setup()
        yield saver


def _show(console: Console, peers: Sequence[Peer], threads: int) -> None:
    rates = {each.name: statistics.median(each.rates) for each in peers}
    table = Table(title=f"{threads} concurrent threads, median of {_ROUNDS} rounds", title_justify="left")
    table.add_column("saver")
    for heading in ("turns/s", "to official", "p50 of a turn", "p95 of a turn", "on disk", "per turn"):
        table.add_column(heading, justify="right")
    for each in peers:
        latencies = sorted(each.seconds)
        table.add_row(
            each.name,
            f"{rates[each.name]:,.0f}",
            f"{rates[each.name] / rates[_OFFICIAL]:.1f}×",
            f"{_quantile(latencies, 0.50) * 1000:,.0f} ms",
            f"{_quantile(latencies, 0.95) * 1000:,.0f} ms",
            f"{each.bytes / 1e6:,.1f} MB" if each.size else "0",
            f"{each.bytes / each.turns / 1e3:,.1f} kB" if each.size else "lost at exit",
        )
    console.print(table)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
