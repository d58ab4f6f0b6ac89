"""Starting and stopping the processes of an embedded server.

Owns the spawning of the watchdog (keeper and holder) and the stop of a PostgreSQL, with or without one.
Never decides whether: ``embedded`` does. Neighbours: ``embedded_cluster`` makes the directory,
``embedded_watchdog`` is what is spawned.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pgcairn.connection import embedded_cluster as cluster
from pgcairn.connection import embedded_watchdog as watchdog
from pgcairn.connection.embedded_binaries import choose_identity, find_binaries, program
from pgcairn.errors import EmbeddedServerError

# A release need not wait for ever for a slow disk: the server's stop goes on without us. Guess.
_RELEASE_WAIT_SECONDS = 60.0


@contextlib.contextmanager
def start_lock(root: Path) -> Iterator[None]:
    """Hold ``pgcairn.lock``, waiting for it without a limit.

    Raises:
        EmbeddedServerError: The file cannot be opened: another user's directory.
    """
    try:
        descriptor = watchdog.open_lock(root / watchdog.START_LOCK)
    except OSError as error:
        raise EmbeddedServerError(
            f"{root} cannot be used by this user: {error}",
            hint="All processes that share a server run as the same user (or as root).",
        ) from error
    watchdog.lock(descriptor)
    try:
        yield
    finally:
        watchdog.unlock(descriptor)


def start_keeper(root: Path) -> None:
    """Make the cluster if need be and start the keeper, which starts PostgreSQL; return when it is ready.

    The caller holds ``pgcairn.lock`` and is a user.

    Raises:
        EmbeddedServerError: See ``embedded.acquire``.
    """
    pgdata = root / watchdog.PGDATA
    bin_dir = find_binaries(pgdata if pgdata.exists() else None)
    identity = choose_identity(bin_dir, root, pgdata)
    cluster.create_cluster(root, bin_dir, identity)
    if sys.platform == "win32":
        socket_dir, port = None, _free_port()
    else:
        socket_dir, port = cluster.make_socket_dir(root, identity), cluster.POSIX_PORT
    plan = {
        "directory": str(root),
        "command": cluster.server_command(root, bin_dir, identity, socket_dir=socket_dir, port=port),
        "uid": identity.uid,
        "gid": identity.gid,
        "socket_dir": str(socket_dir or root / "no-socket"),
        "pg_ctl": str(program(bin_dir, "pg_ctl")),
    }
    message = _spawn(root, ["keep"], json.dumps(plan).encode())
    if message is None or "pid" not in message:
        offset = message["failed_at_offset"] if message else 0
        raise EmbeddedServerError(
            f"PostgreSQL did not start on {root}. The last lines of {root / watchdog.LOG}:\n"
            + cluster.log_tail(root, offset)
        )


def start_holder(root: Path) -> int:
    """Start a holder, or find the one that is there, and return its process id.

    Raises:
        EmbeddedServerError: It did not start.
    """
    message = _spawn(root, ["hold", str(root)], b"")
    if message is None:
        raise EmbeddedServerError(f"The holder of {root} did not start:\n{cluster.log_tail(root, 0)}")
    return int(message["pid"])


def wait_until_stopped(root: Path) -> None:
    """Return when the server has stopped, or has users again, or after 60 seconds.

    A server whose keeper was killed is stopped here.
    """
    deadline = time.monotonic() + _RELEASE_WAIT_SECONDS
    with contextlib.suppress(FileNotFoundError):  # somebody removed the directory
        while time.monotonic() < deadline and not watchdog.living_users(root):
            if not watchdog.is_held(root / watchdog.KEEPER_LOCK):
                _stop_without_keeper(root)
                return
            time.sleep(watchdog.POLL_SECONDS)


def _spawn(root: Path, arguments: list[str], plan: bytes) -> dict[str, Any] | None:
    """Run the watchdog detached and return what it reports; None if it died without a word."""
    command = [_python(), "-I", "-S", watchdog.__file__, *arguments]
    detached: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.DETACHED_PROCESS
        detached = {"creationflags": flags}
    log = cluster.rotate_log(root)
    try:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=cluster.clean_environment(),
            **detached,
        )
    except OSError as error:
        raise EmbeddedServerError(f"{command[0]} cannot be started: {error}") from error
    finally:
        os.close(log)
    if process.stdin is None or process.stdout is None:
        raise AssertionError("both were asked for")
    with process.stdout, contextlib.suppress(BrokenPipeError):
        with process.stdin:
            process.stdin.write(plan)
        line = process.stdout.readline()
    if sys.platform == "win32":
        _detached.append(process)  # it is the watchdog itself; elsewhere the watchdog is its child
    else:
        process.wait()
    return json.loads(line) if line else None


_detached: list[subprocess.Popen[bytes]] = []


def _python() -> str:
    """The interpreter; where Python is embedded in another program, the one beside its library."""
    if sys.executable and "python" in Path(sys.executable).name.lower():
        return sys.executable
    for name in (f"python{sys.version_info.major}.{sys.version_info.minor}", "python3", "python"):
        found = Path(sys.prefix) / ("Scripts" if sys.platform == "win32" else "bin") / name
        if found.exists():
            return str(found)
    raise EmbeddedServerError(
        f"No Python interpreter was found below {sys.prefix}; one has to watch over the server.",
        hint="Start the server with `pgcairn server start` and use the connection string it prints.",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop_without_keeper(root: Path) -> None:
    """Stop a PostgreSQL whose keeper was killed, unless somebody uses it again."""
    found = watchdog.running_postmaster(root / watchdog.PGDATA)
    if found is None:
        return
    with start_lock(root):
        if not watchdog.living_users(root) and not watchdog.is_held(root / watchdog.KEEPER_LOCK):
            stop_everything(root, signal.SIGINT)
            if found.socket_dir:
                with contextlib.suppress(OSError):
                    os.rmdir(found.socket_dir)


def stop_everything(root: Path, number: int) -> None:
    """Signal PostgreSQL and wait until it and its keeper are gone; the caller holds ``pgcairn.lock``."""
    pgdata = root / watchdog.PGDATA
    pg_ctl = ""
    if sys.platform == "win32":
        pg_ctl = str(program(find_binaries(pgdata), "pg_ctl"))
    while True:
        found = watchdog.running_postmaster(pgdata)
        if found is not None:
            watchdog.signal_postmaster(found.pid, number, pg_ctl, pgdata)
            watchdog.wait_for_exit(found.pid, pgdata)
        elif not watchdog.is_held(root / watchdog.KEEPER_LOCK):
            return
        else:
            time.sleep(watchdog.POLL_SECONDS)  # PostgreSQL is starting, or the keeper is leaving
