"""Examines what is stored: does every row decode, is everything there that it rests on, is anything left over.

Owns what counts as damage, what as garbage, and what may be swept. Reads thread by thread in keyset pages, holds no
session between pages, decodes in a worker thread, and keeps of what it found only counts and the first findings of
each kind. Without ``repair`` it only reads. Never deletes a checkpoint.

Whatever concerns more than one row is decided by one statement, so on one snapshot: what a prune or a deletion removes
meanwhile is either there with all that rests on it, or gone with it, and is never mistaken for damage.

The saver is known only by what an examination needs of it (``Examinable``): this layer is below it. What is reported is in
``doctor_report``. Above 600 lines, because the order of the checks and what each may sweep are one decision, best read in one place.
"""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import orjson
from langgraph.checkpoint.serde.base import SerializerProtocol

from pgcairn.codec import body as body_codec
from pgcairn.codec.compression import FrameError, is_sealed
from pgcairn.codec.serde import Codec
from pgcairn.connection.pool import Pool, Session, run_retried
from pgcairn.errors import InvalidInput
from pgcairn.keys import check_key, thread_of
from pgcairn.operations.doctor_report import Finding, Kind, Report, Severity, Totals
from pgcairn.settings import Settings
from pgcairn.storage.doctor_repository import (
    READ_COMMITTED,
    CheckpointFound,
    DoctorRepository,
    OrphanedWrites,
    ValueFound,
    WriteFound,
)
from pgcairn.storage.paging import PageSize
from pgcairn.storage.statements import Statements
from pgcairn.telemetry import Counters

T = TypeVar("T")

__all__ = ["Examinable", "Finding", "Kind", "Report", "Severity", "Totals", "examine", "time_in_id"]

# Threads whose names are fetched at once (guess): some kilobytes.
_THREAD_ROWS = 500
# Rows that one sweeping transaction locks and deletes, as many as a batch of the write path has (guess).
_SWEEP_ROWS = 1000
# Below every index that a write has: special channels have small negative ones.
_BEFORE_ALL_INDEXES = -(2**31)
# From the epoch of UUID times (15 October 1582) to 1970, in their unit of 100 ns (RFC 9562, 5.1).
_UUID_EPOCH_TICKS = 0x01B21DD213814000


# --- what is needed of a saver ----------------------------------------------------------------------------


class _Reads(Protocol):
    async def detached(self, operation: Callable[[Session], Awaitable[T]]) -> T: ...


