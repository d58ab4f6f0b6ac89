"""The server is away for a while: calls wait for it, no longer than their deadline, and the pool fills up again."""

from __future__ import annotations

import asyncio

import pytest

from pgcairn.errors import OutcomeUnknown, UnavailableError
from tests.support.proxy import FaultProxy
from tests.support.savers import checkpoint, config, get, put, saver_on

DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])

# Far below what the other timeouts would take, far above what a busy machine needs.
_BOUND_SECONDS = 20.0


@DRIVERS
async def test_no_call_outlives_its_deadline_while_nobody_answers_the_door(
    proxy: FaultProxy, driver: str
) -> None:
    async with saver_on(
        proxy.dsn, "pgcairn", driver=driver, retry_deadline_seconds=0.3, acquire_timeout_seconds=120
    ) as saver:
        await put(saver, config(), checkpoint(1))
        proxy.refuse()
        proxy.cut()
        calls = (put(saver, config(), checkpoint(2)), saver.aget_tuple(config()), saver.adelete_thread("t"))
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), _BOUND_SECONDS)
        for result in results:
            assert isinstance(result, UnavailableError | OutcomeUnknown)
        with pytest.raises(UnavailableError, match="No connection to PostgreSQL"):
            await asyncio.wait_for(put(saver, config(), checkpoint(2)), _BOUND_SECONDS)
        await proxy.listen()
        await put(saver, config(), checkpoint(3))


@DRIVERS
async def test_no_call_outlives_its_deadline_while_the_server_is_silent(
    proxy: FaultProxy, driver: str
) -> None:
    async with saver_on(
        proxy.dsn,
        "pgcairn",
        driver=driver,
        retry_deadline_seconds=0.3,
        statement_timeout_seconds=120,
        acquire_timeout_seconds=120,
    ) as saver:
        await put(saver, config(), checkpoint(1))
        proxy.stall()
        calls = (put(saver, config(), checkpoint(2)), saver.aget_tuple(config()))
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), _BOUND_SECONDS)
        for result in results:
            assert isinstance(result, UnavailableError | OutcomeUnknown)
        proxy.resume()
        await put(saver, config(), checkpoint(3))
        await get(saver, config())


@DRIVERS
async def test_a_single_attempt_may_take_its_time(proxy: FaultProxy, driver: str) -> None:
    async with saver_on(proxy.dsn, "pgcairn", driver=driver, retry_deadline_seconds=0) as saver:
        await put(saver, config("warm"), checkpoint(1))
        held = proxy.hold(matching=b"held")
        putting = asyncio.create_task(put(saver, config("held"), checkpoint(1)))
        await held.reached.wait()
        held.release()
        await putting


async def test_the_pool_fills_up_again_although_nobody_calls(proxy: FaultProxy) -> None:
    async with saver_on(proxy.dsn, "pgcairn", min_size=3) as saver:
        while saver.stats().pool_idle < 3:
            await saver.ping()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(UnavailableError):
            await saver.ping(0.01)
        while not (refilling := _tasks("pgcairn-refill")):  # its sessions are given up
            with pytest.raises(UnavailableError):
                await saver.ping(0.01)
        await proxy.listen()
        await asyncio.wait(refilling)
        while saver.stats().pool_idle < 3:
            await saver.ping()


async def test_closing_while_the_pool_fills_up(proxy: FaultProxy) -> None:
    async with saver_on(proxy.dsn, "pgcairn", min_size=1, close_timeout_seconds=1) as saver:
        proxy.refuse()
        proxy.cut()
        while not _tasks("pgcairn-refill"):
            with pytest.raises(UnavailableError):
                await saver.ping(0.01)
    assert not _tasks("pgcairn-refill")


def _tasks(name: str) -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == name]
