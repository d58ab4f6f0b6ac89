"""READ PATH of DeltaChannels. From a checkpoint back to the values that its channels are rebuilt from.

Owns the walk over ancestors, which decides for each channel where its history begins, and the assembly of what LangGraph
replays. Two statements serve all channels: one finds the path, one fetches what lies on it. Never waits for anything but
the session it is given; the reader lends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from langgraph.checkpoint.base import DeltaChannelHistory

from pgcairn.codec import body as body_codec
from pgcairn.codec.compression import FrameError
from pgcairn.codec.serde import Codec
from pgcairn.connection.pool import Session
from pgcairn.errors import StoredDataError
from pgcairn.storage.history import Ancestor, HistoryRepository, HistoryRows, ValuePart

_NO_ROWS = HistoryRows((), {})


async def load(
    session: Session,
    repository: HistoryRepository,
    codec: Codec,
    key: tuple[str, str, str | None],
    channels: Sequence[str],
    max_bytes: int,
) -> History:
    """Read the histories of channels up to a checkpoint.

    Args:
        session: A session. Reads only, so all of this can be repeated.
        repository: The statements.
        codec: Opens bodies, to see which channels have a value there.
        key: Thread, namespace, and checkpoint or ``None`` for the latest.
        channels: Each once, at least one.
        max_bytes: How much one statement gathers of a path, about; a longer path takes more statements.

    Raises:
        StoredDataError: A body cannot be read, or checkpoints are ancestors of themselves.
    """
    history = await _load_once(session, repository, codec, key, channels, max_bytes)
    if history.missing_part() is not None:
        # Either it is gone, or all of the thread was deleted between the two statements: then there is no path now.
        history = await _load_once(session, repository, codec, key, channels, max_bytes)
    return history


async def _load_once(
    session: Session,
    repository: HistoryRepository,
    codec: Codec,
    key: tuple[str, str, str | None],
    channels: Sequence[str],
    max_bytes: int,
) -> History:
    walk = Walk(codec, key[:2], channels)
    go_on_from: str | None = key[2]
    is_start = True
    while is_start or go_on_from is not None:
        found = await repository.select_path(
            session, (*key[:2], go_on_from), walk.open_channels, is_start=is_start, max_bytes=max_bytes
        )
        go_on_from = walk.advance(found)
        is_start = False
    if not walk.path:
        return History(walk, _NO_ROWS)
    return History(
        walk, await repository.select_rows(session, key[:2], walk.path, walk.places(), walk.versions)
    )


class Walk:
    """The way from a checkpoint towards the root, and where on it each channel's nearest stored value is. No I/O.

    Attributes:
        path: The ancestors seen so far, nearest first.
        open_channels: The channels whose value was not found yet.
        versions: Channel → version of the value that it starts from, if that has a row.
        inline: Channel → the value that it starts from, if that is in a body.
    """

    def __init__(self, codec: Codec, namespace: tuple[str, str], channels: Sequence[str]) -> None:
        self.namespace = namespace
        self.channels = channels
        self.path: list[str] = []
        self.open_channels = list(channels)
        self.versions: dict[str, str] = {}
        self.inline: dict[str, Any] = {}
        self._codec = codec
        self._seen: set[str] = set()
        self._ends: dict[str, int] = {}

    def places(self) -> dict[str, int]:
        """Channel → how many checkpoints of the path its history goes back: to its value, or to the end."""
        return {channel: self._ends.get(channel, len(self.path)) for channel in self.channels}

    def advance(self, ancestors: Sequence[Ancestor]) -> str | None:
        """Take the next ancestors in.

        Returns:
            The checkpoint to go on from; ``None`` if everything is found or there is no more.

        Raises:
            StoredDataError: A body cannot be read, or a checkpoint is its own ancestor.
        """
        for ancestor in ancestors:
            if ancestor.checkpoint_id in self._seen:
                raise self._corrupt("A checkpoint is its own ancestor.", ancestor.checkpoint_id)
            self._seen.add(ancestor.checkpoint_id)
            self.path.append(ancestor.checkpoint_id)
            if ancestor.refs is not None:
                for channel in [name for name in self.open_channels if name in ancestor.refs]:
                    self.versions[channel] = ancestor.refs[channel]
                    self._found(channel)
            if ancestor.body is not None and self.open_channels:
                for channel, value in self._values_in(ancestor.checkpoint_id, ancestor.body).items():
                    self.inline[channel] = value
                    self._found(channel)
            if not self.open_channels:
                return None
        return self.path[-1] if ancestors and ancestors[-1].is_pause else None

    def _found(self, channel: str) -> None:
        self._ends[channel] = len(self.path)
        self.open_channels.remove(channel)

    def _values_in(self, checkpoint_id: str, frame: bytes) -> dict[str, Any]:
        """The values of open channels that a body holds."""
        codec = self._codec
        channel: str | None = None
        try:
            body = body_codec.unpack(codec.unframe(frame))
            fields, plain_values, _ = body_codec.load_core(codec, body)
            if fields.get("id") != checkpoint_id:
                raise FrameError(f"it belongs to checkpoint {fields.get('id')!r}")
            values = {name: plain_values[name] for name in self.open_channels if name in plain_values}
            for channel, type_name, payload in body.inline:
                if channel in self.open_channels:
                    values[channel] = codec.load(type_name, payload)
        except FrameError as error:
            raise self._corrupt(
                f"The checkpoint's body cannot be read: {error}.", checkpoint_id, channel
            ) from error
        return values

    def _corrupt(self, message: str, checkpoint_id: str, channel: str | None = None) -> StoredDataError:
        thread_id, checkpoint_ns = self.namespace
        return StoredDataError(
            message,
            thread_id=thread_id,
            checkpoint_ns=checkpoint_ns,
            checkpoint_id=checkpoint_id,
            channel=channel,
        )


class History:
    """A walk that has ended, with what lies on it."""

    def __init__(self, walk: Walk, rows: HistoryRows) -> None:
        self._walk = walk
        self._rows = rows

    @property
    def stored_bytes(self) -> int:
        """Payload as it came over the wire, without bodies."""
        frames = [write.frame for write in self._rows.writes]
        frames += [part.frame for parts in self._rows.values.values() for part in parts if part.frame]
        return sum(map(len, frames))

    def missing_part(self) -> tuple[str, ValuePart] | None:
        """Channel and row of a value that should be there and is not."""
        for channel, parts in self._rows.values.items():
            for part in parts:
                if part.frame is None:
                    return channel, part
        return None

    def replay(self, codec: Codec) -> dict[str, DeltaChannelHistory]:
        """Decode it: channel → writes, oldest first, and the value that they follow, if there is one.

        Raises:
            StoredDataError: A value is missing, or something cannot be read.
        """
        walk = self._walk
        if (missing := self.missing_part()) is not None:
            channel, part = missing
            raise self._corrupt("A channel value is missing.", channel, self._place(channel), part.version)
        found: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in walk.channels}
        for channel, place, task_id, type_name, frame in self._rows.writes:
            try:
                value = codec.load_frame(type_name, frame)
            except FrameError as error:
                raise self._corrupt(f"A write cannot be read: {error}.", channel, place) from error
            found[channel]["writes"].append((task_id, channel, value))
        for channel, value in walk.inline.items():
            found[channel]["seed"] = value
        for channel, parts in self._rows.values.items():
            try:
                found[channel]["seed"] = _decode(codec, parts)
            except FrameError as error:
                raise self._corrupt(
                    f"A stored value cannot be read: {error}.",
                    channel,
                    self._place(channel),
                    walk.versions[channel],
                ) from error
        return found

    def _place(self, channel: str) -> int:
        return self._walk.places()[channel]

    def _corrupt(self, message: str, channel: str, place: int, version: str | None = None) -> StoredDataError:
        thread_id, checkpoint_ns = self._walk.namespace
        return StoredDataError(
            message,
            thread_id=thread_id,
            checkpoint_ns=checkpoint_ns,
            checkpoint_id=self._walk.path[place - 1],
            channel=channel,
            version=version,
        )


def _decode(codec: Codec, parts: Sequence[ValuePart]) -> Any:
    """Decode a value from its rows: its own, then those of its chain, all of them there.

    Raises:
        FrameError: One is corrupt, or not what the next was made from.
    """
    versions = [part.version for part in parts]
    frames = [cast("bytes", part.frame) for part in parts]
    payload, _ = codec.unframe_chain(versions, frames)
    return codec.load(codec.plain_type(cast("str", parts[0].type)), payload)
