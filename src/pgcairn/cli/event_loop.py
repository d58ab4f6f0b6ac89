"""The event loop of long-running commands: uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a new loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    found: T = uvloop.run(work)
    return found
