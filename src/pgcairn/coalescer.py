"""WRITE PATH. Many callers, few transactions.

Callers submit items to lanes (chosen by thread, so that operations on one thread keep their order). Each
lane is one task: it takes all that waits, sends it as one statement in one transaction, answers every
waiter, and repeats. There is no timer: while one batch is at the server the next one gathers.

What takes long and concerns one thread (a prune, a copy) must keep its place among the thread's writes and must
not hold up the lane: it stands in the queue as an ``AsideItem``, and when its turn has come it runs in a task of its
own beside the lane, while later items of its thread wait and those of other threads go on.

Owns: order per thread, what goes into a batch, the isolation of a bad item, the bound on what waits, the
answer to every waiter. Never encodes values and never reads. ``Queue`` is the pure half: it decides, it does
no I/O. ``Coalescer`` is the shell around it: it moves bytes and answers.

More than 600 lines, because the write path is to be read in one file, decisions and shell together.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pgcairn.connection.pool import HeldSession, Pool, Runner, Session, by_deadline, give_up_at, run_retried
from pgcairn.errors import (
    BacklogFull,
    ClosedError,
    DatabaseError,
    OutcomeUnknown,
    PgcairnError,
    RejectedError,
    UnavailableError,
)
from pgcairn.settings import Settings
from pgcairn.storage.repository import Batch, Replaced, Repository
from pgcairn.storage.rows import (
    CheckpointRow,
    NeededValue,
    ValueRow,
    WriteRow,
)
from pgcairn.telemetry import Counters

logger = logging.getLogger("pgcairn")

T = TypeVar("T")

# Backpressure has two marks: hold above the settings' maximum, resume below this part of it, so that callers
# are let in by the group and not one for one (guess).
_RESUME_FRACTION = 0.75


# A lane keeps its session this long after a batch: a caller that saves step after step finds it there, and the
# server's process warm. Only where the pool has sessions for others (guess: longer than a step that computes nothing,
# too short to be missed).
_LINGER_SECONDS = 0.005
# A session goes back to the pool at least this often, so that the pool can check its age.
_HOLD_SECONDS = 1.0


# --- items ----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """Something to be written for one thread, and the future that its caller waits on.

    Attributes:
        thread_id: Decides the lane and the order.
        rows: How many rows it writes.
        size_bytes: Its payload.
        ready: Whether its bytes are there; compression of large values ends later.
        abandoned: Its bytes could not be made, so there is nothing to send.
        answer: Set once, by the lane.
        submitted_at: ``time.monotonic()`` when the call came.
        give_up_at: When it is not tried again; 0 until it is tried for the first time.
        unknown: Why nobody knows whether an earlier attempt was committed.
    """

    thread_id: str
    rows: int = 1
    size_bytes: int = 0
    ready: bool = True
    abandoned: bool = field(default=False, init=False)
    answer: asyncio.Future[None] = field(init=False)
    submitted_at: float = 0.0
    give_up_at: float = field(default=0.0, init=False)
    unknown: OutcomeUnknown | None = field(default=None, init=False)


@dataclass(slots=True, eq=False, kw_only=True)
class PutItem(Item):
    """A checkpoint, with the values it brings and the stored values it rests on.

    Attributes:
        row: The checkpoint.
        values: Its large values.
        needs: Stored values that must still be there when it is committed: unchanged ones, and bases of edits.
        values_are_new: Set once it is committed: its values were all inserted, so what is stored under their versions
            is what this process holds.
        is_sent_again: A value went while it replaced a stored checkpoint; it is given one more chance.
    """

    row: CheckpointRow
    values: Sequence[ValueRow] = ()
    needs: Sequence[NeededValue] = ()
    values_are_new: bool = field(default=False, init=False)
    is_sent_again: bool = field(default=False, init=False)

    def encode_whole(self) -> None:
        """Make row and values anew, without needs. Called when something it needs is gone."""
        raise NotImplementedError

    def merge(self, stored_body: bytes, stored_refs: str | None) -> tuple[bytes, str | None]:
        """Combine the body with the stored one of the same id (see ``Repository.replace_checkpoint``)."""
        raise NotImplementedError


@dataclass(slots=True, eq=False, kw_only=True)
class WritesItem(Item):
    """Pending writes of one call.

    Attributes:
        writes: What to store.
        replace: Whether the new value wins over a stored one.
    """

    writes: Sequence[WriteRow] = ()
    replace: bool


@dataclass(slots=True, eq=False, kw_only=True)
class DeleteItem(Item):
    """The deletion of a whole thread."""


@dataclass(slots=True, eq=False, kw_only=True)
class AsideItem(Item):
    """An operation on one thread that runs beside its lane, in its turn among the thread's other items.

    Attributes:
        thread_id: Its thread; ``""`` for what concerns no single one and waits for nothing.
        operation: What to do. It gets what runs its statements and transactions on sessions of the pool, and may
            use it as often as it likes. Not called when nobody waits for the answer any more.
        is_begun: Its turn has come. It stays in the queue, and later items of its thread wait, until it has ended.
    """

    operation: Callable[[Runner], Awaitable[None]]
    is_begun: bool = field(default=False, init=False)


# --- the pure half --------------------------------------------------------------------------------


class Queue:
    """What waits in a lane. Decides what leaves next; does no I/O and never waits."""

    def __init__(self, *, max_rows: int, max_bytes: int, max_items: int | None = None) -> None:
        self._items: deque[Item] = deque()
        self._due: list[AsideItem] = []
        self._max_items = max_items
        self._max_rows = max_rows
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item) -> None:
        """Take a place. Places of one thread leave in the order in which they were taken."""
        self._items.append(item)

    def take(self) -> list[Item]:
        """Remove and return the items of the next batch; an empty list when nothing can leave.

        To be called when the batch before has been answered.

        An item stays behind if its bytes are not ready, if something of its thread stays behind, if it is
        of another kind than the batch (deletions go by themselves: a statement cannot see rows that it
        inserts itself), if its checkpoint is in the batch already, if it is a checkpoint whose thread has one
        in the batch that may be left out for its needs and sent again (unless its needs are the same, so that both are
        left out or none), or if the batch is full. An aside never is in a batch: once nothing of its thread is before
        it, here or in this batch, it is ``due``.
        """
        taken: list[Item] = []
        left: deque[Item] = deque()
        blocked: set[str] = set()
        checkpoints: set[tuple[str, str, str]] = set()
        needing: dict[str, Sequence[NeededValue]] = {}
        leaving: set[str] = set()
        rows = size = 0
        items = self._items
        while items:
            item = items[0]
            if item.thread_id in blocked:
                left.append(items.popleft())
                continue
            if isinstance(item, AsideItem):
                if not item.is_begun and item.thread_id not in leaving:
                    item.is_begun = True
                    self._due.append(item)
                blocked.add(item.thread_id)
                left.append(items.popleft())
                continue
            if taken and (
                len(taken) == self._max_items
                or rows + item.rows > self._max_rows
                or size + item.size_bytes > self._max_bytes
            ):
                break
            fits = item.ready and (
                not taken or isinstance(item, DeleteItem) == isinstance(taken[0], DeleteItem)
            )
            if fits and isinstance(item, PutItem):
                fits = item.row[:3] not in checkpoints and (
                    item.thread_id not in needing or needing[item.thread_id] == item.needs
                )
            if not fits:
                blocked.add(item.thread_id)
                left.append(items.popleft())
                continue
            if isinstance(item, PutItem):
                checkpoints.add(item.row[:3])
                if item.needs:
                    needing[item.thread_id] = item.needs
            taken.append(items.popleft())
            leaving.add(item.thread_id)
            rows += item.rows
            size += item.size_bytes
        if left:
            left.extend(items)
            self._items = left
        return taken

    def due(self) -> list[AsideItem]:
        """Return the asides whose turn came with the calls of ``take`` since this was called last."""
        due, self._due = self._due, []
        return due

    def remove(self, item: AsideItem) -> bool:
        """Remove an aside that has ended; return whether it was still here."""
        if item not in self._items:
            return False
        self._items.remove(item)
        return True

    def remove_older(self, than: float) -> list[Item]:
        """Remove and return what was submitted before a time, but for asides, which count their time from their turn."""
        older = [item for item in self._items if item.submitted_at < than and not isinstance(item, AsideItem)]
        if older:
            gone = set(map(id, older))
            self._items = deque(item for item in self._items if id(item) not in gone)
        return older

    def threads(self) -> set[str]:
        """The threads that something waits for."""
        return {item.thread_id for item in self._items}

    def drain(self) -> list[Item]:
        """Remove and return everything."""
        items = list(self._items)
        self._items.clear()
        self._due.clear()
        return items


def assemble(items: Sequence[Item]) -> Batch:
    """Put the rows of items together so that no key is written twice, sorted so that two processes cannot
    deadlock each other.

    Of two rows with one key the rule of the operation decides, as if they had been sent one after the
    other: values and ordinary writes keep the first, special writes take the last value and the first path.
    """
    checkpoints: list[tuple[int, CheckpointRow]] = []
    values: dict[tuple[str, str, str, str], tuple[int, ValueRow]] = {}
    needs: list[tuple[int, NeededValue]] = []
    kept: dict[tuple[str, str, str, str, int], WriteRow] = {}
    replaced: dict[tuple[str, str, str, str, int], WriteRow] = {}
    for number, item in enumerate(items):
        if isinstance(item, PutItem):
            checkpoints.append((number, item.row))
            for value in item.values:
                # The first may be left out for its needs; then so is the second, because ``take`` lets two of a
                # thread into a batch only if the needs of both are the same.
                values.setdefault(value[:4], (number, value))
            if item.needs:
                needs += [(number, need) for need in item.needs]
        elif isinstance(item, WritesItem):
            for write in item.writes:
                key = write[:5]
                if item.replace:
                    earlier = kept.pop(key, None) or replaced.get(key)
                    if earlier is not None:
                        write = (*write[:5], earlier[5], *write[6:])
                    replaced[key] = write
                elif key not in replaced:
                    kept.setdefault(key, write)
    checkpoints.sort(key=_checkpoint_key)
    needs.sort(key=_need_key)
    return Batch(
        checkpoints=checkpoints,
        values=[values[key] for key in sorted(values)],
        needs=needs,
        writes_kept=[kept[key] for key in sorted(kept)],
        writes_replaced=[replaced[key] for key in sorted(replaced)],
    )


def _need_key(entry: tuple[int, NeededValue]) -> tuple[str, ...]:
    return entry[1][:4]


def _checkpoint_key(entry: tuple[int, CheckpointRow]) -> tuple[str, str, str]:
    return entry[1][:3]


# --- the shell ------------------------------------------------------------------------------------


def _is_away(error: PgcairnError) -> bool:
    """Whether the last attempt failed because there was no server to be had, and not for a lock, say."""
    last = error.__cause__ if isinstance(error, OutcomeUnknown) else error
    return isinstance(last, UnavailableError) and last.sqlstate is None


async def _nothing(_: Runner) -> None:
    """What an aside does that only marks a place."""


class _Lane:
    """A queue, the task that empties it, and the signal between them."""

    __slots__ = ("queue", "sending", "session", "signal", "task")

    def __init__(self, queue: Queue, session: HeldSession) -> None:
        self.queue = queue
        self.session = session
        self.sending: Sequence[Item] = ()
        self.signal: asyncio.Future[bool] | None = None
        self.task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        self.settle(True)

    def settle(self, there_is_work: bool) -> None:
        if self.signal is not None and not self.signal.done():
            self.signal.set_result(there_is_work)


class Coalescer:
    """Group commit over one pool. All methods are for the owner's event loop.

    Background tasks: one per lane, named ``pgcairn-lane-<n>``, started by an item and ended when the lane has had nothing
    to do for ``_LINGER_SECONDS``, and one per aside under way, named ``pgcairn-aside``.

    Args:
        pool: Where sessions come from; a lane keeps one for a moment after a batch (see ``_LINGER_SECONDS``).
        repository: The statements.
        settings: ``lanes``, ``max_batch_*``, ``batch_delay_seconds``, ``max_backlog_*``, ``backlog_timeout_seconds``
            and ``retry_deadline_seconds``.
        counters: What is counted.
        group_commit: ``False``: every item is a transaction of its own, by the same code, with as many lanes as
            the pool has sessions.
    """

    def __init__(
        self,
        pool: Pool,
        repository: Repository,
        settings: Settings,
        counters: Counters,
        *,
        group_commit: bool = True,
    ) -> None:
        self._pool = pool
        self._asides: set[asyncio.Task[None]] = set()
        self._may_hold = group_commit and pool.max_size > settings.lanes
        self._repository = repository
        self._settings = settings
        self._counters = counters
        lanes = min(settings.lanes, pool.max_size) if group_commit else pool.max_size
        self._lanes = [
            _Lane(
                Queue(
                    max_rows=settings.max_batch_rows,
                    max_bytes=settings.max_batch_bytes,
                    max_items=None if group_commit else 1,
                ),
                HeldSession(pool),
            )
            for _ in range(lanes)
        ]
        self._gate: deque[Item] = deque()
        self._closing = False

    # --- callers ---------------------------------------------------------------------------------

    def submit(self, item: Item) -> asyncio.Future[None]:
        """Give an item its place; the future is answered once it is committed.

        The place is taken before this returns, so the order of calls is the order of effects within a
        thread. Cancelling the future does not take the item back: it may still be committed.

        Raises (by the future):
            BacklogFull: There was no room in time.
            RejectedError: PostgreSQL refused this item.
            UnavailableError, OutcomeUnknown, DatabaseError, SchemaError: See there.
            ClosedError: ``close`` ran out of time before the item was sent.

        Raises:
            ClosedError: The coalescer is closing.
        """
        if self._closing:
            raise ClosedError(thread_id=item.thread_id)
        loop = asyncio.get_running_loop()
        item.submitted_at = time.monotonic()
        item.answer = loop.create_future()
        if self._gate or self._is_full():
            self._wait_at_gate(item, loop)
        else:
            self._admit(item)
        return item.answer

    async def settled(self) -> None:
        """Wait until everything that was submitted before this call has been answered or given up.

        Raises:
            BacklogFull, ClosedError: See ``submit``.
        """
        threads = {item.thread_id for item in self._gate}
        for lane in self._lanes:
            threads |= lane.queue.threads()
            threads.update(item.thread_id for item in lane.sending)
        # One place behind everything of each thread; also behind items that nobody waits for any more.
        await asyncio.gather(
            *(self.submit(AsideItem(thread_id=thread_id, operation=_nothing)) for thread_id in threads)
        )

    def ready(self, item: Item) -> None:
        """Say that the bytes of an item are there."""
        item.ready = True
        self._lane_of(item).wake()

    def abandon(self, item: Item, error: BaseException) -> None:
        """Fail an item whose bytes could not be made."""
        item.ready = item.abandoned = True
        if not item.answer.done():
            item.answer.set_exception(error)
        self._lane_of(item).wake()

    async def close(self, deadline_seconds: float) -> None:
        """Refuse new items, flush what waits until the deadline, then fail the rest. May be called twice.

        Items that were not sent get ``ClosedError``; items that are at the server get ``OutcomeUnknown``.
        """
        self._closing = True
        for lane in self._lanes:
            lane.wake()
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + deadline_seconds
        rest: list[Item] = []
        interrupted = 0
        # Room at the gate may start a lane that was not there when the closing began.
        while tasks := [lane.task for lane in self._lanes if lane.task is not None]:
            _, pending = await asyncio.wait(tasks, timeout=max(0.0, give_up_at - loop.time()))
            if not pending:
                continue
            rest += self._gate  # nobody is let in any more
            self._gate.clear()
            interrupted += sum(len(lane.sending) for lane in self._lanes) + len(self._asides)
            pending |= self._asides
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)
        rest += self._gate
        self._gate.clear()
        while self._asides:  # of a lane that died
            _, pending = await asyncio.wait(self._asides, timeout=max(0.0, give_up_at - loop.time()))
            for task in pending:
                task.cancel()
        for lane in self._lanes:
            left = lane.queue.drain()
            self._release(left)
            rest += left
        if rest or interrupted:
            logger.error(
                "closed after %.1f s although the database had not answered: %d calls were interrupted and may have been "
                "committed, %d were not sent; their callers have errors",
                deadline_seconds,
                interrupted,
                len(rest),
            )
        self._fail(
            rest,
            ClosedError("The saver was closed before this could be sent; nothing was written."),
        )

    # --- the bound on what waits -----------------------------------------------------------------

    def _is_full(self) -> bool:
        return (
            self._counters.backlog_rows >= self._settings.max_backlog_rows
            or self._counters.backlog_bytes >= self._settings.max_backlog_bytes
        )

    def _wait_at_gate(self, item: Item, loop: asyncio.AbstractEventLoop) -> None:
        self._counters.backlog_waits += 1
        seconds = self._settings.backlog_timeout_seconds
        if seconds == 0:
            self._refuse(item)
            return
        self._gate.append(item)
        timer = loop.call_later(seconds, self._expire, item)

        def answered(answer: asyncio.Future[None]) -> None:
            timer.cancel()
            # Nobody waits for it any more and it has not been let in: then it does not take up memory either.
            if answer.cancelled() and item in self._gate:
                self._gate.remove(item)
                self._wake_if_closing()

        item.answer.add_done_callback(answered)

    def _expire(self, item: Item) -> None:
        if item in self._gate:
            self._gate.remove(item)
            self._refuse(item)
            self._wake_if_closing()

    def _refuse(self, item: Item) -> None:
        self._counters.backlog_refusals += 1
        if not item.answer.done():
            counters, settings = self._counters, self._settings
            item.answer.set_exception(
                BacklogFull(
                    f"{counters.backlog_rows} rows ({counters.backlog_bytes} bytes) wait to be written; the limits are "
                    f"{settings.max_backlog_rows} rows and {settings.max_backlog_bytes} bytes. Nothing of this call was written.",
                    thread_id=item.thread_id,
                )
            )

    def _admit(self, item: Item) -> None:
        self._counters.backlog_rows += item.rows
        self._counters.backlog_bytes += item.size_bytes
        lane = self._lane_of(item)
        lane.queue.append(item)
        if lane.task is None:
            self._start(lane)
        elif item.ready:
            lane.wake()

    def _release(self, items: Iterable[Item]) -> None:
        counters, settings = self._counters, self._settings
        for item in items:
            counters.backlog_rows -= item.rows
            counters.backlog_bytes -= item.size_bytes
        if (
            self._gate
            and counters.backlog_rows <= settings.max_backlog_rows * _RESUME_FRACTION
            and counters.backlog_bytes <= settings.max_backlog_bytes * _RESUME_FRACTION
        ):
            while self._gate and not self._is_full():
                self._admit(self._gate.popleft())
            self._wake_if_closing()

    def _wake_if_closing(self) -> None:
        if self._closing and not self._gate:
            for lane in self._lanes:  # each stays for the gate's sake
                lane.wake()

    # --- lanes -----------------------------------------------------------------------------------

    def _lane_of(self, item: Item) -> _Lane:
        lanes = self._lanes
        if len(lanes) == 1:
            return lanes[0]
        # A hash that is the same in every process, unlike hash().
        return lanes[zlib.crc32(item.thread_id.encode("utf-8", "surrogatepass")) % len(lanes)]

    def _start(self, lane: _Lane) -> None:
        number = self._lanes.index(lane)
        lane.task = asyncio.get_running_loop().create_task(self._run(lane), name=f"pgcairn-lane-{number}")
        lane.task.add_done_callback(lambda task: self._ended(lane, task))

    def _ended(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        """The death of a lane reaches its callers; the next item starts a new one."""
        if lane.task is task:
            lane.task = None
        if task.cancelled() or task.exception() is None:
            return
        logger.error("a write lane died; its waiting items fail", exc_info=task.exception())
        rest = lane.queue.drain()
        for begun in [item for item in rest if isinstance(item, AsideItem) and item.is_begun]:
            rest.remove(begun)
            lane.queue.append(begun)  # goes on, and the thread's next items still wait for it
        error = PgcairnError("The write lane died of an internal error; nothing of this call was written.")
        error.__cause__ = task.exception()
        self._fail(rest, error)
        self._release(rest)

    async def _run(self, lane: _Lane) -> None:
        try:
            while True:
                items = lane.queue.take()
                for aside in lane.queue.due():
                    self._begin(lane, aside)
                if not items:
                    if self._closing and not len(lane.queue) and not self._gate:
                        return
                    if not await self._wait(lane) and not len(lane.queue):
                        # So that a saver that is dropped while it is idle leaves nothing behind.
                        lane.task = None  # nothing is awaited after this: the next item starts another
                        return
                    continue
                lane.sending = items
                try:
                    # An item whose bytes could not be made was answered already.
                    await self._send(lane, [item for item in items if not item.abandoned])
                except BaseException as error:
                    outcome = OutcomeUnknown("The write was interrupted after it was sent.")
                    outcome.__cause__ = error
                    self._fail(items, outcome)  # those that have no answer yet
                    raise
                finally:
                    lane.sending = ()
                    self._release(items)
                if not self._may_hold or lane.session.held_seconds > _HOLD_SECONDS:
                    await lane.session.release()
        finally:
            await lane.session.release()

    def _begin(self, lane: _Lane, item: AsideItem) -> None:
        """Run an aside whose turn has come. Its task uses sessions of the pool, one at a time, never the lane's."""
        task = asyncio.get_running_loop().create_task(self._run_aside(item), name="pgcairn-aside")
        self._asides.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._asides.discard(task)
            if not item.answer.done():  # cancelled, by ``close``
                self._fail([item], OutcomeUnknown("The operation was interrupted; it may be done in part."))
            if lane.queue.remove(item):
                self._release([item])
                lane.wake()

        task.add_done_callback(ended)

    async def _run_aside(self, item: AsideItem) -> None:
        if item.answer.done():
            return
        try:
            await item.operation(self._run_beside)
        except PgcairnError as error:
            self._fail([item], error)
        except Exception as error:
            logger.exception("an operation beside the write lanes failed of an internal error")
            failure = OutcomeUnknown("The operation failed of an internal error; it may be done in part.")
            failure.__cause__ = error
            self._fail([item], failure)
        else:
            if not item.answer.done():
                item.answer.set_result(None)

    async def _run_beside(self, operation: Callable[[Session], Awaitable[T]], /) -> T:
        return await run_retried(
            self._pool, self._counters, self._settings.retry_deadline_seconds, operation, writes=True
        )

    async def _wait(self, lane: _Lane) -> bool:
        """Wait until there may be something to take; say false, and give the lane's session back, if that takes a while."""
        loop = asyncio.get_running_loop()
        signal = lane.signal = loop.create_future()
        is_idle = lane.session.is_held or not len(lane.queue)
        timer = loop.call_later(_LINGER_SECONDS, lane.settle, False) if is_idle else None
        try:
            there_is_work = await signal
        finally:
            lane.signal = None
            if timer is not None:
                timer.cancel()
        if not there_is_work:
            await lane.session.release()
            return False
        if self._settings.batch_delay_seconds and not self._closing:
            await asyncio.sleep(self._settings.batch_delay_seconds)
        return True

    async def _send(self, lane: _Lane, items: list[Item]) -> None:
        """Commit items, isolate the one that PostgreSQL refuses, answer every one of them."""
        if not items:
            return
        for item in items:
            if not item.give_up_at:
                item.give_up_at = give_up_at(item.submitted_at, self._settings.retry_deadline_seconds)
        try:
            if isinstance(items[0], DeleteItem):
                await self._delete(lane, items)
                again: list[Item] = []
            else:
                again = await self._insert(lane, items)
        except RejectedError as error:
            if len(items) == 1:
                self._counters.items_rejected += 1
                self._fail(items, error)
                return
            self._counters.batches_split += 1
            middle = len(items) // 2
            await self._send(lane, items[:middle])
            await self._send(lane, items[middle:])
        except (UnavailableError, OutcomeUnknown) as error:
            # Each has a deadline of its own; those that have time left are tried again.
            late, rest = by_deadline(items)
            self._fail(late, error)
            if late and _is_away(error):
                self._give_up_on_queued(lane, error)
            if isinstance(error, OutcomeUnknown):
                for item in rest:
                    item.unknown = error
            await self._send(lane, rest)
        except PgcairnError as error:
            self._fail(items, error)
        else:
            left_out = set(map(id, again))
            now = time.monotonic()
            observe = self._counters.write_latency.observe
            for item in items:
                if id(item) not in left_out:
                    observe(now - item.submitted_at)
                    if not item.answer.done():
                        item.answer.set_result(None)
            await self._send(lane, again)

    def _give_up_on_queued(self, lane: _Lane, error: PgcairnError) -> None:
        """Fail what has waited in a lane for longer than it may, when there was no server for the calls before it either.

        Otherwise every batch of a long queue would be tried for a while of its own.
        """
        late = lane.queue.remove_older(time.monotonic() - self._settings.retry_deadline_seconds)
        failure = UnavailableError(f"Nothing of this call was sent. Calls before it failed: {error.message}")
        failure.__cause__ = error
        self._fail(late, failure)
        self._release(late)

    async def _delete(self, lane: _Lane, items: list[Item]) -> None:
        thread_ids = sorted({item.thread_id for item in items})

        async def operation(session: Session) -> None:
            await self._repository.delete_threads(session, thread_ids)

        await self._retried(lane, items, operation)

    async def _insert(self, lane: _Lane, items: list[Item]) -> list[Item]:
        """Commit items; return those that were left out and have been encoded anew."""
        batch = assemble(items)
        repository = self._repository
        result = await self._retried(lane, items, lambda session: repository.insert_batch(session, batch))
        counters = self._counters
        again: list[Item] = []
        for number in sorted(result.missing_items):
            item = items[number]
            assert isinstance(item, PutItem)
            try:
                item.encode_whole()
            except PgcairnError as error:
                self._fail([item], error)
                continue
            counters.items_reencoded += 1
            again.append(item)
        written = [
            item
            for number, item in enumerate(items)
            if isinstance(item, PutItem) and number not in result.missing_items
        ]
        # Only all or none is known. A value that was there already, or that another item of the batch brought first,
        # may be another one under the same version.
        values_are_new = result.new_values == sum(len(item.values) for item in written)
        for item in written:
            item.values_are_new = values_are_new
        if result.new_checkpoints < len(written):
            for number, item in enumerate(written):
                try:
                    if not await self._replace(lane, item):
                        again.append(item)
                except RejectedError as error:
                    self._fail([item], error)
                except (UnavailableError, OutcomeUnknown, DatabaseError) as error:
                    # Some say that nothing was written; but the batch is committed, and this item with it
                    # unless its checkpoint existed.
                    outcome = OutcomeUnknown(
                        "The checkpoint is stored, but perhaps in the older state of the same id."
                    )
                    outcome.__cause__ = error
                    if isinstance(error, DatabaseError):
                        self._fail([item], outcome)
                        continue
                    # The database was away until the deadline; the rest does not wait for one more each.
                    self._fail(written[number:], outcome)
                    break
                except PgcairnError as error:
                    self._fail([item], error)
        counters.batches += 1
        counters.batch_rows_total += batch.rows
        counters.batch_rows_max = max(counters.batch_rows_max, batch.rows)
        counters.checkpoints_written += len(written)
        counters.values_written += len(batch.values)
        counters.edits_written += sum(value[4] is not None for _, value in batch.values)
        counters.writes_written += len(batch.writes_kept) + len(batch.writes_replaced)
        counters.written_bytes += sum(item.size_bytes for item in items)
        return again

    async def _replace(self, lane: _Lane, item: PutItem) -> bool:
        """Replace a checkpoint; say false if that is to be tried again with the item, which is encoded anew."""
        repository = self._repository
        replaced = await self._retried(
            lane, [item], lambda session: repository.replace_checkpoint(session, item.row, item.merge)
        )
        if replaced is Replaced.REPLACED:
            self._counters.checkpoints_replaced += 1
        elif replaced is Replaced.VALUES_GONE:
            if item.is_sent_again:
                raise OutcomeUnknown("A value that the stored checkpoint of the same id refers to is gone.")
            item.is_sent_again = True
            item.encode_whole()
            self._counters.items_reencoded += 1
            return False
        return True

    async def _retried(
        self, lane: _Lane, items: Sequence[Item], operation: Callable[[Session], Awaitable[T]]
    ) -> T:
        seconds_left = min(item.give_up_at for item in items) - time.monotonic()
        unknown = next((item.unknown for item in items if item.unknown is not None), None)
        return await run_retried(
            lane.session, self._counters, seconds_left, operation, writes=True, unknown=unknown
        )

    def _fail(self, items: Iterable[Item], error: PgcairnError) -> None:
        for item in items:
            if not item.answer.done():
                # What was committed once is not refused when it is repeated; all other errors say that nothing was.
                reason = error if isinstance(error, RejectedError) else item.unknown or error
                item.answer.set_exception(reason.for_thread(item.thread_id or None))
