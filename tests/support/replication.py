"""A primary and a synchronous standby: killed, promoted, demoted, brought back.

Owns both servers. Every commit on the primary waits for the standby, so a standby that is promoted has all that was
acknowledged. See ``server.py`` for what one server can do.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.addresses import url
from tests.support.server import FAST, PostgresServer, ServerFolder, run_sql

# Waits in the server until the standby's receiver is connected and counts for commits.
_UNTIL_SYNCHRONOUS = """
DO $$
BEGIN
    WHILE NOT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'quorum' AND state = 'streaming') LOOP
        PERFORM pg_sleep(0.005);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
END
$$
"""


class ReplicatedServers:
    """Two servers, ``first`` and ``second``; the first one is the primary until ``promote``."""

    def __init__(self, folder: ServerFolder) -> None:
        # From the start: a commit that is not replicated is never acknowledged.
        self.first = PostgresServer(folder, FAST | {"synchronous_standby_names": "ANY 1 (b)"})
        self.first.start()
        try:
            self.second = PostgresServer(folder, FAST, copy_of=f"{self.first.dsn()}?application_name=b")
            self.second.start()
            self.until_synchronous()
        except BaseException:
            self.stop()
            raise

    def until_synchronous(self) -> None:
        """Until commits on the first server reach the second one."""
        self.first.sql(_UNTIL_SYNCHRONOUS)

    def dsn(self, database: str, *, standby_first: bool = False) -> str:
        """Both hosts, and that only the one that accepts writes will do."""
        hosts = [f"127.0.0.1:{server.port}" for server in (self.first, self.second)]
        if standby_first:
            hosts.reverse()
        one = url(
            host="HOSTS",
            port=0,
            user="postgres",
            password=self.first.folder.password,
            database=database,
            options={"target_session_attrs": "read-write"},
        )
        return one.replace("HOSTS:0", ",".join(hosts))

    def create_database(self) -> str:
        """Create an empty database on both servers; returns its name."""
        name = f"pgcairn_test_{secrets.token_hex(6)}"
        # A commit waits for the standby to write it down, not to apply it, and asyncpg asks no second host when the
        # first one says that there is no such database.
        run_sql(f"{self.first.dsn()}?options=-csynchronous_commit%3Dremote_apply", f"CREATE DATABASE {name}")
        return name

    def kill_primary(self) -> None:
        """SIGKILL for all processes of the first server. It stays dead: nobody can write to it."""
        self.first.kill()

    def demote(self) -> None:
        """Make the first server refuse writes, in sessions that are open too, as a cluster manager does to fence it."""
        self.first.configure({"default_transaction_read_only": "on"})

    def promote(self) -> None:
        """Make the second server a primary; returns when it accepts writes."""
        [(promoted,)] = self.second.sql("SELECT pg_promote(true)")
        if not promoted:
            raise TimeoutError(f"The standby was not promoted:\n{self.second.log.tail()}")

    def stop(self) -> None:
        """End both servers."""
        for server in (getattr(self, "second", None), self.first):
            if server is not None:
                server.stop("immediate")


@contextmanager
def replicated(folder: ServerFolder) -> Iterator[ReplicatedServers]:
    """Both servers, for the time of the block."""
    servers = ReplicatedServers(folder)
    try:
        yield servers
    finally:
        servers.stop()
