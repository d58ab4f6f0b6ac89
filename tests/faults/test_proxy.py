"""The proxy that breaks connections does what the other tests believe it does."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tests.support.addresses import database_of
from tests.support.proxy import SYNC, FaultProxy
from tests.support.server import Server, run_sql


async def connect(dsn: str) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True)


async def test_forwards_and_counts(proxy: FaultProxy) -> None:
    async with await connect(proxy.dsn) as connection:
        with proxy.counting() as simple:
            await connection.execute("SELECT 1")
        with proxy.counting() as extended:
            cursor = await connection.execute("SELECT %s::int + 1", [41], prepare=True)
        with proxy.counting() as prepared:
            await connection.execute("SELECT %s::int + 1", [42], prepare=True)
        assert await cursor.fetchone() == (42,)
    assert (simple.round_trips, simple.statements) == (1, 1)
    assert (extended.sent.parses, extended.statements) == (1, 1)
    assert (prepared.round_trips, prepared.statements) == (1, 1)
    assert prepared.sent.parses == 0
    assert prepared.sent.binds == prepared.sent.executes == prepared.sent.syncs == 1
    assert proxy.count.connections == 1


async def test_a_pipeline_is_one_round_trip(proxy: FaultProxy) -> None:
    async with await connect(proxy.dsn) as connection:
        with proxy.counting() as counted:
            async with connection.pipeline():
                for n in range(10):
                    await connection.execute("SELECT %s::int", [n])
    assert counted.statements == 10
    assert counted.round_trips == 1


async def test_large_messages_pass_both_ways(proxy: FaultProxy) -> None:
    big = b"\x00\xffQ" * 2_000_000
    async with await connect(proxy.dsn) as connection:
        cursor = await connection.execute("SELECT %b::bytea", [big])
        assert await cursor.fetchone() == (big,)


async def test_delay_does_not_serialise(proxy: FaultProxy) -> None:
    proxy.set_round_trip(0.02)
    connections = [await connect(proxy.dsn) for _ in range(5)]
    await asyncio.gather(*(c.execute("SELECT 1") for c in connections))
    for connection in connections:
        await connection.close()


async def test_stall_holds_and_resume_delivers(proxy: FaultProxy) -> None:
    async with await connect(proxy.dsn) as connection:
        proxy.stall()
        before = proxy.count.queries
        waiting = asyncio.create_task(connection.execute("SELECT 7"))
        await proxy.counter.wait_until(lambda count: count.queries == before + 1)
        assert not waiting.done()
        proxy.resume()
        assert await (await waiting).fetchone() == (7,)


async def test_stalled_proxy_accepts_and_never_answers(proxy: FaultProxy) -> None:
    proxy.stall()
    connecting = asyncio.create_task(connect(proxy.dsn))
    await proxy.counter.wait_until(lambda count: count.messages == 1)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


@pytest.mark.parametrize("reset", [False, True])
async def test_cut_ends_open_connections_and_accepts_new_ones(proxy: FaultProxy, reset: bool) -> None:
    async with await connect(proxy.dsn) as connection:
        proxy.cut(reset=reset)
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT 1")
    async with await connect(proxy.dsn) as connection:
        await connection.execute("SELECT 1")


async def test_refuse_and_listen_again(proxy: FaultProxy) -> None:
    dsn = proxy.dsn
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        await connect(dsn)
    await proxy.listen()
    async with await connect(dsn) as connection:
        await connection.execute("SELECT 1")


async def test_cut_before_send_keeps_the_message_from_the_server(database: str, proxy: FaultProxy) -> None:
    run_sql(database, "CREATE TABLE t (n int)")
    cut = proxy.cut_before_send(matching=b"INSERT")
    async with await connect(proxy.dsn) as connection:
        await connection.execute("SELECT 1")
        assert not cut.is_set()
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("INSERT INTO t VALUES (1)")
    assert cut.is_set()
    assert run_sql(database, "SELECT n FROM t") == []


async def test_cut_on_sync_is_carried_out(server: Server, database: str, proxy: FaultProxy) -> None:
    run_sql(database, "CREATE TABLE t (n int)")
    cut = proxy.cut_on_send(matching=SYNC)
    async with await connect(proxy.dsn) as connection:
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("INSERT INTO t VALUES (%s)", [1])
    assert cut.is_set()
    assert server.sessions_left(database_of(database)) == []  # the server has finished with it
    assert run_sql(database, "SELECT n FROM t") == [(1,)]


@pytest.mark.parametrize("fault", ["cut_on_send", "cut_on_answer"])
async def test_what_was_sent_before_the_cut_is_committed(
    server: Server, database: str, proxy: FaultProxy, fault: str
) -> None:
    run_sql(database, "CREATE TABLE t (n int)")
    cut: asyncio.Event = getattr(proxy, fault)(matching=b"INSERT")
    async with await connect(proxy.dsn) as connection:
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("INSERT INTO t VALUES (1)")
    assert cut.is_set()
    assert server.sessions_left(database_of(database)) == []  # the server has finished with it
    assert run_sql(database, "SELECT n FROM t") == [(1,)]


async def test_a_lost_answer_to_commit(database: str, proxy: FaultProxy) -> None:
    run_sql(database, "CREATE TABLE t (n int)")
    lost = proxy.cut_on_answer(matching=b"COMMIT")
    async with await psycopg.AsyncConnection.connect(proxy.dsn) as connection:
        await connection.execute("INSERT INTO t SELECT generate_series(1, %s)", [3])
        with pytest.raises(psycopg.OperationalError):
            await connection.commit()
    assert lost.is_set()
    assert run_sql(database, "SELECT count(*) FROM t") == [(3,)]


async def pipeline(connection: psycopg.AsyncConnection) -> None:
    async with connection.pipeline():
        # The first answer alone is larger than what the server buffers.
        await connection.execute("SELECT repeat('x', 100000)")
        await connection.execute("INSERT INTO t VALUES (1)")
        await connection.execute("INSERT INTO t VALUES (2)")


async def test_a_lost_answer_to_a_pipeline(database: str, proxy: FaultProxy) -> None:
    run_sql(database, "CREATE TABLE t (n int, filler text)")
    lost = proxy.cut_on_answer(matching=b"INSERT")
    async with await connect(proxy.dsn) as connection:
        with pytest.raises(psycopg.OperationalError):
            await pipeline(connection)
    assert lost.is_set()
    assert run_sql(database, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]


async def test_half_open_tells_nobody(database: str, proxy: FaultProxy) -> None:
    gone = proxy.half_open(matching=b"42")
    connection = await connect(proxy.dsn)
    waiting = asyncio.create_task(connection.execute("SELECT 42"))
    await gone.wait()
    assert not waiting.done()
    assert len(proxy.connections) == 1
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        await waiting
    await connection.close()


async def test_hold_lets_one_session_overtake_another(database: str, proxy: FaultProxy) -> None:
    run_sql(database, "CREATE TABLE t (n int GENERATED ALWAYS AS IDENTITY, who text)")
    held = proxy.hold(matching=b"'first'")
    async with await connect(proxy.dsn) as first, await connect(proxy.dsn) as second:
        waiting = asyncio.create_task(first.execute("INSERT INTO t (who) VALUES ('first')"))
        await held.reached.wait()
        await second.execute("INSERT INTO t (who) VALUES ('second')")
        held.release()
        await waiting
    assert run_sql(database, "SELECT who FROM t ORDER BY n") == [("second",), ("first",)]


async def test_connections_can_move_to_another_server(database: str, proxy: FaultProxy) -> None:
    proxy.set_target("postgresql://127.0.0.1:1/nowhere")
    with pytest.raises(psycopg.OperationalError):
        await connect(proxy.dsn)
    proxy.set_target(database)
    async with await connect(proxy.dsn) as connection:
        await connection.execute("SELECT 1")
