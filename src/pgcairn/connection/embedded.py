"""A PostgreSQL server of one's own, started when it is needed and stopped when nobody needs it any more.

Owns the life cycle that users see: the connection string ``embedded:...``, joining and leaving a server,
starting, stopping and asking. Never speaks SQL. Neighbours: ``embedded_binaries`` finds PostgreSQL,
``embedded_cluster`` knows the directory, ``embedded_process`` starts and stops, ``embedded_watchdog`` is
the process that keeps the server.

Everything that decides something holds the directory's ``pgcairn.lock`` meanwhile. Waiting has no time
limit while PostgreSQL recovers from a crash: that takes as long as there is log to read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.parse import quote, unquote

from pgcairn.connection import embedded_cluster as cluster
from pgcairn.connection import embedded_process as process
from pgcairn.connection import embedded_watchdog as watchdog
from pgcairn.connection.embedded_binaries import (
    binary_version,
    cluster_major,
    find_binaries,
)
from pgcairn.errors import EmbeddedServerError, SettingsError

__all__ = [
    "EmbeddedLease",
    "EmbeddedServer",
    "Lease",
    "ServerStatus",
    "acquire",
    "embedded_directory",
    "find_binaries",
    "is_embedded_url",
    "open_embedded",
]

SCHEME = "embedded:"
StopMode = Literal["fast", "smart", "immediate"]
_SIGNALS: dict[str, int] = {
    "fast": signal.SIGINT,
    "smart": signal.SIGTERM,
    "immediate": getattr(signal, "SIGQUIT", 0),
}


def is_embedded_url(conn_string: str) -> bool:
    """Whether a connection string names an embedded server."""
    return conn_string.startswith(SCHEME)


def embedded_directory(url: str) -> Path:
    """The directory that ``embedded:///absolute/path`` or ``embedded:./relative/path`` names.

    Percent signs escape, as in every URL (``%25`` is a percent sign, ``%3F`` a question mark); blanks
    and non-ASCII letters may stand as they are. ``embedded:~/path`` is below the home directory.

    Raises:
        SettingsError: The string is not of that form; the message says what to write.
    """
    forms = "Write embedded:///absolute/path or embedded:./relative/path."
    if not is_embedded_url(url):
        raise SettingsError(f"{url!r} does not name an embedded server.", hint=forms)
    rest = url[len(SCHEME) :]
    if rest.startswith("//"):
        host, slash, below = rest[2:].partition("/")
        if host:
            raise SettingsError(
                f"{url!r} names a host, {host!r}; an embedded server is on this machine.",
                hint=f"After two slashes comes a third: embedded:///{host}{slash}{below} is absolute.",
            )
        rest = f"/{below}"
    if "?" in rest or "#" in rest:
        raise SettingsError(
            f"{url!r} has parameters, and an embedded server takes none.",
            hint="A question mark in the path is written %3F, a number sign %23.",
        )
    if not rest.strip("/"):
        raise SettingsError(f"{url!r} names no directory.", hint=forms)
    path = unquote(rest)
    if sys.platform == "win32" and len(path) > 2 and path[0] == "/" and path[2] == ":":
        path = path[1:]  # embedded:///C:/data
    return _absolute(Path(path))


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known about the server of a directory at one moment.

    Attributes:
        directory: The data directory.
        is_running: Whether PostgreSQL lives (it may still be recovering).
        is_ready: Whether it takes connections.
        pid: Process id of PostgreSQL.
        version: Version of PostgreSQL, or the major version of the cluster when it is stopped;
            None where there is no cluster.
        dsn: Connection string without the password.
        uptime_seconds: Since PostgreSQL's start.
        user_pids: Processes that use the server, without the holder.
        holder_pid: The holder that ``pgcairn server start`` left, if there is one.
    """

    directory: Path
    is_running: bool = False
    is_ready: bool = False
    pid: int | None = None
    version: str | None = None
    dsn: str | None = None
    uptime_seconds: float | None = None
    user_pids: tuple[int, ...] = ()
    holder_pid: int | None = None


