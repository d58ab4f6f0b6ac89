"""The connection seam, held by one suite: both drivers run the same tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from pgcairn import AsyncPostgresSaver, Settings
from pgcairn.connection import asyncpg_driver, psycopg_driver
from pgcairn.connection.pool import Pool, Query, Session
from pgcairn.engine import owned_pool
from pgcairn.errors import (
    ClosedError,
    DatabaseError,
    OutcomeUnknown,
    PgcairnError,
    RejectedError,
    SchemaError,
    UnavailableError,
)
from pgcairn.settings import Driver
from pgcairn.telemetry import Counters
from tests.support.addresses import url, with_changes
from tests.support.proxy import FaultProxy
from tests.support.server import PostgresServer, Server, StartServer, run_sql

DRIVERS: tuple[Driver, ...] = ("psycopg", "asyncpg")

# Nothing listens on it: the port is privileged and reserved.
DEAD_PORT = 1


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.param
    return found


OpenPool = Callable[..., AbstractAsyncContextManager[Pool]]


@pytest.fixture
def open_pool(driver: Driver) -> OpenPool:
    """A function that makes a pool of pgcairn's own; fields of ``Settings`` by name."""

    @asynccontextmanager
    async def make(dsn: str, counters: Counters | None = None, **fields: Any) -> AsyncIterator[Pool]:
        settings = Settings(driver=driver, **{"min_size": 1, **fields})
        pool = owned_pool(dsn, settings, counters or Counters())
        try:
            await pool.open()
            yield pool
        finally:
            await pool.close()

    return make


@pytest.fixture
async def pool(dsn: str, open_pool: OpenPool) -> AsyncIterator[Pool]:
    """A pool of one session, so that whatever happens to it shows."""
    async with open_pool(dsn, max_size=1) as opened:
        yield opened


def query(text: str, *types: str) -> Query:
    return Query("test", f"/* pgcairn:test */ {text}", types)


async def ask(session: Session, text: str) -> Any:
    [(value,)] = await session.fetch(query(text), ())
    return value


async def pid_of(session: Session) -> int:
    return int(await ask(session, "SELECT pg_backend_pid()"))


@contextlib.contextmanager
def table(dsn: str, name: str, columns: str) -> Iterator[None]:
    run_sql(dsn, f"CREATE TABLE {name} ({columns})")
    try:
        yield
    finally:
        run_sql(dsn, f"DROP TABLE {name}")


# --- parameters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("text", "plain"),
        ("text", ""),
        ("text", "žluťoučký 🐎 \u202e \U0010ffff ' \" \\ $1 %s"),
        ("text", None),
        ("bytea", b""),
        ("bytea", bytes(range(256))),
        ("bytea", bytes(range(256)) * (5 * 4096)),
        ("bytea", None),
        ("int4", 0),
        ("int4", -(2**31)),
        ("int4", 2**31 - 1),
        ("int4", None),
        ("int8", 2**63 - 1),
        ("int8", -(2**63)),
        ("text[]", []),
        ("text[]", ["a", "", "NULL", 'quo"te', "{}", "back\\slash", "🐎"]),
        ("text[]", ["a", None, "", None]),
        ("text[]", [None]),
        ("text[]", [str(n) for n in range(2000)]),
        ("bytea[]", []),
        ("bytea[]", [b"", b"\x00", b"\\x00", bytes(range(256))]),
        ("bytea[]", [b"a", None]),
        ("bytea[]", [b"\x00\xff" * 500_000] * 5),
        ("int4[]", []),
        ("int4[]", [0, -1, 2**31 - 1, -(2**31)]),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_parameters_come_back(pool: Pool, type_name: str, value: object) -> None:
    async with pool.acquire() as session:
        [(back, kind)] = await session.fetch(
            query(f"SELECT $1::{type_name}, pg_typeof($1)::text", type_name), (value,)
        )
    assert back == value
    assert type(back) is type(value)
    assert kind == {"int4": "integer", "int8": "bigint", "int4[]": "integer[]"}.get(type_name, type_name)


