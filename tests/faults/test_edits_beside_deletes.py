"""Rows disappear while others are about to rest on them: whoever comes first decides, and nothing is left dangling."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig

from pgcairn import AsyncPostgresSaver
from tests.support.savers import (
    checkpoint,
    checkpoint_id,
    config,
    dangling,
    listed,
    place,
    put,
    saver_on,
    values_of,
    version,
)
from tests.support.server import run_sql, until_blocked

# One value goes by a statement of its own, more go as arrays.
CHANNELS = pytest.mark.parametrize("channels", ["c", "cd"], ids=["single", "arrays"])


def long(*parts: object) -> list[str]:
    """A value with a row of its own; those that begin alike are edits of each other."""
    return ["lorem ipsum dolor sit amet " * 100, *map(repr, parts)]


def state(channels: str, *parts: object) -> dict[str, Any]:
    return {channel: long(*parts) for channel in channels}


async def put_state(
    saver: AsyncPostgresSaver, number: int, channels: str, *parts: object, of: int | None = None
) -> RunnableConfig:
    """Put a checkpoint of this number; the values' version is its number, or ``of``."""
    versions = dict.fromkeys(channels, version(number if of is None else of))
    return await put(saver, config(), checkpoint(number, state(channels, *parts), versions))


async def until_they_wait(dsn: str, sessions: int, *tasks: asyncio.Future[Any]) -> None:
    """Until that many sessions wait for a lock. Fails if one of the tasks does not wait."""
    blocked = asyncio.ensure_future(until_blocked(dsn, sessions))
    try:
        await asyncio.wait({blocked, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        assert not any(task.done() for task in tasks), "it did not wait"
        await blocked
    finally:
        if not blocked.done():
            blocked.cancel()
            await asyncio.wait([blocked])


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A session in a transaction, rolled back in the end whatever happens."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        try:
            yield connection
        finally:
            await connection.rollback()


@asynccontextmanager
async def settled(*tasks: asyncio.Future[Any]) -> AsyncIterator[None]:
    """No task outlives the block."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def delete_row(connection: psycopg.AsyncConnection[Any], schema: str, number: int) -> None:
    deleted = await connection.execute(
        f"DELETE FROM {schema}.channel_values WHERE version = '{version(number)}'".encode()
    )
    assert deleted.rowcount > 0


def chains(dsn: str, schema: str) -> dict[tuple[str, str], list[str] | None]:
    rows = run_sql(dsn, f"SELECT channel, version, chain FROM {schema}.channel_values")
    return {(channel, name): chain for channel, name, chain in rows}


# --- two sessions -----------------------------------------------------------------------------------


@CHANNELS
async def test_a_stored_value_that_is_being_deleted_is_stored_again(
    dsn: str, schema: str, channels: str
) -> None:
    async with saver_on(dsn, schema) as first, saver_on(dsn, schema) as saver, session(dsn) as deleter:
        await put_state(first, 1, channels, "a")
        # As ``adelete_thread`` does it: the rows are locked first, and deleted by another statement.
        await deleter.execute(f"SELECT FROM {schema}.channel_values FOR UPDATE".encode())
        # This saver knows nothing of the row, and brings the value along.
        putting = asyncio.ensure_future(put_state(saver, 2, channels, "a", of=1))
        async with settled(putting):
            await until_they_wait(dsn, 1, putting)
            await delete_row(deleter, schema, 1)
            await deleter.commit()
            await putting
        assert await values_of(saver, config(number=2)) == state(channels, "a")
        assert dangling(dsn, schema) == []


@CHANNELS
async def test_a_stored_value_whose_deletion_is_given_up_stays(dsn: str, schema: str, channels: str) -> None:
    async with saver_on(dsn, schema) as first, saver_on(dsn, schema) as saver, session(dsn) as deleter:
        await put_state(first, 1, channels, "a")
        await delete_row(deleter, schema, 1)
        putting = asyncio.ensure_future(put_state(saver, 2, channels, "b", of=1))
        async with settled(putting):
            await until_they_wait(dsn, 1, putting)
            await deleter.rollback()
            await putting
        assert await values_of(saver, config(number=2)) == state(channels, "a"), "a version has one value"


@CHANNELS
async def test_a_base_that_is_being_deleted_is_not_used(dsn: str, schema: str, channels: str) -> None:
    async with saver_on(dsn, schema) as saver, session(dsn) as deleter:
        await put_state(saver, 1, channels, "a")
        await delete_row(deleter, schema, 1)
        putting = asyncio.ensure_future(put_state(saver, 2, channels, "a", "b"))
        async with settled(putting):
            await until_they_wait(dsn, 1, putting)
            await deleter.commit()
            await putting
        assert saver.stats().items_reencoded == 1
        assert chains(dsn, schema) == {(channel, version(2)): None for channel in channels}
        assert await values_of(saver, config(number=2)) == state(channels, "a", "b")
        # What follows rests on what was stored instead.
        await put_state(saver, 3, channels, "a", "b", "c")
        assert chains(dsn, schema)["c", version(3)] == [version(2)]
        assert await values_of(saver, config(number=3)) == state(channels, "a", "b", "c")


@CHANNELS
async def test_a_base_whose_deletion_is_given_up_is_used(dsn: str, schema: str, channels: str) -> None:
    async with saver_on(dsn, schema) as saver, session(dsn) as deleter:
        await put_state(saver, 1, channels, "a")
        await delete_row(deleter, schema, 1)
        putting = asyncio.ensure_future(put_state(saver, 2, channels, "a", "b"))
        async with settled(putting):
            await until_they_wait(dsn, 1, putting)
            await deleter.rollback()
            await putting
        assert saver.stats().items_reencoded == 0
        assert chains(dsn, schema)["c", version(2)] == [version(1)]
        assert await values_of(saver, config(number=2)) == state(channels, "a", "b")


async def test_one_base_of_two_that_is_being_deleted_leaves_all_out(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as saver, session(dsn) as deleter:
        await put_state(saver, 1, "cd", "a")
        await deleter.execute(f"DELETE FROM {schema}.channel_values WHERE channel = 'd'".encode())
        putting = asyncio.ensure_future(put_state(saver, 2, "cd", "a", "b"))
        async with settled(putting):
            await until_they_wait(dsn, 1, putting)
            await deleter.commit()
            await putting
        assert saver.stats().items_reencoded == 1
        assert await values_of(saver, config(number=2)) == state("cd", "a", "b")
        assert run_sql(dsn, f"SELECT checkpoint_id FROM {schema}.checkpoints ORDER BY checkpoint_id") == [
            (checkpoint_id(1),),
            (checkpoint_id(2),),
        ]


async def insert_unfinished(connection: psycopg.AsyncConnection[Any], schema: str, number: int) -> None:
    """Insert a checkpoint of this number, uncommitted: who stores one of the same id waits, its values locked."""
    await connection.execute(
        f"INSERT INTO {schema}.checkpoints (thread_id, checkpoint_ns, checkpoint_id, langgraph_v, metadata, body) "
        f"VALUES ('thread', '', '{checkpoint_id(number)}', 4, '{{}}', 'x')".encode()
    )


@CHANNELS
async def test_a_deletion_waits_for_who_rests_on_a_row(dsn: str, schema: str, channels: str) -> None:
    async with saver_on(dsn, schema) as saver, saver_on(dsn, schema) as deleter, session(dsn) as third:
        await put_state(saver, 1, channels, "a")
        await insert_unfinished(third, schema, 2)
        putting = asyncio.ensure_future(put_state(saver, 2, channels, "a", "b"))
        async with settled(putting):
            await until_they_wait(dsn, 1, putting)
            deleting = asyncio.ensure_future(deleter.adelete_thread("thread"))
            async with settled(deleting):
                await until_they_wait(dsn, 2, putting, deleting)
                await third.rollback()
                await putting
                await deleting
        assert saver.stats().items_reencoded == 0
        assert await saver.aget_tuple(config()) is None
        assert chains(dsn, schema) == {}


@CHANNELS
async def test_a_deletion_waits_for_who_brings_a_stored_value(dsn: str, schema: str, channels: str) -> None:
    async with (
        saver_on(dsn, schema) as first,
        saver_on(dsn, schema) as saver,
        saver_on(dsn, schema) as deleter,
        session(dsn) as third,
    ):
        await put_state(first, 1, channels, "a")
        # Writes come last in a batch: when this one waits for the third session, it has found the stored value.
        await third.execute(
            f"INSERT INTO {schema}.writes "
            "(thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, frame) "
            f"VALUES ('thread', '', '{checkpoint_id(2)}', 'task', 0, '', 'w', 'null', '')".encode()
        )
        putting = asyncio.gather(
            put_state(saver, 2, channels, "a", of=1),
            saver.aput_writes(config(number=2), [("w", 1)], "task"),
        )
        async with settled(putting):
            await until_they_wait(dsn, 1, putting)
            deleting = asyncio.ensure_future(deleter.adelete_thread("thread"))
            async with settled(deleting):
                await until_they_wait(dsn, 2, putting, deleting)
                await third.rollback()
                await putting
                await deleting
        assert await saver.aget_tuple(config()) is None
        assert dangling(dsn, schema) == []


@CHANNELS
async def test_a_put_waits_for_who_deletes_the_thread(dsn: str, schema: str, channels: str) -> None:
    async with saver_on(dsn, schema) as saver, saver_on(dsn, schema) as deleter, session(dsn) as third:
        await put_state(saver, 1, channels, "a")
        await saver.aput_writes(config(number=1), [("w", 1)], "task")
        # The deleter has locked the values, and waits for a write.
        await third.execute(f"SELECT FROM {schema}.writes FOR UPDATE".encode())
        deleting = asyncio.ensure_future(deleter.adelete_thread("thread"))
        async with settled(deleting):
            await until_they_wait(dsn, 1, deleting)
            putting = asyncio.ensure_future(put_state(saver, 2, channels, "a", "b"))
            async with settled(putting):
                await until_they_wait(dsn, 2, putting, deleting)
                await third.rollback()
                await deleting
                await putting
        assert saver.stats().items_reencoded == 1
        assert [place(each)[2] for each in await listed(saver, config())] == [checkpoint_id(2)]
        assert await values_of(saver, config()) == state(channels, "a", "b")
        assert chains(dsn, schema) == {(channel, version(2)): None for channel in channels}


# --- many at once -----------------------------------------------------------------------------------

_TASKS = 8
_ROUNDS = 40
_THREADS = ("t0", "t1", "t2")


class _Story:
    """What was put, by (thread, checkpoint): a read must find one of these, whole."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], dict[str, Any]] = {}
        self.numbers = 0

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def check(self, found: Any) -> None:
        thread_id, _, name = place(found)
        assert found.checkpoint["channel_values"] == self.states[thread_id, name]


async def _writer(story: _Story, savers: list[AsyncPostgresSaver], seed: int) -> None:
    """Writes, reads and deletes, going on from what it wrote or read last."""
    choose = random.Random(seed)
    known: dict[str, tuple[RunnableConfig, dict[str, Any], dict[str, Any]]] = {}
    for _ in range(_ROUNDS):
        saver, thread_id = choose.choice(savers), choose.choice(_THREADS)
        action = choose.random()
        if action < 0.06:
            await saver.adelete_thread(thread_id)
        elif action < 0.3:
            found = await saver.aget_tuple(config(thread_id))
            if found is not None:
                story.check(found)
                values = found.checkpoint["channel_values"]
                known[thread_id] = (found.config, values, dict(found.checkpoint["channel_versions"]))
        elif action < 0.36:
            async for each in saver.alist(config(thread_id), limit=5):
                story.check(each)
        else:
            number = story.next_number()
            where, values, versions = known.get(thread_id, (config(thread_id), {}, {}))
            changed = [channel for channel in "abc" if channel not in values or choose.random() < 0.5]
            values = dict(values)
            for channel in changed:
                lines = list(values.get(channel) or long(channel))
                if choose.random() < 0.2:
                    del lines[1 : 1 + choose.randrange(len(lines))]
                values[channel] = [*lines[-30:], f"{number} {channel} " * choose.randrange(20)]
            new = {channel: version(number, seed) for channel in changed}
            versions = {**versions, **new}
            story.states[thread_id, checkpoint_id(number)] = values
            where = await put(saver, where, checkpoint(number, values, versions), new_versions=new)
            known[thread_id] = (where, values, versions)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_every_read_is_what_somebody_put_whole(dsn: str, schema: str, driver: str) -> None:
    story = _Story()
    overrides: dict[str, Any] = {"driver": driver, "max_size": 4, "base_cache_bytes": 120_000}
    async with saver_on(dsn, schema, **overrides) as one, saver_on(dsn, schema, **overrides) as two:
        await guarded(*(_writer(story, [one, two], seed) for seed in range(_TASKS)))
        stats = one.stats(), two.stats()
        assert all(each.edits_written > 10 for each in stats)
        assert all(each.items_reencoded > 0 for each in stats)
        assert dangling(dsn, schema) == []
    async with saver_on(dsn, schema, driver=driver) as fresh:
        for each in await listed(fresh, None):
            story.check(each)
        for thread_id in _THREADS:
            found = await fresh.aget_tuple(config(thread_id))
            if found is not None:
                story.check(found)


async def guarded(*calls: Awaitable[Any]) -> None:
    """``gather`` with a guard against hanging; no passing test comes near it."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    async with settled(*tasks):
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
