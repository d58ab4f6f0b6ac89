"""Probes, opening while the database is away, sessions that tell who they are, and savers that nobody closes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg_pool import AsyncConnectionPool

from pgcairn import AsyncPostgresSaver, ClosedError, PostgresSaver, Settings, UnavailableError
from tests.support.addresses import with_changes
from tests.support.proxy import FaultProxy
from tests.support.savers import checkpoint, config, get, put, saver_on
from tests.support.server import PostgresServer, Server, arun_sql, run_sql


@pytest.fixture(params=["psycopg", "asyncpg"])
def driver(request: pytest.FixtureRequest) -> str:
    """The test runs on both drivers."""
    return str(request.param)


# --- ping and readiness -------------------------------------------------------------------------------


async def test_a_database_that_answers(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver) as saver:
        assert 0 < await saver.ping() < 60
        found = await saver.readiness()
        assert (found.state, found.detail) == ("ready", "")
        assert found
        assert 0 < found.seconds < 60


async def test_a_schema_that_is_missing_old_or_not_ours(dsn: str, schema: str, driver: str) -> None:
    async with AsyncPostgresSaver.from_conn_string(dsn, schema=schema, driver=driver) as saver:
        found = await saver.readiness()
        assert (found.state, bool(found)) == ("schema_missing", False)
        assert "pgcairn setup" in found.detail
        assert await saver.ping() > 0, "the database itself answers"
        await saver.setup()
        assert await saver.readiness()
        run_sql(dsn, f"DELETE FROM {schema}.schema_version WHERE version > 1")
        assert (await saver.readiness()).state == "schema_outdated"
        run_sql(dsn, f"UPDATE {schema}.schema_version SET digest = 'another'")
        assert (await saver.readiness()).state == "schema_unusable"


async def test_a_role_that_may_not_look(server: Server, dsn: str, schema: str, driver: str) -> None:
    role = f"stranger_{schema}"
    run_sql(dsn, f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    try:
        async with saver_on(dsn, schema, driver=driver):
            pass
        theirs = with_changes(dsn, user=role, password="secret")
        async with AsyncPostgresSaver.from_conn_string(theirs, schema=schema, driver=driver) as saver:
            found = await saver.readiness()
            assert found.state == "database_refuses"
            assert "permission denied" in found.detail
    finally:
        run_sql(dsn, f"DROP ROLE {role}")


async def test_a_database_that_went_away_and_came_back(durable_server: PostgresServer, driver: str) -> None:
    async with saver_on(durable_server.dsn(), "pgcairn", driver=driver, max_size=2) as saver:
        durable_server.stop("immediate")
        found = await saver.readiness(60)  # whatever session it has is found to be dead
        assert found.state == "database_away"
        while not (found := await saver.readiness(0.5)).detail.count("onnect"):
            assert found.state == "database_away"
        with pytest.raises(UnavailableError):
            await saver.ping(0.5)
        durable_server.start()
        while not await saver.readiness(60):
            pass
        assert await saver.ping(60) > 0


async def test_a_peer_that_is_silent_holds_up_one_session(proxy: FaultProxy, driver: str) -> None:
    async with saver_on(
        proxy.dsn, "pgcairn", driver=driver, max_size=3, statement_timeout_seconds=3
    ) as saver:
        await saver.ping()
        proxy.stall()
        size = saver.stats().pool_size
        for _ in range(3):
            with pytest.raises(UnavailableError, match=r"within 0\.01 s"):
                await saver.ping(0.01)
            assert (await saver.readiness(0.01)).state == "database_away"
        assert saver.stats().pool_size <= size + 1, "whoever asks, there is one session for each question"
        proxy.resume()
        await saver.ping(60)
        assert await saver.readiness(60)
        await put(saver, config(), checkpoint(1))


async def test_closing_does_not_wait_for_a_probe(proxy: FaultProxy, driver: str) -> None:
    async with saver_on(
        proxy.dsn, "pgcairn", driver=driver, statement_timeout_seconds=600, close_timeout_seconds=1
    ) as saver:
        proxy.stall()
        asking = asyncio.gather(saver.ping(600), saver.readiness(600), return_exceptions=True)
        await proxy.counter.wait_until(lambda count: count.statements > 1)
        closing = asyncio.create_task(saver.aclose())
        ping, readiness = await asking
        assert isinstance(ping, ClosedError)
        assert not isinstance(readiness, BaseException)
        assert readiness.state == "closed"
        proxy.cut()
        await closing
        with pytest.raises(ClosedError):
            await saver.ping()
        assert (await saver.readiness()).state == "closed"


async def test_a_pool_of_the_users(dsn: str, schema: str) -> None:
    async with AsyncConnectionPool(dsn, min_size=1, max_size=2, open=False) as pool:
        async with AsyncPostgresSaver(pool, settings=Settings(schema=schema)) as saver:
            await saver.setup()
            assert await saver.ping() > 0
            assert await saver.readiness()
        other = AsyncPostgresSaver(pool, settings=Settings(schema=schema))
    assert (await other.readiness()).state == "closed", "their pool is"


def test_the_sync_saver(dsn: str, schema: str, driver: str) -> None:
    with PostgresSaver.from_conn_string(dsn, schema=schema, driver=driver) as saver:
        assert saver.readiness().state == "schema_missing"
        saver.setup()
        assert saver.readiness()
        assert saver.ping() > 0
    assert saver.readiness().state == "closed"
    with pytest.raises(ClosedError):
        saver.ping()


# --- opening ------------------------------------------------------------------------------------------


@contextmanager
def a_failed_attempt() -> Iterator[asyncio.Event]:
    """An event that is set when an attempt has failed and is to be repeated."""
    failed = asyncio.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is repeated" in record.getMessage():
                failed.set()

    handler = Handler()
    logging.getLogger("pgcairn").addHandler(handler)
    try:
        yield failed
    finally:
        logging.getLogger("pgcairn").removeHandler(handler)


@pytest.mark.parametrize("min_size", [0, 1, 5])
async def test_opening_fails_at_once(durable_server: PostgresServer, driver: str, min_size: int) -> None:
    durable_server.stop()
    with pytest.raises(UnavailableError, match="No connection to PostgreSQL"):
        async with AsyncPostgresSaver.from_conn_string(
            durable_server.dsn(), driver=driver, min_size=min_size
        ):
            pytest.fail("it opened")


async def test_opening_waits_for_a_database_that_starts_later(
    durable_server: PostgresServer, driver: str
) -> None:
    durable_server.stop()

    async def use() -> None:
        async with saver_on(
            durable_server.dsn(), "pgcairn", driver=driver, min_size=2, open_timeout_seconds=60
        ) as saver:
            await put(saver, config(), checkpoint(1, {"n": 1}))
            assert (await get(saver, config())).checkpoint["channel_values"] == {"n": 1}
            assert saver.stats().retries > 0

    with a_failed_attempt() as failed:
        using = asyncio.create_task(use())
        await failed.wait()
        durable_server.start()
        await using


async def test_opening_gives_up_with_the_reason(durable_server: PostgresServer, driver: str) -> None:
    durable_server.stop()
    with pytest.raises(UnavailableError, match="No connection to PostgreSQL"):
        async with AsyncPostgresSaver.from_conn_string(
            durable_server.dsn(), driver=driver, open_timeout_seconds=0.1
        ):
            pytest.fail("it opened")


async def test_opening_again_after_a_failure(proxy: FaultProxy, driver: str) -> None:
    manager = AsyncPostgresSaver.from_conn_string(proxy.dsn, driver=driver, min_size=2)
    proxy.refuse()
    with pytest.raises(UnavailableError):
        await manager.__aenter__()
    await proxy.listen()
    async with AsyncPostgresSaver.from_conn_string(proxy.dsn, driver=driver, min_size=2) as saver:
        await saver.setup()
        await saver.open()


async def test_too_many_sessions_name_the_sum(server: Server, dsn: str, schema: str, driver: str) -> None:
    role = f"few_{schema}"
    run_sql(dsn, f"CREATE ROLE {role} LOGIN PASSWORD 'secret' CONNECTION LIMIT 1")
    theirs = with_changes(dsn, user=role, password="secret")
    try:
        async with AsyncPostgresSaver.from_conn_string(
            theirs, driver=driver, min_size=1, max_size=7
        ) as first:
            await first.ping()  # so that its session is there
            with pytest.raises(UnavailableError, match="too many connections") as caught:
                async with AsyncPostgresSaver.from_conn_string(theirs, driver=driver, min_size=3, max_size=7):
                    pytest.fail("it opened")
        assert "this one's is 7" in caught.value.hint
        assert "max_connections" in caught.value.hint
    finally:
        run_sql(dsn, f"DROP ROLE {role}")


async def test_what_a_failed_opening_opened_is_closed(
    server: Server, dsn: str, schema: str, driver: str
) -> None:
    role = f"some_{schema}"
    run_sql(dsn, f"CREATE ROLE {role} LOGIN PASSWORD 'secret' CONNECTION LIMIT 2")
    theirs = with_changes(dsn, user=role, password="secret")
    try:
        async with AsyncPostgresSaver.from_conn_string(
            theirs, driver=driver, min_size=1, max_size=1
        ) as first:
            # asyncpg opens them all at once and fails; psycopg opens what it can, and goes on trying.
            try:
                async with AsyncPostgresSaver.from_conn_string(theirs, driver=driver, min_size=3):
                    pass
            except UnavailableError:
                assert driver == "asyncpg"
            await first.ping()
    finally:
        server.sessions_left(dsn.rsplit("/", 1)[-1])
        run_sql(dsn, f"DROP ROLE {role}")


# --- who is who ---------------------------------------------------------------------------------------


async def test_sessions_say_which_process_they_belong_to(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver, application_name="shop {host}:{pid}"):
        wanted = f"shop {platform.node()}:{os.getpid()}"[:63]
        rows = await arun_sql(dsn, "SELECT DISTINCT application_name FROM pg_stat_activity")
        assert (wanted,) in rows


async def test_waiting_for_a_session_is_measured(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver, min_size=1) as saver:
        await put(saver, config(), checkpoint(1))
        stats = saver.stats()
        assert 0 < stats.session_wait_p50_seconds <= stats.session_wait_p99_seconds < 60


async def test_sessions_opened_counts_what_stays(dsn: str, schema: str, driver: str) -> None:
    async with AsyncPostgresSaver.from_conn_string(
        dsn, schema=schema, driver=driver, min_size=1, max_size=1
    ) as saver:
        await saver.ping()
        assert saver.stats().sessions_opened == 1


# --- savers that nobody closes ------------------------------------------------------------------------


async def _collect() -> None:
    """Collect garbage, and wait until the loop has closed what was found."""
    gc.collect()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await asyncio.wait(others)


async def test_a_saver_that_is_dropped_while_open_warns(dsn: str, schema: str, driver: str) -> None:
    manager = AsyncPostgresSaver.from_conn_string(dsn, schema=schema, driver=driver)
    saver = await manager.__aenter__()
    await saver.setup()
    await put(saver, config(), checkpoint(1))
    del saver, manager
    with pytest.warns(ResourceWarning, match="dropped while it was open"):
        await _collect()
    async with saver_on(dsn, schema) as other:
        assert await other.aget_tuple(config()) is not None


def test_a_sync_saver_that_is_dropped_while_open_warns(dsn: str, schema: str) -> None:
    manager = PostgresSaver.from_conn_string(dsn, schema=schema)
    saver = manager.__enter__()
    saver.setup()
    with pytest.warns(ResourceWarning, match="dropped while it was open"):
        del manager


async def test_a_saver_on_a_pool_of_the_users_may_be_dropped(dsn: str, schema: str) -> None:
    async with AsyncConnectionPool(dsn, min_size=1, max_size=4, open=False) as pool:
        saver = AsyncPostgresSaver(pool, settings=Settings(schema=schema))
        await saver.setup()
        await put(saver, config(), checkpoint(1))
        engine = weakref.ref(saver._engine)
        del saver
        # They end by themselves when there is nothing to do.
        lanes = [task for task in asyncio.all_tasks() if task.get_name().startswith("pgcairn-lane")]
        if lanes:
            await asyncio.wait(lanes)
        del lanes
        gc.collect()
        assert engine() is None
