"""The embedded server: life cycle, sharing, crashes, refusals, the command line.

Every test that ends a process waits for a signal of the system: the end of a pipe, a process, a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgcairn.cli.main import main
from pgcairn.connection import embedded_binaries
from pgcairn.connection import embedded_watchdog as watchdog
from pgcairn.connection.embedded import (
    EmbeddedServer,
    acquire,
    embedded_directory,
    find_binaries,
    open_embedded,
)
from pgcairn.errors import EmbeddedServerError, SettingsError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and sockets of POSIX")

IS_ROOT = sys.platform != "win32" and os.geteuid() == 0


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a cluster, stopped; copying it is eight times faster than making one."""
    try:
        find_binaries()
    except EmbeddedServerError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    path = tmp_path_factory.mktemp("template") / "cluster"
    acquire(path).release()
    return path


@pytest.fixture
def make_directory(template: Path, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that makes a data directory of the given name below the test's folder."""
    made: list[Path] = []

    def make(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", template, path], check=True)
        made.append(path)
        return path

    yield make
    for path in made:
        EmbeddedServer(path).stop("immediate")


@pytest.fixture
def directory(make_directory: Callable[[str], Path]) -> Path:
    """A data directory with a cluster, stopped."""
    return make_directory("cluster")


class UserProcess:
    """Another process that uses the server: it acquires, prints, and leaves when its stdin ends."""

    PROGRAM = """
        import sys
        from pgcairn.connection.embedded import acquire
        lease = acquire(sys.argv[1])
        print(lease.dsn, flush=True)
        sys.stdin.read()
        lease.release()
    """

    def __init__(self, directory: Path, program: str = PROGRAM) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        _, said = self.process.communicate("")
        assert self.process.returncode == 0, said

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_user() -> Iterator[Callable[..., UserProcess]]:
    """A function that starts a ``UserProcess``; what is left at the end is killed."""
    started: list[UserProcess] = []

    def start(directory: Path, program: str = UserProcess.PROGRAM) -> UserProcess:
        started.append(UserProcess(directory, program))
        return started[-1]

    yield start
    for user in started:
        if user.process.poll() is None:
            user.kill()


def run(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def running_pid(directory: Path) -> int:
    pid = EmbeddedServer(directory).status().pid
    assert pid is not None
    return pid


def kill_process(pid: int) -> None:
    """SIGKILL a process that is not ours and return when it is dead."""
    if sys.platform != "linux":
        pytest.skip("waits for a process by pidfd")
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([descriptor], [], [])
    os.close(descriptor)


def wait_for_keeper(directory: Path) -> None:
    """Block until no keeper lives: its lock is free."""
    descriptor = watchdog.open_lock(directory / watchdog.KEEPER_LOCK)
    watchdog.lock(descriptor)
    watchdog.unlock(descriptor)


def keeper_pid(directory: Path) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                opened = {descriptor.resolve() for descriptor in (entry / "fd").iterdir()}
                if directory / watchdog.KEEPER_LOCK in opened:
                    return int(entry.name)
    raise AssertionError("no keeper")


# ---- start, stop, restart -----------------------------------------------------------------------


def test_new_directory_is_made_and_its_rows_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there"
    with acquire(path) as lease:
        first = lease.dsn
        run(first, "CREATE TABLE kept AS SELECT 42 AS answer")
        assert run(first, "SHOW server_encoding") == [("UTF8",)]
        assert run(first, "SHOW data_checksums") == [("on",)]
        assert EmbeddedServer(path).status().is_ready
    assert not EmbeddedServer(path).status().is_running
    with acquire(path) as lease:
        assert lease.dsn == first  # a restarted server has the same address
        assert run(lease.dsn, "SELECT answer FROM kept") == [(42,)]


def test_release_twice_and_start_twice_are_fine(directory: Path) -> None:
    server = EmbeddedServer(directory)
    assert server.start() == server.start()
    lease = server.acquire()
    server.release()
    server.release()
    assert server.status().user_pids == (os.getpid(),)
    lease.release()
    lease.release()
    assert not server.status().is_running


def test_nothing_is_left_beside_the_data(directory: Path) -> None:
    with acquire(directory) as lease:
        host = psycopg.conninfo.conninfo_to_dict(lease.dsn)["host"]
        assert isinstance(host, str)
        socket_dir = Path(host)
        assert socket_dir.stat().st_mode & 0o777 == 0o700
        assert directory not in socket_dir.parents
        assert len(os.fsencode(socket_dir / ".s.PGSQL.5432")) < 100
    wait_for_keeper(directory)
    assert not socket_dir.exists()
    assert list((directory / "users").iterdir()) == []
    assert not (directory / "pgdata" / "postmaster.pid").exists()


def test_settings_are_durable_whatever_the_files_say(directory: Path) -> None:
    with (directory / "pgdata" / "postgresql.conf").open("a") as conf:
        conf.write("\nfsync = off\nfull_page_writes = off\nsynchronous_commit = off\n")
    with acquire(directory) as lease:
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            assert run(lease.dsn, f"SHOW {name}") == [("on",)]
        assert run(lease.dsn, "SHOW listen_addresses") == [("",)]


def test_stop_ends_the_server_for_everybody(directory: Path, start_user: Callable[..., UserProcess]) -> None:
    other = start_user(directory)
    dsn = other.line()
    server = EmbeddedServer(directory)
    server.start()
    server.stop()
    assert not server.status().is_running
    with pytest.raises(psycopg.OperationalError):
        run(dsn, "SELECT 1")
    server.start()
    assert run(dsn, "SELECT 1") == [(1,)]
    other.leave()
    assert server.status().is_running
    server.release()
    assert not server.status().is_running


def test_unknown_stop_mode(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="slowly"):
        EmbeddedServer(tmp_path).stop("slowly")  # type: ignore[arg-type]


# ---- drivers and the event loop -----------------------------------------------------------------


async def test_both_drivers_take_the_connection_string(directory: Path) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    lease = await open_embedded(f"embedded://{directory}")
    async with await psycopg.AsyncConnection.connect(lease.dsn) as connection:
        cursor = await connection.execute("SELECT current_user::text, current_database()::text")
        assert await cursor.fetchone() == ("postgres", "postgres")
    other = await asyncpg.connect(lease.dsn)
    assert await other.fetchval("SELECT 1") == 1
    await other.close()
    await lease.aclose()
    await lease.aclose()
    assert not EmbeddedServer(directory).status().is_running


async def test_cancelled_open_leaves_no_user_behind(directory: Path) -> None:
    # The lock makes the start wait for as long as the test wants.
    blocker = watchdog.open_lock(directory / watchdog.START_LOCK)
    watchdog.lock(blocker)
    opening = asyncio.create_task(open_embedded(f"embedded://{directory}"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    watchdog.unlock(blocker)
    await asyncio.get_running_loop().shutdown_default_executor()  # the thread has ended
    assert (directory / watchdog.LOG).read_text().count("ready to accept connections") == 2
    wait_for_keeper(directory)
    assert not EmbeddedServer(directory).status().is_running


# ---- many processes -----------------------------------------------------------------------------


def test_two_processes_share_one_server_and_the_last_one_stops_it(
    directory: Path, start_user: Callable[..., UserProcess]
) -> None:
    starter = start_user(directory)
    dsn = starter.line()
    pid = running_pid(directory)
    joiner = start_user(directory)
    assert joiner.line() == dsn
    status = EmbeddedServer(directory).status()
    assert status.pid == pid
    assert set(status.user_pids) == {starter.process.pid, joiner.process.pid}
    starter.leave()
    assert running_pid(directory) == pid
    assert run(dsn, "SELECT 1") == [(1,)]
    joiner.leave()
    assert not EmbeddedServer(directory).status().is_running


def test_simultaneous_starts_of_a_new_directory_make_one_server(
    tmp_path: Path, start_user: Callable[..., UserProcess]
) -> None:
    path = tmp_path / "new"
    users = [start_user(path) for _ in range(3)]
    assert len({user.line() for user in users}) == 1
    assert len(EmbeddedServer(path).status().user_pids) == 3
    for user in users:
        user.leave()
    assert not EmbeddedServer(path).status().is_running


def test_server_outlives_the_killed_process_that_started_it(
    directory: Path, start_user: Callable[..., UserProcess]
) -> None:
    starter = start_user(directory)
    dsn = starter.line()
    pid = running_pid(directory)
    joiner = start_user(directory)
    joiner.line()
    starter.kill()
    assert run(dsn, "SELECT 1") == [(1,)]
    joiner.leave()
    assert watchdog.running_postmaster(directory / "pgdata") is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_server_stops_when_all_its_users_are_killed(
    directory: Path, start_user: Callable[..., UserProcess]
) -> None:
    users = [start_user(directory), start_user(directory)]
    for user in users:
        user.line()
    pid = running_pid(directory)
    for user in users:
        user.kill()
    wait_for_keeper(directory)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "database system is shut down" in (directory / watchdog.LOG).read_text().splitlines()[-1]


def test_ctrl_c_does_not_reach_the_server(directory: Path, start_user: Callable[..., UserProcess]) -> None:
    starter = start_user(directory)
    dsn = starter.line()
    pid = running_pid(directory)
    with acquire(directory):
        os.killpg(starter.process.pid, signal.SIGINT)  # as a terminal does, to the whole group
        starter.process.communicate()
        assert run(dsn, "SELECT 1") == [(1,)]
        assert running_pid(directory) == pid


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the keeper in /proc")
def test_killed_keeper_is_replaced_and_the_server_goes_on(directory: Path) -> None:
    first = acquire(directory)
    pid = running_pid(directory)
    kill_process(keeper_pid(directory))
    second = acquire(directory)  # brings a keeper, which adopts the server
    assert running_pid(directory) == pid
    assert run(first.dsn, "SELECT 1") == [(1,)]
    assert watchdog.is_held(directory / watchdog.KEEPER_LOCK)
    first.release()
    second.release()
    assert watchdog.running_postmaster(directory / "pgdata") is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the keeper in /proc")
def test_last_leaver_stops_a_server_without_a_keeper(directory: Path) -> None:
    lease = acquire(directory)
    kill_process(keeper_pid(directory))
    lease.release()
    assert watchdog.running_postmaster(directory / "pgdata") is None


# ---- crashes ------------------------------------------------------------------------------------

_INSERTER = """
    import sys
    import psycopg
    from pgcairn.connection.embedded import acquire
    lease = acquire(sys.argv[1])
    connection = psycopg.connect(lease.dsn, autocommit=True)
    connection.execute("CREATE TABLE acknowledged (n bigint PRIMARY KEY)")
    number = 0
    try:
        while True:
            connection.execute("INSERT INTO acknowledged VALUES (%s)", (number,))
            print(number, flush=True)
            number += 1
    except psycopg.OperationalError:
        print("broken", flush=True)
    sys.stdin.read()
"""


def test_acknowledged_rows_survive_a_killed_server_which_comes_back(
    directory: Path, start_user: Callable[..., UserProcess]
) -> None:
    inserter = start_user(directory, _INSERTER)
    acknowledged = [int(inserter.line()) for _ in range(100)]
    pid, keeper = running_pid(directory), keeper_pid(directory)
    kill_process(pid)
    while (line := inserter.line()) != "broken":
        acknowledged.append(int(line))
    with acquire(directory) as lease:  # waits for the recovery
        assert running_pid(directory) != pid
        assert keeper_pid(directory) == keeper  # which brought it back, unasked
        stored = {n for (n,) in run(lease.dsn, "SELECT n FROM acknowledged")}
        assert stored >= set(acknowledged)
        assert "not properly shut down" in (directory / watchdog.LOG).read_text()
        inserter.leave()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="proved by /proc")
def test_reused_process_id_does_not_block_the_start(directory: Path) -> None:
    lease = acquire(directory)
    pid_file = directory / "pgdata" / "postmaster.pid"
    lines = pid_file.read_text().split("\n")
    lease.release()
    # As after a container's restart: the number now belongs to somebody else, here to pytest's neighbour.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as neighbour:
        pid_file.write_text("\n".join([str(neighbour.pid), *lines[1:]]))
        assert not EmbeddedServer(directory).status().is_running
        acquire(directory).release()


def test_failed_start_shows_the_end_of_the_log(directory: Path) -> None:
    with (directory / "pgdata" / "postgresql.conf").open("a") as conf:
        conf.write("\nno_such_setting = 1\n")
    with pytest.raises(EmbeddedServerError, match="no_such_setting"):
        acquire(directory)
    assert EmbeddedServer(directory).status().user_pids == ()


# ---- paths, owners, passwords -------------------------------------------------------------------


def test_path_with_blanks_and_other_letters(make_directory: Callable[[str], Path]) -> None:
    path = make_directory("a folder/Дані ünd 100%")
    with acquire(path) as lease:
        assert run(lease.dsn, "SELECT 1") == [(1,)]


def test_long_path(make_directory: Callable[[str], Path]) -> None:
    path = make_directory("/".join(["long" * 10] * 6))
    with acquire(path) as lease:
        assert run(lease.dsn, "SELECT 1") == [(1,)]


def test_password_is_required(directory: Path) -> None:
    password = (directory / "pgcairn-password").read_text().strip()
    assert (directory / "pgcairn-password").stat().st_mode & 0o777 == 0o600
    with acquire(directory) as lease:
        assert password in lease.dsn
        without = EmbeddedServer(directory).status().dsn
        assert without is not None
        assert password not in without
        with pytest.raises(psycopg.OperationalError, match="password"):
            run(without, "SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            run(lease.dsn.replace(password, "wrong"), "SELECT 1")


def test_missing_password_is_named(directory: Path) -> None:
    (directory / "pgcairn-password").unlink()
    with pytest.raises(EmbeddedServerError, match="pgcairn-password is missing"):
        acquire(directory)


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_root_below_a_private_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    try:
        lease = acquire(tmp_path / "cluster")
    except EmbeddedServerError as refused:
        pytest.skip(str(refused))
    with lease:
        assert run(lease.dsn, "SELECT 1") == [(1,)]
        assert (tmp_path / "cluster" / "pgdata").stat().st_uid == 0
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_root_without_user_namespaces_runs_as_an_existing_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_binaries, "_user_namespace", lambda bin_dir: None)
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    try:
        try:
            lease = acquire(base / "cluster")
        except EmbeddedServerError as refused:
            pytest.skip(str(refused))
        with lease:
            owner = (base / "cluster" / "pgdata").stat().st_uid
            assert owner != 0
            process = Path(f"/proc/{running_pid(base / 'cluster')}")
            if process.exists():
                assert process.stat().st_uid == owner
            assert run(lease.dsn, "SELECT 1") == [(1,)]
        monkeypatch.undo()
        with acquire(base / "cluster") as lease:  # its owner decides, also where namespaces work
            assert run(lease.dsn, "SELECT 1") == [(1,)]
        assert not EmbeddedServer(base / "cluster").status().is_running
    finally:
        shutil.rmtree(base)


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_root_gets_a_clear_error_where_nothing_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded_binaries, "_user_namespace", lambda bin_dir: None)
    tmp_path.chmod(0o700)
    with pytest.raises(EmbeddedServerError, match="refuses to run as root"):
        acquire(tmp_path / "cluster")


# ---- refusals -----------------------------------------------------------------------------------


def test_other_major_is_refused_naming_both(directory: Path) -> None:
    version = embedded_binaries.binary_version(find_binaries(directory))
    (directory / "pgdata" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedServerError, match=r"PostgreSQL 9\b") as refused:
        acquire(directory)
    assert version in str(refused.value)
    (directory / "pgdata" / "PG_VERSION").write_text(f"{embedded_binaries.major_of(version)}\n")


def test_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("\\bye")
    with pytest.raises(EmbeddedServerError, match="not made by pgcairn"):
        acquire(tmp_path)
    (tmp_path / "PG_VERSION").write_text("18\n")
    with pytest.raises(EmbeddedServerError, match="PostgreSQL data directory"):
        acquire(tmp_path)
    with pytest.raises(EmbeddedServerError, match="left alone"):
        EmbeddedServer(tmp_path).stop()
    with pytest.raises(EmbeddedServerError, match="is a file"):
        acquire(tmp_path / "thesis.tex")
    assert sorted(os.listdir(tmp_path)) == ["PG_VERSION", "thesis.tex"]


def _stub_programs(folder: Path, version: str) -> Path:
    folder.mkdir()
    for name in ("postgres", "initdb"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


def test_environment_variable_names_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = _stub_programs(tmp_path / "bin", "97.3")
    monkeypatch.setenv("PGCAIRN_POSTGRES_BIN", str(stub))
    assert find_binaries() == stub
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("96\n")
    with pytest.raises(EmbeddedServerError, match=r"PostgreSQL 96\b.*97\.3"):
        find_binaries(tmp_path / "data")
    monkeypatch.setenv("PGCAIRN_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match="holds no postgres"):
        find_binaries()


def test_data_chooses_among_the_programs_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGCAIRN_POSTGRES_BIN", raising=False)
    preferred = _stub_programs(tmp_path / "wheel", "97.3")
    other = _stub_programs(tmp_path / "system", "96beta1")
    found = [("a package", tmp_path / "absent"), ("a package", preferred), ("the system", other)]
    monkeypatch.setattr(embedded_binaries, "_candidates", lambda: iter(found))
    assert find_binaries() == preferred
    (tmp_path / "pgdata").mkdir()
    (tmp_path / "pgdata" / "PG_VERSION").write_text("96\n")
    assert find_binaries(tmp_path) == other


def test_no_programs_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PGCAIRN_POSTGRES_BIN", raising=False)
    monkeypatch.setattr(embedded_binaries, "_candidates", lambda: iter(()))
    with pytest.raises(EmbeddedServerError, match="pip install"):
        acquire(tmp_path / "cluster")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("embedded:///var/data", Path("/var/data")),
        ("embedded:/var/data", Path("/var/data")),
        ("embedded:///with%20blank/and blank/%25", Path("/with blank/and blank/%")),
        ("embedded:./below", Path.cwd() / "below"),
        ("embedded:below", Path.cwd() / "below"),
        ("embedded:~/below", Path.home() / "below"),
    ],
)
def test_url_names_a_directory(url: str, expected: Path) -> None:
    assert embedded_directory(url) == expected


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("embedded://var/data", "names a host, 'var'.*embedded:///var/data"),
        ("embedded:", "names no directory"),
        ("embedded:///", "names no directory"),
        ("embedded:///data?port=1", "parameters"),
        ("postgresql:///data", "does not name"),
    ],
)
def test_other_urls_are_refused(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        embedded_directory(url)


# ---- the command line ---------------------------------------------------------------------------


def test_command_line(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "status", str(directory)]) == 3
    assert "stopped" in capfd.readouterr().out
    started = subprocess.run(
        [sys.executable, "-m", "pgcairn.cli.main", "server", "start", str(directory)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    dsn = started.stdout.strip()
    assert run(dsn, "SELECT 1") == [(1,)]  # the command has ended, the server has not
    assert main(["server", "start", str(directory)]) == 0
    assert capfd.readouterr().out.strip() == dsn

    assert main(["server", "status", f"embedded://{directory}"]) == 0
    said = capfd.readouterr().out
    assert f"pid:       {running_pid(directory)}" in said
    assert "holder" in said
    assert (directory / "pgcairn-password").read_text().strip() not in said

    assert main(["server", "psql", str(directory), "-Atc", "SELECT 6 * 7"]) == 0
    assert capfd.readouterr().out.strip() == "42"
    assert main(["server", "psql", str(directory), "-c", "nonsense"]) == 1

    with acquire(directory):
        assert main(["server", "stop", str(directory)]) == 0
        assert f"processes: {os.getpid()}" in capfd.readouterr().out
        assert EmbeddedServer(directory).status().holder_pid is None
        assert run(dsn, "SELECT 1") == [(1,)]
        assert main(["server", "stop", "--now", str(directory)]) == 0
        assert "has stopped" in capfd.readouterr().out
        assert not EmbeddedServer(directory).status().is_running


def test_command_line_stop_ends_the_holder_and_the_server(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", "start", str(directory)]) == 0
    assert main(["server", "stop", str(directory)]) == 0
    assert "has stopped" in capfd.readouterr().out
    assert main(["server", "stop", str(directory)]) == 0
    assert "was not running" in capfd.readouterr().out
    wait_for_keeper(directory)


def test_command_line_prints_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    assert main(["server", "start", str(tmp_path)]) == 1
    assert capfd.readouterr().err.startswith("pgcairn: ")
