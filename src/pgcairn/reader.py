"""READ PATH. Latest-state reads, exact reads, listings.

Owns the coalescing of reads (many callers, one statement), the size of pages, and the rebuilding of a
``CheckpointTuple`` from what is stored. Never writes, and holds no session while a caller does something
else: a paused listing blocks nobody.

Reads of one moment are answered together: up to ``_SLOTS`` statements are under way at once, each for all
that had gathered when it left. A lone read leaves at once, as a statement of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

import orjson
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from pgcairn.codec import body as body_codec
from pgcairn.codec.bases import Bases, Lineage, can_be_base
from pgcairn.codec.compression import FrameError
from pgcairn.codec.serde import Codec
from pgcairn.connection.pool import Pool, Session, by_deadline, give_up_at, run_retried
from pgcairn.errors import (
    ClosedError,
    DatabaseError,
    OutcomeUnknown,
    PgcairnError,
    StoredDataError,
    UnavailableError,
)
from pgcairn.settings import Settings
from pgcairn.storage.paging import PageSize
from pgcairn.storage.repository import Page, Repository, StoredTuple
from pgcairn.telemetry import Counters

T = TypeVar("T")

Key = tuple[str, str, "str | None"]
"""(thread, namespace, checkpoint or ``None`` for the latest)."""

# Statements for reads under way at once. One is answered while the other gathers; more only make the groups
# smaller (measured at 64 callers, docs/benchmarks.md).
_SLOTS = 2

_CUT_SHORT = "The saver was closed before the database answered."

# LangGraph's name of the channel that held Sends in the parent's writes before format 4.
_TASKS = "__pregel_tasks"


@dataclass(slots=True, eq=False)
class _Request:
    key: Key
    answer: asyncio.Future[StoredTuple | None]
    asked_at: float
    give_up_at: float = 0.0
    """When it is not tried again; 0 until it is tried for the first time."""


class Reader:
    """All reads of a saver. Methods are for the owner's event loop.

    Background tasks: at most ``_SLOTS`` named ``pgcairn-read`` while reads wait (without ``group_reads`` one per
    session of the pool), and one named ``pgcairn-page`` for each page being fetched. They own the session, so a cancelled caller breaks nothing.
    """

    def __init__(
        self,
        pool: Pool,
        repository: Repository,
        settings: Settings,
        counters: Counters,
        *,
        group_reads: bool = True,
    ) -> None:
        self._pool = pool
        self._repository = repository
        self._settings = settings
        self._counters = counters
        self._waiting: deque[_Request] = deque()
        self._slots = min(_SLOTS, pool.max_size) if group_reads else pool.max_size
        self._most_rows = settings.read_batch_rows if group_reads else 1
        self._tasks: set[asyncio.Task[Any]] = set()
        self._busy = 0
        self._mean_bytes = 4096.0
        self._closed = False

    # --- one checkpoint ----------------------------------------------------------------------------

    async def load(self, key: Key) -> StoredTuple | None:
        """Read a checkpoint as it is stored; ``None`` if there is none.

        Raises:
            UnavailableError, OutcomeUnknown, DatabaseError, SchemaError, ClosedError: See there.
        """
        if self._closed:
            raise ClosedError(thread_id=key[0])
        started = time.monotonic()
        answer: asyncio.Future[StoredTuple | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(key, answer, started))
        if self._busy < self._slots:
            self._busy += 1
            self._spawn(self._answer_all(), "pgcairn-read")
        stored = await answer
        self._counters.reads += 1
        self._counters.read_latency.observe(time.monotonic() - started)
        return stored

    async def _answer_all(self) -> None:
        """Answer what waits, group by group, until nothing waits."""
        try:
            while self._waiting:
                # Bounded in rows and, by the mean of what was read so far, in bytes.
                most = max(1, min(self._most_rows, int(self._settings.page_bytes / self._mean_bytes)))
                group = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
                group = [request for request in group if not request.answer.done()]
                if group:
                    await self._answer(group)
        finally:
            self._busy -= 1

    async def _answer(self, group: list[_Request]) -> None:
        keys = list(dict.fromkeys(request.key for request in group))
        deadline_seconds = self._settings.retry_deadline_seconds
        for request in group:
            if not request.give_up_at:
                request.give_up_at = give_up_at(request.asked_at, deadline_seconds)
        first = min(request.give_up_at for request in group)
        try:
            found = await self._retried(lambda session: self._select(session, keys), first - time.monotonic())
        except BaseException as error:
            if isinstance(error, DatabaseError) and len(group) > 1:
                # It concerns one of them, perhaps: a row that the server cannot read.
                middle = len(group) // 2
                await self._answer(group[:middle])
                await self._answer(group[middle:])
                return
            if isinstance(error, UnavailableError):
                # Each has a deadline of its own; those that have time left wait on.
                group, patient = by_deadline(group)
                self._waiting.extendleft(reversed(patient))
            self._refuse(group, error)
            if not isinstance(error, Exception):
                raise  # cancelled, by ``close``; after an error the others that wait are still to be answered
            return
        self._counters.read_batches += 1
        for stored in found.values():
            self._counters.read_bytes += stored.stored_bytes
            self._mean_bytes += (stored.stored_bytes - self._mean_bytes) / 16
        for request in group:
            if not request.answer.done():
                request.answer.set_result(found.get(request.key))

    def _refuse(self, group: Sequence[_Request], error: BaseException) -> None:
        for request in group:
            if request.answer.done():
                continue
            if isinstance(error, PgcairnError):
                request.answer.set_exception(error.for_thread(request.key[0]))
                continue
            failure: PgcairnError = (
                ClosedError(_CUT_SHORT, thread_id=request.key[0])
                if self._closed
                else PgcairnError("The read was interrupted.", thread_id=request.key[0])
            )
            failure.__cause__ = error
            request.answer.set_exception(failure)

    async def _select(self, session: Session, keys: Sequence[Key]) -> dict[Key, StoredTuple]:
        if len(keys) == 1:
            stored = await self._repository.select_tuple(session, *keys[0])
            return {} if stored is None else {keys[0]: stored}
        wanted = set(keys)
        found: dict[Key, StoredTuple] = {}
        for stored in await self._repository.select_tuples(session, keys):
            exact = (stored.thread_id, stored.checkpoint_ns, stored.checkpoint_id)
            latest = (stored.thread_id, stored.checkpoint_ns, None)
            if exact in wanted:
                found[exact] = stored
            # An exact read of an older checkpoint must not pass for the latest.
            if latest in wanted and (
                latest not in found or found[latest].checkpoint_id < stored.checkpoint_id
            ):
                found[latest] = stored
        return found

    # --- listings ------------------------------------------------------------------------------------

    async def pages(self, page: Page, limit: int | None) -> AsyncIterator[list[StoredTuple]]:
        """Yield a listing page by page. No session is held while a page is being consumed.

        Args:
            page: What to list; its ``after`` and ``rows`` are set here.
            limit: Most rows in all.
        """
        page_size = PageSize(self._settings)
        left = limit
        while left is None or left > 0:
            rows = page_size.rows if left is None else min(page_size.rows, left)
            asked = page._replace(rows=rows)
            found = await self.detached(
                lambda session, asked=asked: self._repository.select_page(session, asked)  # type: ignore[misc]
            )
            if not found:
                return
            size = sum(stored.stored_bytes for stored in found)
            self._counters.read_bytes += size
            yield found
            if len(found) < rows:
                return
            if left is not None:
                left -= len(found)
            last = found[-1]
            page = page._replace(after=(last.checkpoint_id, last.thread_id, last.checkpoint_ns))
            page_size.saw(len(found), size)

    async def detached(self, operation: Callable[[Session], Awaitable[T]]) -> T:
        """Run an operation in a task of its own: cancelling the caller leaves the session in order."""
        if self._closed:
            raise ClosedError
        task = self._spawn(self._retried(operation), "pgcairn-page")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by ``close``; the caller itself goes on
                raise ClosedError(_CUT_SHORT) from None
            raise

    async def close(self, deadline_seconds: float) -> None:
        """Refuse new reads, wait for those under way until the deadline, then fail them. May be called twice."""
        self._closed = True
        if self._tasks:
            _, pending = await asyncio.wait(set(self._tasks), timeout=deadline_seconds)
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)
        while self._waiting:
            request = self._waiting.popleft()
            if not request.answer.done():
                request.answer.set_exception(ClosedError(_CUT_SHORT, thread_id=request.key[0]))

    def _spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its callers have it, or left

    async def _retried(
        self, operation: Callable[[Session], Awaitable[T]], deadline_seconds: float | None = None
    ) -> T:
        if deadline_seconds is None:
            deadline_seconds = self._settings.retry_deadline_seconds
        try:
            return await run_retried(self._pool, self._counters, deadline_seconds, operation)
        except OutcomeUnknown as error:
            raise UnavailableError(f"The read got no answer. {error.message}") from error


# --- from stored rows to LangGraph's tuple ------------------------------------------------------------


@dataclass(slots=True)
class _Opened:
    """Payloads of large values and writes, opened beforehand.

    Attributes:
        values: Channel → payload and lineage.
        writes: Position among the writes → payload.
    """

    values: dict[str, tuple[bytes, Lineage]] = field(default_factory=dict)
    writes: dict[int, bytes] = field(default_factory=dict)


async def rebuild(codec: Codec, stored: StoredTuple, bases: Bases | None = None) -> CheckpointTuple:
    """Rebuild a checkpoint from what is stored; what is large is decompressed in a worker thread.

    Args:
        codec: The serializer.
        stored: The rows.
        bases: Where to note what the next versions of its large values can be stored as edits of.

    Raises:
        StoredDataError: Something is missing or corrupt; the error names what and where.
    """
    opened = None
    opens_in_thread = codec.opens_in_thread
    for frames in (stored.value_frames, stored.write_frames):
        if frames and any(frame is not None and opens_in_thread(frame) for frame in frames):
            opened = await asyncio.get_running_loop().run_in_executor(None, _open_large, codec, stored)
            break
    return replay(codec, stored, bases, opened)


def _open_large(codec: Codec, stored: StoredTuple) -> _Opened:
    """Runs in a worker thread. What cannot be opened is left out: replaying it finds out what to say of it."""
    opened = _Opened()
    for channel, rows in _chains(stored).items():
        frames = [row.frame for row in rows if row.frame is not None]
        if len(frames) == len(rows) and any(map(codec.opens_in_thread, frames)):
            with contextlib.suppress(FrameError):
                opened.values[channel] = codec.unframe_chain(
                    [row.version for row in rows], frames, in_thread=True
                )
    for number, frame in enumerate(stored.write_frames or ()):
        if codec.opens_in_thread(frame):
            with contextlib.suppress(FrameError):
                opened.writes[number] = codec.unframe(frame, in_thread=True)
    return opened


def replay(
    codec: Codec, stored: StoredTuple, bases: Bases | None = None, opened: _Opened | None = None
) -> CheckpointTuple:
    """``rebuild`` without a worker thread, or after its work."""
    opened = opened or _NOTHING_OPENED
    try:
        body = body_codec.unpack(codec.unframe(stored.body))
        fields, plain_values, metadata = body_codec.load_core(codec, body)
    except FrameError as error:
        raise _corrupt(stored, f"The checkpoint's body cannot be read: {error}.") from error
    if fields.get("id") != stored.checkpoint_id:
        raise _corrupt(stored, f"The checkpoint's body belongs to checkpoint {fields.get('id')!r}.")
    values: dict[str, Any] = dict(plain_values)
    for channel, type_name, payload in body.inline:
        try:
            values[channel] = codec.load(type_name, payload)
        except FrameError as error:
            raise _corrupt(stored, f"A channel value cannot be read: {error}.", channel=channel) from error
    if stored.refs is not None:
        _load_referenced(codec, stored, values, bases, opened)
    pending = [
        (task_id, channel, _load_frame(codec, stored, type_name, frame, channel, opened.writes.get(number)))
        for number, (task_id, channel, type_name, frame) in enumerate(
            zip(
                stored.write_task_ids or (),
                stored.write_channels or (),
                stored.write_types or (),
                stored.write_frames or (),
                strict=True,
            )
        )
    ]
    checkpoint = {**fields, "channel_values": values}
    if stored.send_frames:
        _migrate_sends(codec, stored, checkpoint)
    return CheckpointTuple(
        config=_config(stored, stored.checkpoint_id),
        checkpoint=checkpoint,  # type: ignore[arg-type]
        metadata=metadata,  # type: ignore[arg-type]
        parent_config=_config(stored, stored.parent_checkpoint_id) if stored.parent_checkpoint_id else None,
        pending_writes=pending,
    )


def _load_referenced(
    codec: Codec, stored: StoredTuple, values: dict[str, Any], bases: Bases | None, opened: _Opened
) -> None:
    wanted = references(stored)
    chains = _chains(stored)
    for channel, rows in chains.items():
        version = wanted[channel]
        missing = next((row for row in rows if row.frame is None), None)
        if missing is not None:
            raise _corrupt(
                stored,
                f"Version {missing.version} of a value, on which this one rests, is missing.",
                channel=channel,
                version=version,
            )
        try:
            payload, lineage = opened.values.get(channel) or codec.unframe_chain(
                [row.version for row in rows], [cast("bytes", row.frame) for row in rows]
            )
            values[channel] = codec.load(codec.plain_type(cast("str", rows[0].type)), payload)
        except FrameError as error:
            raise _corrupt(
                stored, f"A stored value cannot be read: {error}.", channel=channel, version=version
            ) from error
        if bases is not None and can_be_base(version):
            bases.remember((stored.thread_id, stored.checkpoint_ns, channel), lineage)
    for channel, version in wanted.items():
        if channel not in chains:
            raise _corrupt(stored, "A channel value is missing.", channel=channel, version=version)


class _ValueRow(NamedTuple):
    place: int
    version: str
    type: str | None
    frame: bytes | None


def _chains(stored: StoredTuple) -> dict[str, list[_ValueRow]]:
    """Channel → its value's row, then those that it rests on, nearest first."""
    chains: dict[str, list[_ValueRow]] = {}
    for channel, place, version, type_name, frame in zip(
        stored.value_channels or (),
        stored.value_places or (),
        stored.value_versions or (),
        stored.value_types or (),
        stored.value_frames or (),
        strict=True,
    ):
        chains.setdefault(channel, []).append(_ValueRow(place, version, type_name, frame))
    for rows in chains.values():
        rows.sort(key=_place)  # PostgreSQL promises no order here, though it keeps one
    return chains


