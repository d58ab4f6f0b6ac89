"""Pruning threads and deleting runs, in transactions of bounded size, beside running writers.

Owns the order in which things go: newest first, so that every checkpoint that is still visible has the ancestors
that it is rebuilt from; subgraph calls before the root checkpoint that they go by; values last. Whatever breaks off
in between loses nothing that is kept, and the next call does the rest.

What goes is chosen once, by the first statement: what others commit later is not touched. Whether it is deleted or
only hidden, and whether a value is still unreferenced, is decided within each transaction, after its locks are held.
Holds no session between transactions and keeps no order among callers; that is the coalescer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from pgcairn.connection.pool import Runner, Session
from pgcairn.storage.thread_repository import Place, Removed, ThreadRepository, ValuePlace
from pgcairn.telemetry import Counters

T = TypeVar("T")

# Rows that one transaction locks and removes, as many as a batch of the write path has (guess): about 20 ms, for which
# a writer of the same rows may have to wait, and what a lost connection repeats.
_ROWS_PER_TRANSACTION = 1000


class Retention:
    """Removes checkpoints, and the writes and values that went with them.

    Args:
        repository: The statements.
        counters: What was removed is counted.
    """

    def __init__(self, repository: ThreadRepository, counters: Counters) -> None:
        self._repository = repository
        self._counters = counters

    async def prune(self, run: Runner, thread_id: str, keep_last: int) -> None:
        """Keep the newest checkpoints of each namespace of a thread.

        Args:
            run: Runs each transaction.
            thread_id: The thread; an unknown one is fine.
            keep_last: How many to keep, at least 1.
        """
        repository = self._repository
        places = await run(lambda session: repository.select_prunable(session, thread_id, keep_last))
        # What is kept is newer than what goes, in every namespace.
        await self._remove(run, thread_id, places, is_below_the_rest=True)
        await run(lambda session: repository.relink_checkpoints(session, thread_id))
        await self._collect(run, thread_id)

    async def find_runs(self, run: Runner, run_ids: Sequence[str]) -> dict[str, list[Place]]:
        """Find the checkpoints of runs, by thread."""
        return await run(lambda session: self._repository.select_runs(session, run_ids))

    async def delete_checkpoints(self, run: Runner, thread_id: str, places: Sequence[Place]) -> None:
        """Delete checkpoints of a thread with their writes and values, and what was hidden for their sake.

        Args:
            run: Runs each transaction.
            thread_id: The thread.
            places: Which, in the order in which they are to go.
        """
        repository = self._repository
        await self._remove(run, thread_id, places, is_below_the_rest=False)
        left = await run(lambda session: repository.select_superfluous(session, thread_id))
        await self._remove(run, thread_id, left, is_below_the_rest=False)
        await self._collect(run, thread_id)

    async def _remove(
        self, run: Runner, thread_id: str, places: Sequence[Place], *, is_below_the_rest: bool
    ) -> None:
        counters = self._counters
        for chunk in _chunks(places):
            lowest_id = min(place[1] for place in chunk) if is_below_the_rest else ""

            async def transaction(
                session: Session, chunk: Sequence[Place] = chunk, lowest_id: str = lowest_id
            ) -> Removed:
                return await self._repository.remove_checkpoints(session, thread_id, chunk, lowest_id)

            removed = await run(transaction)
            counters.checkpoints_pruned += removed.checkpoints
            counters.checkpoints_hidden += removed.hidden
            counters.writes_pruned += removed.writes

    async def _collect(self, run: Runner, thread_id: str) -> None:
        """Delete the values that no checkpoint needs any more."""
        repository = self._repository
        garbage = await run(lambda session: repository.select_unreferenced(session, thread_id))
        for chunk in _chunks(garbage):

            async def transaction(session: Session, chunk: Sequence[ValuePlace] = chunk) -> int:
                return await repository.delete_values(session, thread_id, chunk)

            self._counters.values_pruned += await run(transaction)


def _chunks(places: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(places), _ROWS_PER_TRANSACTION):
        yield places[start : start + _ROWS_PER_TRANSACTION]
