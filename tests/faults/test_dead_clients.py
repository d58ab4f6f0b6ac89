"""A client process is killed at a named point: what it did is there whole or not at all, and others go on."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from pgcairn import AsyncPostgresSaver
from pgcairn.operations.doctor import examine
from tests.support.addresses import database_of
from tests.support.postflight import check_sessions
from tests.support.proxy import FaultProxy
from tests.support.savers import (
    LARGE_TEXT,
    checkpoint,
    checkpoint_id,
    config,
    get,
    listed,
    put,
    saver_on,
    version,
)
from tests.support.server import Server, until_blocked

_SCHEMA = "pgcairn"
_STEPS = 8
DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@asynccontextmanager
async def dying(dsn: str, driver: str, action: str) -> AsyncIterator[Process]:
    """The client, about to begin; killed in the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.dying", driver, _SCHEMA, action),
        env=os.environ | {"DYING_DSN": dsn, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=PIPE,
        stdout=PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
        process.kill()
        assert await process.stdout.read() == b"", "it was through before it was killed"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def begin(process: Process) -> None:
    """Let it begin."""
    assert process.stdin is not None
    process.stdin.write(b"\n")


async def fill(dsn: str, driver: str) -> None:
    """A thread of some steps with values that rest on each other."""
    async with saver_on(dsn, _SCHEMA, driver=driver) as saver:
        for n in range(1, _STEPS + 1):
            versions = {"n": version(n), "big": version(n)}
            await put(saver, config(), checkpoint(n, {"n": n, "big": LARGE_TEXT + str(n)}, versions))
            await saver.aput_writes(config(number=n), [("n", n)], "task")


async def numbers_left(saver: AsyncPostgresSaver, thread_id: str = "thread") -> list[int]:
    """Which steps a thread has, each of them whole."""
    found = []
    for each in await listed(saver, config(thread_id)):
        n = each.checkpoint["channel_values"]["n"]
        assert each.checkpoint["channel_values"] == {"n": n, "big": LARGE_TEXT + str(n)}
        assert each.pending_writes == [("task", "n", n)]
        found.append(n)
    return found[::-1]


async def check_going_on(saver: AsyncPostgresSaver) -> None:
    """The doctor finds nothing, and the thread goes on."""
    assert (await examine(saver)).findings == ()
    await put(saver, config(number=_STEPS), checkpoint(20, {"n": 20, "big": LARGE_TEXT + "20"}))
    await get(saver, config(number=20))


@DRIVERS
async def test_before_anything_was_sent(server: Server, database: str, driver: str) -> None:
    await fill(database, driver)
    async with dying(database, driver, "put"):
        pass
    check_sessions(server.sessions_left(database_of(database)))
    async with saver_on(database, _SCHEMA, driver=driver) as saver:
        assert await numbers_left(saver) == list(range(1, _STEPS + 1))
        await check_going_on(saver)


@DRIVERS
async def test_before_the_commit(server: Server, database: str, driver: str) -> None:
    await fill(database, driver)
    async with await psycopg.AsyncConnection.connect(database) as holder:
        # Whoever inserts waits for this, having locked what it could.
        await holder.execute(f"LOCK TABLE {_SCHEMA}.writes IN SHARE MODE".encode())
        async with dying(database, driver, "put") as process:
            begin(process)
            await until_blocked(database, 1)
        await holder.rollback()
    check_sessions(server.sessions_left(database_of(database)))
    async with saver_on(database, _SCHEMA, driver=driver) as saver:
        # The server learns of the death when it answers: the transaction may be committed by then.
        left = await numbers_left(saver)
        assert left in (list(range(1, _STEPS + 1)), [*range(1, _STEPS + 1), 9])
        await check_going_on(saver)


@DRIVERS
async def test_after_the_commit_and_before_its_answer(proxy: FaultProxy, database: str, driver: str) -> None:
    await fill(database, driver)
    async with dying(proxy.dsn, driver, "put") as process:
        lost = proxy.cut_on_answer(matching=checkpoint_id(9).encode())
        begin(process)
        await lost.wait()
        proxy.stall()  # it does not get to repeat it
    proxy.cut()
    async with saver_on(database, _SCHEMA, driver=driver) as saver:
        assert await numbers_left(saver) == [*range(1, _STEPS + 1), 9], "it was committed, and is there whole"
        await check_going_on(saver)


@DRIVERS
@pytest.mark.parametrize("action", ["prune", "copy"])
async def test_in_the_middle_of(server: Server, database: str, driver: str, action: str) -> None:
    await fill(database, driver)
    async with await psycopg.AsyncConnection.connect(database) as holder:
        await holder.execute(f"LOCK TABLE {_SCHEMA}.writes IN EXCLUSIVE MODE".encode())
        async with dying(database, driver, action) as process:
            begin(process)
            await until_blocked(database, 1)
        await holder.rollback()
    check_sessions(server.sessions_left(database_of(database)))
    everything = list(range(1, _STEPS + 1))
    async with saver_on(database, _SCHEMA, driver=driver) as saver:
        if action == "prune":
            assert await numbers_left(saver) in (everything, [_STEPS])
        else:
            assert await numbers_left(saver) == everything
            assert await numbers_left(saver, "copy") in (everything, [])
        await check_going_on(saver)


@DRIVERS
async def test_in_the_middle_of_setup(server: Server, database: str, driver: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as holder:
        await holder.execute(f"CREATE SCHEMA {_SCHEMA}".encode())  # uncommitted: who creates it, too, waits
        async with dying(database, driver, "setup") as process:
            begin(process)
            await until_blocked(database, 1)
        await holder.rollback()
    check_sessions(server.sessions_left(database_of(database)))
    await fill(database, driver)
    async with saver_on(database, _SCHEMA, driver=driver) as saver:
        assert await numbers_left(saver) == list(range(1, _STEPS + 1))
        await check_going_on(saver)