async def test_arrays_may_be_tuples(pool: Pool) -> None:
    async with pool.acquire() as session:
        rows = await session.fetch(
            query("SELECT * FROM unnest($1::text[], $2::bytea[], $3::int4[])", "text[]", "bytea[]", "int4[]"),
            (("a", None), (b"x", b""), (1, 2)),
        )
    assert [tuple(row) for row in rows] == [("a", b"x", 1), (None, b"", 2)]


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("text", "a\x00b"),
        ("text[]", ["fine", "a\x00b"]),
        ("text", "\ud800"),
        ("text[]", ["fine", "\ud800"]),
        ("int4", 2**31),
        ("int4[]", [2**31]),
        ("int8", 2**63),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_what_postgresql_cannot_hold_is_rejected(pool: Pool, type_name: str, value: object) -> None:
    async with pool.acquire() as session:
        pid = await pid_of(session)
        with pytest.raises(RejectedError):
            await session.fetch(query(f"SELECT $1::{type_name}", type_name), (value,))
        assert await ask(session, "SELECT 'still fine'") == "still fine"
    async with pool.acquire() as session:
        assert await pid_of(session) == pid


async def test_results_without_rows(pool: Pool) -> None:
    async with pool.acquire() as session:
        assert list(await session.fetch(query("SELECT 1 WHERE false"), ())) == []
        assert list(await session.fetch(query("DO $$ BEGIN END $$"), ())) == []
        await session.script("SELECT 1; SELECT 2")


async def test_json_is_text_whatever_the_user_registered(dsn: str) -> None:
    async def init(connection: Any) -> None:
        await connection.set_type_codec(
            "jsonb", encoder=repr, decoder=lambda text: 1 / 0, schema="pg_catalog"
        )

    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1, init=init) as users,
        AsyncPostgresSaver(users, settings=Settings(schema="codec_of_the_user")) as saver,
    ):
        await saver.setup()
        assert await saver.aget_tuple({"configurable": {"thread_id": "t"}}) is None


# --- errors -------------------------------------------------------------------------------------------


async def fail_with(session: Session, sqlstate: str) -> None:
    # In a statement of its own, because no function is needed then.
    await session.script(f"DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{sqlstate}'; END $$")


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("21000", RejectedError),
        ("22001", RejectedError),
        ("22021", RejectedError),
        ("23502", RejectedError),
        ("23505", RejectedError),
        ("23514", RejectedError),
        ("54000", RejectedError),
        ("P0001", RejectedError),
        ("42P01", SchemaError),
        ("42703", SchemaError),
        ("3F000", SchemaError),
        ("42501", DatabaseError),
        ("42601", DatabaseError),
        ("53100", DatabaseError),
        ("53200", DatabaseError),
        ("57014", DatabaseError),
        ("XX000", DatabaseError),
        ("40001", UnavailableError),
        ("40P01", UnavailableError),
        ("53300", UnavailableError),
        ("55P03", UnavailableError),
    ],
)
async def test_what_a_sqlstate_means(pool: Pool, sqlstate: str, kind: type[PgcairnError]) -> None:
    async with pool.acquire() as session:
        pid = await pid_of(session)
        with pytest.raises(PgcairnError, match="on purpose") as caught:
            await fail_with(session, sqlstate)
        assert type(caught.value) is kind
        assert getattr(caught.value, "sqlstate", sqlstate) == sqlstate
        assert sqlstate in str(caught.value)
        assert getattr(caught.value.__cause__, "sqlstate", None) == sqlstate
        assert caught.value.retryable is (kind is UnavailableError)
        assert await ask(session, "SELECT 1") == 1
    async with pool.acquire() as session:
        assert await pid_of(session) == pid, "the session is in order and must not be replaced"