class _EngineParts(Protocol):
    @property
    def pool(self) -> Pool: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def statements(self) -> Statements: ...
    @property
    def reader(self) -> _Reads: ...
    async def ready(self) -> None: ...
    async def on_owner(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T: ...


class Examinable(Protocol):
    """What an examination needs of a saver: every saver of this package has it."""

    @property
    def serde(self) -> SerializerProtocol:
        """LangGraph's serializer."""
        ...

    @property
    def _engine(self) -> _EngineParts: ...


# --- the examination --------------------------------------------------------------------------------------


async def examine(
    saver: Examinable,
    threads: Sequence[object] | None = None,
    *,
    deserialize: bool = False,
    repair: bool = False,
    grace_seconds: float = 3600.0,
    max_findings: int | None = 1000,
    on_progress: Callable[[Totals], None] | None = None,
) -> Report:
    """Verify threads, or all of them: checksums, references, chains, leftovers.

    May run beside a live system. It takes no lock unless it sweeps; memory is bounded by a page
    (``Settings.page_bytes``, ``page_rows``) and by what is kept of the findings. It reads every byte of what it
    examines. Cancelling it is safe at any time.

    Payloads are verified, not deserialized: a class that is not installed here is no damage. Rows that are encrypted
    are verified if the saver's serializer can decrypt them, and counted as ``sealed_rows`` otherwise.

    With ``repair``, and only in threads where no damage was found, it deletes values that no checkpoint needs and
    pending writes whose checkpoint does not exist and is older than ``grace_seconds``; in transactions of at most 1,000
    values, or 1,000 checkpoints' writes. A checkpoint is never deleted. What it deletes is committed step by step.

    Args:
        saver: An open saver of this package, with the serializer that the rows were written with.
        threads: Only these; ``None``: all.
        deserialize: Also let the serializer read every payload. It may import and call what the payloads name, as
            reading a checkpoint does.
        repair: Sweep what is safe to sweep.
        grace_seconds: How old a checkpoint must be, by the time in its id, before its writes count as orphaned. Make
            it longer than your longest run. Ids that are no UUID of version 1, 6 or 7 have no time: their writes are
            never swept. 0 and more. Default 3600 (guess).
        max_findings: Most findings of each kind that are kept, besides their count; 1 or more. ``None``: all, without
            a bound on memory.
        on_progress: Called after each page with what was examined so far, on the saver's event loop.

    Returns:
        What was examined and found.

    Raises:
        InvalidInput: An argument is out of its range; or ``repair`` on a database whose transactions do not begin at
            READ COMMITTED, where a sweep could not see what it waited for. Nothing was swept.
        SchemaError: The schema is missing or older.
        UnavailableError, OutcomeUnknown, DatabaseError, ClosedError: See there. What was swept before stays swept; an
            examination can be repeated.
    """
    if grace_seconds < 0:
        raise InvalidInput(f"grace_seconds={grace_seconds} is negative: use 0 or more.")
    if max_findings is not None and max_findings < 1:
        raise InvalidInput(f"max_findings={max_findings}: use 1 or more, or None for all.")
    chosen = None if threads is None else list(dict.fromkeys(thread_of(thread) for thread in threads))
    for thread_id in chosen or ():
        check_key(thread_id=thread_id)
    engine = saver._engine
    doctor = _Doctor(engine, saver.serde, deserialize, repair, grace_seconds, max_findings, on_progress)
    call = functools.partial(doctor.run, chosen)
    return await engine.on_owner(call)


class _Tally:
    """Counts, and the first findings of each kind."""

    def __init__(self, max_findings: int | None) -> None:
        self._max_findings = max_findings
        self._kept: Counter[tuple[Kind, bool]] = Counter()
        self.totals: Counter[str] = Counter()
        self.deepest_chain = 0
        self.counts: Counter[Kind] = Counter()
        self.swept: Counter[Kind] = Counter()
        self.swept_bytes = 0
        self.findings: list[Finding] = []
        self.unswept_threads = 0

    def add(self, finding: Finding, count: int = 1) -> None:
        """Note ``count`` findings, of which this is one."""
        (self.swept if finding.is_swept else self.counts)[finding.kind] += count
        key = (finding.kind, finding.is_swept)
        if self._max_findings is None or self._kept[key] < self._max_findings:
            self._kept[key] += 1
            self.findings.append(finding)

    def add_listed(self, findings: Sequence[Finding], total: int) -> None:
        """Note ``total`` findings of a kind, of which these are the first."""
        for finding in findings:
            self.add(finding)
        if total > len(findings):
            self.counts[findings[0].kind] += total - len(findings)

    @property
    def damage(self) -> int:
        """How much damage was found so far."""
        return sum(count for kind, count in self.counts.items() if kind.severity is Severity.DAMAGE)

    def current(self) -> Totals:
        """What was examined so far."""
        return Totals(**self.totals, deepest_chain=self.deepest_chain)

    def report(self) -> Report:
        """The end result."""
        return Report(
            totals=self.current(),
            counts={kind: self.counts[kind] for kind in Kind if self.counts[kind]},
            swept={kind: self.swept[kind] for kind in Kind if self.swept[kind]},
            swept_bytes=self.swept_bytes,
            findings=tuple(self.findings),
            unswept_threads=self.unswept_threads,
        )


class _Doctor:
    """One examination."""

    def __init__(
        self,
        engine: _EngineParts,
        serde: SerializerProtocol,
        deserialize: bool,
        repair: bool,
        grace_seconds: float,
        max_findings: int | None,
        on_progress: Callable[[Totals], None] | None,
    ) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._repository = DoctorRepository(engine.statements)
        # One of its own, because it is used in worker threads. What is not encrypted is reported and yet checked.
        self._codec = Codec(serde, engine.settings.replace(allow_plaintext=True))
        self._refuses_plaintext = self._codec.seals and not engine.settings.allow_plaintext
        self._deserialize = deserialize
        self._repair = repair
        self._grace_seconds = grace_seconds
        self._max_findings = max_findings
        self._on_progress = on_progress
        self._tally = _Tally(max_findings)

    async def run(self, threads: Sequence[str] | None) -> Report:
        """Examine these threads, or all."""
        await self._engine.ready()
        if self._repair:
            level = await self._read(self._repository.transaction_isolation)
            if level != READ_COMMITTED:
                raise InvalidInput(
                    f"A repair needs transactions at READ COMMITTED; on these sessions they begin at {level.upper()}.",
                    hint="Set default_transaction_isolation to 'read committed' for the role that repairs.",
                )
        if threads is not None:
            for thread_id in threads:
                if not await self._examine_thread(thread_id):
                    self._tally.add(Finding(kind=Kind.EMPTY_THREAD, thread_id=thread_id))
            return self._tally.report()
        after = ""
        while True:
            page = await self._read(
                functools.partial(self._repository.select_threads, after=after, rows=_THREAD_ROWS)
            )
            for thread_id in page:
                await self._examine_thread(thread_id)
            if len(page) < _THREAD_ROWS:
                return self._tally.report()
            after = page[-1]

    async def _examine_thread(self, thread_id: str) -> bool:
        """Examine one thread; return whether anything is stored of it."""
        tally = self._tally
        rows_before = self._rows_seen()
        damage_before = tally.damage
        await self._examine_checkpoints(thread_id)
        await self._examine_values(thread_id)
        await self._examine_writes(thread_id)
        if self._rows_seen() == rows_before:
            return False
        tally.totals["threads"] += 1
        # What nothing refers to may be what a damaged thread is mended with.
        sweeps = self._repair and tally.damage == damage_before
        if self._repair and not sweeps:
            tally.unswept_threads += 1
        await self._judge_orphaned_values(thread_id, sweeps)
        await self._judge_orphaned_writes(thread_id, sweeps)
        await self._judge_relations(thread_id)
        self._report_progress()
        return True

    def _rows_seen(self) -> int:
        totals = self._tally.totals
        return totals["checkpoints"] + totals["values"] + totals["writes"]

    # --- page by page ----------------------------------------------------------------------------

    async def _examine_checkpoints(self, thread_id: str) -> None:
        after = ("", "")
        size = PageSize(self._settings)
        while True:
            rows = size.rows
            page = await self._read(
                functools.partial(
                    self._repository.select_checkpoints, thread_id=thread_id, after=after, rows=rows
                )
            )
            await asyncio.to_thread(self._check_checkpoints, thread_id, page)
            self._report_progress()
            if len(page) < rows:
                return
            after = (page[-1].checkpoint_ns, page[-1].checkpoint_id)
            size.saw(len(page), sum(len(row.body) for row in page))

    async def _examine_values(self, thread_id: str) -> None:
        after = ("", "", "")
        size = PageSize(self._settings)
        while True:
            rows = size.rows
            found = await self._read(
                functools.partial(self._repository.select_values, thread_id=thread_id, after=after, rows=rows)
            )
            page = [row for row in found if row.is_own]
            await asyncio.to_thread(self._check_values, thread_id, page, found)
            self._report_progress()
            if len(page) < rows:
                return
            after = max((row.checkpoint_ns, row.channel, row.version) for row in page)
            size.saw(len(page), sum(len(row.frame) for row in found))

    async def _examine_writes(self, thread_id: str) -> None:
        after = ("", "", "", _BEFORE_ALL_INDEXES)
        size = PageSize(self._settings)
        while True:
            rows = size.rows
            page = await self._read(
                functools.partial(self._repository.select_writes, thread_id=thread_id, after=after, rows=rows)
            )
            await asyncio.to_thread(self._check_writes, thread_id, page)
            self._report_progress()
            if len(page) < rows:
                return
            last = page[-1]
            after = (last.checkpoint_ns, last.checkpoint_id, last.task_id, last.idx)
            size.saw(len(page), sum(len(row.frame) for row in page))

    # --- rows by themselves, in a worker thread ---------------------------------------------------

    def _check_checkpoints(self, thread_id: str, page: Sequence[CheckpointFound]) -> None:
        tally = self._tally
        for row in page:
            tally.totals["checkpoints"] += 1
            tally.totals["hidden_checkpoints"] += row.hidden
            tally.totals["stored_bytes"] += len(row.body)
            found = functools.partial(
                Finding, thread_id=thread_id, checkpoint_ns=row.checkpoint_ns, checkpoint_id=row.checkpoint_id
            )
            if self._can_open([row.body], found):
                self._check_body(row, found)
            if row.refs is not None and not isinstance(orjson.loads(row.refs), dict):
                tally.add(found(kind=Kind.MALFORMED_REFERENCES))
            for channel, version in zip(row.missing_channels or (), row.missing_versions or (), strict=True):
                tally.add(found(kind=Kind.MISSING_VALUE, channel=channel, version=version))
            link = _link_finding(row)
            if link:
                tally.add(found(kind=Kind.DANGLING_PARENT, detail=link))

    def _check_body(self, row: CheckpointFound, found: Callable[..., Finding]) -> None:
        tally, codec = self._tally, self._codec
        try:
            body = body_codec.unpack(codec.unframe(row.body))
        except FrameError as error:
            tally.add(found(kind=Kind.CORRUPT_BODY, detail=str(error)))
            return
        try:
            stored_id = self._id_in(body)
        except FrameError as error:
            kind = Kind.UNREADABLE if self._deserialize else Kind.CORRUPT_BODY
            tally.add(found(kind=kind, detail=str(error)))
            return
        if stored_id is not None and stored_id != row.checkpoint_id:
            tally.add(found(kind=Kind.FOREIGN_BODY, detail=f"it is that of {stored_id!r}"))
        if self._deserialize:
            for channel, type_name, payload in body.inline:
                self._check_readable(type_name, payload, functools.partial(found, channel=channel))

    def _id_in(self, body: body_codec.Body) -> object:
        if not self._deserialize:
            try:
                return body_codec.peek_id(body)
            except FrameError:
                pass  # perhaps a serializer that means something else by "msgpack": it has the last word
        fields, _, _ = body_codec.load_core(self._codec, body)
        return fields.get("id")

    def _check_values(
        self, thread_id: str, page: Sequence[ValueFound], everything: Sequence[ValueFound]
    ) -> None:
        tally = self._tally
        held = {(row.checkpoint_ns, row.channel, row.version): row for row in everything}
        for row in page:
            chain = row.chain or ()
            tally.totals["values"] += 1
            tally.totals["edits"] += bool(chain)
            tally.totals["stored_bytes"] += len(row.frame)
            tally.deepest_chain = max(tally.deepest_chain, len(chain))
            found = functools.partial(
                Finding,
                thread_id=thread_id,
                checkpoint_ns=row.checkpoint_ns,
                channel=row.channel,
                version=row.version,
            )
            bases = [held.get((row.checkpoint_ns, row.channel, version)) for version in chain]
            missing = [version for version, base in zip(chain, bases, strict=True) if base is None]
            for version in missing:
                tally.add(found(kind=Kind.MISSING_BASE, detail=f"it rests on version {version!r}"))
            present = [base for base in bases if base is not None]
            if chain and bases[0] is not None and list(chain[1:]) != list(bases[0].chain or ()):
                tally.add(found(kind=Kind.WRONG_CHAIN, detail=f"the chain is {list(chain)!r}"))
            elif not missing and self._can_open([row.frame, *(base.frame for base in present)], found):
                self._check_value(row, present, found)

    def _check_value(
        self, row: ValueFound, bases: Sequence[ValueFound], found: Callable[..., Finding]
    ) -> None:
        versions = [row.version, *(base.version for base in bases)]
        frames = [row.frame, *(base.frame for base in bases)]
        try:
            payload, _ = self._codec.unframe_chain(versions, frames)
        except FrameError as error:
            self._tally.add(found(kind=Kind.CORRUPT_VALUE, detail=str(error)))
            return
        if self._deserialize:
            self._check_readable(self._codec.plain_type(row.type), payload, found)

    def _check_writes(self, thread_id: str, page: Sequence[WriteFound]) -> None:
        tally, codec = self._tally, self._codec
        for row in page:
            tally.totals["writes"] += 1
            tally.totals["stored_bytes"] += len(row.frame)
            found = functools.partial(
                Finding,
                thread_id=thread_id,
                checkpoint_ns=row.checkpoint_ns,
                checkpoint_id=row.checkpoint_id,
                channel=row.channel,
                task_id=row.task_id,
                idx=row.idx,
            )
            if not self._can_open([row.frame], found):
                continue
            try:
                payload = codec.unframe(row.frame)
            except FrameError as error:
                tally.add(found(kind=Kind.CORRUPT_WRITE, detail=str(error)))
                continue
            if self._deserialize:
                self._check_readable(codec.plain_type(row.type), payload, found)

    def _can_open(self, frames: Sequence[bytes], found: Callable[..., Finding]) -> bool:
        """Whether a row, whose frame is the first, can be looked into; notes what is sealed or should be."""
        if not self._codec.seals and any(map(is_sealed, frames)):
            self._tally.totals["sealed_rows"] += 1
            return False
        if self._refuses_plaintext and not is_sealed(frames[0]):
            self._tally.add(found(kind=Kind.NOT_ENCRYPTED))
        return True

    def _check_readable(self, type_name: str, payload: bytes, found: Callable[..., Finding]) -> None:
        try:
            self._codec.load(type_name, payload)
        except FrameError as error:
            self._tally.add(found(kind=Kind.UNREADABLE, detail=str(error)))

    # --- a thread as a whole ----------------------------------------------------------------------

    async def _judge_orphaned_values(self, thread_id: str, sweeps: bool) -> None:
        if sweeps:
            await self._sweep_values(thread_id)
        places, total = await self._read(
            functools.partial(
                self._repository.select_orphaned_values, thread_id=thread_id, rows=self._max_findings
            )
        )
        self._tally.add_listed(
            [
                Finding(
                    kind=Kind.ORPHANED_VALUE,
                    thread_id=thread_id,
                    checkpoint_ns=checkpoint_ns,
                    channel=channel,
                    version=version,
                )
                for checkpoint_ns, channel, version in places
            ],
            total,
        )

    async def _sweep_values(self, thread_id: str) -> None:
        """Delete what nothing needs, what rests on others first: between two transactions every value still decodes."""
        repository, tally = self._repository, self._tally
        while True:
            places, _ = await self._read(
                functools.partial(repository.select_orphaned_values, thread_id=thread_id, rows=_SWEEP_ROWS)
            )
            if not places:
                return
            gone = await self._change(
                functools.partial(repository.delete_values, thread_id=thread_id, places=places)
            )
            for (checkpoint_ns, channel, version), size_bytes in gone:
                tally.swept_bytes += size_bytes
                tally.add(
                    Finding(
                        kind=Kind.ORPHANED_VALUE,
                        thread_id=thread_id,
                        checkpoint_ns=checkpoint_ns,
                        channel=channel,
                        version=version,
                        is_swept=True,
                    )
                )
            if not gone:
                return  # somebody refers to them by now

    async def _judge_orphaned_writes(self, thread_id: str, sweeps: bool) -> None:
        after = ("", "")
        while True:
            page = await self._read(
                functools.partial(
                    self._repository.select_orphaned_writes,
                    thread_id=thread_id,
                    after=after,
                    rows=_SWEEP_ROWS,
                )
            )
            oldest_allowed = time.time() - self._grace_seconds
            old: list[OrphanedWrites] = []
            for group in page:
                made_at = time_in_id(group.checkpoint_id)
                if made_at is not None and made_at <= oldest_allowed:
                    old.append(group)
                    if sweeps:
                        continue
                self._tally.add(
                    Finding(
                        kind=Kind.ORPHANED_WRITE if old and old[-1] is group else Kind.EARLY_WRITE,
                        thread_id=thread_id,
                        checkpoint_ns=group.checkpoint_ns,
                        checkpoint_id=group.checkpoint_id,
                        detail=_writes_text(group.writes),
                    ),
                    group.writes,
                )
            if sweeps:
                for chunk in _chunks(old):
                    await self._sweep_writes(thread_id, chunk)
            if len(page) < _SWEEP_ROWS:
                return
            after = (page[-1].checkpoint_ns, page[-1].checkpoint_id)

    async def _sweep_writes(self, thread_id: str, groups: Sequence[OrphanedWrites]) -> None:
        places = [(group.checkpoint_ns, group.checkpoint_id) for group in groups]
        gone = await self._change(
            functools.partial(self._repository.delete_writes, thread_id=thread_id, places=places)
        )
        self._tally.swept_bytes += sum(size_bytes for _, size_bytes in gone)
        for (checkpoint_ns, checkpoint_id), count in Counter(place for place, _ in gone).items():
            self._tally.add(
                Finding(
                    kind=Kind.ORPHANED_WRITE,
                    thread_id=thread_id,
                    checkpoint_ns=checkpoint_ns,
                    checkpoint_id=checkpoint_id,
                    detail=_writes_text(count),
                    is_swept=True,
                ),
                count,
            )

    async def _judge_relations(self, thread_id: str) -> None:
        repository, most = self._repository, self._max_findings
        hidden, total = await self._read(
            functools.partial(repository.select_unneeded_hidden, thread_id=thread_id, rows=most)
        )
        self._tally.add_listed(
            [
                Finding(
                    kind=Kind.UNNEEDED_HIDDEN,
                    thread_id=thread_id,
                    checkpoint_ns=ns,
                    checkpoint_id=checkpoint_id,
                )
                for ns, checkpoint_id in hidden
            ],
            total,
        )
        calls, total = await self._read(
            functools.partial(repository.select_lost_calls, thread_id=thread_id, rows=most)
        )
        self._tally.add_listed(
            [
                Finding(
                    kind=Kind.LOST_CALL,
                    thread_id=thread_id,
                    checkpoint_ns=ns,
                    checkpoint_id=checkpoint_id,
                    detail=f"its root checkpoint was {root_id!r}",
                )
                for ns, checkpoint_id, root_id in calls
            ],
            total,
        )

    # --- sessions ---------------------------------------------------------------------------------

    async def _read(self, operation: Callable[[Session], Awaitable[T]]) -> T:
        return await self._engine.reader.detached(operation)

    async def _change(self, operation: Callable[[Session], Awaitable[T]]) -> T:
        """Run one sweeping transaction. Repeating one whose outcome is unknown finds nothing left to delete."""
        engine = self._engine
        return await run_retried(
            engine.pool, engine.counters, self._settings.retry_deadline_seconds, operation
        )

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._tally.current())


