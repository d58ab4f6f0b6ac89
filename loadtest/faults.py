"""What goes wrong on purpose: all sessions of the database are killed every few seconds, and the server stops once.

The stop is ``immediate``: PostgreSQL ends as in a crash, starts again and recovers from its log.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg

from loadtest.database import Database, terminate_sessions

KILL_EVERY_SECONDS = 4.0


async def disturb(database: Database, dsn: str, seconds: float) -> list[dict[str, Any]]:
    """Do it for that long; what was done, with ``time.monotonic()``.

    Args:
        database: Restarted in the middle, if it is our own.
        dsn: The database whose sessions are killed.
    """
    began = time.monotonic()
    done: list[dict[str, Any]] = []
    restart_after = seconds / 2 if database.is_own else None
    while True:
        await asyncio.sleep(min(KILL_EVERY_SECONDS, max(0.0, began + seconds - time.monotonic())))
        if time.monotonic() >= began + seconds:
            return done
        at = time.monotonic()
        if restart_after is not None and at >= began + restart_after:
            restart_after = None
            await asyncio.to_thread(database.restart)
            done.append({"at": at, "what": "restart", "seconds": round(time.monotonic() - at, 3)})
        else:
            try:
                count = await asyncio.to_thread(terminate_sessions, dsn)
            except psycopg.OperationalError:
                continue  # it is just coming back
            done.append({"at": at, "what": "kill", "sessions": count})
