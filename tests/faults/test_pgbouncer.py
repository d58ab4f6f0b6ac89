"""Behind the real PgBouncer in transaction mode, with fewer sessions than clients: everything works, and nothing leaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypedDict

import asyncpg
import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from psycopg_pool import AsyncConnectionPool

from pgcairn import AsyncPostgresSaver, DatabaseError, PgcairnError, Settings
from pgcairn.operations.doctor import examine
from tests.support.load import Load
from tests.support.pgbouncer import NoPgBouncer, PgBouncer
from tests.support.savers import checkpoint, config, get, listed, put, saver_on
from tests.support.server import PostgresServer, Server, ServerFolder

DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
# Sessions that the bouncer keeps; savers ask for more.
_SESSIONS = 3


@pytest.fixture(scope="module")
def bouncer(server_folder: ServerFolder, server: Server) -> Iterator[PgBouncer]:
    """A bouncer before the shared server."""
    try:
        one = PgBouncer(server_folder, server.dsn(), sessions=_SESSIONS)
    except NoPgBouncer as missing:
        pytest.skip(str(missing))
    one.start()
    yield one
    one.stop()


@pytest.fixture
def through(bouncer: PgBouncer, server: Server) -> Iterator[str]:
    """The address of an empty database through the bouncer."""
    if not isinstance(server, PostgresServer):
        pytest.skip("needs a server on this machine")
    name = server.create_database()
    yield bouncer.dsn(name)
    server.drop_database(name)


def direct(server: Server, through: str) -> str:
    """The same database without the bouncer."""
    return server.dsn(through.rpartition("/")[2])


# --- everything works -----------------------------------------------------------------------------------


@DRIVERS
async def test_two_savers_under_load_with_the_default_settings(
    server: Server, through: str, driver: str
) -> None:
    async with AsyncExitStack() as stack:
        savers = [
            await stack.enter_async_context(saver_on(through, "pgcairn", driver=driver, max_size=6))
            for _ in range(2)
        ]
        loads = [Load(saver, tasks=12, name=f"load{number}") for number, saver in enumerate(savers)]
        for load in loads:
            await stack.enter_async_context(load.running())
        for load in loads:
            await load.answers(400)
    for load in loads:
        assert not load.errors
        assert await load.missing(direct(server, through)) == []


@DRIVERS
async def test_many_set_the_schema_up_at_once(server: Server, through: str, driver: str) -> None:
    async def one() -> None:
        async with saver_on(through, "pgcairn", driver=driver):
            pass

    await asyncio.gather(*(one() for _ in range(8)))
    rows = server.sql(
        "SELECT count(*) = max(version) FROM pgcairn.schema_version", database=through.rpartition("/")[2]
    )
    assert rows == [(True,)]


class _State(TypedDict):
    n: int


@DRIVERS
async def test_a_graph_that_is_interrupted_and_resumed(through: str, driver: str) -> None:
    def ask(state: _State) -> dict[str, Any]:
        return {"n": state["n"] + interrupt("how much?")}

    builder = StateGraph(_State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    async with saver_on(through, "pgcairn", driver=driver) as saver:
        graph = builder.compile(checkpointer=saver)
        configs: list[Any] = [config(f"t{number}") for number in range(20)]
        await asyncio.gather(*(graph.ainvoke({"n": 1}, each) for each in configs))
        results = await asyncio.gather(*(graph.ainvoke(Command(resume=41), each) for each in configs))
        assert results == [{"n": 42}] * 20


@DRIVERS
async def test_whole_threads(through: str, driver: str) -> None:
    async with saver_on(through, "pgcairn", driver=driver) as saver:
        where = config("a")
        for number in range(1, 31):
            where = await put(saver, where, checkpoint(number, {"messages": ["lorem ipsum " * 200] * number}))
        await saver.acopy_thread("a", "b")
        await saver.aprune(["a"], keep_last=2)
        assert len(await listed(saver, config("a"))) == 2
        assert len(await listed(saver, config("b"))) == 30
        history = await saver.aget_delta_channel_history(config=config("b"), channels=["messages"])
        assert history["messages"]["seed"]
        await saver.adelete_thread("b")
        assert await saver.aget_tuple(config("b")) is None
        report = await examine(saver)
        assert report.is_clean


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
async def test_pools_of_the_users(through: str, kind: str) -> None:
    async with AsyncExitStack() as stack:
        pool: Any
        if kind == "psycopg":
            pool = AsyncConnectionPool(
                through, min_size=1, max_size=6, open=False, kwargs={"prepare_threshold": None}
            )
            await stack.enter_async_context(pool)
        else:
            pool = await stack.enter_async_context(
                asyncpg.create_pool(through, min_size=1, max_size=6, statement_cache_size=0)
            )
        saver = await stack.enter_async_context(AsyncPostgresSaver(pool))
        await saver.setup()
        await asyncio.gather(*(put(saver, config(f"t{n}"), checkpoint(1, {"n": n})) for n in range(50)))
        found = await asyncio.gather(*(get(saver, config(f"t{n}")) for n in range(50)))
        assert [each.checkpoint["channel_values"]["n"] for each in found] == list(range(50))


# --- what is lost between here and the server -----------------------------------------------------------


async def _use(saver: AsyncPostgresSaver) -> None:
    await asyncio.gather(*(put(saver, config(f"t{n}"), checkpoint(1, {"n": n})) for n in range(30)))
    await asyncio.gather(*(saver.aget_tuple(config(f"t{n}")) for n in range(30)))


async def test_psycopg_goes_on_without_prepared_statements(
    bouncer: PgBouncer, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    if bouncer.prepares:
        pytest.skip("this PgBouncer knows prepared statements")
    async with (
        saver_on(through, "pgcairn", max_size=6) as one,
        saver_on(through, "pgcairn", max_size=6) as two,
    ):
        while "going on without them" not in caplog.text:
            await asyncio.gather(_use(one), _use(two))
        retries = one.stats().retries + two.stats().retries
        assert 0 < retries <= 2 * 6, "a call or two of each session, and then no more"


@DRIVERS
async def test_who_insists_on_prepared_statements_is_told(
    bouncer: PgBouncer, through: str, driver: str
) -> None:
    async with AsyncExitStack() as stack:
        savers = [
            await stack.enter_async_context(
                saver_on(through, "pgcairn", driver=driver, max_size=6, prepared_statements=True)
            )
            for _ in range(2)
        ]
        if bouncer.prepares:
            await asyncio.gather(*map(_use, savers))
            return
        told = False
        while not told:  # other errors may come first: a statement of another client answers
            results = await asyncio.gather(*map(_use, savers), return_exceptions=True)
            told = any(
                isinstance(each, DatabaseError) and "prepared_statements=False" in each.hint
                for each in results
            )


# --- nothing leaks ----------------------------------------------------------------------------------------

_LEFT = """
    SELECT 'setting ' || name FROM pg_settings WHERE source = 'session' AND setting <> reset_val
        AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone')
    UNION ALL SELECT 'advisory lock' FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
    UNION ALL SELECT 'listens on ' || c FROM pg_listening_channels() AS c
    UNION ALL SELECT 'statement ' || name FROM pg_prepared_statements
    UNION ALL SELECT 'temporary table ' || relname FROM pg_class WHERE relpersistence = 't'
