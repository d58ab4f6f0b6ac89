"""Every session is ended by the server, again and again, while threads write and read: nobody notices."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from pgcairn.connection.asyncpg_driver import AsyncpgSession
from pgcairn.connection.pool import Query
from pgcairn.errors import OutcomeUnknown
from pgcairn.settings import Settings
from pgcairn.telemetry import Counters
from tests.support.savers import LARGE_TEXT, checkpoint, checkpoint_id, config, get, listed, put, saver_on
from tests.support.server import arun_sql

_CALLERS = 24
_STEPS = 12
_KILL = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'killed'
"""


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_no_caller_sees_an_error_and_nothing_is_lost(dsn: str, schema: str, driver: str) -> None:
    steps = 0
    stepped = asyncio.Event()

    async with saver_on(dsn, schema, driver=driver, application_name="killed", max_size=6) as saver:

        async def caller(thread_id: str) -> None:
            nonlocal steps
            where = config(thread_id)
            for number in range(1, _STEPS + 1):
                where = await put(
                    saver, where, checkpoint(number, {"n": number, "big": LARGE_TEXT + str(number)})
                )
                await saver.aput_writes(where, [("n", number)], "task")
                found = await get(saver, config(thread_id))
                assert found.checkpoint["channel_values"]["n"] == number
                assert found.pending_writes == [("task", "n", number)]
                steps += 1
                stepped.set()

        async def killer() -> None:
            while True:
                await arun_sql(dsn, _KILL)
                goal = steps + _CALLERS  # each gets on by about one step between two kills
                while steps < goal:
                    stepped.clear()
                    await stepped.wait()

        killing = asyncio.create_task(killer())
        try:
            await asyncio.gather(*(caller(f"thread-{number}") for number in range(_CALLERS)))
        finally:
            killing.cancel()
            await asyncio.wait([killing])
        assert saver.stats().sessions_lost > 0
        for number in range(_CALLERS):
            rows = await listed(saver, config(f"thread-{number}"))
            assert [row.checkpoint["id"] for row in rows] == [
                checkpoint_id(step) for step in range(_STEPS, 0, -1)
            ]


async def test_asyncpg_confused_by_a_farewell_is_a_lost_session() -> None:
    class Connection:
        async def fetch(self, *_: Any, **__: Any) -> None:
            raise asyncpg.InternalClientError(
                "cannot switch to state 12; another operation (2) is in progress"
            )

        def is_closed(self) -> bool:
            return False

    session = AsyncpgSession(Connection(), Settings(), Counters())
    with pytest.raises(OutcomeUnknown, match="another operation"):
        await session.fetch(Query("test", "SELECT 1", ()), ())
    assert session.lost