async def test_a_missing_table(pool: Pool) -> None:
    async with pool.acquire() as session:
        with pytest.raises(SchemaError, match="no_such_table") as caught:
            await session.fetch(query("SELECT * FROM no_such_table WHERE x = $1::text", "text"), ("a",))
    assert "pgcairn setup" in str(caught.value)


async def test_a_unique_violation(dsn: str, pool: Pool, schema: str) -> None:
    with table(dsn, schema, "n int PRIMARY KEY"):
        async with pool.acquire() as session:
            insert = query(f"INSERT INTO {schema} VALUES ($1::int4)", "int4")
            await session.fetch(insert, (1,))
            with pytest.raises(RejectedError) as caught:
                await session.fetch(insert, (1,))
            assert caught.value.sqlstate == "23505"
            await session.fetch(insert, (2,))
        assert run_sql(dsn, f"SELECT n FROM {schema} ORDER BY n") == [(1,), (2,)]


async def test_a_missing_permission(dsn: str, pool: Pool, schema: str) -> None:
    with table(dsn, schema, "n int"):
        async with pool.acquire() as session:
            await session.script("SET ROLE pg_monitor")
            with pytest.raises(DatabaseError, match="permission denied") as caught:
                await session.fetch(query(f"SELECT n FROM {schema}"), ())
            await session.script("RESET ROLE")
    assert type(caught.value) is DatabaseError
    assert caught.value.sqlstate == "42501"


@pytest.mark.parametrize("sqlstate", ["25006", "57P01", "57P02", "57P03", "57P05", "08006"])
async def test_a_session_that_is_of_no_more_use_is_replaced(pool: Pool, sqlstate: str) -> None:
    async with pool.acquire() as session:
        pid = await pid_of(session)
        with pytest.raises((UnavailableError, OutcomeUnknown)):
            await fail_with(session, sqlstate)
    async with pool.acquire() as session:
        assert await pid_of(session) != pid
    assert pool.size == 1


async def test_a_read_only_server(pool: Pool, schema: str) -> None:
    async with pool.acquire() as session:
        pid = await pid_of(session)
        await session.script("SET default_transaction_read_only = on")
        with pytest.raises(UnavailableError, match="25006"):
            await session.script(f"CREATE TABLE {schema} ()")
    async with pool.acquire() as session:
        assert await pid_of(session) != pid
        assert await ask(session, "SHOW default_transaction_read_only") == "off"


async def test_a_killed_session_is_replaced(dsn: str, pool: Pool) -> None:
    async with pool.acquire() as session:
        pid = await pid_of(session)
        assert run_sql(dsn, "SELECT pg_terminate_backend(%s, 10000)", pid) == [(True,)]
        with pytest.raises((UnavailableError, OutcomeUnknown)) as caught:
            await session.fetch(query("SELECT 1"), ())
    assert caught.value.retryable
    async with pool.acquire() as session:
        assert await pid_of(session) != pid
    assert pool.size == pool.idle == 1


async def test_a_session_killed_while_it_works(dsn: str, pool: Pool) -> None:
    async with pool.acquire() as session:
        with pytest.raises((UnavailableError, OutcomeUnknown)):
            await session.fetch(query("SELECT pg_terminate_backend(pg_backend_pid())"), ())
    async with pool.acquire() as session:
        assert await ask(session, "SELECT 1") == 1


async def test_a_connection_cut_after_the_statement_was_sent(
    dsn: str, open_pool: OpenPool, schema: str
) -> None:
    with table(dsn, schema, "n int"):
        async with FaultProxy(dsn) as proxy, open_pool(proxy.dsn, max_size=1) as pool:
            insert = query(f"INSERT INTO {schema} VALUES ($1::int4)", "int4")
            async with pool.acquire() as session:
                await session.fetch(insert, (1,))
                lost = proxy.cut_on_answer()
                with pytest.raises(OutcomeUnknown) as caught:
                    await session.fetch(insert, (2,))
            assert lost.is_set()
            assert caught.value.retryable
            async with pool.acquire() as session:
                await session.fetch(insert, (3,))
        assert run_sql(dsn, f"SELECT n FROM {schema} ORDER BY n") == [(1,), (2,), (3,)]