_NOTHING_OPENED = _Opened()
_place = operator.attrgetter("place")


def references(stored: StoredTuple) -> dict[str, str]:
    """Channel → version of the values that have a row of their own."""
    return {} if stored.refs is None else dict(orjson.loads(stored.refs))


def _load_frame(
    codec: Codec,
    stored: StoredTuple,
    type_name: str,
    frame: bytes,
    channel: str,
    payload: bytes | None = None,
) -> Any:
    try:
        if payload is None:
            payload = codec.unframe(frame)
        return codec.load(codec.plain_type(type_name), payload)
    except FrameError as error:
        version = references(stored).get(channel)
        raise _corrupt(
            stored, f"A stored value cannot be read: {error}.", channel=channel, version=version
        ) from error


def _migrate_sends(codec: Codec, stored: StoredTuple, checkpoint: dict[str, Any]) -> None:
    """Move the Sends of a checkpoint below format 4 to where LangGraph looks for them today."""
    checkpoint["channel_values"][_TASKS] = [
        _load_frame(codec, stored, type_name, frame, _TASKS)
        for type_name, frame in zip(stored.send_types or (), stored.send_frames or (), strict=True)
    ]
    versions = dict(checkpoint.get("channel_versions") or {})
    versions[_TASKS] = max(versions.values()) if versions else f"{1:032}.{0:016}"
    checkpoint["channel_versions"] = versions


def _config(stored: StoredTuple, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": stored.thread_id,
            "checkpoint_ns": stored.checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def _corrupt(
    stored: StoredTuple, message: str, *, channel: str | None = None, version: str | None = None
) -> StoredDataError:
    return StoredDataError(
        message,
        thread_id=stored.thread_id,
        checkpoint_ns=stored.checkpoint_ns,
        checkpoint_id=stored.checkpoint_id,
        channel=channel,
        version=version,
    )
