"""The savers that are compared, each with how it is opened on an empty database.

Every one is used as its own documentation shows. No bench opens a saver in another way.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver as OfficialSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from pgcairn import AsyncPostgresSaver

Saver = BaseCheckpointSaver[Any]
OFFICIAL_POOL_SIZE = 10


@dataclass(frozen=True)
class Peer:
    """Something to be measured.

    Attributes:
        label: Its name in tables and files.
        open: From the connection string of an empty database to a saver that is set up.
        needs_server: Whether there has to be a database.
    """

    label: str
    open: Callable[[str], AbstractAsyncContextManager[Saver]]
    needs_server: bool = True


def pgcairn(label: str = "pgcairn", *, pipeline: bool = True, **settings: object) -> Peer:
    """This saver, with any settings."""

    @asynccontextmanager
    async def open_it(dsn: str) -> AsyncIterator[Saver]:
        async with AsyncPostgresSaver.from_conn_string(dsn, pipeline=pipeline, **settings) as saver:
            await saver.setup()
            yield saver

    return Peer(label, open_it)


def prepared(peer: Peer, label: str, prepare: Callable[[Saver], Awaitable[None]]) -> Peer:
    """A peer whose saver comes with something written, for benches where that is what differs."""

    @asynccontextmanager
    async def open_it(dsn: str) -> AsyncIterator[Saver]:
        async with peer.open(dsn) as saver:
            await prepare(saver)
            yield saver

    return Peer(label, open_it, peer.needs_server)


@asynccontextmanager
async def _official_with_pool(dsn: str) -> AsyncIterator[Saver]:
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        dsn,
        min_size=OFFICIAL_POOL_SIZE,
        max_size=OFFICIAL_POOL_SIZE,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
        open=False,
    )
    async with pool:
        saver = OfficialSaver(pool)
        await saver.setup()
        yield saver


@asynccontextmanager
async def _official_on_one_connection(dsn: str) -> AsyncIterator[Saver]:
    async with OfficialSaver.from_conn_string(dsn) as saver:
        await saver.setup()
        yield saver


@asynccontextmanager
async def _sqlite(_: str) -> AsyncIterator[Saver]:
    """On a file of its own, with the saver's own settings: a journal that is flushed at every commit."""
    with tempfile.TemporaryDirectory(prefix="pgcairn-bench-") as folder:
        async with AsyncSqliteSaver.from_conn_string(str(Path(folder, "checkpoints.sqlite"))) as saver:
            await saver.setup()
            yield saver


@asynccontextmanager
async def _in_memory(_: str) -> AsyncIterator[Saver]:
    yield InMemorySaver()


PGCAIRN = pgcairn()
PGCAIRN_ASYNCPG = pgcairn("pgcairn, asyncpg", driver="asyncpg")
PGCAIRN_SINGLE = pgcairn("pgcairn, pipeline=False", pipeline=False)
PGCAIRN_ASYNCPG_SINGLE = pgcairn("pgcairn, asyncpg, pipeline=False", driver="asyncpg", pipeline=False)
OFFICIAL = Peer(f"official, pool of {OFFICIAL_POOL_SIZE}", _official_with_pool)
OFFICIAL_SINGLE = Peer("official, one connection", _official_on_one_connection)
SQLITE = Peer("AsyncSqliteSaver", _sqlite, needs_server=False)
IN_MEMORY = Peer("InMemorySaver", _in_memory, needs_server=False)
