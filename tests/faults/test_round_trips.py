"""What a call costs on the wire, counted by the proxy: a promise made in statements and round trips."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pgcairn import AsyncPostgresSaver
from tests.support.proxy import Counting, FaultProxy
from tests.support.savers import LARGE_TEXT, checkpoint, config, get, listed, put, saver_on, version


@pytest.fixture(params=["psycopg", "asyncpg"])
async def saver(
    database: str, proxy: FaultProxy, request: pytest.FixtureRequest
) -> AsyncIterator[AsyncPostgresSaver]:
    """A saver behind the proxy, one session and one lane, every statement of these tests prepared."""
    async with saver_on(proxy.dsn, "pgcairn", driver=request.param, max_size=1, lanes=1) as opened:
        await scenario(opened, proxy)
        yield opened


def cost(counted: Counting) -> tuple[int, int]:
    return counted.round_trips, counted.statements


async def scenario(saver: AsyncPostgresSaver, proxy: FaultProxy) -> dict[str, tuple[int, int]]:
    """Every kind of call; (round trips, statements) by name."""
    found = {}
    await saver.adelete_thread("t")
    with proxy.counting() as counted:
        await put(saver, config("t"), checkpoint(1, {"n": [1]}))
    found["put"] = cost(counted)
    with proxy.counting() as counted:
        await saver.aput_writes(config("t", "", 1), [("n", 1)], "task")
    found["one write"] = cost(counted)
    with proxy.counting() as counted:
        await saver.aput_writes(config("t", "", 1), [("n", 1), ("m", 2)], "task 2")
    found["two writes"] = cost(counted)
    with proxy.counting() as counted:
        await saver.aput_writes(config("t", "", 1), [("__error__", 1)], "task")
    found["special write"] = cost(counted)
    with proxy.counting() as counted:
        await put(saver, config("t"), checkpoint(2, {"big": LARGE_TEXT}))
    found["put of a large value"] = cost(counted)
    with proxy.counting() as counted:
        await put(saver, config("t"), checkpoint(3, {"big": LARGE_TEXT}), new_versions={})
    found["put of an unchanged large value"] = cost(counted)
    with proxy.counting() as counted:
        await put(
            saver,
            config("t"),
            checkpoint(4, {"big": LARGE_TEXT, "more": LARGE_TEXT}),
            new_versions={"more": version(1)},
        )
    found["put of both"] = cost(counted)
    with proxy.counting() as counted:
        await get(saver, config("t"))
    found["get of the latest"] = cost(counted)
    with proxy.counting() as counted:
        await get(saver, config("t", "", 1))
    found["get of one"] = cost(counted)
    with proxy.counting() as counted:
        assert await saver.aget_tuple(config("nobody")) is None
    found["get of none"] = cost(counted)
    for name, where in (("namespace", config("t")), ("thread", config("t", None)), ("all", None)):
        with proxy.counting() as counted:
            assert len(await listed(saver, where)) == 4
        found[f"page of {name}"] = cost(counted)
    return found


async def test_every_call_is_one_statement_in_one_round_trip(
    saver: AsyncPostgresSaver, proxy: FaultProxy
) -> None:
    found = await scenario(saver, proxy)
    assert found == dict.fromkeys(found, (1, 1))


async def test_a_deletion_waits_and_deletes_in_one_transaction(
    saver: AsyncPostgresSaver, proxy: FaultProxy
) -> None:
    await saver.adelete_thread("nobody")  # its statements are prepared now
    with proxy.counting() as counted:
        await saver.adelete_thread("t")
    assert cost(counted) == (4, 4)  # BEGIN, lock, delete, COMMIT


async def test_nothing_is_prepared_twice(saver: AsyncPostgresSaver, proxy: FaultProxy) -> None:
    with proxy.counting() as counted:
        await scenario(saver, proxy)
    assert counted.sent.parses == counted.sent.connections == 0
    assert counted.sent.queries == 2  # BEGIN and COMMIT of the deletion that it begins with


async def test_a_batch_is_one_statement(saver: AsyncPostgresSaver, proxy: FaultProxy) -> None:
    async def superstep(number: int) -> None:
        await asyncio.gather(
            saver.aput_writes(config(f"t{number}", "", 1), [("a", 1), ("b", 2)], "task"),
            saver.aput_writes(config(f"t{number}", "", 1), [("__error__", 1)], "task"),
            put(saver, config(f"t{number}"), checkpoint(1, {"n": [number], "big": LARGE_TEXT})),
        )

    await superstep(99)  # this shape of batch is prepared now
    with proxy.counting() as counted:
        await asyncio.gather(*(superstep(number) for number in range(64)))
    assert cost(counted) == (1, 1), "they all started before the lane could send one"
    assert saver.stats().batch_rows_max == 64 * 5


async def test_many_reads_are_few_statements(saver: AsyncPostgresSaver, proxy: FaultProxy) -> None:
    await asyncio.gather(*(put(saver, config(f"t{n}"), checkpoint(1, {"n": n})) for n in range(64)))
    await asyncio.gather(get(saver, config("t1")), get(saver, config("t2")))  # prepared now
    with proxy.counting() as counted:
        found = await asyncio.gather(*(get(saver, config(f"t{n}")) for n in range(64)))
    assert [each.checkpoint["channel_values"] for each in found] == [{"n": n} for n in range(64)]
    assert counted.round_trips == counted.statements <= 4


async def test_a_long_listing_takes_a_round_trip_a_page(saver: AsyncPostgresSaver, proxy: FaultProxy) -> None:
    await asyncio.gather(*(put(saver, config("t"), checkpoint(n, {"n": n})) for n in range(1, 51)))
    with proxy.counting() as counted:
        assert len(await listed(saver, config("t"))) == 50
    assert counted.round_trips == counted.statements <= 4
    with proxy.counting() as counted:
        assert len(await listed(saver, config("t"), limit=1)) == 1
    assert cost(counted) == (1, 1)


async def test_the_saver_counts_what_the_proxy_counts(saver: AsyncPostgresSaver, proxy: FaultProxy) -> None:
    before = saver.stats()
    with proxy.counting() as counted:
        await scenario(saver, proxy)
    after = saver.stats()
    assert (after.round_trips - before.round_trips, after.statements - before.statements) == cost(counted)