async def test_a_closed_pool(dsn: str, open_pool: OpenPool) -> None:
    async with open_pool(dsn) as pool:
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1
        await pool.close()
        with pytest.raises(ClosedError, match="pool"):
            async with pool.acquire():
                pytest.fail("a closed pool lent a session")
        await pool.close()


async def test_opening_twice(dsn: str, open_pool: OpenPool) -> None:
    async with open_pool(dsn, max_size=1) as pool:
        await pool.open()
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1
        assert pool.size == 1


@asynccontextmanager
async def users_pool(driver: Driver, dsn: str, *, opened: bool) -> AsyncIterator[tuple[Any, Pool]]:
    settings, counters = Settings(), Counters()
    if driver == "psycopg":
        theirs = AsyncConnectionPool(dsn, min_size=1, max_size=2, open=False)
        adapter: Pool = psycopg_driver.PsycopgPool(theirs, settings, counters, owned=False)
        if opened:
            await theirs.open()
        try:
            yield theirs, adapter
        finally:
            await theirs.close()
        return
    theirs = asyncpg.create_pool(dsn, min_size=1, max_size=2)
    adapter = asyncpg_driver.AsyncpgPool(theirs, settings, counters)
    if opened:
        await theirs
    try:
        yield theirs, adapter
    finally:
        if opened:
            await theirs.close()


async def test_a_users_pool_that_is_not_open(driver: Driver, dsn: str) -> None:
    async with users_pool(driver, dsn, opened=False) as (_, pool):
        await pool.open()
        with pytest.raises(ClosedError, match="pool that was given"):
            async with pool.acquire():
                pytest.fail("a pool that is not open lent a session")


async def test_a_users_pool_that_was_closed(driver: Driver, dsn: str) -> None:
    async with users_pool(driver, dsn, opened=True) as (theirs, pool):
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1
        await theirs.close()
        with pytest.raises(ClosedError, match="pool that was given"):
            async with pool.acquire():
                pytest.fail("a closed pool lent a session")


async def test_a_users_pool_stays_open(driver: Driver, dsn: str) -> None:
    async with users_pool(driver, dsn, opened=True) as (_, pool):
        await pool.close()
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1


async def use(pool: AbstractAsyncContextManager[Pool]) -> None:
    async with pool as opened, opened.acquire():
        pass


# Longer than a test may take: what waits for it fails.
FOR_EVER = {"acquire_timeout_seconds": 600.0, "connect_timeout_seconds": 600.0}


@pytest.mark.timeout(30)
async def test_an_unreachable_server_is_named_at_once(dsn: str, open_pool: OpenPool) -> None:
    with pytest.raises(UnavailableError, match=r"refused|Connect call failed") as caught:
        await use(open_pool(with_changes(dsn, port=DEAD_PORT), **FOR_EVER))
    assert caught.value.retryable


@pytest.mark.timeout(30)
async def test_a_wrong_password_is_named_at_once(dsn: str, open_pool: OpenPool) -> None:
    given = conninfo_to_dict(dsn)
    wrong = url(
        host=str(given["host"]),
        port=int(given["port"] or 0),
        user=str(given["user"]),
        password="not the password",
        database=str(given["dbname"]),
    )
    with pytest.raises(UnavailableError, match="password authentication failed"):
        await use(open_pool(wrong, **FOR_EVER))


@pytest.mark.timeout(30)
async def test_a_wrong_database_is_named_at_once(dsn: str, open_pool: OpenPool) -> None:
    with pytest.raises(UnavailableError, match='database "no_such_database" does not exist'):
        await use(open_pool(with_changes(dsn, database="no_such_database"), **FOR_EVER))


