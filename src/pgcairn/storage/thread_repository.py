"""The statements of operations on whole threads as methods: one per statement or per transaction.

Owns the order of parameters, the meaning of result rows, and which statements share a transaction. Never retries and
never decides how much goes into one transaction; its neighbours above are the operations, below is the connection
seam.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pgcairn.connection.pool import Session
from pgcairn.storage.statements import Statements

Place = tuple[str, str]
"""(namespace, checkpoint) within a thread."""

ValuePlace = tuple[str, str, str]
"""(namespace, channel, version) within a thread."""

# "pgcairn" in ASCII: the first argument of our advisory locks is a hash, which somebody else's could equal.
_LOCK_SEED = int.from_bytes(b"pgcairn", "big")
# More than any namespace has.
_ALL = 2**31 - 1


class Removed(NamedTuple):
    """What a transaction removed.

    Attributes:
        checkpoints: Checkpoints that went out of sight.
        hidden: How many of them are only hidden.
        writes: Pending writes that were deleted.
    """

    checkpoints: int
    hidden: int
    writes: int


class Copied(NamedTuple):
    """What a copy found and did.

    Attributes:
        is_taken: The target had something; nothing was copied.
        checkpoints: Copied rows.
        values: Copied rows.
        writes: Copied rows.
    """

    is_taken: bool
    checkpoints: int
    values: int
    writes: int


class ThreadRepository:
    """The statements of one schema as methods. Stateless; sessions are passed in."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    # --- checkpoints -----------------------------------------------------------------------------

    async def select_prunable(self, session: Session, thread_id: str, keep_last: int) -> list[Place]:
        """What a prune removes, in the order in which it is to go."""
        return await self._select_prunable(session, (thread_id, keep_last, True))

    async def select_superfluous(self, session: Session, thread_id: str) -> list[Place]:
        """The hidden checkpoints that nothing visible needs."""
        return await self._select_prunable(session, (thread_id, _ALL, False))

    async def _select_prunable(self, session: Session, params: tuple[str, int, bool]) -> list[Place]:
        rows = await session.fetch(self._statements.select_prunable, params)
        return [(checkpoint_ns, each) for checkpoint_ns, ids in rows for each in ids]

    async def select_runs(self, session: Session, run_ids: Sequence[str]) -> dict[str, list[Place]]:
        """The visible checkpoints of runs by thread, in the order in which they are to go."""
        found: dict[str, list[Place]] = {}
        for thread_id, checkpoint_ns, ids in await session.fetch(
            self._statements.select_runs, (list(run_ids),)
        ):
            found.setdefault(thread_id, []).extend((checkpoint_ns, each) for each in ids)
        return found

    async def remove_checkpoints(
        self, session: Session, thread_id: str, places: Sequence[Place], lowest_id: str
    ) -> Removed:
        """Delete or hide checkpoints in one transaction, and bring the links of their children up to date.

        Args:
            session: A session.
            thread_id: The thread.
            places: Which; some may be gone already.
            lowest_id: No checkpoint below this id is the child of one of them, or rests on one; ``""`` if that is
                not known.
        """
        statements = self._statements
        namespaces, ids = zip(*sorted(places), strict=True)
        async with session.transaction(read_committed=True):
            await session.fetch(statements.lock_checkpoints, (thread_id, namespaces, ids))
            [counts] = await session.fetch(
                statements.remove_checkpoints, (thread_id, namespaces, ids, lowest_id)
            )
            await session.execute(
                statements.relink_checkpoints, (thread_id, sorted(set(namespaces)), lowest_id)
            )
        return Removed(*counts)

    async def relink_checkpoints(self, session: Session, thread_id: str) -> None:
        """Bring all links of a thread up to date."""
        await session.execute(self._statements.relink_checkpoints, (thread_id, None, ""))

    # --- values ----------------------------------------------------------------------------------

    async def select_unreferenced(self, session: Session, thread_id: str) -> list[ValuePlace]:
        """The values that no checkpoint of a thread needs."""
        rows = await session.fetch(self._statements.select_unreferenced, (thread_id,))
        return [(ns, channel, version) for ns, channel, versions in rows for version in versions]

    async def delete_values(self, session: Session, thread_id: str, places: Sequence[ValuePlace]) -> int:
        """Delete those of some values that still nothing needs, in one transaction; return how many."""
        columns = tuple(zip(*sorted(places), strict=True))
        async with session.transaction(read_committed=True):
            await session.fetch(self._statements.lock_values, (thread_id, *columns))
            [(count,)] = await session.fetch(self._statements.delete_values, (thread_id, *columns))
        return int(count)

    # --- copies ----------------------------------------------------------------------------------

    async def copy_thread(self, session: Session, source_id: str, target_id: str) -> Copied:
        """Copy a whole thread in one transaction, unless the target has anything."""
        statements = self._statements
        async with session.transaction(read_committed=True):
            await session.fetch(statements.lock_copy_target, (target_id, _LOCK_SEED))
            [row] = await session.fetch(statements.copy_thread, (source_id, target_id))
        return Copied(*row)
