"""An event loop whose clock only moves when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Callbacks that are ready may make others ready; nothing under test needs this many rounds.
_ROUNDS = 60


class SteppingLoop(asyncio.SelectorEventLoop):
    """Its time is ``now``. A test that never waits for anything real is over at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.problems: list[dict[str, Any]] = []
        super().__init__()
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    def time(self) -> float:
        """The time that the test has set."""
        return self.now


async def settle() -> None:
    """Let everything run that can run without the clock."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


async def advance(seconds: float) -> None:
    """Move the clock, and let everything run that waited for it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SteppingLoop)
    await settle()
    loop.now += seconds
    await settle()


def run_stepping(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own; fail if something raised where nobody could catch it."""
    loop = SteppingLoop()
    try:
        result = loop.run_until_complete(main)
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
    finally:
        loop.close()
    assert not left, f"tasks left behind: {left}"
    assert not loop.problems, f"unhandled: {loop.problems}"
    return result
