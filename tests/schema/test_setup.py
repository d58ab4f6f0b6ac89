"""Setup: once, whoever calls it and however often; and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql

from pgcairn import AsyncPostgresSaver, Settings
from pgcairn.errors import DatabaseError, PgcairnError, SchemaError, UnavailableError
from pgcairn.storage import migrations
from pgcairn.storage.migrations import Migration, _lock_key, all_ddl
from pgcairn.storage.statements import Statements
from tests.support.addresses import with_changes
from tests.support.savers import checkpoint, config, get, put
from tests.support.server import Server, run_sql

_COMMAND = "pgcairn setup"


@contextlib.asynccontextmanager
async def _saver(dsn: str, schema: str, driver: str = "psycopg") -> AsyncIterator[AsyncPostgresSaver]:
    async with AsyncPostgresSaver.from_conn_string(
        dsn, schema=schema, driver=driver, min_size=0, max_size=2
    ) as saver:
        yield saver


async def _setup(dsn: str, schema: str, driver: str = "psycopg") -> None:
    async with _saver(dsn, schema, driver) as saver:
        await saver.setup()


async def _round_trip(dsn: str, schema: str, driver: str = "psycopg") -> None:
    async with _saver(dsn, schema, driver) as saver:
        await put(saver, config(), checkpoint(1, {"x": "y" * 5000}))
        assert (await get(saver, config())).checkpoint["channel_values"] == {"x": "y" * 5000}
        assert len([each async for each in saver.alist(config())]) == 1
        await saver.adelete_thread(config()["configurable"]["thread_id"])


def _installed(dsn: str, schema: str) -> list[tuple[Any, ...]]:
    return run_sql(
        dsn,
        "SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s ORDER BY 1",
        schema,
    )


# --- many at once -----------------------------------------------------------------------------------

_PROGRAM = """
import asyncio, sys
from pgcairn import AsyncPostgresSaver

async def main():
    async with AsyncPostgresSaver.from_conn_string(sys.argv[1], min_size=0, max_size=1) as saver:
        sys.stdout.write("ready\\n")
        sys.stdout.flush()
        sys.stdin.readline()
        await saver.setup()

