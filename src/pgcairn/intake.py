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
from pgcairn.codec.checkpoint import EncodedPut, encode_put, merge_put, refs_json
from pgcairn.codec.compression import FrameError
from pgcairn.codec.metadata import searchable
from pgcairn.codec.placement import Placements
from pgcairn.codec.serde import Codec
from pgcairn.errors import InvalidInput, StoredDataError
from pgcairn.keys import (
    check_key,
    checkpoint_of,
    configurable_of,
    namespace_of,
    thread_of,
)
from pgcairn.settings import Settings
from pgcairn.storage.rows import WriteRow
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
        configurable = configurable_of(config)
        thread_id = thread_of(configurable.get("thread_id"))
        checkpoint_ns = namespace_of(configurable)
        checkpoint_id = str(checkpoint["id"])
        parent_id = checkpoint_of(configurable)
        complete = cast("dict[str, Any]", get_serializable_checkpoint_metadata(config, metadata))
        run_id = complete.get("run_id")
        if run_id is not None:
            run_id = str(run_id)
        check_key(thread_id=thread_id, checkpoint_ns=checkpoint_ns, checkpoint_id=checkpoint_id)
        check_key(parent_checkpoint_id=parent_id or "", run_id=run_id or "")
        key = (thread_id, checkpoint_ns)
        encoded = encode_put(
            codec, self._settings.inline_max_bytes, self._placements, checkpoint, complete, new_versions, key
        )
        langgraph_v = checkpoint.get("v")
        item = PutItem(
            thread_id=thread_id,
            row=(
                thread_id,
                checkpoint_ns,
                checkpoint_id,
                parent_id,
                run_id,
                langgraph_v if isinstance(langgraph_v, int) else 1,
                searchable(complete),
                refs_json(encoded.refs),
                b"",
            ),
            rows=1 if encoded.large is None else 1 + len(encoded.large),
            size_bytes=encoded.size_bytes,
            encode_whole=functools.partial(
                self._encode_whole, codec, checkpoint, complete, new_versions, key
            ),
            merge=functools.partial(_merge, codec),
        )
        if encoded.needs is not None:
            item.needs = [(*key, channel, version) for channel, version in encoded.needs]
        if encoded.large is not None:
            for value in encoded.large:
                check_key(
                    thread_id=thread_id,
                    checkpoint_ns=checkpoint_ns,
                    channel=value.channel,
                    version=value.version,
                )
        self._note_size(thread_id, encoded.size_bytes)
        await self._submit(codec, item, functools.partial(_frame_put, codec, item, encoded))
        if encoded.refs is not None:
            self._placements.remember(key, encoded.refs)
        return {
            "configurable": {
                "thread_id": thread_id,
                "checkpoint_ns": checkpoint_ns,
                "checkpoint_id": checkpoint_id,
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
        configurable = configurable_of(config)
        thread_id = thread_of(configurable.get("thread_id"))
        checkpoint_ns = namespace_of(configurable)
        checkpoint_id = checkpoint_of(configurable)
        if checkpoint_id is None:
            raise InvalidInput(
                "configurable.checkpoint_id is missing: writes belong to a checkpoint.", thread_id=thread_id
            )
        task_id = str(task_id)
        check_key(
            thread_id=thread_id, checkpoint_ns=checkpoint_ns, checkpoint_id=checkpoint_id, task_id=task_id
        )
        check_key(task_path=task_path)
        payloads = []
        size_bytes = 0
        replace = True
        for channel, value in writes:
            check_key(channel=channel)
            replace = replace and channel in WRITES_IDX_MAP
            type_name, payload = codec.dump(value, "$.writes.", channel)
            payloads.append((channel, type_name, payload))
            size_bytes += len(payload)
        item = WritesItem(thread_id=thread_id, rows=len(payloads), size_bytes=size_bytes, replace=replace)
        prefix = (thread_id, checkpoint_ns, checkpoint_id, task_id)
        await self._submit(
            codec, item, functools.partial(_frame_writes, codec, item, prefix, task_path, payloads)
        )

    async def delete_thread(self, thread_id: str) -> None:
        """Queue the deletion of a thread before the first await; return once it is committed."""
        check_key(thread_id=thread_id)
        await self._coalescer.submit(DeleteItem(thread_id=thread_id))

    def _submit(self, codec: Codec, item: Item, frame: Callable[..., None]) -> asyncio.Future[None]:
        """Give an item its place. Large payloads are framed afterwards, in a worker thread."""
        if not codec.wants_thread(item.size_bytes):
            frame()
            return self._coalescer.submit(item)
        item.ready = False
        coalescer = self._coalescer
        answer = coalescer.submit(item)
        framing = asyncio.get_running_loop().run_in_executor(None, functools.partial(frame, in_thread=True))

        def framed(done: asyncio.Future[None]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is None:
                coalescer.ready(item)
            else:
                coalescer.abandon(item, error)

        framing.add_done_callback(framed)
        return answer

    def _encode_whole(
        self,
        codec: Codec,
        checkpoint: Checkpoint,
        metadata: dict[str, Any],
        new_versions: ChannelVersions,
        key: tuple[str, str],
        item: PutItem,
    ) -> None:
        encoded = encode_put(
            codec, self._settings.inline_max_bytes, None, checkpoint, metadata, new_versions, key
        )
        item.needs = ()
        _frame_put(codec, item, encoded)

    def _note_size(self, thread_id: str, size_bytes: int) -> None:
        counters, limit = self._counters, self._settings.snapshot_warn_bytes
        if size_bytes > counters.snapshot_bytes_max:
            counters.snapshot_bytes_max = size_bytes
        if not limit or size_bytes <= limit:
            return
        counters.snapshots_above_warn_bytes += 1
        if thread_id not in self._warned_threads and len(self._warned_threads) < _MAX_WARNED_THREADS:
            self._warned_threads.add(thread_id)
            logger.warning(
                "thread %r saves a checkpoint of %d bytes (snapshot_warn_bytes=%d); "
                "keep large objects outside the state",
                thread_id,
                size_bytes,
                limit,
            )


# What follows touches nothing but bytes, so a worker thread may do it.


def _frame_put(codec: Codec, item: PutItem, encoded: EncodedPut, *, in_thread: bool = False) -> None:
    row = item.row
    if encoded.large is not None:
        values = []
        for channel, version, type_name, payload in encoded.large:
            frame = codec.frame(payload, "$.channel_values.", channel, in_thread=in_thread)
            values.append((row[0], row[1], channel, version, codec.stored_type(type_name, frame), frame))
        item.values = values
    item.row = (
        *row[:7],
        refs_json(encoded.refs),
        codec.frame(encoded.body, "$", in_thread=in_thread),
    )


def _frame_writes(
    codec: Codec,
    item: WritesItem,
    prefix: tuple[str, str, str, str],
    task_path: str,
    payloads: list[tuple[str, str, bytes]],
    *,
    in_thread: bool = False,
) -> None:
    rows: list[WriteRow] = []
    for position, (channel, type_name, payload) in enumerate(payloads):
        frame = codec.frame(payload, "$.writes.", channel, in_thread=in_thread)
        rows.append(
            (
                *prefix,
                WRITES_IDX_MAP.get(channel, position),
                task_path,
                channel,
                codec.stored_type(type_name, frame),
                frame,
            )
        )
    item.writes = rows


def _merge(
    codec: Codec, item: PutItem, stored_body: bytes, stored_refs: str | None
) -> tuple[bytes, str | None]:
    row = item.row
    try:
        return merge_put(codec, row[8], row[7], stored_body, stored_refs)
    except FrameError as error:
        raise StoredDataError(
            f"The stored checkpoint of the same id cannot be read: {error}.",
            thread_id=row[0],
            checkpoint_ns=row[1],
            checkpoint_id=row[2],
        ) from error
