"""LangGraph's interface. Opens and closes, checks and encodes what comes in, and wires the layers.

Owns the public class. No SQL, no sockets, no batching: writes go to the coalescer, reads to the reader, both
belong to the engine that a saver shares with its clones. Above 600 lines, because it is the whole public interface with
its twins and most of it is what they promise; what they do is elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import random
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from pgcairn import history
from pgcairn.codec.metadata import searchable
from pgcairn.codec.serde import Codec
from pgcairn.engine import Engine, owned_pool, pool_for
from pgcairn.errors import ClosedError, InvalidInput, PgcairnError
from pgcairn.health import Readiness
from pgcairn.keys import (
    check_key,
    check_text,
    checkpoint_of,
    configurable_of,
    namespace_of,
    thread_of,
)
from pgcairn.reader import rebuild, references
from pgcairn.settings import Settings
from pgcairn.storage.repository import Page
from pgcairn.telemetry import Counters, Stats

if TYPE_CHECKING:
    from typing_extensions import Self


class GraphState(BaseCheckpointSaver[str]):
    """LangGraph's interface over an engine: reading and writing, async and sync.

    The public savers add how they are made, opened and closed.
    """

    def _start(self, engine: Engine) -> None:
        self._engine = engine
        self._codec_made_for: object = None
        self._codec_made: Codec | None = None

    def stats(self) -> Stats:
        """What the saver did and how it is: counters, backlog, batch sizes, latencies, pool."""
        return self._engine.stats()

    # --- reading -------------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read one checkpoint: the latest of its namespace, or the one that the config names.

        Returns:
            The checkpoint with all its values and its pending writes, or ``None`` if there is none.

        Raises:
            InvalidInput: The config names no thread.
            StoredDataError: Stored bytes are missing or corrupt.
            UnavailableError: The database cannot be reached; never ``None`` for that.
        """
        key = _key_of(config)
        engine = self._engine
        if not engine.is_owner():
            return await engine.forward(functools.partial(self.aget_tuple, config))
        stored = await engine.reader.load(key)
        if stored is None:
            return None
        found = await rebuild(self._codec, stored, engine.bases)
        # Here and not in listings: those end with the oldest versions, and the next put needs the latest.
        if stored.refs is not None:
            engine.placements.remember((stored.thread_id, stored.checkpoint_ns), references(stored))
        return found

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints, newest first, page by page; no session is held between pages.

        Args:
            config: Thread, and optionally a namespace (a missing one means all, ``""`` the root) and a
                checkpoint. ``None``: all threads.
            filter: Metadata that must be contained, in the sense of JSONB's ``@>``.
            before: Only checkpoints whose id is below the one that this config names.
            limit: Most checkpoints to yield; 0 yields none.

        Raises:
            InvalidInput: The limit is negative, or the config names no thread.
            StoredDataError, UnavailableError: See ``aget_tuple``; while iterating.
        """
        page, limit = self._page(config, filter, before, limit)
        return self._list(page, limit)

    async def _list(self, page: Page, limit: int | None) -> AsyncIterator[CheckpointTuple]:
        engine = self._engine
        found = self._replay_pages(page, limit)
        try:
            while True:
                following = functools.partial(_following, found)
                each = await engine.on_owner(following)
                if each is None:
                    return
                yield each
        finally:
            # Holds no session and waits for nothing, so it can be closed from any loop. Not while it fetches
            # a page there for a caller that was cancelled here: then it ends by itself.
            with contextlib.suppress(RuntimeError):
                await found.aclose()

    async def _replay_pages(self, page: Page, limit: int | None) -> AsyncGenerator[CheckpointTuple, None]:
        async for rows in self._engine.reader.pages(page, limit):
            for stored in rows:
                yield await rebuild(self._codec, stored)

    def _page(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> tuple[Page, int | None]:
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit={limit} is negative: use None for all, or 0 and more.")
        thread_id = checkpoint_ns = checkpoint_id = None
        if config is not None:
            configurable = configurable_of(config)
            thread_id = thread_of(configurable.get("thread_id"))
            if configurable.get("checkpoint_ns") is not None:
                checkpoint_ns = namespace_of(configurable)
            checkpoint_id = checkpoint_of(configurable)
        before_id = None
        if before is not None and (found := get_checkpoint_id(before)):
            before_id = str(found)
        check_key(
            thread_id=thread_id or "",
            checkpoint_ns=checkpoint_ns or "",
            checkpoint_id=checkpoint_id or "",
        )
        check_key(before=before_id or "")
        return (
            Page(
                thread_id=thread_id,
                checkpoint_ns=checkpoint_ns,
                checkpoint_id=checkpoint_id,
                before=before_id,
                metadata=searchable(filter or {}),
                after=None,
                rows=0,
            ),
            limit,
        )

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read what DeltaChannels are rebuilt from: the nearest stored value on the way to the root, and the writes since.

        Follows parents, so other branches of a forked thread contribute nothing; writes of the checkpoint itself are
        not part of it. Two statements for all channels, unless the way is longer than about ``page_bytes``.

        Args:
            config: Thread, namespace, and checkpoint; without a checkpoint the latest.
            channels: The channels to read.

        Returns:
            For each channel ``writes``, oldest first and within a checkpoint in the order in which LangGraph applied
            them, and ``seed``, the value that they follow; no ``seed`` if no ancestor has a value. No writes and no
            seed if there is no such checkpoint.

        Raises:
            InvalidInput: The config names no thread, or a channel has no storable name.
            StoredDataError: Stored bytes are missing or corrupt.
            UnavailableError: The database cannot be reached.
        """
        if not channels:
            return {}
        key = _key_of(config)
        wanted = [str(channel) for channel in dict.fromkeys(channels)]
        for channel in wanted:
            check_text(channel=channel)
        engine = self._engine
        if not engine.is_owner():
            return await engine.forward(
                functools.partial(self.aget_delta_channel_history, config=config, channels=channels)
            )
        codec = self._codec
        try:
            found = await engine.reader.detached(
                lambda session: history.load(
                    session, engine.history_repository, codec, key, wanted, engine.settings.page_bytes
                )
            )
        except PgcairnError as error:
            raise error.for_thread(key[0]) from error
        engine.counters.history_reads += 1
        engine.counters.read_bytes += found.stored_bytes
        return found.replay(codec)

    # --- writing -------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; returns after COMMIT.

        The values are serialized before this first waits, so changing them afterwards does no harm; a large value
        that did not change is not serialized at all, unless its row turns out to have been deleted meanwhile. Putting an
        id again replaces checkpoint and metadata; its parent and values of known versions stay.

        Args:
            config: Thread and namespace; its ``checkpoint_id`` becomes the parent.
            checkpoint: With the values of all channels that have one.
            metadata: Stored together with the config's metadata and scalar configurables.
            new_versions: The channels that changed.

        Returns:
            The config that reads this checkpoint.

        Raises:
            InvalidInput: A key cannot be stored.
            SerializationError: A value cannot be carried; the error names its path.
            RejectedError: PostgreSQL refused it.
            UnavailableError, BacklogFull: Nothing was written; retry.
            OutcomeUnknown: It may have been written; retrying is safe.
        """
        engine = self._engine
        if not engine.is_owner():
            return await engine.forward(
                functools.partial(self.aput, config, checkpoint, metadata, new_versions)
            )
        return await engine.intake.put(self._codec, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the pending writes of a task; returns after COMMIT.

        If all channels are special ones (errors, interrupts, resumes), stored values are replaced; otherwise
        a row that exists is kept. The checkpoint need not exist yet.

        Args:
            config: Thread, namespace and checkpoint.
            writes: (channel, value) pairs; the position is part of the key.
            task_id: The task.
            task_path: Its path, which decides the order in which writes are read back.

        Raises:
            See ``aput``.
        """
        engine = self._engine
        if not engine.is_owner():
            return await engine.forward(
                functools.partial(self.aput_writes, config, writes, task_id, task_path)
            )
        if not writes:
            return None
        return await engine.intake.put_writes(self._codec, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread; returns after COMMIT. An unknown thread is fine.

        Raises:
            InvalidInput: The thread id cannot be one.
            UnavailableError, OutcomeUnknown, DatabaseError: See there.
        """
        engine = self._engine
        thread = thread_of(thread_id)
        if not engine.is_owner():
            return await engine.forward(functools.partial(self.adelete_thread, thread))
        return await engine.intake.delete_thread(thread)

    # --- whole threads -------------------------------------------------------------------------------

    async def aprune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep_last: int | None = None
    ) -> None:
        """Remove old checkpoints of threads; returns when all of it is committed.

        ``"keep_latest"`` keeps the newest ``keep_last`` checkpoints of every namespace with their pending writes and
        values, so that interrupted runs resume as before. The namespace of one subgraph call (it has a ``:``) goes
        whole once the root checkpoint that the call started from goes. Checkpoints that a kept one is rebuilt from
        (``DeltaChannel``, Sends of old formats) go out of sight and stay stored until nothing needs them. A parent
        that is gone reads as ``None``.

        Guarantees: each thread is pruned in its turn among the calls on it, in transactions of at most 1,000
        checkpoints; runs, prunes and copies may go on meanwhile, here and in other processes. What is
        committed after the prune of a thread began is not touched by it. If it breaks off, nothing that is kept is lost,
        and the next call does the rest. Cancelling does not stop the threads under way. Do not resume
        from an old checkpoint while it is being pruned: the new branch would lose its parent.

        Args:
            thread_ids: Which threads; unknown ones are fine. Above 64, the rest takes its turn after the first 64 are done.
            strategy: ``"keep_latest"``, or ``"delete"``: everything of the threads, as ``adelete_thread`` does.
            keep_last: How many to keep per namespace, from 1 on. ``None`` means 1.

        Raises:
            InvalidInput: The strategy or ``keep_last`` is none, or a thread id cannot be one.
            WrongType: ``thread_ids`` is a single text.
            UnavailableError, OutcomeUnknown, DatabaseError: See there; the error names the first thread that failed, and
                calling again is safe.
        """
        if not isinstance(thread_ids, str | bytes):
            thread_ids = list(thread_ids)
        engine = self._engine
        call = functools.partial(engine.intake.prune, thread_ids, strategy=strategy, keep_last=keep_last)
        return await engine.on_owner(call)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, in all threads and namespaces, with their writes; returns when all is committed.

        Checkpoints that a remaining one is rebuilt from (``DeltaChannel``, Sends of old formats) only go out of
        sight. Their children's parent reads as ``None``. A run is what the metadata's ``run_id`` names.

        Guarantees: everything queued before the call is looked at; checkpoints of these runs that are committed
        after they were looked for stay. Transactions, cancellation and failures: see ``aprune``.

        Args:
            run_ids: Which runs; unknown ones are fine.

        Raises:
            InvalidInput: A run id cannot be one.
            WrongType: ``run_ids`` is a single text.
            UnavailableError, OutcomeUnknown, DatabaseError: See ``aprune``.
        """
        if not isinstance(run_ids, str | bytes):
            run_ids = list(run_ids)
        engine = self._engine
        call = functools.partial(engine.intake.delete_for_runs, run_ids)
        return await engine.on_owner(call)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of a thread to a new one: one transaction on the server, visible whole or not at all.

        The copy has what was called on the source before, and nothing that is called after; run ids are copied, too.

        Args:
            source_thread_id: The thread to copy.
            target_thread_id: The thread to make; nothing may be stored under it.

        Raises:
            InvalidInput: The source has nothing, the target has something, or both are the same.
            OutcomeUnknown: The connection broke; the target may be the copy.
            UnavailableError, DatabaseError: Nothing was copied.
        """
        source, target = thread_of(source_thread_id), thread_of(target_thread_id)
        engine = self._engine
        call = functools.partial(engine.intake.copy_thread, source, target)
        return await engine.on_owner(call)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version of a channel: a counter, and a random part so that forks do not collide."""
        if current is None:
            number = 0
        elif isinstance(current, str):
            number = int(current.partition(".")[0])
        else:
            number = int(current)
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - uniqueness among siblings, not secrecy

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return a clone whose serializer also accepts these types; it shares pool, queues and life cycle."""
        return cast("Self", super().with_allowlist(extra_allowlist))

    @property
    def _codec(self) -> Codec:
        # LangGraph replaces ``serde`` on clones, so the codec follows it.
        if self._codec_made is None or self._codec_made_for is not self.serde:
            self._codec_made = Codec(self.serde, self._engine.settings)
            self._codec_made_for = self.serde
        return self._codec_made

    # --- the sync twins --------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """``aget_tuple`` for other threads than the event loop's; there it raises ``InvalidStateError``."""
        return self._engine.call_from_thread("get_tuple", lambda: self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """``alist`` for other threads than the event loop's; there it raises ``InvalidStateError``."""
        page, limit = self._page(config, filter, before, limit)
        found = self._replay_pages(page, limit)
        following = functools.partial(_following, found)
        while (each := self._engine.call_from_thread("list", following)) is not None:
            yield each

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """``aget_delta_channel_history`` for other threads than the event loop's; there it raises ``InvalidStateError``."""
        return self._engine.call_from_thread(
            "get_delta_channel_history",
            lambda: self.aget_delta_channel_history(config=config, channels=channels),
        )

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """``aput`` for other threads than the event loop's; there it raises ``InvalidStateError``."""
        return self._engine.call_from_thread(
            "put", lambda: self.aput(config, checkpoint, metadata, new_versions)
        )

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """``aput_writes`` for other threads than the event loop's; there it raises ``InvalidStateError``."""
        self._engine.call_from_thread(
            "put_writes", lambda: self.aput_writes(config, writes, task_id, task_path)
        )

    def delete_thread(self, thread_id: str) -> None:
        """``adelete_thread`` for other threads than the event loop's; there it raises ``InvalidStateError``."""
        self._engine.call_from_thread("delete_thread", lambda: self.adelete_thread(thread_id))

    def prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep_last: int | None = None
    ) -> None:
        """``aprune`` for other threads than the event loop's; there it raises ``InvalidStateError``."""
        self._engine.call_from_thread(
            "prune", lambda: self.aprune(thread_ids, strategy=strategy, keep_last=keep_last)
        )

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """``adelete_for_runs`` for other threads than the event loop's; there it raises ``InvalidStateError``."""
        self._engine.call_from_thread("delete_for_runs", lambda: self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """``acopy_thread`` for other threads than the event loop's; there it raises ``InvalidStateError``."""
        self._engine.call_from_thread(
            "copy_thread", lambda: self.acopy_thread(source_thread_id, target_thread_id)
        )


def _key_of(config: RunnableConfig) -> tuple[str, str, str | None]:
    """(thread, namespace, checkpoint or ``None`` for the latest) of a config, checked."""
    configurable = configurable_of(config)
    thread_id = thread_of(configurable.get("thread_id"))
    checkpoint_ns = namespace_of(configurable)
    checkpoint_id = checkpoint_of(configurable)
    check_key(thread_id=thread_id, checkpoint_ns=checkpoint_ns, checkpoint_id=checkpoint_id or "")
    return thread_id, checkpoint_ns, checkpoint_id


def warn_unclosed(saver: GraphState) -> None:
    """Say that nobody left the block of ``from_conn_string``: the garbage collector does it now, if there is time."""
    warnings.warn(
        f"{type(saver).__name__}.from_conn_string: the saver was dropped while it was open; use `async with`, or close it.",
        ResourceWarning,
        stacklevel=2,
        source=saver,
    )


async def _following(found: AsyncGenerator[CheckpointTuple, None]) -> CheckpointTuple | None:
    async for each in found:
        return each
    return None


class AsyncPostgresSaver(GraphState):
    """Keeps the state of LangGraph graphs in PostgreSQL: a drop-in for the official class of the same name.

    Guarantees: ``aput`` and ``aput_writes`` return after COMMIT; a checkpoint is visible whole or not at all;
    operations on one thread take effect in the order in which they were called; a value that PostgreSQL
    refuses fails its own call only. Cancelling a call breaks nothing; a write already queued may still be
    committed.

    Args:
        conn: A psycopg ``AsyncConnectionPool``, an ``asyncpg.Pool``, or a single psycopg ``AsyncConnection``
            (then everything goes through that one session, which cannot heal itself). It stays yours: the
            saver neither opens nor closes it. Its row factory, autocommit and prepare threshold do not matter.
        pipeline: ``True``: group commit, many calls in one transaction. ``False``: each call commits by
            itself, through the same code.
        serde: LangGraph's serializer; ``JsonPlusSerializer`` by default.
        settings: See ``Settings``; the pool's fields do not apply to a pool of yours.

    Construction does no I/O and needs no running event loop. The saver belongs to the loop that is running
    when it is made, else to the first one that uses it; calls from other loops are forwarded there.
    """

    def __init__(
        self,
        conn: object,
        *,
        pipeline: bool = True,
        serde: SerializerProtocol | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(serde=serde)
        settings = settings or Settings()
        counters = Counters()
        self._start(Engine(pool_for(conn, settings, counters), settings, counters, pipeline=pipeline))

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = True,
        serde: SerializerProtocol | None = None,
        settings: Settings | None = None,
        **settings_overrides: object,
    ) -> AsyncIterator[AsyncPostgresSaver]:
        """Make a saver with a pool of its own, open it, and close both at the end of the block.

        Args:
            conn_string: A libpq URI or ``key=value`` string, or ``embedded:///path/to/data`` for the embedded
                server (extra ``pgcairn[embedded]``).
            pipeline: See the class.
            serde: See the class.
            settings: See ``Settings``.
            **settings_overrides: Single fields of ``Settings``: ``max_size=20``.

        Raises:
            InvalidInput: The connection string cannot be read.
            UnavailableError: The database cannot be reached.
            SettingsError: A setting is unknown or out of its range.
            EmbeddedServerError: The embedded server cannot be started.
        """
        chosen = (settings or Settings()).replace(**settings_overrides)
        lease = None
        if conn_string.startswith("embedded:"):
            from pgcairn.connection import embedded

            lease = await embedded.open_embedded(conn_string)
            conn_string = lease.dsn
        try:
            counters = Counters()
            saver = cls.__new__(cls)
            BaseCheckpointSaver.__init__(saver, serde=serde)
            saver._start(
                Engine(owned_pool(conn_string, chosen, counters), chosen, counters, pipeline=pipeline)
            )
            try:
                await saver.open()
                yield saver
            except GeneratorExit:
                warn_unclosed(saver)
                raise
            finally:
                await saver.aclose()
        finally:
            if lease is not None:
                await lease.aclose()

    # --- life cycle ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the pool, so that the first call need not. Idempotent; does not ask for a schema.

        Raises:
            UnavailableError: The database could not be reached until ``open_timeout_seconds``.
        """
        await self._engine.on_owner(self._engine.open)

    async def setup(self, *, metadata_index: bool = False) -> None:
        """Create or upgrade the schema; does nothing when it is current.

        Twenty processes may call it at once. Inside a transaction that is open on a single connection of
        yours, it is part of that transaction. A role without DDL rights may call it once the schema is current.

        Args:
            metadata_index: Also create an index that serves metadata filters over many threads. On a table
                that is in use, writes wait while it is built.

        Raises:
            SchemaError: The schema belongs to something else, or to an incompatible newer version.
            DatabaseError: The role may not create what is missing; ``pgcairn sql`` prints it for a DBA.
            UnavailableError: The database cannot be reached.
        """
        call = functools.partial(self._engine.setup, metadata_index=metadata_index)
        await self._engine.on_owner(call)

    async def ping(self, timeout_seconds: float = 5.0) -> float:
        """Ask the database for an answer, once, on a session of the pool; return the seconds of the round trip.

        Args:
            timeout_seconds: How long to wait for a session and the answer.

        Raises:
            UnavailableError: There was no answer in time; the error says why, if that is known.
            ClosedError: The saver is closed.
        """
        return await self._engine.on_owner(functools.partial(self._engine.health.ping, timeout_seconds))

    async def readiness(self, timeout_seconds: float = 5.0) -> Readiness:
        """Find out whether the saver can serve: the database answers and the schema is there. For readiness probes.

        Costs one session however often it is asked, and never raises for what is wrong with the database. Not for
        liveness probes: restarting the program does not bring a database back.

        Args:
            timeout_seconds: How long to wait for a session and the answer.

        Returns:
            What was found; true in a condition when the saver can serve. See ``Readiness.state``.
        """
        return await self._engine.on_owner(functools.partial(self._engine.health.readiness, timeout_seconds))

    async def aclose(self) -> None:
        """Refuse new calls, commit what is queued until ``close_timeout_seconds``, then fail the rest.

        May be called twice. A pool of yours stays open.
        """
        if self._engine.is_owner():
            await self._engine.close()
        else:
            with contextlib.suppress(ClosedError):  # closed before, and its loop has gone
                await self._engine.forward(self._engine.close)

    async def __aenter__(self) -> AsyncPostgresSaver:
        await self.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
