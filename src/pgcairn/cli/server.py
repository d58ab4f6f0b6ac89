"""``pgcairn server start|stop|status|psql PATH``: the embedded server by hand.

``start`` leaves a detached holder that uses the server, so that it runs on after the command has ended;
``stop`` ends the holder. Never touches a server that pgcairn did not make.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pgcairn.connection.embedded import (
    EmbeddedServer,
    acquire,
    embedded_directory,
    find_binaries,
    is_embedded_url,
)
from pgcairn.connection.embedded_binaries import program
from pgcairn.errors import EmbeddedServerError

NOT_RUNNING = 3  # as `pg_ctl status`


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command ``server``."""
    group = subparsers.add_parser("server", help="start, stop and ask an embedded PostgreSQL server")
    actions = group.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
        parser.add_argument(
            "path", type=_directory, metavar="PATH", help="data directory, or embedded:///path"
        )
        parser.set_defaults(run=run)
        return parser

    add("start", start, "Start the server, keep it running, and print its connection string.")
    stop_parser = add("stop", stop, "Undo `start`; the server stops when nobody uses it.")
    stop_parser.add_argument("--now", action="store_true", help="stop it even if other processes use it")
    add("status", status, "Tell whether the server runs, and who uses it (exit code 3: stopped).")
    psql_parser = add("psql", psql, "Run psql on the server; starts it if need be.")
    psql_parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="passed on to psql")


def start(args: argparse.Namespace) -> int:
    """Start the server and leave a holder."""
    server = EmbeddedServer(args.path)
    dsn = server.start()
    try:
        server.hold()
    finally:
        server.release()
    print(dsn)
    return 0


def stop(args: argparse.Namespace) -> int:
    """End the holder, or with ``--now`` the server."""
    server = EmbeddedServer(args.path)
    before = server.status()
    if args.now:
        server.stop()
    elif before.holder_pid is not None:
        server.drop_hold()
    if not before.is_running:
        print("The server was not running.")
        return 0
    after = server.status()
    if not after.is_running:
        print("The server has stopped.")
        return 0
    pids = ", ".join(map(str, after.user_pids)) or "none is left, it is about to stop"
    print(f"The server goes on until its users have left (processes: {pids}); --now stops it.")
    return 0


def status(args: argparse.Namespace) -> int:
    """Print what is known about the server."""
    found = EmbeddedServer(args.path).status()
    if not found.is_running:
        cluster = f"PostgreSQL {found.version}" if found.version else "no cluster yet"
        print(f"stopped: {found.directory} ({cluster})")
        return NOT_RUNNING
    users = [f"process {pid}" for pid in found.user_pids]
    if found.holder_pid is not None:
        users.append(f"holder {found.holder_pid} (until `pgcairn server stop`)")
    lines = {
        "state": "running" if found.is_ready else "starting or recovering",
        "directory": found.directory,
        "pid": found.pid,
        "version": found.version,
        "dsn": found.dsn,
        "uptime": f"{found.uptime_seconds:.0f} s",
        "users": ", ".join(users) or "none",
    }
    for name, value in lines.items():
        print(f"{name + ':':<11}{value}")
    return 0


def psql(args: argparse.Namespace) -> int:
    """Run psql as a user of the server; its exit code is the command's."""
    with acquire(args.path) as lease:
        command = _psql_program(lease.directory)
        # Ctrl-C is for psql, which cancels its query. A handler, for an ignored signal is inherited.
        previous = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            return subprocess.run(  # noqa: S603
                [command, *args.arguments],
                check=False,
                env={**os.environ, **_psql_environment(lease.dsn)},
            ).returncode
        finally:
            signal.signal(signal.SIGINT, previous)


def _directory(text: str) -> Path:
    return embedded_directory(text) if is_embedded_url(text) else Path(text)


def _psql_program(root: Path) -> str:
    beside = program(find_binaries(root), "psql")
    found = str(beside) if beside.is_file() else shutil.which("psql")
    if found is None:
        raise EmbeddedServerError(
            f"There is no psql in {beside.parent} and none on the PATH.",
            hint="Install PostgreSQL's client programs.",
        )
    return found


def _psql_environment(dsn: str) -> dict[str, str]:
    """The connection as variables: an argument would show the password in the process list."""
    url = urlsplit(dsn)
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    return {
        "PGHOST": query.get("host") or url.hostname or "",
        "PGPORT": query.get("port") or str(url.port),
        "PGUSER": unquote(url.username or ""),
        "PGPASSWORD": unquote(url.password or ""),
        "PGDATABASE": url.path.lstrip("/"),
    }
