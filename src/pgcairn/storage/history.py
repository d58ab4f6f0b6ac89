"""The two statements that DeltaChannels are rebuilt from, as methods.

Owns the order of parameters and the meaning of result rows, as ``repository.py`` does for everything else. Never decides
which ancestors matter; its neighbour above is ``pgcairn.history``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson

from pgcairn.connection.pool import Session
from pgcairn.storage.statements import Statements


class Ancestor(NamedTuple):
    """A checkpoint on the way from another one to the root.

    Attributes:
        checkpoint_id: Its id.
        refs: Channel → version of its values with rows of their own; ``None`` if none of these channels is asked for.
        body: Its body's frame; ``None`` if it surely holds no value that is asked for.
        is_pause: The walk stopped after this one only because it had gone far enough for one statement.
    """

    checkpoint_id: str
    refs: Mapping[str, str] | None
    body: bytes | None
    is_pause: bool


class ValuePart(NamedTuple):
    """A row of ``channel_values`` that a value is decoded from.

    Attributes:
        version: Which one.
        type: The stored type tag; ``None`` if the row is missing.
        frame: The frame; ``None`` if the row is missing.
    """

    version: str
    type: str | None
    frame: bytes | None


class StoredWrite(NamedTuple):
    """A write on the path.

    Attributes:
        channel: Its channel.
        place: That of its checkpoint on the path; 1 is the nearest.
        task_id: Who wrote it.
        type: The stored type tag.
        frame: The value's frame.
    """

    channel: str
    place: int
    task_id: str
    type: str
    frame: bytes


class HistoryRows(NamedTuple):
    """What a history is made of, as it is stored.

    Attributes:
        writes: The oldest first.
        values: Channel → the rows of its value: the value's own, then those that it rests on in the order of its chain.
    """

    writes: Sequence[StoredWrite]
    values: Mapping[str, Sequence[ValuePart]]


class HistoryRepository:
    """The statements of one schema as methods. Stateless; sessions are passed in."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    async def select_path(
        self,
        session: Session,
        key: tuple[str, str, str | None],
        channels: Sequence[str],
        *,
        is_start: bool,
        max_bytes: int,
    ) -> list[Ancestor]:
        """Read the ancestors of a checkpoint, nearest first; see the statement for where the walk ends."""
        rows = await session.fetch(
            self._statements.select_delta_path, (*key, list(channels), is_start, max_bytes)
        )
        return [
            Ancestor(checkpoint_id, None if refs is None else orjson.loads(refs), body, is_pause)
            for checkpoint_id, refs, body, is_pause in rows
        ]

    async def select_rows(
        self,
        session: Session,
        namespace: tuple[str, str],
        path: Sequence[str],
        places: Mapping[str, int],
        versions: Mapping[str, str],
    ) -> HistoryRows:
        """Read writes and values.

        Args:
            session: A session.
            namespace: Thread and namespace.
            path: Checkpoints, nearest first.
            places: Channel → how many checkpoints of the path its history goes back.
            versions: Channel → version of the value that it starts from, if that has rows.
        """
        rows = await session.fetch(
            self._statements.select_delta_rows,
            (*namespace, list(path), [*places], [*places.values()], [*versions], [*versions.values()]),
        )
        writes: list[StoredWrite] = []
        values: dict[str, list[ValuePart]] = {}
        for row in rows:
            if row[1] > 0:
                writes.append(StoredWrite(*row))
            else:
                values.setdefault(row[0], []).append(ValuePart(*row[2:]))
        return HistoryRows(writes, values)
