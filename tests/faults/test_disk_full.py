"""The server's disk is full: who writes is told, who reads is not disturbed, and all goes on when there is space."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgcairn.errors import DatabaseError, OutcomeUnknown, PgcairnError, UnavailableError
from pgcairn.operations.doctor import examine
from tests.support.savers import checkpoint, config, get, put, saver_on, values_of
from tests.support.server import PostgresServer, ServerFolder, StartServer

DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
# Random, so that neither pgcairn nor PostgreSQL makes it smaller.
_VALUE_BYTES = 400_000


@pytest.fixture
def small_disk(server_folder: ServerFolder) -> Iterator[Path]:
    """A file system of 48 MB, mounted for the time of the test."""
    path = server_folder.path / "small"
    path.mkdir()
    mount = shutil.which("mount")
    try:
        if os.geteuid() != 0 or mount is None:
            pytest.skip("a file system of its own takes root and mount")
        mounting = subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=48m,mode=0777", "tmpfs", str(path)],
            capture_output=True,
            check=False,
        )
        if mounting.returncode != 0:
            pytest.skip(f"mount is not permitted: {mounting.stderr.decode().strip()}")
        try:
            yield path
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
    finally:
        path.rmdir()


def fill(disk: Path) -> Path:
    """Leave less than a block; returns the file to delete."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65536))
        except OSError:
            pass
    return ballast


@pytest.fixture
def server_with_tables_on(
    start_server: StartServer, small_disk: Path
) -> Iterator[tuple[PostgresServer, str]]:
    """A server, and a database of it whose tables lie on the small disk; the WAL lies elsewhere."""
    server = start_server()
    space = small_disk / "space"
    server.folder.programs.run(shutil.which("mkdir") or "/bin/mkdir", "-m", "700", str(space))
    server.sql(f"CREATE TABLESPACE small LOCATION '{space}'")
    server.sql("CREATE DATABASE small TABLESPACE small")
    yield server, server.dsn("small")
    server.stop("immediate")  # before the disk goes


@DRIVERS
async def test_full_tables(
    server_with_tables_on: tuple[PostgresServer, str], small_disk: Path, driver: str
) -> None:
    _, dsn = server_with_tables_on
    async with saver_on(dsn, "pgcairn", driver=driver) as saver:
        await put(saver, config(), checkpoint(1, {"n": 1}))
        ballast = fill(small_disk)
        results = await asyncio.gather(
            *(
                put(saver, config(f"thread-{n}"), checkpoint(1, {"big": os.urandom(_VALUE_BYTES)}))
                for n in range(8)
            ),
            return_exceptions=True,
        )
        for result in results:
            assert type(result) is DatabaseError
            assert result.sqlstate == "53100"
            assert "disk is full" in str(result.hint)
        assert saver.stats().batches_split == 0, "it concerns no single item"
        assert saver.stats().retries == 0, "and it is told at once"
        assert await values_of(saver, config()) == {"n": 1}
        for n in range(8):
            assert await saver.aget_tuple(config(f"thread-{n}")) is None
        ballast.unlink()
        await put(saver, config("thread-0"), checkpoint(1, {"big": os.urandom(_VALUE_BYTES)}))
        await get(saver, config("thread-0"))
        assert (await examine(saver)).findings == ()


@pytest.fixture
def server_with_wal_on(start_server: StartServer, small_disk: Path) -> Iterator[PostgresServer]:
    """A server whose WAL lies on the small disk."""
    server = start_server(durable=True, settings={"max_wal_size": "32MB", "min_wal_size": "32MB"})
    server.stop()
    wal, moved = server.data_directory / "pg_wal", small_disk / "pg_wal"
    run = server.folder.programs.run
    run(shutil.which("cp") or "/bin/cp", "-a", str(wal), str(moved))
    shutil.rmtree(wal)
    wal.symlink_to(moved)
    server.start()
    yield server
    server.stop("immediate")


@DRIVERS
async def test_full_wal(server_with_wal_on: PostgresServer, small_disk: Path, driver: str) -> None:
    server = server_with_wal_on
    database = server.create_database()
    states: dict[str, bytes] = {}
    async with saver_on(
        server.dsn(database),
        "pgcairn",
        driver=driver,
        retry_deadline_seconds=1.0,
        acquire_timeout_seconds=1.0,
    ) as saver:
        await put(saver, config(), checkpoint(1, {"n": 1}))
        ballast = fill(small_disk)

        async def until_it_fails() -> PgcairnError:
            for number in range(200):  # 80 MB: more than the disk
                thread_id = f"thread-{number}"
                states[thread_id] = os.urandom(_VALUE_BYTES)
                try:
                    await put(saver, config(thread_id), checkpoint(1, {"big": states[thread_id]}))
                except PgcairnError as error:
                    return error
            raise AssertionError("the disk was never full")

        error = await until_it_fails()
        # The server gives up (PANIC) while it writes down a commit, or refuses the statement before.
        if isinstance(error, DatabaseError):
            assert error.sqlstate == "53100"
        else:
            assert isinstance(error, OutcomeUnknown | UnavailableError)
        ballast.unlink()
        if not server.running:
            await asyncio.to_thread(server.start)
        failed = list(states)[-1]
        before = await saver.aget_tuple(config(failed))
        if before is not None:
            assert before.checkpoint["channel_values"] == {"big": states[failed]}
        await put(saver, config(failed), checkpoint(1, {"big": states[failed]}))
        for thread_id, value in states.items():
            assert await values_of(saver, config(thread_id)) == {"big": value}
        assert (await examine(saver)).findings == ()