def _link_finding(row: CheckpointFound) -> str:
    """What is the matter with a checkpoint's link to its parent; empty if nothing."""
    if row.parent_id is None:
        return ""
    if row.is_parent_hidden is None:
        return f"its parent {row.parent_id!r} is not stored"
    if row.is_parent_hidden and not row.is_parent_marked_hidden:
        return f"its parent {row.parent_id!r} is hidden, but linked as a visible one"
    if row.is_parent_marked_hidden and not row.is_parent_hidden:
        return f"its parent {row.parent_id!r} is visible, but linked as a hidden one"
    return ""


def _writes_text(count: int) -> str:
    return f"{count} pending write{'' if count == 1 else 's'}"


def _chunks(groups: Sequence[OrphanedWrites]) -> Iterator[list[OrphanedWrites]]:
    """Groups of at most ``_SWEEP_ROWS`` writes; one that has more by itself goes by itself."""
    chunk: list[OrphanedWrites] = []
    writes = 0
    for group in groups:
        if chunk and writes + group.writes > _SWEEP_ROWS:
            yield chunk
            chunk, writes = [], 0
        chunk.append(group)
        writes += group.writes
    if chunk:
        yield chunk


def time_in_id(checkpoint_id: str) -> float | None:
    """When a checkpoint's id was made, in seconds since 1970, if it is a UUID of version 1, 6 or 7; else ``None``."""
    try:
        found = uuid.UUID(checkpoint_id)
    except ValueError:
        return None
    if str(found) != checkpoint_id.lower() or found.variant != uuid.RFC_4122:
        return None
    bits = found.int
    if found.version == 7:
        return (bits >> 80) / 1000
    if found.version == 6:  # UUID.time knows version 6 only from Python 3.14 on
        ticks = (bits >> 96) << 28 | (bits >> 80 & 0xFFFF) << 12 | (bits >> 64 & 0xFFF)
    elif found.version == 1:
        ticks = found.time
    else:
        return None
    return (ticks - _UUID_EPOCH_TICKS) / 1e7