async def test_an_exhausted_pool(dsn: str, open_pool: OpenPool) -> None:
    async with open_pool(dsn, max_size=1, acquire_timeout_seconds=0.01) as pool, AsyncExitStack() as stack:
        while True:  # connecting may take longer than that
            try:
                session = await stack.enter_async_context(pool.acquire())
                break
            except UnavailableError:
                continue
        with pytest.raises(UnavailableError, match="No session could be had"):
            async with pool.acquire():
                pytest.fail("two sessions of one")
        assert await ask(session, "SELECT 1") == 1
        await stack.aclose()
        assert pool.size == pool.idle == 1


# --- transactions -------------------------------------------------------------------------------------


class Unrelated(Exception):
    """An error that is nobody's but the test's."""


Step = Callable[[], Awaitable[object]]


class Ledger:
    """A table of ints, and the steps that tests put together on one session."""

    def __init__(self, dsn: str, name: str, session: Session) -> None:
        self._dsn = dsn
        self._name = name
        self._session = session

    def seen(self) -> list[int]:
        """What other sessions see."""
        return [n for (n,) in run_sql(self._dsn, f"SELECT n FROM {self._name} ORDER BY n")]

    def insert(self, number: int) -> Step:
        statement = query(f"INSERT INTO {self._name} VALUES ($1::int4)", "int4")
        return lambda: self._session.fetch(statement, (number,))

    def refused(self) -> Step:
        return lambda: fail_with(self._session, "23514")

    def transaction(self, *steps: Step) -> Step:
        async def run() -> None:
            async with self._session.transaction():
                for step in steps:
                    await step()

        return run

    def failing(self, step: Step, kind: type[Exception]) -> Step:
        async def run() -> None:
            with pytest.raises(kind):
                await step()

        return run


@asynccontextmanager
async def ledger(dsn: str, pool: Pool, name: str, more: str = "") -> AsyncIterator[Ledger]:
    with table(dsn, name, f"n int {more}"):
        async with pool.acquire() as session:
            yield Ledger(dsn, name, session)


async def test_a_transaction_commits_at_its_end(dsn: str, pool: Pool, schema: str) -> None:
    async with ledger(dsn, pool, schema) as book:

        async def nothing_is_seen() -> None:
            assert book.seen() == []

        await book.transaction(book.insert(1), book.insert(2), nothing_is_seen)()
        assert book.seen() == [1, 2]
        await book.insert(3)()
        assert book.seen() == [1, 2, 3], "outside a transaction a statement is its own"


LEVEL = query("SELECT current_setting('transaction_isolation')")


async def test_a_transaction_can_insist_on_read_committed(
    database: str, open_pool: OpenPool, server: Server
) -> None:
    name = conninfo_to_dict(database)["dbname"]
    server.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    async with open_pool(database, max_size=1) as pool:
        for _ in range(2):  # the session is left as it was
            async with pool.acquire() as session:
                async with session.transaction(read_committed=True):
                    assert list(await session.fetch(LEVEL, ())) == [("read committed",)]
                    async with session.transaction(read_committed=True):
                        assert list(await session.fetch(LEVEL, ())) == [("read committed",)]
                async with session.transaction():
                    assert list(await session.fetch(LEVEL, ())) == [("repeatable read",)]
                    async with session.transaction(
                        read_committed=True
                    ):  # a savepoint has no level of its own
                        assert list(await session.fetch(LEVEL, ())) == [("repeatable read",)]
                with pytest.raises(RejectedError):
                    async with session.transaction(read_committed=True):
                        await fail_with(session, "23514")
                async with session.transaction():
                    assert list(await session.fetch(LEVEL, ())) == [("repeatable read",)]