class Lease:
    """The right to use a running server; made by ``acquire``.

    The server runs at least as long as the lease is held. Ending the process in whatever way, SIGKILL
    included, gives the lease back. A forked child counts as part of its parent until ``release``.

    Attributes:
        dsn: Connection string with the password, for psycopg, asyncpg and libpq alike.
        directory: The data directory.
    """

    def __init__(self, directory: Path, dsn: str, user_file: Path, user_lock: int) -> None:
        self.directory = directory
        self.dsn = dsn
        self._user_file = user_file
        self._user_lock = user_lock
        self._mutex = threading.Lock()
        self._is_released = False

    def release(self, *, wait: bool = True) -> None:
        """Give the lease back; the last one to leave stops the server. Twice is fine.

        Close your connections first: a server that stops ends them.

        Args:
            wait: When nobody else is left, return only after the server has stopped (at most 60
                seconds; it then goes on stopping).
        """
        with self._mutex:
            if self._is_released:
                return
            self._is_released = True
        _leave(self._user_file, self._user_lock)
        if wait:
            process.wait_until_stopped(self.directory)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def acquire(path: str | Path) -> Lease:
    """Start the server of a directory, or join the one that runs, and return the right to use it.

    The directory is created if it is missing. Blocks until the server takes connections: 0.1 s for a
    stopped one, 1 s for a new one, and as long as it takes after a crash. Durable as any PostgreSQL:
    fsync, synchronous_commit and full_page_writes are on.

    Raises:
        EmbeddedServerError: No PostgreSQL of the right version, a directory that is not ours, or a
            start that failed; then the message holds the last lines of its log.
    """
    root = _absolute(Path(path))
    cluster.check_ours(root)
    cluster.make_root(root)
    with process.start_lock(root):
        user_file, user_lock = watchdog.register_user(root)
        try:
            while True:
                if watchdog.is_held(root / watchdog.KEEPER_LOCK):
                    found = watchdog.running_postmaster(root / watchdog.PGDATA)
                    if found is not None and found.is_ready:
                        break
                    time.sleep(watchdog.POLL_SECONDS)  # it recovers, or is about to go
                else:
                    process.start_keeper(root)
            _check_reachable(found)
            dsn = _dsn(found, cluster.read_password(root))
        except BaseException:
            _leave(user_file, user_lock)
            raise
    return Lease(root, dsn, user_file, user_lock)


class EmbeddedServer:
    """The server of one directory, for programs that want to hold it in an object.

    Making the object does nothing. All methods block, are safe to call from several threads, and may
    be called again.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _absolute(Path(path))
        self._mutex = threading.Lock()
        self._lease: Lease | None = None

    def start(self) -> str:
        """Start or join the server and stay its user until ``release`` or ``stop``.

        Returns:
            The connection string, with the password.

        Raises:
            EmbeddedServerError: As ``acquire``.
        """
        with self._mutex:
            if self._lease is None:
                self._lease = acquire(self.path)
            return self._lease.dsn

    def acquire(self) -> Lease:
        """A lease of its own, independent of this object's; see ``acquire``."""
        return acquire(self.path)

    def release(self) -> None:
        """Stop being a user. The server stops if this was the last one."""
        with self._mutex:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, whoever uses it, and return when it has ended. Stopped already is fine.

        Args:
            mode: ``fast`` ends the sessions (use this), ``smart`` waits until they end by themselves,
                ``immediate`` ends at once and recovers from the log at the next start. None of them
                loses anything that was acknowledged.

        Raises:
            SettingsError: There is no such mode.
            EmbeddedServerError: The directory is not ours.
        """
        if mode not in _SIGNALS:
            raise SettingsError(f"There is no stop mode {mode!r}.", hint=f"One of {', '.join(_SIGNALS)}.")
        with self._mutex:
            lease, self._lease = self._lease, None
        if self.path.exists():
            cluster.check_ours(self.path)
            if (self.path / watchdog.START_LOCK).exists():
                with process.start_lock(self.path):
                    process.stop_everything(self.path, _SIGNALS[mode])
        if lease is not None:
            lease.release(wait=False)

    def status(self) -> ServerStatus:
        """What is known now. Starts nothing, locks nothing, and needs no password.

        Raises:
            EmbeddedServerError: The directory is not ours.
        """
        cluster.check_ours(self.path)
        pgdata = self.path / watchdog.PGDATA
        major = cluster_major(pgdata)
        users = watchdog.living_users(self.path)
        pids = tuple(user.pid for user in users if not user.is_holder)
        holder = next((user.pid for user in users if user.is_holder), None)
        found = watchdog.running_postmaster(pgdata)
        if found is None:
            return ServerStatus(self.path, version=major, user_pids=pids, holder_pid=holder)
        version = major
        with contextlib.suppress(EmbeddedServerError):
            version = binary_version(find_binaries(pgdata))
        return ServerStatus(
            directory=self.path,
            is_running=True,
            is_ready=found.is_ready,
            pid=found.pid,
            version=version,
            dsn=_dsn(found, None),
            uptime_seconds=max(0.0, time.time() - found.started_epoch),
            user_pids=pids,
            holder_pid=holder,
        )

    def hold(self) -> int:
        """Leave a detached process that uses the server until ``drop_hold``; returns its process id.

        The caller must be a user meanwhile. There is at most one holder: a second call returns the
        first one's id.
        """
        return process.start_holder(self.path)

    def drop_hold(self) -> bool:
        """End the holder; the last user to leave stops the server. Returns whether there was a holder.

        If nobody else is left, returns only after the server has stopped, as ``Lease.release``.
        """
        for user in watchdog.living_users(self.path):
            if user.is_holder:
                # Opened first: the keeper removes the file as soon as the holder is gone.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    descriptor = watchdog.open_lock(user.path, create=False)
                    os.kill(user.pid, signal.SIGTERM)
                    watchdog.lock(descriptor)  # until it is gone
                    watchdog.unlock(descriptor)
                process.wait_until_stopped(self.path)
                return True
        return False


class EmbeddedLease:
    """A lease for programs with an event loop; made by ``open_embedded``.

    Attributes:
        dsn: Connection string with the password, for psycopg, asyncpg and libpq alike.
        directory: The data directory.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.dsn = lease.dsn
        self.directory = lease.directory

    async def aclose(self) -> None:
        """Give the lease back; if nobody else is left, wait in a thread until the server has stopped.

        Twice is fine. Cancelling stops the waiting, not the release.
        """
        await asyncio.to_thread(self._lease.release)

    async def __aenter__(self) -> EmbeddedLease:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


