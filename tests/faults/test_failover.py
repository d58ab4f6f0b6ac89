"""A primary dies or is demoted, its synchronous standby is promoted: callers see no error, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pgcairn import AsyncPostgresSaver
from pgcairn.errors import OutcomeUnknown, UnavailableError
from pgcairn.operations.doctor import examine
from tests.support.replication import ReplicatedServers, replicated
from tests.support.savers import (
    LARGE_TEXT,
    checkpoint,
    checkpoint_id,
    config,
    dangling,
    get,
    listed,
    put,
    saver_on,
    version,
)
from tests.support.server import ServerFolder

logger = logging.getLogger(__name__)

_CALLERS = 24
_SCHEMA = "pgcairn"
DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@pytest.fixture
def servers(server_folder: ServerFolder) -> Iterator[ReplicatedServers]:
    """A primary and its synchronous standby, for this test alone."""
    with replicated(server_folder) as both:
        yield both


class Load:
    """Threads that are written and read, each step after the other, until ``finish``."""

    def __init__(self, saver: AsyncPostgresSaver) -> None:
        self._saver = saver
        self._changed = asyncio.Condition()
        self._over = False
        self.acknowledged = [0] * _CALLERS
        self.last_acknowledged_at = 0.0

    async def caller(self, index: int) -> None:
        """Write and read one thread."""
        where = config(f"thread-{index}")
        while not self._over:
            number = self.acknowledged[index] + 1
            values = {"n": number, "big": LARGE_TEXT + str(number)}
            versions = {"n": version(number), "big": version(number)}
            where = await put(self._saver, where, checkpoint(number, values, versions))
            self.last_acknowledged_at = time.monotonic()
            await self._saver.aput_writes(where, [("n", number)], "task")
            async with self._changed:
                self.acknowledged[index] = number
                self._changed.notify_all()
            found = await get(self._saver, config(f"thread-{index}"))
            assert found.checkpoint["channel_values"] == values
            assert found.pending_writes == [("task", "n", number)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until ``condition`` holds; it is looked at after each step."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def steps(self, more: int) -> None:
        """Until each thread is that many steps further."""
        goals = [number + more for number in self.acknowledged]
        await self.until(lambda: all(a >= g for a, g in zip(self.acknowledged, goals, strict=True)))

    def finish(self) -> None:
        """No new steps."""
        self._over = True


@asynccontextmanager
async def load_on(saver: AsyncPostgresSaver) -> AsyncIterator[Load]:
    """A load for the time of the block; afterwards every thread holds each of its steps, whole."""
    load = Load(saver)
    running = asyncio.gather(*(load.caller(index) for index in range(_CALLERS)))

    async def watched(block: asyncio.Task[Any]) -> None:
        try:
            await running
        except Exception:
            block.cancel()  # the block waits for steps that will not come
            raise

    block = asyncio.current_task()
    assert block is not None
    watching = asyncio.create_task(watched(block))
    try:
        yield load
    finally:
        load.finish()
        await watching
    for index, last in enumerate(load.acknowledged):
        rows = await listed(saver, config(f"thread-{index}"))
        assert [row.checkpoint["id"] for row in rows] == [checkpoint_id(n) for n in range(last, 0, -1)]
        for row, number in zip(rows, range(last, 0, -1), strict=True):
            assert row.checkpoint["channel_values"] == {"n": number, "big": LARGE_TEXT + str(number)}
            assert row.pending_writes == [("task", "n", number)]


@DRIVERS
@pytest.mark.parametrize("standby_first", [False, True], ids=["primary-first", "standby-first"])
async def test_a_killed_primary_loses_nothing_and_disturbs_nobody(
    servers: ReplicatedServers,
    driver: str,
    standby_first: bool,
) -> None:
    database = servers.create_database()
    dsn = servers.dsn(database, standby_first=standby_first)
    passwords = 0

    def password() -> str:
        nonlocal passwords
        passwords += 1
        return servers.first.folder.password

    async with saver_on(dsn, _SCHEMA, driver=driver, max_size=6, password=password) as saver:
        async with load_on(saver) as load:
            await load.steps(2)
            size, asked = saver.stats().pool_size, passwords
            servers.kill_primary()
            await asyncio.to_thread(servers.promote)
            promoted_at, seen = time.monotonic(), sum(load.acknowledged)
            await load.until(lambda: sum(load.acknowledged) > seen)
            logger.info("first write %.3f s after the promotion", load.last_acknowledged_at - promoted_at)
            await load.steps(2)
            assert passwords > asked, "a new session takes a new password"
            assert 0 < saver.stats().pool_size <= max(size, 6)
        assert saver.stats().retries > 0
        assert dangling(servers.second.dsn(database), _SCHEMA) == []
    assert servers.second.sessions_left(database) == []


@DRIVERS
async def test_a_demoted_primary_that_still_answers_is_left(servers: ReplicatedServers, driver: str) -> None:
    database = servers.create_database()
    async with saver_on(servers.dsn(database), _SCHEMA, driver=driver, max_size=6) as saver:
        async with load_on(saver) as load:
            await load.steps(2)
            servers.demote()
            await asyncio.to_thread(servers.promote)
            await load.steps(3)
        assert saver.stats().retries > 0
        checkpoints = sum(load.acknowledged)
    assert servers.second.sql(f"SELECT count(*) FROM {_SCHEMA}.checkpoints", database=database) == [
        (checkpoints,)
    ]


@DRIVERS
async def test_a_saver_opened_between_the_death_and_the_promotion(
    servers: ReplicatedServers, driver: str
) -> None:
    database = servers.create_database()
    async with saver_on(servers.dsn(database), _SCHEMA, driver=driver) as saver:
        await put(saver, config(), checkpoint(1, {"n": 1}))
    servers.kill_primary()
    opening = AsyncPostgresSaver.from_conn_string(servers.dsn(database), driver=driver)
    with pytest.raises(UnavailableError):  # said at once, not at a deadline
        await opening.__aenter__()
    await asyncio.to_thread(servers.promote)
    async with AsyncPostgresSaver.from_conn_string(servers.dsn(database), driver=driver) as saver:
        await put(saver, config(number=1), checkpoint(2, {"n": 2}))
        rows = await listed(saver, config())
        assert [row.checkpoint["id"] for row in rows] == [checkpoint_id(2), checkpoint_id(1)]


@DRIVERS
async def test_a_standby_that_is_gone_stops_writes_but_not_reads(
    servers: ReplicatedServers, driver: str
) -> None:
    database = servers.create_database()
    settings: dict[str, Any] = {
        "driver": driver,
        "statement_timeout_seconds": 0.4,
        "retry_deadline_seconds": 1.5,
    }
    async with saver_on(servers.dsn(database), _SCHEMA, **settings) as saver:
        await put(saver, config(), checkpoint(1, {"n": 1}))
        servers.second.kill()
        with pytest.raises(OutcomeUnknown):
            await put(saver, config(), checkpoint(2, {"n": 2, "big": LARGE_TEXT}))
        with pytest.raises(OutcomeUnknown):
            await saver.aput_writes(config(number=1), [("n", 1)], "task")
        await get(saver, config())
        await asyncio.to_thread(servers.second.start)
        await asyncio.to_thread(servers.until_synchronous)
        await put(saver, config(), checkpoint(2, {"n": 2, "big": LARGE_TEXT}))
        await saver.aput_writes(config(number=1), [("n", 1)], "task")
        await put(saver, config(number=2), checkpoint(3, {"n": 3}))
        rows = await listed(saver, config())
        assert [row.checkpoint["channel_values"] for row in rows] == [
            {"n": 3},
            {"n": 2, "big": LARGE_TEXT},
            {"n": 1},
        ]
        assert rows[2].pending_writes == [("task", "n", 1)]
        assert (await examine(saver)).findings == ()