async def test_a_transaction_that_raises_is_rolled_back(dsn: str, pool: Pool, schema: str) -> None:
    mine = Unrelated()

    async def raise_mine() -> None:
        raise mine

    async with ledger(dsn, pool, schema) as book:
        with pytest.raises(Unrelated) as caught:
            await book.transaction(book.insert(1), raise_mine)()
        assert caught.value is mine
        assert caught.value.__cause__ is None
        with pytest.raises(RejectedError):
            await book.transaction(book.insert(2), book.refused())()
        await book.insert(3)()
        assert book.seen() == [3]


async def test_a_transaction_within_one_is_a_savepoint(dsn: str, pool: Pool, schema: str) -> None:
    async def raise_unrelated() -> None:
        raise Unrelated

    async with ledger(dsn, pool, schema) as book:
        inner_fails = book.failing(book.transaction(book.insert(2), book.refused()), RejectedError)
        await book.transaction(book.insert(1), inner_fails, book.transaction(book.insert(3)))()
        with pytest.raises(Unrelated):
            await book.transaction(book.transaction(book.insert(4)), raise_unrelated)()
        assert book.seen() == [1, 3]


async def test_an_error_that_the_commit_finds(dsn: str, pool: Pool, schema: str) -> None:
    async with ledger(dsn, pool, schema, "UNIQUE DEFERRABLE INITIALLY DEFERRED") as book:
        with pytest.raises(RejectedError, match="23505"):
            await book.transaction(book.insert(1), book.insert(1))()
        await book.insert(2)()
        assert book.seen() == [2]


async def test_a_connection_lost_within_a_transaction(dsn: str, open_pool: OpenPool, schema: str) -> None:
    async with FaultProxy(dsn) as proxy, open_pool(proxy.dsn, max_size=1) as pool:
        async with ledger(dsn, pool, schema) as book:

            async def cut() -> None:
                proxy.cut()

            with pytest.raises((UnavailableError, OutcomeUnknown)):
                await book.transaction(book.insert(1), cut, book.insert(2))()
            assert book.seen() == []
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1
        assert pool.size == 1


# --- cancellation -------------------------------------------------------------------------------------