async def open_embedded(url: str) -> EmbeddedLease:
    """``acquire`` for an event loop: the blocking start runs in a thread.

    Args:
        url: ``embedded:///absolute/path`` or ``embedded:./relative/path``.

    Cancelled, it leaves no lease behind: one that arrives later is given back at once.

    Raises:
        SettingsError: The URL is not of that form.
        EmbeddedServerError: As ``acquire``.
    """
    directory = embedded_directory(url)
    mutex = threading.Lock()
    is_abandoned = False
    arrived: Lease | None = None

    def start() -> Lease:
        nonlocal arrived
        lease = acquire(directory)
        # Under the mutex: who gives the lease back after a cancellation, this thread or the caller.
        with mutex:
            arrived = lease
            if is_abandoned:
                lease.release(wait=False)
        return lease

    try:
        return EmbeddedLease(await asyncio.to_thread(start))
    except asyncio.CancelledError:
        with mutex:
            is_abandoned = True
            if arrived is not None:
                arrived.release(wait=False)
        raise


def _absolute(path: Path) -> Path:
    # Two names of one directory must have one socket.
    return path.expanduser().resolve()


def _leave(user_file: Path, user_lock: int) -> None:
    # Unlinked first: whoever sees the lock gone must not find the file.
    with contextlib.suppress(OSError):
        user_file.unlink()
    watchdog.unlock(user_lock)
    with contextlib.suppress(OSError):
        user_file.unlink()  # Windows removes no open file


def _dsn(found: watchdog.Postmaster, password: str | None) -> str:
    login = cluster.USER if password is None else f"{cluster.USER}:{password}"
    if found.socket_dir:
        # The host as a parameter: psycopg and asyncpg both take a socket's directory in this form.
        host = quote(found.socket_dir, safe="")
        return f"postgresql://{login}@/{cluster.DATABASE}?host={host}&port={found.port}"
    return f"postgresql://{login}@{found.address}:{found.port}/{cluster.DATABASE}?sslmode=disable"


def _check_reachable(found: watchdog.Postmaster) -> None:
    if found.socket_dir and not Path(found.socket_dir).is_dir():
        raise EmbeddedServerError(
            f"The server runs (process {found.pid}), but its socket directory {found.socket_dir} "
            "does not exist here.",
            hint="Was it removed, or is this another container or a service with a private /tmp? "
            "Stop all users and start again, in one place.",
        )