"""


@DRIVERS
async def test_nothing_is_left_in_the_sessions_for_other_clients(through: str, driver: str) -> None:
    async with saver_on(through, "pgcairn", driver=driver, max_size=6, prepared_statements=False) as saver:
        await _use(saver)
        await saver.acopy_thread("t0", "copy")
        await saver.aprune(["t0", "t1"])
        await saver.adelete_for_runs(["nobody's"])
        await saver.adelete_thread("t2")
        with ExitStack() as stack:
            pids = set()
            for _ in range(_SESSIONS):  # all at once, so that each is another one
                connection = stack.enter_context(psycopg.connect(through, prepare_threshold=None))
                pids.add(connection.execute("SELECT pg_backend_pid()").fetchall()[0])
                assert connection.execute(_LEFT.encode()).fetchall() == []
            assert len(pids) == _SESSIONS


# --- faults -----------------------------------------------------------------------------------------------


@DRIVERS
async def test_the_bouncer_is_restarted(
    server: Server, bouncer: PgBouncer, through: str, driver: str
) -> None:
    async with saver_on(through, "pgcairn", driver=driver, max_size=6) as saver:
        load = Load(saver)
        async with load.running():
            for _ in range(2):
                await load.answers(100)
                await asyncio.to_thread(bouncer.restart)
            await load.answers(100)
    assert not load.errors
    assert await load.missing(direct(server, through)) == []


@DRIVERS
async def test_its_sessions_are_killed(server: Server, through: str, driver: str) -> None:
    async with saver_on(through, "pgcairn", driver=driver, max_size=6) as saver:
        load = Load(saver)
        async with load.running():
            for _ in range(3):
                await load.answers(100)
                await asyncio.to_thread(server.terminate_sessions, through.rpartition("/")[2])
            await load.answers(100)
    assert not load.errors
    assert await load.missing(direct(server, through)) == []


@DRIVERS
async def test_cancelled_callers_leave_no_transaction_behind(
    server: Server, through: str, driver: str
) -> None:
    draw = random.Random(driver)
    async with saver_on(through, "pgcairn", driver=driver, max_size=6) as saver:

        async def caller(number: int) -> None:
            await put(saver, config(f"t{number}"), checkpoint(1, {"n": number}))
            await saver.aget_tuple(config(f"t{number}"))
            await saver.aprune([f"t{number}"])

        for _ in range(5):
            callers = [asyncio.create_task(caller(number)) for number in range(40)]
            for each in callers:
                for _ in range(draw.randrange(4)):
                    await asyncio.sleep(0)
                each.cancel()
            await asyncio.wait(callers)
        await asyncio.gather(*(caller(number) for number in range(40)))
        await saver.aclose()
    rows = server.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state LIKE 'idle in transaction%%'",
        through.rpartition("/")[2],
    )
    assert rows == [(0,)]


async def test_settings_say_what_they_may_be() -> None:
    assert Settings().prepared_statements is None
    with pytest.raises(PgcairnError, match="prepared_statements='no'"):
        Settings(prepared_statements="no")  # type: ignore[arg-type]