@asynccontextmanager
async def advisory_lock(dsn: str) -> AsyncIterator[Query]:
    """Hold a lock; the value is a statement that waits for it."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
        await other.execute("SELECT pg_advisory_lock(7)")
        yield query("SELECT pg_advisory_xact_lock($1::int8)", "int8")


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_cancelled_fetch_loses_no_slot(dsn: str, open_pool: OpenPool, in_transaction: bool) -> None:
    async with (
        FaultProxy(dsn) as proxy,
        open_pool(proxy.dsn, max_size=1) as pool,
        advisory_lock(dsn) as wait_for_it,
    ):

        async def work() -> None:
            async with pool.acquire() as session:
                if in_transaction:
                    async with session.transaction():
                        await session.fetch(wait_for_it, (7,))
                await session.fetch(wait_for_it, (7,))

        async with pool.acquire() as session:
            await session.fetch(wait_for_it, (8,))  # prepared, so that the next is one Execute
        for _ in range(3):
            sent = proxy.count.executes
            task = asyncio.create_task(work())
            await proxy.counter.wait_until(lambda count, sent=sent: count.executes > sent)  # type: ignore[misc]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1
        assert pool.size == pool.idle == 1


async def test_a_cancelled_wait_for_a_session_loses_no_slot(pool: Pool) -> None:
    async def work() -> int:
        async with pool.acquire() as session:
            return await pid_of(session)

    async with pool.acquire():
        tasks = [asyncio.create_task(work()) for _ in range(5)]
        started = asyncio.create_task(asyncio.sleep(0))
        await started
        for task in tasks[:4]:
            task.cancel()
        await asyncio.gather(*tasks[:4], return_exceptions=True)
    await tasks[4]
    assert all(task.cancelled() for task in tasks[:4])
    assert pool.size == pool.idle == 1


# --- what belongs to the user -------------------------------------------------------------------------


@pytest.mark.parametrize("autocommit", [False, True])
async def test_a_users_connection_gets_its_autocommit_back(dsn: str, autocommit: bool) -> None:
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=autocommit, row_factory=dict_row
    ) as theirs:
        pool = psycopg_driver.PsycopgConnectionAsPool(theirs, Settings(), Counters())
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1
        assert theirs.autocommit is autocommit
        with pytest.raises(RejectedError):
            async with pool.acquire() as session:
                await fail_with(session, "23514")
        assert theirs.autocommit is autocommit
        assert await (await theirs.execute("SELECT 1 AS n")).fetchone() == {"n": 1}


async def test_a_users_open_transaction_stays_theirs(dsn: str, schema: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as theirs:
        pool = psycopg_driver.PsycopgConnectionAsPool(theirs, Settings(), Counters())
        await theirs.execute(f"CREATE TABLE {schema} (n int)".encode())
        async with pool.acquire() as session, session.transaction():
            await session.fetch(query(f"INSERT INTO {schema} VALUES (1)"), ())
        await theirs.rollback()
        assert theirs.autocommit is False
    assert run_sql(dsn, "SELECT to_regclass(%s) IS NULL", schema) == [(True,)]


async def test_a_users_pool_gets_its_connections_back_as_they_were(dsn: str) -> None:
    async with AsyncConnectionPool(
        dsn, min_size=1, max_size=1, open=False, kwargs={"row_factory": dict_row, "prepare_threshold": 3}
    ) as theirs:
        pool = psycopg_driver.PsycopgPool(theirs, Settings(), Counters(), owned=False)
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1
        async with theirs.connection() as connection:
            assert connection.autocommit is False
            assert connection.prepare_threshold == 3
            assert connection.row_factory is dict_row  # type: ignore[comparison-overlap]


async def test_a_users_closed_connection(dsn: str) -> None:
    theirs = await psycopg.AsyncConnection.connect(dsn)
    pool = psycopg_driver.PsycopgConnectionAsPool(theirs, Settings(), Counters())
    await theirs.close()
    with pytest.raises(ClosedError, match="cannot heal itself"):
        async with pool.acquire():
            pytest.fail("a closed connection was lent")


# --- prepared statements ------------------------------------------------------------------------------

COUNT_PREPARED = query(
    "SELECT count(*) FROM pg_prepared_statements WHERE strpos(statement, $1::text) > 0", "text"
)


async def test_statements_stay_prepared(pool: Pool) -> None:
    for _ in range(3):
        async with pool.acquire() as session:
            await session.fetch(query("SELECT 'mark' || $1::text", "text"), ("a",))
            [(count,)] = await session.fetch(COUNT_PREPARED, ("SELECT 'mark' ||",))
            assert count == 1


async def test_nothing_is_prepared_on_demand(dsn: str, open_pool: OpenPool) -> None:
    async with open_pool(dsn, max_size=1, prepared_statements=False) as pool:
        for _ in range(10):
            async with pool.acquire() as session:
                rows = await session.fetch(query("SELECT $1::text || 'x'", "text"), ("a",))
                assert [tuple(row) for row in rows] == [("ax",)]
                async with session.transaction():
                    await session.fetch(query("SELECT $1::int4", "int4"), (1,))
        async with pool.acquire() as session:
            # Under asyncpg the statement that asks is one for as long as it runs: without a name.
            found = await session.fetch(query("SELECT name FROM pg_prepared_statements"), ())
    assert [name for (name,) in found if name] == []


@pytest.mark.parametrize("threshold", [None, 0, 5])
async def test_a_users_prepare_threshold_is_obeyed(dsn: str, threshold: int | None) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, prepare_threshold=threshold) as theirs:
        pool = psycopg_driver.PsycopgConnectionAsPool(theirs, Settings(), Counters())
        for _ in range(7):
            async with pool.acquire() as session:
                await session.fetch(query("SELECT $1::text", "text"), ("a",))
        cursor = await theirs.execute(
            "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '/* pgcairn:test%'"
        )
        assert ((await cursor.fetchone()) or (0,))[0] == (0 if threshold is None else 1)


# --- connecting ---------------------------------------------------------------------------------------


def several_hosts(*ports: int, like: str, session_attrs: str | None = None) -> str:
    given = conninfo_to_dict(like)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    tail = f"?target_session_attrs={session_attrs}" if session_attrs else ""
    return f"postgresql://{given['user']}:{given['password']}@{hosts}/{given['dbname']}{tail}"


def port_of(dsn: str) -> int:
    return int(conninfo_to_dict(dsn)["port"] or 5432)


@pytest.mark.timeout(30)
async def test_the_next_host_is_tried(dsn: str, open_pool: OpenPool) -> None:
    several = several_hosts(DEAD_PORT, port_of(dsn), like=dsn, session_attrs="read-write")
    async with open_pool(several) as pool, pool.acquire() as session:
        assert await ask(session, "SELECT inet_server_port()") == port_of(dsn)


async def test_a_standby_is_passed_over(
    server: Server, start_server: StartServer, open_pool: OpenPool
) -> None:
    if not isinstance(server, PostgresServer):
        pytest.skip("needs two servers with one password")
    reader = start_server(settings={"default_transaction_read_only": "on"})
    dsn = server.dsn()
    several = several_hosts(reader.port, server.port, like=dsn, session_attrs="read-write")
    async with open_pool(several) as pool, pool.acquire() as session:
        assert await ask(session, "SELECT inet_server_port()") == server.port


@pytest.mark.parametrize("form", ["uri", "keywords"])
async def test_both_forms_of_a_connection_string(
    dsn: str, driver: Driver, open_pool: OpenPool, form: str
) -> None:
    text = dsn
    if form == "keywords":
        text = " ".join(f"{name}={value}" for name, value in conninfo_to_dict(dsn).items())
    async with open_pool(text, application_name="named by the settings") as pool, pool.acquire() as session:
        assert await ask(session, "SHOW application_name") == "named by the settings"


async def test_what_the_connection_string_says_wins(dsn: str, open_pool: OpenPool) -> None:
    text = f"{dsn}?application_name=named+by+me&connect_timeout=7&keepalives=0".replace("+", "%20")
    async with open_pool(text, application_name="named by the settings") as pool, pool.acquire() as session:
        assert await ask(session, "SHOW application_name") == "named by me"


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_passwords_that_rotate(dsn: str, open_pool: OpenPool, asynchronous: bool) -> None:
    given = conninfo_to_dict(dsn)
    secret = str(given["password"])
    asked: list[str] = []

    def password() -> str:
        asked.append("password")
        return secret

    async def password_later() -> str:
        return password()

    without = url(
        host=str(given["host"]), port=port_of(dsn), user=str(given["user"]), database=str(given["dbname"])
    )
    async with open_pool(without, max_size=1, password=password_later if asynchronous else password) as pool:
        async with pool.acquire() as session:
            before = len(asked)
            assert before > 0
            with pytest.raises((UnavailableError, OutcomeUnknown)):
                await fail_with(session, "57P01")
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1
    assert len(asked) == before + 1, "once for each session"


async def test_counters(dsn: str, open_pool: OpenPool) -> None:
    counters = Counters()
    async with open_pool(dsn, counters, max_size=1) as pool:
        async with pool.acquire() as session:
            await session.fetch(query("SELECT 1"), ())
            await session.fetch(query("SELECT 1"), ())
        assert (counters.statements, counters.round_trips) == (2, 2)
        opened = counters.sessions_opened
        assert opened > 0
        async with pool.acquire() as session:
            with pytest.raises((UnavailableError, OutcomeUnknown)):
                await fail_with(session, "57P01")
        async with pool.acquire() as session:
            assert await ask(session, "SELECT 1") == 1
    assert counters.sessions_opened == opened + 1
