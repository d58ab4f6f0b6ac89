"""Timeouts that the role has on the server: whoever they hit is told, the others go on."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from pgcairn.errors import DatabaseError, UnavailableError
from tests.support.addresses import database_of
from tests.support.savers import checkpoint, config, get, put, saver_on, values_of
from tests.support.server import run_sql

DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@pytest.fixture(params=["statement_timeout", "lock_timeout"])
def timeout(request: pytest.FixtureRequest, database: str) -> str:
    """One of the timeouts, 200 ms in every session of this database."""
    name: str = request.param
    run_sql(database, f"ALTER DATABASE {database_of(database)} SET {name} = '200ms'")
    return name


@DRIVERS
async def test_a_timeout_of_the_server(database: str, driver: str, timeout: str) -> None:
    async with saver_on(database, "pgcairn", driver=driver, lanes=1, retry_deadline_seconds=0.5) as saver:
        await put(saver, config("held"), checkpoint(1, {"n": 1}))
        async with await psycopg.AsyncConnection.connect(database) as holder:
            await holder.execute(b"SELECT FROM pgcairn.checkpoints FOR UPDATE")
            deleting = asyncio.create_task(saver.adelete_thread("held"))
            writing = asyncio.gather(
                *(put(saver, config(f"thread-{n}"), checkpoint(1, {"n": n})) for n in range(10))
            )
            kind = DatabaseError if timeout == "statement_timeout" else UnavailableError
            with pytest.raises(kind, match=timeout.replace("_", " ")) as raised:
                await deleting
            await writing
            assert timeout in str(raised.value.hint)
            assert raised.value.thread_id == "held"
            await holder.rollback()
        assert await values_of(saver, config("held")) == {"n": 1}
        for n in range(10):
            await get(saver, config(f"thread-{n}"))
        await saver.adelete_thread("held")
