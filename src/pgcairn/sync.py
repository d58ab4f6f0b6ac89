"""``PostgresSaver``: the same saver for programs that have no event loop.

Owns a private event loop on a thread of its own, and nothing else: every call is the async saver's, so many
threads of a program share one group commit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from pgcairn.errors import ClosedError
from pgcairn.health import Readiness
from pgcairn.saver import AsyncPostgresSaver, GraphState, warn_unclosed
from pgcairn.settings import Settings

T = TypeVar("T")


class _LoopThread:
    """An event loop that runs on a daemon thread until it is stopped."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pgcairn-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(call(), self.loop).result()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class PostgresSaver(GraphState):
    """Keeps the state of LangGraph graphs in PostgreSQL, for programs without an event loop.

    Made by ``from_conn_string``. Safe to use from many threads at once: their writes share transactions. The
    guarantees, arguments and errors of every method are those of ``AsyncPostgresSaver``. The async methods
    work too, from any event loop.
    """

    @classmethod
    @contextmanager
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = True,
        serde: SerializerProtocol | None = None,
        settings: Settings | None = None,
        **settings_overrides: object,
    ) -> Iterator[PostgresSaver]:
        """Make a saver with a pool and an event loop of its own; all are closed at the end of the block.

        Arguments and errors: see ``AsyncPostgresSaver.from_conn_string``.
        """
        loop_thread = _LoopThread()
        try:
            manager = AsyncPostgresSaver.from_conn_string(
                conn_string, pipeline=pipeline, serde=serde, settings=settings, **settings_overrides
            )
            inner = loop_thread.call(manager.__aenter__)
            own = cls(serde=inner.serde)
            own._start(inner._engine)
            try:
                yield own
            except GeneratorExit:
                warn_unclosed(own)
                raise
            finally:
                loop_thread.call(lambda: manager.__aexit__(None, None, None))
        finally:
            loop_thread.stop()

    def setup(self, *, metadata_index: bool = False) -> None:
        """Create or upgrade the schema; see ``AsyncPostgresSaver.setup``."""
        self._engine.call_from_thread("setup", lambda: self._engine.setup(metadata_index=metadata_index))

    def ping(self, timeout_seconds: float = 5.0) -> float:
        """Ask the database for an answer; see ``AsyncPostgresSaver.ping``."""
        return self._engine.call_from_thread("ping", lambda: self._engine.health.ping(timeout_seconds))

    def readiness(self, timeout_seconds: float = 5.0) -> Readiness:
        """Find out whether the saver can serve; see ``AsyncPostgresSaver.readiness``."""
        try:
            return self._engine.call_from_thread(
                "readiness", lambda: self._engine.health.readiness(timeout_seconds)
            )
        except ClosedError as error:  # and its loop has gone
            return Readiness("closed", str(error), 0.0)

    def close(self) -> None:
        """Commit what is queued and refuse new calls; see ``AsyncPostgresSaver.aclose``. Twice is fine."""
        with suppress(ClosedError):  # closed before, and its loop has gone
            self._engine.call_from_thread("close", self._engine.close)
