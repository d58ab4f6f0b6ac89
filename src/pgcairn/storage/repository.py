"""One method per statement, and one per transaction that takes several.

Owns the order of parameters and the meaning of result rows. Never retries and never decides what goes into
a batch; its neighbours above are the coalescer and the reader, below is the connection seam.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pgcairn.connection.pool import Row, Session
from pgcairn.storage.rows import CheckpointRow, NeededValue, ValueRow, WriteRow
from pgcairn.storage.statements import BatchShape, Statements


@dataclass(slots=True)
class Batch:
    """Rows that go in one transaction. No key appears twice in any list.

    Attributes:
        checkpoints: By item number, which ``BatchResult`` refers to.
        values: By item number, too.
        writes_kept: Ordinary writes: a stored row wins.
        writes_replaced: Special writes: the new value wins.
    """

    checkpoints: list[tuple[int, CheckpointRow]]
    values: list[tuple[int, ValueRow]]
    needs: list[tuple[int, NeededValue]]
    writes_kept: list[WriteRow]
    writes_replaced: list[WriteRow]

    @property
    def rows(self) -> int:
        """How many rows it writes."""
        return len(self.checkpoints) + len(self.values) + len(self.writes_kept) + len(self.writes_replaced)

    @property
    def is_single(self) -> bool:
        """Whether a statement without arrays can write it: one write, or one checkpoint with at most one value that
        is at most an edit of one other."""
        if self.writes_replaced or len(self.values) > 1 or len(self.needs) > 1:
            return False
        if not self.checkpoints:
            return len(self.writes_kept) == 1
        if len(self.checkpoints) != 1 or self.writes_kept:
            return False
        # A chain needs its base, and nothing else does.
        return not self.values or (self.values[0][1][4] is not None) == bool(self.needs)


class BatchResult(NamedTuple):
    """What a committed batch did.

    Attributes:
        new_checkpoints: How many of its checkpoints did not exist before.
        new_values: How many of its values did not exist before.
        missing_items: Numbers of the items that were left out whole because a value they need is gone.
    """

    new_checkpoints: int
    new_values: int
    missing_items: frozenset[int]


class Replaced(enum.Enum):
    """How replacing a checkpoint ended."""

    REPLACED = enum.auto()
    UNCHANGED = enum.auto()
    """It is not there any more, or it is the same."""
    VALUES_GONE = enum.auto()


Merge = Callable[[bytes, "str | None"], "tuple[bytes, str | None]"]
"""Combines a stored (body, references) with a new one of the same id."""

_NOTHING_MISSING: frozenset[int] = frozenset()


class StoredTuple(NamedTuple):
    """A checkpoint as it is stored, with its values and writes; arrays are ``None`` when empty.

    A value at place 0 is the checkpoint's own; at places 1, 2, … come those that it is rebuilt from, nearest first,
    with neither type nor frame if they are missing.
    """

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    body: bytes
    refs: str | None
    value_channels: Sequence[str] | None
    value_places: Sequence[int] | None
    value_versions: Sequence[str] | None
    value_types: Sequence[str | None] | None
    value_frames: Sequence[bytes | None] | None
    write_task_ids: Sequence[str] | None
    write_channels: Sequence[str] | None
    write_types: Sequence[str] | None
    write_frames: Sequence[bytes] | None
    send_types: Sequence[str] | None
    send_frames: Sequence[bytes] | None

    @property
    def stored_bytes(self) -> int:
        """Payload of this tuple as it came over the wire."""
        return len(self.body) + sum(
            len(frame)
            for frames in (self.value_frames, self.write_frames, self.send_frames)
            if frames
            for frame in frames
            if frame is not None
        )


class Page(NamedTuple):
    """What a page of ``alist`` asks for; see the statements for the meaning."""

    thread_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    before: str | None
    metadata: str
    after: tuple[str, str, str] | None
    """(id, thread, namespace) of the last row seen."""
    rows: int


class Repository:
    """The statements of one schema as methods. Stateless; sessions are passed in."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    # --- writing ---------------------------------------------------------------------------------

    async def insert_batch(self, session: Session, batch: Batch) -> BatchResult:
        """Write a batch: one statement, one round trip, one transaction."""
        if batch.is_single:
            return await self._insert_single(session, batch)
        shape = BatchShape(
            needs=bool(batch.needs),
            values=bool(batch.values),
            checkpoints=bool(batch.checkpoints),
            writes_kept=bool(batch.writes_kept),
            writes_replaced=bool(batch.writes_replaced),
        )
        params: list[object] = []
        for numbered in (batch.needs, batch.values, batch.checkpoints):
            if numbered:
                numbers, rows = zip(*numbered, strict=True)
                params.append(numbers)
                params += zip(*rows, strict=True)
        for writes in (batch.writes_kept, batch.writes_replaced):
            if writes:
                params += zip(*writes, strict=True)
        [(new_checkpoints, new_values, missing)] = await session.fetch(self._statements.batch(shape), params)
        return BatchResult(new_checkpoints, new_values, frozenset(missing) if missing else _NOTHING_MISSING)

    async def _insert_single(self, session: Session, batch: Batch) -> BatchResult:
        if batch.writes_kept:
            await session.execute(self._statements.insert_write, batch.writes_kept[0])
            return BatchResult(0, 0, _NOTHING_MISSING)
        number, row = batch.checkpoints[0]
        statements = self._statements
        if not batch.values and not batch.needs:
            return BatchResult(await session.execute(statements.insert_checkpoint, row), 0, _NOTHING_MISSING)
        params: tuple[object, ...]
        if not batch.values:
            query = statements.insert_checkpoint_on_base
            params = (*row, *batch.needs[0][1][2:4])
        elif not batch.needs:
            _, _, channel, version, _, type_name, frame = batch.values[0][1]
            query = statements.insert_checkpoint_and_value
            params = (*row, channel, version, type_name, frame)
        else:
            query = statements.insert_checkpoint_and_edit
            params = (*row, *batch.values[0][1][2:], batch.needs[0][1][3])
        [(new_checkpoints, new_values, is_there)] = await session.fetch(query, params)
        return BatchResult(
            new_checkpoints, new_values, _NOTHING_MISSING if is_there else frozenset((number,))
        )

    async def replace_checkpoint(
        self,
        session: Session,
        row: CheckpointRow,
        merge: Merge,
    ) -> Replaced:
        """Give a stored checkpoint a new body, in one transaction. A hidden one comes back into sight.

        Args:
            session: A session.
            row: The new checkpoint; its values are stored already.
            merge: Gets the stored body and references, returns those to keep.

        Returns:
            Whether it was done. ``VALUES_GONE``: somebody has deleted a value since the batch brought it along, and
            nothing was done.
        """
        statements = self._statements
        async with session.transaction():
            thread_id, checkpoint_ns, checkpoint_id, _, run_id, langgraph_v, metadata, _, new_body = row
            key = (thread_id, checkpoint_ns, checkpoint_id)
            found = await session.fetch(statements.lock_checkpoint, key)
            if not found:
                return Replaced.UNCHANGED
            stored_body, stored_refs, is_hidden, _ = found[0]
            if stored_body == new_body and not is_hidden:
                return Replaced.UNCHANGED
            body, refs = merge(stored_body, stored_refs)
            done = await session.execute(
                statements.replace_checkpoint, (*key, run_id, langgraph_v, metadata, refs, body)
            )
        return Replaced.REPLACED if done else Replaced.VALUES_GONE

    async def delete_threads(self, session: Session, thread_ids: Sequence[str]) -> int:
        """Delete whole threads in one transaction; return how many rows went."""
        threads = (list(thread_ids),)
        async with session.transaction(read_committed=True):
            await session.fetch(self._statements.lock_values_of_threads, threads)
            [(count,)] = await session.fetch(self._statements.delete_threads, threads)
        return int(count)

    # --- reading ---------------------------------------------------------------------------------

    async def select_tuple(
        self, session: Session, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> StoredTuple | None:
        """Read the latest checkpoint of a namespace, or one exactly."""
        if checkpoint_id is None:
            rows = await session.fetch(self._statements.select_latest, (thread_id, checkpoint_ns))
        else:
            rows = await session.fetch(
                self._statements.select_exact, (thread_id, checkpoint_ns, checkpoint_id)
            )
        return StoredTuple(*rows[0]) if rows else None

    async def select_tuples(
        self, session: Session, keys: Sequence[tuple[str, str, str | None]]
    ) -> list[StoredTuple]:
        """Read many at once: (thread, namespace, checkpoint or ``None`` for the latest). Order is not kept."""
        rows = await session.fetch(
            self._statements.select_many,
            ([key[0] for key in keys], [key[1] for key in keys], [key[2] for key in keys]),
        )
        return [StoredTuple(*row) for row in rows]

    async def select_page(self, session: Session, page: Page) -> list[StoredTuple]:
        """Read one page of a listing, newest first."""
        statements = self._statements
        after = page.after or (None, None, None)
        rows: Sequence[Row]
        if page.thread_id is None:
            rows = await session.fetch(
                statements.page_of_all, (page.before, page.metadata, *after, page.rows)
            )
        elif page.checkpoint_ns is None:
            rows = await session.fetch(
                statements.page_of_thread,
                (
                    page.thread_id,
                    page.checkpoint_id,
                    page.before,
                    page.metadata,
                    after[0],
                    after[2],
                    page.rows,
                ),
            )
        else:
            bounds = [bound for bound in (page.before, after[0]) if bound is not None]
            rows = await session.fetch(
                statements.page_of_namespace,
                (
                    page.thread_id,
                    page.checkpoint_ns,
                    page.checkpoint_id,
                    min(bounds) if bounds else None,
                    page.metadata,
                    page.rows,
                ),
            )
        return [StoredTuple(*row) for row in rows]
