"""The tests' own servers stop, crash, restart and keep their data as the fault tests believe."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tests.support.addresses import database_of, with_changes
from tests.support.postflight import LeftBehind, check_sessions, check_tasks
from tests.support.server import PostgresServer, Server, StartServer, StopMode, arun_sql, run_sql


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_committed_rows_survive(durable_server: PostgresServer, mode: str) -> None:
    dsn = durable_server.dsn()
    run_sql(dsn, "CREATE TABLE t AS SELECT 1 AS n")
    if mode == "kill":
        durable_server.kill()
    else:
        stop: StopMode = "fast" if mode == "fast" else "immediate"
        durable_server.stop(stop)
    assert not durable_server.running
    with pytest.raises(psycopg.OperationalError):
        run_sql(dsn, "SELECT 1")
    durable_server.start()
    assert run_sql(dsn, "SELECT n FROM t") == [(1,)]
    assert run_sql(dsn, "SHOW fsync") == [("on",)]


def test_listens_on_a_unix_socket(durable_server: PostgresServer) -> None:
    assert run_sql(durable_server.socket_dsn(), "SELECT inet_client_addr()") == [(None,)]


def test_settings_at_start_while_running_and_at_restart(start_server: StartServer) -> None:
    server = start_server(settings={"work_mem": "5MB"})
    assert server.sql("SHOW work_mem") == [("5MB",)]
    server.configure({"work_mem": "6MB"})
    assert server.sql("SHOW work_mem") == [("6MB",)]
    server.restart(settings={"max_connections": "50"})
    assert server.sql("SHOW max_connections") == [("50",)]
    assert server.sql("SHOW work_mem") == [("6MB",)]


def test_a_setting_that_is_refused_is_shown(start_server: StartServer) -> None:
    with pytest.raises(RuntimeError, match="no_such_setting"):
        start_server(settings={"no_such_setting": "1"})


def test_one_crashed_session_ends_all(durable_server: PostgresServer) -> None:
    with psycopg.connect(durable_server.dsn(), autocommit=True) as connection:
        durable_server.crash_session(connection.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert durable_server.sql("SELECT 1") == [(1,)]


def test_terminated_sessions(server: Server, database: str) -> None:
    name = database_of(database)
    with psycopg.connect(database, autocommit=True) as connection:
        assert server.terminate_sessions(name) == 1
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
    assert server.sessions(name) == []


async def test_a_frozen_server_answers_once_thawed(durable_server: PostgresServer) -> None:
    durable_server.freeze()
    waiting = asyncio.create_task(arun_sql(durable_server.dsn(), "SELECT 1"))
    assert not waiting.done()
    durable_server.thaw()
    assert await waiting == [(1,)]


def test_the_check_finds_a_session(server: Server, database: str) -> None:
    name = database_of(database)
    with (
        psycopg.connect(database, application_name="forgotten"),
        pytest.raises(LeftBehind, match="forgotten"),
    ):
        check_sessions(server.sessions_left(name, patience_seconds=0))
    check_sessions(server.sessions_left(name))


async def test_the_check_finds_a_task() -> None:
    gate = asyncio.Event()
    task = asyncio.create_task(gate.wait(), name="forgotten")
    with pytest.raises(LeftBehind, match="forgotten"):
        check_tasks(asyncio.all_tasks())
    gate.set()
    await task
    check_tasks(asyncio.all_tasks())


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:p%40ss@localhost:6000/d",
        "host=localhost port=6000 user=u password=p@ss dbname=d",
        "postgresql://u:p%40ss@/d?host=/tmp/x&port=6000",
    ],
)
def test_addresses_keep_what_is_not_changed(dsn: str) -> None:
    assert with_changes(dsn, host="127.0.0.1", port=1) == "postgresql://u:p%40ss@127.0.0.1:1/d"
    assert database_of(with_changes(dsn, database="other")) == "other"
