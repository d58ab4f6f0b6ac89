"""The real PgBouncer in front of a test's server: started, paused, restarted, killed.

The program is the one that ``PGCAIRN_TEST_PGBOUNCER`` names, or the first on the path. Tests adapt to its version: it knows
prepared statements in transaction mode from 1.21 on.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psycopg

from tests.support.addresses import host_and_port, url
from tests.support.server import ProgramLog, ServerFolder

# The version from which PgBouncer follows prepared statements (its changelog).
_PREPARED_SINCE = (1, 21)
_PATIENCE_SECONDS = 30.0


class NoPgBouncer(Exception):
    """There is no PgBouncer to test with."""


def find_program() -> Path:
    """Where PgBouncer is.

    Raises:
        NoPgBouncer: Nowhere.
    """
    named = os.environ.get("PGCAIRN_TEST_PGBOUNCER")
    found = named or shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if not found:
        raise NoPgBouncer("No pgbouncer found: install it, or set PGCAIRN_TEST_PGBOUNCER to the program.")
    return Path(found)


class PgBouncer:
    """One PgBouncer in transaction mode, with few sessions for many clients.

    Args:
        folder: Where its files go; its programs say as which user it may run.
        dsn: The server, as a superuser.
        sessions: Sessions that it keeps for each database and user.
        options: More of ``pgbouncer.ini``.
    """

    def __init__(
        self, folder: ServerFolder, dsn: str, *, sessions: int = 3, options: Mapping[str, str] | None = None
    ) -> None:
        self._program = find_program()
        self._folder = folder
        self._dsn = dsn
        self._target = psycopg.conninfo.conninfo_to_dict(dsn)
        self._sessions = sessions
        self._options = dict(options or {})
        self.port = _free_port()
        self.log = ProgramLog()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def version(self) -> tuple[int, ...]:
        """Its version: (1, 18, 0)."""
        said = subprocess.run([str(self._program), "--version"], capture_output=True, text=True, check=True)
        found = re.search(r"PgBouncer (\d+(?:\.\d+)+)", said.stdout)
        assert found is not None, said.stdout
        return tuple(int(each) for each in found[1].split("."))

    @property
    def prepares(self) -> bool:
        """Whether prepared statements work through it."""
        return self.version >= _PREPARED_SINCE

    def dsn(self, database: str) -> str:
        """The address of a database through it."""
        return url(host="127.0.0.1", port=self.port, user="postgres", database=database)

    def start(self) -> None:
        """Start it; returns when it listens."""
        number = self.log.count("process up")
        self._process = self._folder.programs.popen(
            str(self._program), str(self._write_settings()), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert self._process.stderr is not None
        self.log.read(self._process.stderr, name=f"log of pgbouncer on port {self.port}")
        if not self.log.wait_for("process up", times=number + 1):
            raise RuntimeError(f"pgbouncer did not start:\n{self.log.tail()}")

    def stop(self) -> None:
        """End it at once: clients and servers are cut off."""
        if self._process is None or self._process.poll() is not None:
            return
        os.kill(self._process.pid, signal.SIGTERM)
        self._process.wait(_PATIENCE_SECONDS)
        self.log.wait_for_end()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def restart(self) -> None:
        """``stop`` and ``start`` on the same port."""
        self.stop()
        self.start()

    def console(self, command: str) -> list[tuple[object, ...]]:
        """Run a command of its console (``SHOW CLIENTS``, ``PAUSE``, …); returns its rows."""
        connection = psycopg.connect(
            self.dsn("pgbouncer"), autocommit=True, cursor_factory=psycopg.ClientCursor
        )
        try:
            cursor = connection.execute(command.encode())
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def _write_settings(self) -> Path:
        host, port = host_and_port(self._dsn)
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "admin_users": "postgres",
            "pool_mode": "transaction",
            "default_pool_size": str(self._sessions),
            "max_client_conn": "500",
            "server_login_retry": "0.1",
        } | self._options
        user, password = self._target.get("user"), self._target.get("password")
        lines = [
            "[databases]",
            f"* = host={host} port={port} user={user} password={password}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        path = self._folder.path / f"pgbouncer-{self.port}.ini"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o644)
        return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
