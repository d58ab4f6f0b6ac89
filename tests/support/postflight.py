"""The check after each test: no task and no session may be left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.support.server import Session


class LeftBehind(AssertionError):
    """A test left something behind."""


def check_tasks(tasks: Iterable[asyncio.Task[object]]) -> None:
    """Fail if one of ``tasks`` still runs, other than the task that asks."""
    left = [task for task in tasks if task is not asyncio.current_task() and not task.done()]
    if left:
        raise LeftBehind("Tasks left behind:\n" + "\n".join(f"  {task!r}" for task in left))


def check_sessions(sessions: Iterable[Session]) -> None:
    """Fail if there is any session."""
    left = list(sessions)
    if left:
        raise LeftBehind("Sessions left behind:\n" + "\n".join(f"  {session!r}" for session in left))