asyncio.run(main())
"""


def test_twenty_processes_may_call_it_at_once(database: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, database],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(20)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # imported, and at the line
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    endings = [(process.communicate()[1], process.returncode) for process in processes]
    assert endings == [("", 0)] * 20
    applied = run_sql(database, "SELECT version, digest FROM pgcairn.schema_version ORDER BY 1")
    assert applied == [(each.version, each.digest) for each in migrations.migrations()]


async def test_who_waits_for_the_lock_gives_up_at_the_deadline(dsn: str, schema: str) -> None:
    connection = await AsyncConnection.connect(dsn)
    async with connection, _saver(dsn, schema) as saver:
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_key(schema),))
        engine = saver._engine
        async with engine.pool.acquire() as session:
            with pytest.raises(UnavailableError, match="Another process"):
                await migrations.migrate(session, engine.statements, metadata_index=False, deadline_seconds=0)
        await connection.rollback()
        await saver.setup()


# --- inside the caller's transaction ------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False])
async def test_it_goes_with_the_callers_transaction(dsn: str, schema: str, kept: bool) -> None:
    connection = await AsyncConnection.connect(dsn)
    async with connection:
        await connection.execute("SELECT 1")  # opens a transaction
        async with AsyncPostgresSaver(connection, settings=Settings(schema=schema)) as saver:
            await saver.setup()
            await saver.setup()
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
            assert _installed(dsn, schema) == []
            await (connection.commit() if kept else connection.rollback())
    assert bool(_installed(dsn, schema)) == kept
    if kept:
        await _round_trip(dsn, schema)


# --- rights -------------------------------------------------------------------------------------------


@pytest.fixture
def role(server: Server, database: str) -> Iterator[str]:
    """The DSN of a role that may only use what it is granted."""
    name = database.rsplit("/", 1)[-1] + "_role"
    server.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    start, _, place = database.partition("@")
    yield f"{start.split('//')[0]}//{name}:secret@{place}"
    run_sql(database, f"DROP OWNED BY {name}")
    server.sql(f"DROP ROLE {name}")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_role_with_only_dml_rights(database: str, role: str, driver: str) -> None:
    with pytest.raises(DatabaseError, match="permission denied") as raised:
        await _setup(role, "pgcairn", driver)
    assert raised.value.sqlstate == "42501"
    with pytest.raises(SchemaError) as missing:
        await _round_trip(role, "pgcairn", driver)
    assert _COMMAND in str(missing.value)

    await _setup(database, "pgcairn")
    with pytest.raises(DatabaseError, match="permission denied"):
        await _round_trip(role, "pgcairn", driver)

    name = role.split("//")[1].split(":")[0]
    run_sql(database, f"GRANT USAGE ON SCHEMA pgcairn TO {name}")
    run_sql(database, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgcairn TO {name}")
    await _setup(role, "pgcairn", driver)
    await _round_trip(role, "pgcairn", driver)


# --- names --------------------------------------------------------------------------------------------

_NAMES = [
    "with space",
    'quo"te',
    '"',
    "UPPER",
    "схема-日本",
    "x" * 63,
    "é" * 31,
    "a.b",
    "$1",
    "%s",
    "semi;colon--",
    "/* schema */",
    "*/ x",
    "/* schema name */",
    "back\\slash",
    "'",
    "new\nline",
    "select",
]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("name", _NAMES)
async def test_any_name_is_a_schema(dsn: str, name: str, driver: str) -> None:
    await _setup(dsn, name, driver)
    try:
        assert ("schema_version",) in _installed(dsn, name)
        await _setup(dsn, name, driver)
        await _round_trip(dsn, name, driver)
        async with _saver(dsn, name, driver) as saver:
            await saver.setup(metadata_index=True)
            await saver.setup(metadata_index=True)
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


# --- what is refused ------------------------------------------------------------------------------------


async def test_a_missing_schema_names_the_command(dsn: str, schema: str) -> None:
    async with _saver(dsn, schema) as saver:
        with pytest.raises(SchemaError, match=schema) as raised:
            await saver.aget_tuple(config())
        assert _COMMAND in str(raised.value)
        with pytest.raises(SchemaError) as raised:
            await put(saver, config(), checkpoint(1))
        assert _COMMAND in str(raised.value)
        await saver.setup()
        await put(saver, config(), checkpoint(1))


async def test_an_edited_migration_is_refused(dsn: str, schema: str) -> None:
    await _setup(dsn, schema)
    run_sql(dsn, f"UPDATE {schema}.schema_version SET digest = 'edited' WHERE version = 1")
    for call in (_setup, _round_trip):
        with pytest.raises(SchemaError, match="0001_pre_initial"):
            await call(dsn, schema)


@pytest.mark.parametrize(("name", "works"), [("9999_pre_add", True), ("9999_post_drop", False)])
async def test_a_newer_schema(dsn: str, schema: str, name: str, works: bool) -> None:
    await _setup(dsn, schema)
    run_sql(
        dsn, f"INSERT INTO {schema}.schema_version (version, name, digest) VALUES (9999, %s, 'new')", name
    )
    for call in (_setup, _round_trip):
        if works:
            await call(dsn, schema)
        else:
            with pytest.raises(SchemaError, match=f"newer pgcairn .migration {name}"):
                await call(dsn, schema)


async def test_an_older_schema_is_upgraded_and_refused_before(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _setup(dsn, schema)
    shipped = migrations.migrations()
    added = Migration(
        len(shipped) + 1, "pre", "9998_pre_more", "CREATE TABLE /* schema */more (x integer);", "digest"
    )
    monkeypatch.setattr(migrations, "migrations", lambda: (*shipped, added))
    with pytest.raises(SchemaError, match=f"at version {len(shipped)}; this pgcairn needs") as raised:
        await _round_trip(dsn, schema)
    assert _COMMAND in str(raised.value)
    await _setup(dsn, schema)
    assert ("more",) in _installed(dsn, schema)
    await _round_trip(dsn, schema)


async def test_a_migration_that_fails_leaves_nothing(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = migrations.migrations()
    broken = Migration(len(shipped) + 1, "pre", "9998_pre_broken", "CREATE TABLE nowhere.x ();", "digest")
    monkeypatch.setattr(migrations, "migrations", lambda: (*shipped, broken))
    with pytest.raises(PgcairnError):
        await _setup(dsn, schema)
    assert _installed(dsn, schema) == []


async def test_the_official_savers_schema_is_refused(dsn: str, schema: str) -> None:
    run_sql(dsn, f"CREATE SCHEMA {schema}")
    run_sql(dsn, f"CREATE TABLE {schema}.checkpoint_migrations (v integer PRIMARY KEY)")
    for call in (_setup, _round_trip):
        with pytest.raises(SchemaError, match="langgraph-checkpoint-postgres") as raised:
            await call(dsn, schema)
        assert "Settings.schema" in str(raised.value)
    assert len(_installed(dsn, schema)) == 2


@pytest.mark.parametrize("table", ["checkpoints", "channel_values", "writes"])
async def test_a_schema_with_somebody_elses_table_is_refused(dsn: str, schema: str, table: str) -> None:
    run_sql(dsn, f"CREATE SCHEMA {schema}")
    run_sql(dsn, f"CREATE TABLE {schema}.{table} (n integer)")
    before = _installed(dsn, schema)
    for call in (_setup, _round_trip):
        with pytest.raises(SchemaError, match="not its version") as raised:
            await call(dsn, schema)
        assert "Settings.schema" in str(raised.value)
    assert _installed(dsn, schema) == before


async def test_an_empty_schema_that_exists_is_used(dsn: str, schema: str) -> None:
    run_sql(dsn, f"CREATE SCHEMA {schema}")
    await _setup(dsn, schema)
    await _round_trip(dsn, schema)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_it_works_under_other_isolation_levels(server: Server, database: str, level: str) -> None:
    name = database.rsplit("/", 1)[-1]
    server.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    # At once: who waits for the lock does not see what the others did meanwhile.
    await asyncio.gather(*(_setup(database, "pgcairn") for _ in range(6)))
    await _setup(database, "pgcairn")
    await _round_trip(database, "pgcairn")


# --- the same by hand -----------------------------------------------------------------------------------

_CATALOG = """
    SELECT 'column', c.relname::text, a.attnum::text, a.attname::text,
        format_type(a.atttypid, a.atttypmod), a.attnotnull::text, a.attstorage::text, a.attcollation::regcollation::text,
        coalesce(pg_get_expr(d.adbin, d.adrelid), ''), coalesce(col_description(c.oid, a.attnum), '')
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
    LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE n.nspname = 'pgcairn'
    UNION ALL
    SELECT 'table', c.relname::text, c.relkind::text, coalesce(c.reloptions::text, ''),
        coalesce(obj_description(c.oid), ''), '', '', '', '', ''
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'pgcairn'
    UNION ALL
    SELECT 'index', tablename::text, indexname::text, indexdef, '', '', '', '', '', ''
    FROM pg_indexes WHERE schemaname = 'pgcairn'
    UNION ALL
    SELECT 'constraint', o.conrelid::regclass::text, o.conname::text, pg_get_constraintdef(o.oid), '', '', '', '', '', ''
    FROM pg_constraint AS o JOIN pg_namespace AS n ON n.oid = o.connamespace WHERE n.nspname = 'pgcairn'
    UNION ALL
    SELECT 'migration', version::text, name, digest, '', '', '', '', '', '' FROM pgcairn.schema_version
    ORDER BY 1, 2, 3, 4
"""


async def test_the_schema_file_makes_the_same_as_setup(server: Server, database: str) -> None:
    await _setup(database, "pgcairn")
    other = server.create_database()
    try:
        by_hand = with_changes(database, database=other)
        run_sql(by_hand, all_ddl(Statements("pgcairn")))
        expected = run_sql(database, _CATALOG)
        assert len(expected) > 40
        assert run_sql(by_hand, _CATALOG) == expected
        await _round_trip(by_hand, "pgcairn")
    finally:
        server.drop_database(other)
