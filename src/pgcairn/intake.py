"""From a caller's arguments to an item in the coalescer's queue.

Owns the checks on keys, the encoding that happens before anything is awaited, and the hand-over of large
payloads to a worker thread. Knows LangGraph's types; never waits for the database.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_serializable_checkpoint_metadata,
)

from pgcairn.coalescer import Coalescer, DeleteItem, Item, PutItem, WritesItem
from pgcairn.codec.checkpoint import EncodedPut, encode_put, merge_put
from pgcairn.codec.compression import FrameError
from pgcairn.codec.metadata import searchable
from pgcairn.codec.placement import Placements
from pgcairn.codec.serde import Codec
from pgcairn.errors import InvalidInput, StoredDataError
from pgcairn.keys import (
    check_key,
    check_text,
    checkpoint_of,
    configurable_of,
    namespace_of,
    thread_of,
)
from pgcairn.settings import Settings
from pgcairn.storage.rows import CheckpointRow, NeededValue, ValueRow, WriteRow
from pgcairn.telemetry import Counters

logger = logging.getLogger("pgcairn")

# Threads whose size was logged; a bound, so that a process that sees millions of them does not remember all.
_MAX_WARNED_THREADS = 10_000


class Intake:
    """Makes items and submits them. Methods are for the owner's event loop and return without waiting.

    Args:
        coalescer: Where items go.
        settings: ``inline_max_bytes``, ``snapshot_warn_bytes``.
        counters: Sizes are counted.
        placements: What is known to be stored; noted here after each commit.
    """

    def __init__(
        self, coalescer: Coalescer, settings: Settings, counters: Counters, placements: Placements
    ) -> None:
        self._coalescer = coalescer
        self._settings = settings
        self._counters = counters
        self._placements = placements
        self._warned_threads: set[str] = set()

    async def put(
        self,
        codec: Codec,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Queue a checkpoint before the first await; return its config once it is committed."""
        item, encoded = self._put_item(codec, config, checkpoint, metadata, new_versions)
        answer = self._coalescer.submit(item)
        if not item.ready:
            self._finish_in_thread(
                item, functools.partial(self._finish_put, codec, item, encoded, in_thread=True)
            )
        await answer
        row = item.row
        self._placements.remember(row.thread_id, row.checkpoint_ns, encoded.refs)
        return {
            "configurable": {
                "thread_id": row.thread_id,
                "checkpoint_ns": row.checkpoint_ns,
                "checkpoint_id": row.checkpoint_id,
            }
        }

    async def put_writes(
        self,
        codec: Codec,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        """Queue pending writes before the first await; return once they are committed."""
        item, payloads = self._writes_item(codec, config, writes, task_id, task_path)
        answer = self._coalescer.submit(item)
        if not item.ready:
            self._finish_in_thread(
                item, functools.partial(self._finish_writes, codec, item, payloads, in_thread=True)
            )
        await answer

    async def delete_thread(self, thread_id: str) -> None:
        """Queue the deletion of a thread before the first await; return once it is committed."""
        await self._coalescer.submit(DeleteItem(thread_id=thread_id))

    def _put_item(
        self,
        codec: Codec,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[PutItem, EncodedPut]:
        configurable = configurable_of(config)
        thread_id = thread_of(configurable.get("thread_id"))
        checkpoint_ns = namespace_of(configurable)
        checkpoint_id = check_text(str(checkpoint["id"]), "checkpoint id")
        check_key(
            ("thread_id", thread_id),
            ("checkpoint_ns", checkpoint_ns),
            ("checkpoint id", checkpoint_id),
        )
        whole = cast("dict[str, Any]", get_serializable_checkpoint_metadata(config, metadata))
        run_id = whole.get("run_id")

        def encode(placements: Placements | None) -> EncodedPut:
            return encode_put(
                codec,
                self._settings,
                placements,
                checkpoint,
                whole,
                new_versions,
                (thread_id, checkpoint_ns),
            )

        encoded = encode(self._placements)

        def encode_whole() -> CheckpointRow:
            nonlocal encoded
            encoded = encode(None)
            self._finish_put(codec, item, encoded)
            return item.row

        def merge(stored_body: bytes, stored_refs: str | None) -> tuple[bytes, str | None]:
            try:
                return merge_put(codec, encoded, stored_body, stored_refs)
            except FrameError as error:
                raise StoredDataError(
                    f"The stored checkpoint of the same id cannot be read: {error}.",
                    thread_id=thread_id,
                    checkpoint_ns=checkpoint_ns,
                    checkpoint_id=checkpoint_id,
                ) from error

        version = checkpoint.get("v")
        item = PutItem(
            thread_id=thread_id,
            row=CheckpointRow(
                thread_id=thread_id,
                checkpoint_ns=checkpoint_ns,
                checkpoint_id=checkpoint_id,
                parent_checkpoint_id=checkpoint_of(configurable),
                run_id=None if run_id is None else check_text(str(run_id), "run_id"),
                langgraph_v=version if isinstance(version, int) else 1,
                metadata=searchable(whole),
                refs=None,
                body=b"",
            ),
            rows=1 + len(encoded.large),
            size_bytes=encoded.size_bytes,
            encode_whole=encode_whole,
            merge=merge,
        )
        self._note_size(thread_id, encoded.size_bytes)
        if codec.wants_thread(encoded.size_bytes):
            item.ready = False
        else:
            self._finish_put(codec, item, encoded)
        return item, encoded

    def _finish_put(
        self, codec: Codec, item: PutItem, encoded: EncodedPut, *, in_thread: bool = False
    ) -> None:
        """Make the frames of a put. Only bytes are touched, so a worker thread may do it."""
        row = item.row
        values = []
        for channel, version, type_name, payload in encoded.large:
            check_text(channel, "channel")
            check_key(
                ("thread_id", row.thread_id),
                ("checkpoint_ns", row.checkpoint_ns),
                ("channel", channel),
                ("version", check_text(version, "version")),
            )
            frame = codec.frame(payload, f"$.channel_values.{channel}", in_thread=in_thread)
            values.append(
                ValueRow(
                    row.thread_id,
                    row.checkpoint_ns,
                    channel,
                    version,
                    codec.stored_type(type_name, frame),
                    frame,
                )
            )
        row.values = values
        row.needs = [
            NeededValue(row.thread_id, row.checkpoint_ns, channel, version)
            for channel, version in encoded.needs
        ]
        row.refs = encoded.refs_json()
        row.body = codec.frame(encoded.body.pack(), "$", in_thread=in_thread)

    def _writes_item(
        self,
        codec: Codec,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> tuple[WritesItem, list[tuple[str, bytes]]]:
        configurable = configurable_of(config)
        thread_id = thread_of(configurable.get("thread_id"))
        checkpoint_ns = namespace_of(configurable)
        checkpoint_id = checkpoint_of(configurable)
        if checkpoint_id is None:
            raise InvalidInput(
                "configurable.checkpoint_id is missing: writes belong to a checkpoint.",
                thread_id=thread_id,
            )
        task = check_text(str(task_id), "task_id")
        path = check_text(task_path, "task_path")
        check_key(
            ("thread_id", thread_id),
            ("checkpoint_ns", checkpoint_ns),
            ("checkpoint_id", checkpoint_id),
            ("task_id", task),
        )
        payloads = [codec.dump(value, f"$.writes.{channel}") for channel, value in writes]
        size_bytes = sum(len(payload) for _, payload in payloads)
        item = WritesItem(
            thread_id=thread_id,
            rows=len(writes),
            size_bytes=size_bytes,
            replace=all(channel in WRITES_IDX_MAP for channel, _ in writes),
            writes=[
                WriteRow(
                    thread_id,
                    checkpoint_ns,
                    checkpoint_id,
                    task,
                    WRITES_IDX_MAP.get(channel, position),
                    path,
                    check_text(channel, "channel"),
                    type_name,
                    b"",
                )
                for position, ((channel, _), (type_name, _)) in enumerate(zip(writes, payloads, strict=True))
            ],
        )
        if codec.wants_thread(size_bytes):
            item.ready = False
        else:
            self._finish_writes(codec, item, payloads)
        return item, payloads

    def _finish_writes(
        self,
        codec: Codec,
        item: WritesItem,
        payloads: list[tuple[str, bytes]],
        *,
        in_thread: bool = False,
    ) -> None:
        """Make the frames of writes. Only bytes are touched, so a worker thread may do it."""
        finished = []
        for write, (type_name, payload) in zip(item.writes, payloads, strict=True):
            frame = codec.frame(payload, f"$.writes.{write.channel}", in_thread=in_thread)
            finished.append(write._replace(type=codec.stored_type(type_name, frame), frame=frame))
        item.writes = finished

    def _finish_in_thread(self, item: Item, finish: Callable[[], None]) -> None:
        """Compress in a worker thread; the item has its place in the lane already."""
        coalescer = self._coalescer
        future = asyncio.get_running_loop().run_in_executor(None, finish)

        def finished(done: asyncio.Future[None]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is None:
                coalescer.ready(item)
            else:
                coalescer.abandon(item, error)

        future.add_done_callback(finished)

    def _note_size(self, thread_id: str, size_bytes: int) -> None:
        counters, limit = self._counters, self._settings.snapshot_warn_bytes
        counters.snapshot_bytes_max = max(counters.snapshot_bytes_max, size_bytes)
        if not limit or size_bytes <= limit:
            return
        counters.snapshots_above_warn_bytes += 1
        if thread_id not in self._warned_threads and len(self._warned_threads) < _MAX_WARNED_THREADS:
            self._warned_threads.add(thread_id)
            logger.warning(
                "thread %r saves a checkpoint of %d bytes (snapshot_warn_bytes=%d); keep large objects outside the state",
                thread_id,
                size_bytes,
                limit,
            )
