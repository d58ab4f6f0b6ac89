"""Statements that nobody answers: a peer that is silent, a lock that is held. They end, and are repeated elsewhere."""

from __future__ import annotations

import psycopg
import pytest

from pgcairn.connection import asyncpg_driver, psycopg_driver
from pgcairn.errors import OutcomeUnknown, UnavailableError
from tests.support.proxy import FaultProxy
from tests.support.savers import checkpoint, config, get, put, saver_on
from tests.support.server import arun_sql

DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@DRIVERS
async def test_what_a_silent_peer_got_is_sent_to_another(proxy: FaultProxy, driver: str) -> None:
    async with saver_on(proxy.dsn, "pgcairn", driver=driver, statement_timeout_seconds=0.3, lanes=1) as saver:
        await put(saver, config("warm"), checkpoint(1, {"n": 1}))
        silent = proxy.half_open(matching=b"thread-written")
        await put(saver, config("thread-written"), checkpoint(1, {"n": 2}))
        assert silent.is_set()
        silent = proxy.half_open(matching=b"thread-read")
        assert await saver.aget_tuple(config("thread-read")) is None
        assert silent.is_set()
        assert (await get(saver, config("thread-written"))).checkpoint["channel_values"] == {"n": 2}
        stats = saver.stats()
        assert stats.sessions_lost == 2
        assert stats.retries == 2
        proxy.cut()  # the silent ones


@DRIVERS
async def test_a_transaction_with_a_silent_peer_ends(proxy: FaultProxy, driver: str) -> None:
    async with saver_on(proxy.dsn, "pgcairn", driver=driver, statement_timeout_seconds=0.3, lanes=1) as saver:
        for message in (b"BEGIN", b"thread-deleted", b"COMMIT"):
            await put(saver, config("thread-deleted"), checkpoint(1, {"n": 1}))
            silent = proxy.half_open(matching=message)
            await saver.adelete_thread("thread-deleted")
            assert silent.is_set()
            assert await saver.aget_tuple(config("thread-deleted")) is None
            proxy.cut()


@DRIVERS
async def test_who_waits_for_a_lock_gives_up_and_leaves_nothing_waiting(database: str, driver: str) -> None:
    async with (
        saver_on(
            database,
            "pgcairn",
            driver=driver,
            statement_timeout_seconds=0.3,
            retry_deadline_seconds=0.5,
            application_name="waits",
        ) as saver,
        await psycopg.AsyncConnection.connect(database) as locker,
    ):
        await locker.execute("LOCK TABLE pgcairn.checkpoints IN ACCESS EXCLUSIVE MODE")
        with pytest.raises((OutcomeUnknown, UnavailableError), match="no answer"):
            await put(saver, config("t"), checkpoint(1, {"n": 1}))
        await locker.commit()
        await put(saver, config("t"), checkpoint(2, {"n": 2}))
        [(waiting,)] = await arun_sql(
            database,
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waits' AND state = 'active'",
        )
        assert waiting == 0


@DRIVERS
async def test_a_session_that_died_while_idle_is_not_lent(
    proxy: FaultProxy, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg_driver, "PING_SECONDS", 0.3)
    monkeypatch.setattr(asyncpg_driver, "PING_SECONDS", 0.3)
    async with saver_on(
        proxy.dsn, "pgcairn", driver=driver, check_after_idle_seconds=0, max_size=1, prepared_statements=False
    ) as saver:
        await put(saver, config("t"), checkpoint(1, {"n": 1}))
        silent = proxy.half_open(matching=b"pgcairn:ping")
        assert (await get(saver, config("t"))).checkpoint["channel_values"] == {"n": 1}
        assert silent.is_set()
        stats = saver.stats()
        assert (stats.sessions_lost, stats.retries) == (1, 0), "the caller's statement was sent once"
        proxy.cut()


async def test_asyncpg_sessions_are_replaced_when_they_are_old(database: str) -> None:
    async with saver_on(database, "pgcairn", driver="asyncpg", max_size=1) as saver:
        await put(saver, config("t"), checkpoint(1, {"n": 1}))
        opened = saver.stats().sessions_opened
        for ages in asyncpg_driver._ages.values():
            ages.replace_at = 0.0
        await get(saver, config("t"))
        await get(saver, config("t"))
        assert saver.stats().sessions_opened == opened + 1
        assert saver.stats().sessions_lost == 0
