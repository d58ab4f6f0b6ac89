"""The statements of an examination as methods: one per statement, and one per transaction that sweeps.

Owns the order of parameters and the meaning of result rows. Never retries and never judges what it reads; its
neighbour above is ``operations.doctor``, below is the connection seam.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pgcairn.connection.pool import Session
from pgcairn.storage.statements import Statements

READ_COMMITTED = "read committed"


class CheckpointFound(NamedTuple):
    """A checkpoint as it is stored. Arrays are ``None`` when empty.

    Attributes:
        parent_id: Its parent, whether that is visible or hidden.
        is_parent_marked_hidden: Whether it is linked as a hidden parent.
        is_parent_hidden: Whether the parent's row is hidden; ``None`` if there is no such row.
        missing_channels: Channels whose referenced value has no row.
        missing_versions: Their versions.
    """

    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    hidden: bool
    is_parent_marked_hidden: bool
    is_parent_hidden: bool | None
    body: bytes
    refs: str | None
    missing_channels: Sequence[str] | None
    missing_versions: Sequence[str] | None


class ValueFound(NamedTuple):
    """A value as it is stored. ``is_own``: it belongs to the page, and is not only what another one is an edit of."""

    is_own: bool
    checkpoint_ns: str
    channel: str
    version: str
    chain: Sequence[str] | None
    type: str
    frame: bytes


class WriteFound(NamedTuple):
    """A pending write as it is stored."""

    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    idx: int
    channel: str
    type: str
    frame: bytes


class OrphanedWrites(NamedTuple):
    """The pending writes of a checkpoint that has no row."""

    checkpoint_ns: str
    checkpoint_id: str
    writes: int


ValuePlace = tuple[str, str, str]
"""(namespace, channel, version) within a thread."""

WritesPlace = tuple[str, str]
"""(namespace, checkpoint) within a thread."""


class DoctorRepository:
    """The statements of one schema as methods. Stateless; sessions are passed in."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    # --- reading ---------------------------------------------------------------------------------

    async def select_threads(self, session: Session, after: str, rows: int) -> list[str]:
        """Threads that have any row, in their order."""
        found = await session.fetch(self._statements.doctor_threads, (after, rows))
        return [row[0] for row in found]

    async def select_checkpoints(
        self, session: Session, thread_id: str, after: tuple[str, str], rows: int
    ) -> list[CheckpointFound]:
        """A page of a thread's checkpoints by (namespace, id)."""
        found = await session.fetch(self._statements.doctor_checkpoints, (thread_id, *after, rows))
        return [CheckpointFound(*row) for row in found]

    async def select_values(
        self, session: Session, thread_id: str, after: ValuePlace, rows: int
    ) -> list[ValueFound]:
        """A page of a thread's values by (namespace, channel, version), and what they are edits of, in any order."""
        found = await session.fetch(self._statements.doctor_values, (thread_id, *after, rows))
        return [ValueFound(*row) for row in found]

    async def select_writes(
        self, session: Session, thread_id: str, after: tuple[str, str, str, int], rows: int
    ) -> list[WriteFound]:
        """A page of a thread's pending writes by (namespace, checkpoint, task, index)."""
        found = await session.fetch(self._statements.doctor_writes, (thread_id, *after, rows))
        return [WriteFound(*row) for row in found]

    async def select_orphaned_values(
        self, session: Session, thread_id: str, rows: int | None
    ) -> tuple[list[ValuePlace], int]:
        """Values that nothing refers to, dependants before what they rest on, and how many there are in all."""
        found = await session.fetch(self._statements.doctor_orphaned_values, (thread_id, rows))
        return [(row[0], row[1], row[2]) for row in found], int(found[0][3]) if found else 0

    async def select_orphaned_writes(
        self, session: Session, thread_id: str, after: WritesPlace, rows: int
    ) -> list[OrphanedWrites]:
        """A page of the checkpoints that have pending writes but no row."""
        found = await session.fetch(self._statements.doctor_orphaned_writes, (thread_id, *after, rows))
        return [OrphanedWrites(*row) for row in found]

    async def select_unneeded_hidden(
        self, session: Session, thread_id: str, rows: int | None
    ) -> tuple[list[tuple[str, str]], int]:
        """Hidden checkpoints, (namespace, id), without a visible descendant, and how many there are in all."""
        found = await session.fetch(self._statements.doctor_unneeded_hidden, (thread_id, rows))
        return [(row[0], row[1]) for row in found], int(found[0][2]) if found else 0

    async def select_lost_calls(
        self, session: Session, thread_id: str, rows: int | None
    ) -> tuple[list[tuple[str, str, str]], int]:
        """Subgraph calls, (namespace, newest checkpoint, root checkpoint), whose root is gone, and how many in all."""
        found = await session.fetch(self._statements.doctor_lost_calls, (thread_id, rows))
        return [(row[0], row[1], row[2]) for row in found], int(found[0][3]) if found else 0

    # --- sweeping --------------------------------------------------------------------------------

    async def transaction_isolation(self, session: Session) -> str:
        """The level at which this session's transactions begin."""
        async with session.transaction():
            [(level,)] = await session.fetch(self._statements.doctor_isolation, ())
        return str(level)

    async def delete_values(
        self, session: Session, thread_id: str, places: Sequence[ValuePlace]
    ) -> list[tuple[ValuePlace, int]]:
        """Delete those of some values that still nothing needs, in one transaction; return them with their bytes."""
        statements = self._statements
        columns = tuple(zip(*sorted(places), strict=True))
        async with session.transaction():
            await session.fetch(statements.lock_values, (thread_id, *columns))
            found = await session.fetch(statements.doctor_delete_values, (thread_id, *columns))
        return [((row[0], row[1], row[2]), int(row[3])) for row in found]

    async def delete_writes(
        self, session: Session, thread_id: str, places: Sequence[WritesPlace]
    ) -> list[tuple[WritesPlace, int]]:
        """Delete the writes of checkpoints that still have no row, in one transaction; return each with its bytes."""
        statements = self._statements
        columns = tuple(zip(*sorted(places), strict=True))
        async with session.transaction():
            await session.fetch(statements.doctor_lock_writes, (thread_id, *columns))
            found = await session.fetch(statements.doctor_delete_writes, (thread_id, *columns))
        return [((row[0], row[1]), int(row[2])) for row in found]
