"""Savers of every kind on one database, and the checkpoints that tests put into them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import asyncpg
import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from pgcairn import AsyncPostgresSaver, Settings
from tests.support.server import run_sql

# Larger than ``inline_max_bytes`` however it is serialized: such a value has a row of its own.
LARGE_TEXT = "lorem ipsum dolor sit amet " * 200

# The format that LangGraph 1 writes (langgraph.pregel._checkpoint.LATEST_VERSION).
LANGGRAPH_V = 4

# --- savers -----------------------------------------------------------------------------------------

Variant = Callable[[str, Settings], AbstractAsyncContextManager[AsyncPostgresSaver]]


@asynccontextmanager
async def _psycopg(dsn: str, settings: Settings) -> AsyncIterator[AsyncPostgresSaver]:
    async with AsyncPostgresSaver.from_conn_string(dsn, settings=settings) as saver:
        yield saver


@asynccontextmanager
async def _asyncpg(dsn: str, settings: Settings) -> AsyncIterator[AsyncPostgresSaver]:
    async with AsyncPostgresSaver.from_conn_string(dsn, settings=settings, driver="asyncpg") as saver:
        yield saver


@asynccontextmanager
async def _unbatched(dsn: str, settings: Settings) -> AsyncIterator[AsyncPostgresSaver]:
    async with AsyncPostgresSaver.from_conn_string(dsn, settings=settings, pipeline=False) as saver:
        yield saver


@asynccontextmanager
async def _encrypted(dsn: str, settings: Settings) -> AsyncIterator[AsyncPostgresSaver]:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"sixteen bytes ab")
    async with AsyncPostgresSaver.from_conn_string(dsn, settings=settings, serde=serde) as saver:
        yield saver


@asynccontextmanager
async def _all_stored(dsn: str, settings: Settings) -> AsyncIterator[AsyncPostgresSaver]:
    async with AsyncPostgresSaver.from_conn_string(dsn, settings=settings, inline_max_bytes=0) as saver:
        yield saver


def _users_psycopg_pool(**keywords: Any) -> Variant:
    @asynccontextmanager
    async def make(dsn: str, settings: Settings) -> AsyncIterator[AsyncPostgresSaver]:
        pool = AsyncConnectionPool(
            dsn, min_size=1, max_size=4, open=False, kwargs={"row_factory": dict_row, **keywords}
        )
        async with pool, AsyncPostgresSaver(pool, settings=settings) as saver:
            yield saver

    return make


@asynccontextmanager
async def _users_asyncpg_pool(dsn: str, settings: Settings) -> AsyncIterator[AsyncPostgresSaver]:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool,
        AsyncPostgresSaver(pool, settings=settings) as saver,
    ):
        yield saver


@asynccontextmanager
async def _users_connection(dsn: str, settings: Settings) -> AsyncIterator[AsyncPostgresSaver]:
    async with (
        await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as connection,
        AsyncPostgresSaver(connection, settings=settings) as saver,
    ):
        yield saver


VARIANTS: dict[str, Variant] = {
    "psycopg": _psycopg,
    "asyncpg": _asyncpg,
    "users-psycopg-pool-never-prepares": _users_psycopg_pool(autocommit=False, prepare_threshold=None),
    "users-psycopg-pool-always-prepares": _users_psycopg_pool(autocommit=False, prepare_threshold=0),
    "users-asyncpg-pool": _users_asyncpg_pool,
    "users-psycopg-connection": _users_connection,
    "pipeline-false": _unbatched,
    "encrypted": _encrypted,
    "nothing-inline": _all_stored,
}


@asynccontextmanager
async def saver_on(dsn: str, schema: str, **overrides: Any) -> AsyncIterator[AsyncPostgresSaver]:
    """A saver with a pool of its own, its schema set up."""
    async with AsyncPostgresSaver.from_conn_string(
        dsn, schema=schema, **{"min_size": 1, **overrides}
    ) as saver:
        await saver.setup()
        yield saver


# --- what is put into them --------------------------------------------------------------------------


def checkpoint_id(number: int) -> str:
    """An id whose order is that of the number."""
    return f"1ef00000-0000-6000-8000-{number:012}"


def version(number: int, branch: int = 0) -> str:
    """A channel version as the savers make them; ``branch`` stands for the random part."""
    return f"{number:032}.{branch:016}"


def config(
    thread_id: Any = "thread", checkpoint_ns: str | None = "", number: int | None = None, **more: Any
) -> RunnableConfig:
    """A config; ``number`` is that of the checkpoint, ``checkpoint_ns=None`` leaves the namespace out."""
    configurable: dict[str, Any] = {"thread_id": thread_id, **more}
    if checkpoint_ns is not None:
        configurable["checkpoint_ns"] = checkpoint_ns
    if number is not None:
        configurable["checkpoint_id"] = checkpoint_id(number)
    return {"configurable": configurable}


def checkpoint(
    number: int,
    values: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
    *,
    v: int = LANGGRAPH_V,
) -> Checkpoint:
    """A checkpoint; channels whose version is not given have version 1."""
    found = dict(values or {})
    return {
        "v": v,
        "id": checkpoint_id(number),
        "ts": f"2024-01-01T00:00:{number % 60:02}+00:00",
        "channel_values": found,
        "channel_versions": {**{name: version(1) for name in found}, **(versions or {})},
        "versions_seen": {},
        "updated_channels": None,
    }


def metadata(**fields: Any) -> CheckpointMetadata:
    """Metadata with any fields."""
    return cast("CheckpointMetadata", fields)


async def put(
    saver: BaseCheckpointSaver[Any],
    where: RunnableConfig,
    what: Checkpoint,
    meta: CheckpointMetadata | None = None,
    new_versions: Mapping[str, Any] | None = None,
) -> RunnableConfig:
    """``aput``; all channels are new unless ``new_versions`` says otherwise."""
    new = what["channel_versions"] if new_versions is None else new_versions
    return await saver.aput(where, what, meta or metadata(source="loop", step=1), dict(new))


async def get(saver: BaseCheckpointSaver[Any], where: RunnableConfig) -> CheckpointTuple:
    """``aget_tuple`` of a checkpoint that must be there."""
    found = await saver.aget_tuple(where)
    assert found is not None, f"nothing at {where}"
    return found


async def values_of(saver: BaseCheckpointSaver[Any], where: RunnableConfig) -> dict[str, Any]:
    """The channel values of a checkpoint that must be there."""
    return (await get(saver, where)).checkpoint["channel_values"]


async def listed(
    saver: BaseCheckpointSaver[Any], where: RunnableConfig | None, **arguments: Any
) -> list[CheckpointTuple]:
    """``alist`` to its end."""
    return [each async for each in saver.alist(where, **arguments)]


def place(found: CheckpointTuple) -> tuple[str, str, str]:
    """(thread, namespace, checkpoint) of a tuple."""
    key = found.config["configurable"]
    return key["thread_id"], key["checkpoint_ns"], key["checkpoint_id"]


# --- what is stored of them ---------------------------------------------------------------------------


def dangling(dsn: str, schema: str) -> list[Any]:
    """References and chains that lead to no row."""
    return run_sql(
        dsn,
        f"""
        SELECT c.thread_id, c.checkpoint_id, r.channel, r.version
        FROM {schema}.checkpoints AS c, jsonb_each_text(c.refs) AS r (channel, version)
        WHERE NOT EXISTS (
            SELECT FROM {schema}.channel_values AS v
            WHERE (v.thread_id, v.checkpoint_ns, v.channel, v.version)
                = (c.thread_id, c.checkpoint_ns, r.channel, r.version))
        UNION ALL
        SELECT v.thread_id, v.version, v.channel, b.version
        FROM {schema}.channel_values AS v, unnest(v.chain) AS b (version)
        WHERE NOT EXISTS (
            SELECT FROM {schema}.channel_values AS e
            WHERE (e.thread_id, e.checkpoint_ns, e.channel, e.version)
                = (v.thread_id, v.checkpoint_ns, v.channel, b.version))
        """,
    )
