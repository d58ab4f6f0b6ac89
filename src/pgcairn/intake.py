"""From a caller's arguments to an item in the coalescer's queue.

Owns the checks on keys, the encoding that happens before anything is awaited, and the hand-over of large
payloads to a worker thread. Knows LangGraph's types; never waits for the database itself.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_serializable_checkpoint_metadata,
)

from pgcairn.coalescer import AsideItem, Coalescer, DeleteItem, PutItem, WritesItem
from pgcairn.codec.bases import Bases, Lineage, can_be_base, new_epoch
from pgcairn.codec.checkpoint import EncodedPut, LargeValue, encode_put, merge_put, refs_json
from pgcairn.codec.compression import FrameError
from pgcairn.codec.metadata import searchable
from pgcairn.codec.placement import Placements
from pgcairn.codec.serde import Codec
from pgcairn.connection.pool import Runner
from pgcairn.errors import InvalidInput, StoredDataError, WrongType
from pgcairn.keys import (
    check_key,
    check_text,
    checkpoint_of,
    configurable_of,
    namespace_of,
    surely_fine,
    thread_of,
)
from pgcairn.operations.copying import copy_thread
from pgcairn.operations.retention import Retention
from pgcairn.settings import Settings
from pgcairn.storage.rows import NeededValue, ValueRow, WriteRow, chain_text
from pgcairn.storage.thread_repository import Place, ThreadRepository
from pgcairn.telemetry import Counters

logger = logging.getLogger("pgcairn")

# Threads whose size was logged; a bound, so that a process that sees millions of them does not remember all.
_MAX_WARNED_THREADS = 10_000

# Threads of one call that take their places together: the later ones' writers wait for the earlier ones (guess).
_THREADS_AT_ONCE = 64
# How many of them are worked on at the same time; each needs a session while it is (guess).
_OPERATIONS_AT_ONCE = 2
# PostgreSQL's integer; no namespace has more checkpoints.
_MAX_KEEP_LAST = 2**31 - 1

STRATEGIES = ("keep_latest", "delete")
"""What ``prune`` knows."""


class Intake:
    """Makes items and submits them. Methods are for the owner's event loop; each takes its place in the
    queue before its first await.

    Args:
        coalescer: Where items go.
        repository: The statements of operations on whole threads.
        settings: ``inline_max_bytes``, ``snapshot_warn_bytes``.
        counters: Sizes are counted.
        placements: What is known to be stored; noted here after each commit.
        bases: What values can be stored as edits of; noted here after each commit.
    """

    def __init__(
        self,
        coalescer: Coalescer,
        repository: ThreadRepository,
        settings: Settings,
        counters: Counters,
        placements: Placements,
        bases: Bases,
    ) -> None:
        self._coalescer = coalescer
        self._repository = repository
        self._retention = Retention(repository, counters)
        self._settings = settings
        self._counters = counters
        self._placements = placements
        self._bases = bases
        self._warned_threads: set[str] = set()

    async def put(
        self,
        codec: Codec,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Queue a checkpoint; return its config once it is committed."""
        configurable = configurable_of(config)
        thread_id = thread_of(configurable.get("thread_id"))
        checkpoint_ns = namespace_of(configurable)
        checkpoint_id = str(checkpoint["id"])
        parent_id = checkpoint_of(configurable)
        complete = cast("dict[str, Any]", get_serializable_checkpoint_metadata(config, metadata))
        run_id = complete.get("run_id")
        if run_id is not None:
            run_id = str(run_id)
        if not surely_fine(thread_id, checkpoint_ns, checkpoint_id, parent_id or "", run_id or ""):
            check_key(thread_id=thread_id, checkpoint_ns=checkpoint_ns, checkpoint_id=checkpoint_id)
            check_key(parent_checkpoint_id=parent_id or "", run_id=run_id or "")
        key = (thread_id, checkpoint_ns)
        encoded = encode_put(
            codec, self._settings.inline_max_bytes, self._placements, checkpoint, complete, new_versions, key
        )
        langgraph_v = checkpoint.get("v")
        item = _Put(
            thread_id=thread_id,
            row=(
                thread_id,
                checkpoint_ns,
                checkpoint_id,
                parent_id,
                run_id,
                langgraph_v if isinstance(langgraph_v, int) else 1,
                searchable(complete),
                None,
                b"",
            ),
            rows=1 if encoded.large is None else 1 + len(encoded.large),
            size_bytes=encoded.size_bytes,
            codec=codec,
            encoded=encoded,
            channel_values=checkpoint.get("channel_values") or {},
        )
        if encoded.needs is not None:
            item.needs = [(*key, channel, version, None) for channel, version in encoded.needs]
        if encoded.large is not None:
            for channel, version, _, _ in encoded.large:
                if not surely_fine(thread_id, checkpoint_ns, channel, version):
                    check_key(
                        thread_id=thread_id, checkpoint_ns=checkpoint_ns, channel=channel, version=version
                    )
            item.bases = self._bases_of(item, checkpoint)
        if encoded.size_bytes > self._counters.snapshot_bytes_max:
            self._counters.snapshot_bytes_max = encoded.size_bytes
        if 0 < self._settings.snapshot_warn_bytes < encoded.size_bytes:
            self._warn_of_size(thread_id, encoded.size_bytes)
        await self._submit(codec, item)
        if item.encoded.refs is not None:
            self._placements.remember(key, item.encoded.refs)
        if item.values_are_new:
            for channel, lineage in item.lineages.items():
                self._bases.remember((*key, channel), lineage)
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
        """Queue pending writes; return once they are committed."""
        configurable = configurable_of(config)
        thread_id = thread_of(configurable.get("thread_id"))
        checkpoint_ns = namespace_of(configurable)
        checkpoint_id = checkpoint_of(configurable)
        if checkpoint_id is None:
            raise InvalidInput(
                "configurable.checkpoint_id is missing: writes belong to a checkpoint.", thread_id=thread_id
            )
        task_id = str(task_id)
        if not surely_fine(thread_id, checkpoint_ns, checkpoint_id, task_id, task_path):
            check_key(
                thread_id=thread_id,
                checkpoint_ns=checkpoint_ns,
                checkpoint_id=checkpoint_id,
                task_id=task_id,
            )
            check_text(task_path=task_path)
        payloads = []
        size_bytes = 0
        replace = True
        for channel, value in writes:
            if not surely_fine(channel):
                check_text(channel=channel)
            replace = replace and channel in WRITES_IDX_MAP
            type_name, payload = codec.dump(value, "$.writes.", channel)
            payloads.append((channel, type_name, payload))
            size_bytes += len(payload)
        item = _Writes(
            thread_id=thread_id,
            rows=len(payloads),
            size_bytes=size_bytes,
            replace=replace,
            codec=codec,
            prefix=(thread_id, checkpoint_ns, checkpoint_id, task_id),
            task_path=task_path,
            payloads=payloads,
        )
        await self._submit(codec, item)

    async def delete_thread(self, thread_id: str) -> None:
        """Queue the deletion of a thread; return once it is committed."""
        check_key(thread_id=thread_id)
        self._bases.forget_thread(thread_id)  # what is put from now on comes after the deletion
        await self._coalescer.submit(DeleteItem(thread_id=thread_id))

    # --- whole threads -----------------------------------------------------------------------------

    async def prune(self, thread_ids: Iterable[object], *, strategy: str, keep_last: int | None) -> None:
        """Queue the pruning of threads; return once all of it is committed."""
        threads = [thread_of(each) for each in _listed("thread_ids", thread_ids)]
        for thread_id in threads:
            check_key(thread_id=thread_id)
        if strategy not in STRATEGIES:
            raise InvalidInput(f"strategy={strategy!r} is unknown: use {' or '.join(map(repr, STRATEGIES))}.")
        if keep_last is not None:
            if strategy != "keep_latest":
                raise InvalidInput(f"keep_last={keep_last!r} needs strategy='keep_latest', not {strategy!r}.")
            if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
                raise InvalidInput(f"keep_last={keep_last!r} is not a whole number from 1 on.")
        threads = list(dict.fromkeys(threads))
        if strategy == "delete":
            answers = [self._coalescer.submit(DeleteItem(thread_id=thread_id)) for thread_id in threads]
            _raise_first(await asyncio.gather(*answers, return_exceptions=True))
            return
        most = 1 if keep_last is None else min(keep_last, _MAX_KEEP_LAST)
        await self._each(threads, lambda run, thread_id: self._retention.prune(run, thread_id, most))

    async def delete_for_runs(self, run_ids: Iterable[object]) -> None:
        """Queue the deletion of runs' checkpoints; return once all of it is committed."""
        runs = [str(each) for each in _listed("run_ids", run_ids)]
        for run_id in runs:
            check_key(run_id=run_id)
        if not runs:
            return
        # They may be in any thread, so their checkpoints must be there before they can be looked for.
        await self._coalescer.settled()
        found: dict[str, list[Place]] = {}

        async def find(run: Runner) -> None:
            found.update(await self._retention.find_runs(run, list(dict.fromkeys(runs))))

        await self._coalescer.submit(AsideItem(thread_id="", operation=find))
        await self._each(
            list(found),
            lambda run, thread_id: self._retention.delete_checkpoints(run, thread_id, found[thread_id]),
        )

    async def _each(
        self, threads: Sequence[str], operation: Callable[[Runner, str], Awaitable[None]]
    ) -> None:
        """Run an operation on each thread in its turn, a few at a time. The first error ends it, and names its thread."""
        few = asyncio.Semaphore(_OPERATIONS_AT_ONCE)
        failed = False

        async def in_turn(run: Runner, thread_id: str) -> None:
            nonlocal failed
            async with few:
                if failed:
                    return
                try:
                    await operation(run, thread_id)
                except BaseException:
                    failed = True
                    raise

        for start in range(0, len(threads), _THREADS_AT_ONCE):
            answers = [
                self._coalescer.submit(
                    AsideItem(thread_id=thread_id, operation=functools.partial(in_turn, thread_id=thread_id))
                )
                for thread_id in threads[start : start + _THREADS_AT_ONCE]
            ]
            _raise_first(await asyncio.gather(*answers, return_exceptions=True))

    async def copy_thread(self, source_id: str, target_id: str) -> None:
        """Queue the copy of a thread in both threads' places; return once it is committed."""
        check_key(source_thread_id=source_id)
        check_key(target_thread_id=target_id)
        if source_id == target_id:
            raise InvalidInput(f"Thread {source_id!r} cannot be copied to itself.")
        reached, over = asyncio.Event(), asyncio.Event()

        async def hold(_: Runner) -> None:
            reached.set()
            await over.wait()

        async def copy(run: Runner) -> None:
            await reached.wait()
            if not holding.done():  # else it never began, and says why
                await copy_thread(run, self._repository, self._counters, source_id, target_id)

        # Taken together, so that two copies never wait for each other's places.
        holding = self._coalescer.submit(AsideItem(thread_id=source_id, operation=hold))
        holding.add_done_callback(lambda _: reached.set())
        try:
            copying = self._coalescer.submit(AsideItem(thread_id=target_id, operation=copy))
        except BaseException:
            over.set()
            raise
        copying.add_done_callback(lambda _: over.set())
        _raise_first(await asyncio.gather(copying, holding, return_exceptions=True))

    def _bases_of(self, item: _Put, checkpoint: Checkpoint) -> dict[str, Lineage | None]:
        """What each large value may be stored as an edit of: what is known of the version before it, if anything is."""
        if not self._settings.base_cache_bytes:
            return {}
        found: dict[str, Lineage | None] = {}
        for channel, _, _, _ in item.encoded.large or ():
            if can_be_base(checkpoint["channel_versions"].get(channel)):
                lineage = found[channel] = self._bases.find((*item.row[:2], channel))
                if lineage is None:
                    self._counters.base_cache_misses += 1
                else:
                    self._counters.base_cache_hits += 1
        return found

    def _submit(self, codec: Codec, item: _Put | _Writes) -> asyncio.Future[None]:
        """Give an item its place. Large payloads are framed afterwards, in a worker thread."""
        coalescer = self._coalescer
        if not codec.wants_thread(item.size_bytes):
            item.frame()
            return coalescer.submit(item)
        item.ready = False
        answer = coalescer.submit(item)
        framing = asyncio.get_running_loop().run_in_executor(
            None, functools.partial(item.frame, in_thread=True)
        )

        def framed(done: asyncio.Future[None]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is None:
                coalescer.ready(item)
            else:
                coalescer.abandon(item, error)

        framing.add_done_callback(framed)
        return answer

    def _warn_of_size(self, thread_id: str, size_bytes: int) -> None:
        self._counters.snapshots_above_warn_bytes += 1
        if thread_id in self._warned_threads or len(self._warned_threads) >= _MAX_WARNED_THREADS:
            return
        self._warned_threads.add(thread_id)
        logger.warning(
            "thread %r saves a checkpoint of %d bytes (snapshot_warn_bytes=%d); keep large objects outside the state",
            thread_id,
            size_bytes,
            self._settings.snapshot_warn_bytes,
        )


def _listed(name: str, given: Iterable[object]) -> list[object]:
    if isinstance(given, str | bytes):
        raise WrongType(f"{name}={given!r} is a single text: pass a list, [{given!r}].")
    return list(given)


def _raise_first(results: Iterable[object]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


# ``frame`` touches nothing but bytes, so a worker thread may run it.


@dataclass(slots=True, eq=False, kw_only=True)
class _Put(PutItem):
    """A checkpoint that knows how to make its bytes.

    Attributes:
        codec: The serializer of the saver that it came through.
        encoded: What it was serialized to.
        bases: Channel → what its value may be an edit of, or ``None`` if it begins an epoch; no entry if it can be
            nobody's base.
        lineages: Channel → what to remember once it is committed.
        channel_values: The values as they were handed over, for those that were not serialized.
    """

    codec: Codec
    encoded: EncodedPut
    bases: dict[str, Lineage | None] = field(default_factory=dict)
    lineages: dict[str, Lineage] = field(default_factory=dict)
    channel_values: dict[str, Any]

    def frame(self, *, in_thread: bool = False) -> None:
        codec, encoded, row = self.codec, self.encoded, self.row
        if encoded.large is not None:
            values: list[ValueRow] = []
            needs: list[NeededValue] = []
            for channel, version, type_name, payload in encoded.large:
                chain = None
                base = self.bases.get(channel)
                lineage = None if base is None else base.extended(version, payload)
                if lineage is not None:
                    chain = chain_text(lineage.versions[1:])
                    base_chain = chain_text(lineage.versions[2:])
                    needs.append((row[0], row[1], channel, lineage.versions[1], base_chain))
                    frame = codec.frame_edit(
                        lineage, payload, "$.channel_values.", channel, in_thread=in_thread
                    )
                else:
                    frame = codec.frame(payload, "$.channel_values.", channel, in_thread=in_thread)
                if channel in self.bases:
                    self.lineages[channel] = lineage or new_epoch(version, payload)
                stored_type = codec.stored_type(type_name, frame)
                values.append((row[0], row[1], channel, version, chain, stored_type, frame))
            self.values = values
            if needs:
                self.needs = [*self.needs, *needs]
        body = codec.frame(encoded.body, "$", in_thread=in_thread)
        self.row = (*row[:7], refs_json(encoded.refs), body)

    def encode_whole(self) -> None:
        # What was serialized when the call came stays: the caller may have changed its state since.
        encoded = self.encoded
        large = list(encoded.large or ())
        for channel, version in encoded.needs or ():
            value = self.channel_values[channel]
            large.append(LargeValue(channel, version, *self.codec.dump(value, "$.channel_values.", channel)))
        self.encoded = encoded._replace(large=large, needs=None)
        self.needs = ()
        self.bases = dict.fromkeys(self.bases)
        self.lineages = {}
        self.frame()

    def merge(self, stored_body: bytes, stored_refs: str | None) -> tuple[bytes, str | None]:
        row = self.row
        try:
            return merge_put(self.codec, row[8], row[7], stored_body, stored_refs)
        except FrameError as error:
            raise StoredDataError(
                f"The stored checkpoint of the same id cannot be read: {error}.",
                thread_id=row[0],
                checkpoint_ns=row[1],
                checkpoint_id=row[2],
            ) from error


@dataclass(slots=True, eq=False, kw_only=True)
class _Writes(WritesItem):
    """Pending writes that know how to make their bytes.

    Attributes:
        codec: The serializer of the saver that they came through.
        prefix: Thread, namespace, checkpoint and task, the same for all.
        task_path: The task's path.
        payloads: (channel, type, payload) by position.
    """

    codec: Codec
    prefix: tuple[str, str, str, str]
    task_path: str
    payloads: list[tuple[str, str, bytes]]

    def frame(self, *, in_thread: bool = False) -> None:
        codec = self.codec
        rows: list[WriteRow] = []
        for position, (channel, type_name, payload) in enumerate(self.payloads):
            frame = codec.frame(payload, "$.writes.", channel, in_thread=in_thread)
            idx = WRITES_IDX_MAP.get(channel, position)
            stored_type = codec.stored_type(type_name, frame)
            rows.append((*self.prefix, idx, self.task_path, channel, stored_type, frame))
        self.writes = rows
