"""The statements of operations on whole threads as methods: one per statement or per transaction.

Owns the order of parameters, the meaning of result rows, and which statements share a transaction. Never retries and
never decides how much goes into one transaction; its neighbours above are the operations, below is the connection
seam.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple, cast

from pgcairn.connection.pool import Session
from pgcairn.storage.statements import Statements

Place = tuple[str, str]
"""(namespace, checkpoint) within a thread."""

ValuePlace = tuple[str, str, str]
"""(namespace, channel, version) within a thread."""

# "pgcairn" in ASCII: the first argument of our advisory locks is a hash, which somebody else's could equal.
_LOCK_SEED = int.from_bytes(b"pgcairn", "big")


def _columns(places: Sequence[Place]) -> tuple[list[str], list[str]]:
    return [place[0] for place in places], [place[1] for place in places]


class Checkpoints(NamedTuple):
    """The checkpoints of a namespace, newest first.

    Attributes:
        visible: What readers see.
        hidden: What is kept for their sake.
    """

    visible: list[str]
    hidden: list[str]

    @property
    def newest(self) -> str:
        """The newest of all; there is at least one."""
        return max(self.visible[:1] + self.hidden[:1])


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


class Range(NamedTuple):
    """What goes of a namespace: all up to an id.

    Attributes:
        checkpoint_ns: The namespace.
        highest_id: The newest that goes.
        expected: How many there were.
    """

    checkpoint_ns: str
    highest_id: str
    expected: int


class _Unexpected(Exception):
    """Ends a transaction that would have deleted something else than was meant."""


class ThreadRepository:
    """The statements of one schema as methods. Stateless; sessions are passed in."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    # --- checkpoints -----------------------------------------------------------------------------

    async def select_places(self, session: Session, thread_id: str) -> dict[str, Checkpoints]:
        """The checkpoints of a thread by namespace."""
        rows = await session.fetch(self._statements.select_places, (thread_id,))
        return {
            checkpoint_ns: Checkpoints(
                sorted(visible or (), reverse=True), sorted(hidden or (), reverse=True)
            )
            for checkpoint_ns, visible, hidden in rows
        }

    async def select_roots(
        self, session: Session, thread_id: str, places: Sequence[Place]
    ) -> dict[str, str | None]:
        """By namespace, the root checkpoint that its subgraph call started from; at most one place of each."""
        rows = await session.fetch(self._statements.select_roots, (thread_id, *_columns(places)))
        return dict(cast("Iterable[tuple[str, str | None]]", rows))

    async def select_needed(
        self, session: Session, thread_id: str, places: Sequence[Place], above_id: str
    ) -> set[Place]:
        """What these checkpoints cannot do without, and all visible ones whose id is above ``above_id``."""
        params = (thread_id, *_columns(places), above_id)
        return {(ns, each) for ns, each in await session.fetch(self._statements.select_needed, params)}

    async def select_runs(self, session: Session, run_ids: Sequence[str]) -> dict[str, list[Place]]:
        """The visible checkpoints of runs by thread, in the order in which they are to go."""
        found: dict[str, list[Place]] = {}
        for thread_id, checkpoint_ns, ids in await session.fetch(
            self._statements.select_runs, (list(run_ids),)
        ):
            found.setdefault(thread_id, []).extend((checkpoint_ns, each) for each in ids)
        return found

    async def remove_checkpoints(
        self,
        session: Session,
        thread_id: str,
        places: Sequence[Place],
        *,
        needed: Set[Place],
        rest: Sequence[Place],
        known_id: str,
    ) -> Removed:
        """Delete or hide checkpoints in one transaction, and bring the links of their children up to date.

        Args:
            session: A session.
            thread_id: The thread.
            places: Which; some may be gone already.
            needed: What those in ``rest`` cannot do without.
            rest: The checkpoints that remain, visible or hidden, as far as they were looked at before.
            known_id: Those whose id is above this were not.
        """
        statements = self._statements
        count = writes = 0
        async with session.transaction(read_committed=True):
            await session.fetch(statements.lock_checkpoints, (thread_id, *_columns(sorted(places))))
            if not known_id:
                # What goes together does not rest on one another: out of sight first, then it does not count.
                count = await self._hide(session, thread_id, sorted(places))
            # What was committed since may rest on them, too.
            needed = needed | await self.select_needed(session, thread_id, (), known_id)
            hidden = sorted(place for place in places if place in needed)
            doomed = sorted(place for place in places if place not in needed)
            if hidden and known_id:
                count = await self._hide(session, thread_id, hidden)
            if doomed:
                [(visible, writes)] = await session.fetch(
                    statements.delete_checkpoints, (thread_id, *_columns(doomed))
                )
                count += visible
            await session.execute(statements.relink_checkpoints, (thread_id, *_columns(rest), known_id))
        return Removed(count, len(hidden), writes)

    async def remove_ranges(
        self,
        session: Session,
        thread_id: str,
        ranges: Sequence[Range],
        *,
        rest: Sequence[Place],
        known_id: str,
    ) -> Removed | None:
        """Delete all checkpoints of some namespaces up to an id, in one transaction, if that is what was expected.

        Args:
            session: A session.
            thread_id: The thread.
            ranges: What goes, in that order.
            rest: The checkpoints that remain, as far as they were looked at before; they need none of the others.
            known_id: Those whose id is above this were not looked at.

        Returns:
            What went; ``None``, and nothing did, if others have written into these ranges since, or something that
            they wrote may need what is in them.
        """
        statements = self._statements
        count = writes = 0
        try:
            async with session.transaction(read_committed=True):
                await session.fetch(statements.prepare_operation, ())
                for checkpoint_ns, highest_id, expected in ranges:
                    params = (thread_id, checkpoint_ns, highest_id)
                    [(deleted, deleted_writes, early)] = await session.fetch(statements.delete_range, params)
                    if deleted > expected or early:
                        raise _Unexpected
                    count += deleted
                    writes += deleted_writes
                # Theirs were committed since; whoever commits from now on finds the rows gone.
                if await self.select_needed(session, thread_id, (), known_id):
                    raise _Unexpected
                await self.relink_checkpoints(session, thread_id, rest, known_id)
        except _Unexpected:
            return None
        return Removed(count, 0, writes)

    async def _hide(self, session: Session, thread_id: str, places: Sequence[Place]) -> int:
        return await session.execute(self._statements.hide_checkpoints, (thread_id, *_columns(places)))

    async def relink_checkpoints(
        self, session: Session, thread_id: str, places: Sequence[Place], known_id: str
    ) -> None:
        """Bring links up to date: of these checkpoints, and of those whose id is above ``known_id``."""
        params = (thread_id, *_columns(places), known_id)
        await session.execute(self._statements.relink_checkpoints, params)

    # --- values ----------------------------------------------------------------------------------

    async def select_unreferenced(self, session: Session, thread_id: str) -> list[ValuePlace]:
        """The values that no checkpoint of a thread needs, in the order in which they may go."""
        rows = await session.fetch(self._statements.select_unreferenced, (thread_id,))
        return [(ns, channel, version) for ns, channel, version in rows]

    async def delete_unneeded_values(self, session: Session, thread_id: str) -> int | None:
        """Delete all values that no checkpoint of a thread needs, in one transaction; return how many.

        ``None``, and nothing was deleted, if somebody referred to one of them at the same moment.
        """
        try:
            async with session.transaction(read_committed=True):
                await session.fetch(self._statements.prepare_operation, ())
                [(count,)] = await session.fetch(self._statements.delete_unneeded_values, (thread_id,))
                # The deletion waited for whoever held one of them; what they committed is seen by now.
                [(is_missing,)] = await session.fetch(self._statements.select_missing_values, (thread_id,))
                if is_missing:
                    raise _Unexpected
        except _Unexpected:
            return None
        return int(count)

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
            await session.fetch(statements.prepare_operation, ())
            await session.fetch(statements.lock_copy_target, (target_id, _LOCK_SEED))
            [row] = await session.fetch(statements.copy_thread, (source_id, target_id))
        return Copied(*row)
