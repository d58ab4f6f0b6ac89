"""The shell of the write path over tables in memory: every caller gets one true answer, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pgcairn.coalescer import Coalescer, DeleteItem, PutItem, WritesItem
from pgcairn.connection import pool as pool_module
from pgcairn.connection.pool import Session
from pgcairn.errors import (
    BacklogFull,
    ClosedError,
    DatabaseError,
    OutcomeUnknown,
    PgcairnError,
    RejectedError,
    SerializationError,
    UnavailableError,
)
from pgcairn.settings import Settings
from pgcairn.storage.repository import Batch, BatchResult, Merge, Replaced, Repository
from pgcairn.storage.rows import CheckpointRow, NeededValue, ValueRow, WriteRow
from pgcairn.telemetry import Counters
from tests.support.idle import IdleSession
from tests.support.stepping import advance, run_stepping, settle

_POISON = 666
_RETRY_SECONDS = 10.0
_CLOSE_SECONDS = 100.0


class _Clock:
    """``time`` as the retry loop sees it."""

    @staticmethod
    def monotonic() -> float:
        return asyncio.get_running_loop().time()


@pytest.fixture(autouse=True)
def _stepped_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "time", _Clock)


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    logging.getLogger("pgcairn").setLevel(logging.CRITICAL + 1)
    yield
    logging.getLogger("pgcairn").setLevel(logging.NOTSET)


# --- what the test submits ------------------------------------------------------------------------


@dataclass(slots=True, eq=False, kw_only=True)
class _Put(PutItem):
    """A checkpoint whose body is its number; ``b""`` until its bytes are made."""

    number: int
    whole: tuple[ValueRow, ...] = ()

    def make_bytes(self) -> None:
        self.row = (*self.row[:8], str(self.number).encode())

    def encode_whole(self) -> None:
        # What was needed is brought along now.
        self.values = (*self.values, *((*need[:4], None, "t", b"whole") for need in self.needs))
        self.needs = ()

    def merge(self, stored_body: bytes, stored_refs: str | None) -> tuple[bytes, str | None]:
        return self.row[8], self.row[7]


@dataclass(slots=True, eq=False, kw_only=True)
class _Writes(WritesItem):
    number: int
    made: Sequence[WriteRow] = ()

    def make_bytes(self) -> None:
        self.writes = self.made


@dataclass(slots=True, eq=False, kw_only=True)
class _Delete(DeleteItem):
    number: int

    def make_bytes(self) -> None:
        """Nothing to make."""


_Any = _Put | _Writes | _Delete


# --- the tables -----------------------------------------------------------------------------------


class _Pool:
    last_failure = ""

    def __init__(self, max_size: int) -> None:
        self.max_size = self.size = self.idle = max_size
        self.lent = 0

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    @contextlib.asynccontextmanager
    async def acquire(self, patience_seconds: float = math.inf) -> AsyncIterator[Session]:
        self.lent += 1
        assert self.lent <= self.max_size
        try:
            yield cast("Session", IdleSession())
        finally:
            self.lent -= 1


@dataclass
class _Effect:
    """One commit, in order."""

    puts: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)


class _Tables:
    """The repository over dictionaries. Each call waits until the test says how it ends."""

    def __init__(self) -> None:
        self.checkpoints: dict[tuple[str, str, str], CheckpointRow] = {}
        self.values: dict[tuple[str, str, str, str], bytes] = {}
        self.writes: dict[tuple[str, str, str, str, int], WriteRow] = {}
        self.effects: list[_Effect] = []
        self.waiting: list[asyncio.Future[str]] = []
        self.always: str | None = None
        self.broken: list[str] = []  # asserting in here would only look like a failing statement

    async def _outcome(self) -> str:
        if self.always is not None:
            for _ in range(5):  # also a fast server takes a while
                await asyncio.sleep(0)
            return self.always
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            return await turn
        finally:
            self.waiting.remove(turn)

    async def _before(self) -> str:
        outcome = await self._outcome()
        if outcome == "unavailable":
            raise UnavailableError("no route")
        if outcome == "lost before commit":
            raise OutcomeUnknown("cut")
        if outcome == "refused":
            raise DatabaseError("disk full", sqlstate="53100")
        if outcome == "internal error":
            raise RuntimeError("a bug")
        return outcome

    def _after(self, outcome: str) -> None:
        self._check()
        if outcome == "lost after commit":
            raise OutcomeUnknown("cut")

    def _check(self) -> None:
        for key, row in self.checkpoints.items():
            for channel, version in json.loads(row[7] or "{}").items():
                if (*key[:2], channel, version) not in self.values:
                    self.broken.append(f"{key} rests on nothing")

    async def insert_batch(self, session: Session, batch: Batch) -> BatchResult:
        assert isinstance(session, IdleSession)
        outcome = await self._before()
        if any(row[5] == _POISON for _, row in batch.checkpoints) or any(
            write[6] == "poison" for write in [*batch.writes_kept, *batch.writes_replaced]
        ):
            raise RejectedError("bad data", sqlstate="22P05")
        missing = frozenset(number for number, need in batch.needs if need[:4] not in self.values)
        effect = _Effect()
        self.broken += [f"{row[:3]} has no bytes" for _, row in batch.checkpoints if not row[8]]
        known = len(self.values)
        for number, value in batch.values:
            if number not in missing:
                self.values.setdefault(value[:4], value[6])
        new = 0
        for number, row in batch.checkpoints:
            if number not in missing and row[:3] not in self.checkpoints:
                self.checkpoints[row[:3]] = row
                effect.puts.add(int(row[8] or b"-1"))
                new += 1
        for write in batch.writes_kept:
            if self.writes.setdefault(write[:5], write) is write:
                effect.writes.add(int(write[8]))
        for write in batch.writes_replaced:
            self.writes[write[:5]] = write
            effect.writes.add(int(write[8]))
        self.effects.append(effect)
        self._after(outcome)
        return BatchResult(new, len(self.values) - known, missing)

    async def replace_checkpoint(self, session: Session, row: CheckpointRow, merge: Merge) -> Replaced:
        outcome = await self._before()
        stored = self.checkpoints.get(row[:3])
        if stored is None or stored[8] == row[8]:
            return Replaced.UNCHANGED
        body, refs = merge(stored[8], stored[7])
        self.checkpoints[row[:3]] = (*row[:3], stored[3], *row[4:7], refs, body)
        self.effects.append(_Effect(puts={int(body)}))
        self._after(outcome)
        return Replaced.REPLACED

    async def delete_threads(self, session: Session, thread_ids: Sequence[str]) -> int:
        outcome = await self._before()
        self.delete(thread_ids)
        self._after(outcome)
        return 0

    def delete(self, thread_ids: Sequence[str]) -> None:
        for table in (self.checkpoints, self.values, self.writes):
            rows: dict[Any, Any] = table
            for key in [key for key in rows if key[0] in thread_ids]:
                del rows[key]
        self.effects.append(_Effect(deleted=set(thread_ids)))


# --- the world ------------------------------------------------------------------------------------


class _World:
    """A coalescer over the tables, everything that was submitted, and the true order of it."""

    def __init__(self, settings: Settings, *, group_commit: bool) -> None:
        self.counters = Counters()
        self.tables = _Tables()
        self.pool = _Pool(max_size=3)
        self.coalescer = Coalescer(
            self.pool,
            cast("Repository", self.tables),
            settings,
            self.counters,
            group_commit=group_commit,
        )
        self.items: list[_Any] = []
        self.abandoned: set[int] = set()
        self.deleted_elsewhere: set[str] = set()
        self.unready: list[_Any] = []
        self.closing: asyncio.Task[None] | None = None

    def submit(self, item: _Any) -> None:
        if item.ready:
            item.make_bytes()
        try:
            self.coalescer.submit(item)
        except ClosedError:
            assert self.closing is not None
            return
        self.items.append(item)
        if not item.ready:
            self.unready.append(item)

    def make_ready(self, which: int) -> None:
        if self.unready:
            item = self.unready.pop(which % len(self.unready))
            item.make_bytes()
            self.coalescer.ready(item)

    def abandon(self, which: int) -> None:
        if self.unready:
            item = self.unready.pop(which % len(self.unready))
            self.abandoned.add(item.number)
            self.coalescer.abandon(item, SerializationError("too large"))

    def cancel(self, which: int) -> None:
        waiting = [item for item in self.items if not item.answer.done()]
        if waiting:
            waiting[which % len(waiting)].answer.cancel()

    def end_call(self, which: int, outcome: str) -> None:
        calls = self.tables.waiting
        if calls:
            call = calls[which % len(calls)]
            if not call.done():
                call.set_result(outcome)

    def close(self) -> None:
        if self.closing is None:
            self.closing = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        await self.coalescer.close(_CLOSE_SECONDS)
        assert self.pool.lent == 0, "closed, and something is still at the server"

    async def finish(self, *, in_time: bool) -> None:
        """Close; the server answers all that is left, or (not ``in_time``) nothing any more."""
        self.close()
        await settle()
        if in_time:
            while self.unready:
                self.make_ready(0)
            self.tables.always = "ok"
            for call in list(self.tables.waiting):
                call.set_result("ok")
            # Retries wait at most a second each; the deadline of the close is far away.
            for _ in range(int(_RETRY_SECONDS) + 5):
                await advance(1.0)
            assert self.closing is not None
            assert self.closing.done(), "the close waits for nothing"
        else:
            await advance(_CLOSE_SECONDS + 1)
        assert self.closing is not None
        await self.closing
        await self.coalescer.close(0)
        # A worker thread may still be compressing for somebody who was told already.
        while self.unready:
            self.make_ready(0)
        await settle()

    # --- what must hold at the end ---

    def check(self) -> None:
        assert [item.number for item in self.items if not item.answer.done()] == [], "nobody answered"
        assert self.tables.broken == []
        assert (self.counters.backlog_rows, self.counters.backlog_bytes) == (0, 0)
        acknowledged: set[int] = set()
        for item in self.items:
            if item.answer.cancelled():
                continue
            error = item.answer.exception()
            if error is None:
                acknowledged.add(item.number)
            else:
                self._check_error(item, error)
        for item in self.items:
            if item.number in self.abandoned:
                assert not self._commits(item), "an item without bytes was committed"
            elif item.number in acknowledged:
                self._check_kept(item)
        self._check_order(acknowledged)

    def _check_error(self, item: _Any, error: BaseException) -> None:
        assert isinstance(error, PgcairnError)
        assert error.thread_id in (item.thread_id, None)
        if isinstance(error, SerializationError):
            assert item.number in self.abandoned
        elif isinstance(error, ClosedError | UnavailableError | BacklogFull | RejectedError | DatabaseError):
            assert not self._commits(item), f"{type(error).__name__} says that nothing was written"
        if isinstance(error, RejectedError):
            poisoned = isinstance(item, _Put) and item.row[5] == _POISON
            assert poisoned or (isinstance(item, _Writes) and any(w[6] == "poison" for w in item.made))

    def _commits(self, item: _Any) -> list[int]:
        found = []
        for number, effect in enumerate(self.tables.effects):
            if isinstance(item, _Delete):
                # Deletions of one thread cannot be told apart; nothing is claimed about them.
                continue
            if item.number in (effect.puts if isinstance(item, _Put) else effect.writes):
                found.append(number)
        return found

    def _check_kept(self, item: _Any) -> None:
        deleted = {other.thread_id for other in self.items if isinstance(other, _Delete)}
        if item.thread_id in deleted | self.deleted_elsewhere:
            return  # order is checked apart
        if isinstance(item, _Put):
            assert self._commits(item), "acknowledged and not there"
            assert item.row[:3] in self.tables.checkpoints
        elif isinstance(item, _Writes):
            assert all(write[:5] in self.tables.writes for write in item.made)

    def _check_order(self, acknowledged: set[int]) -> None:
        """Effects of one thread come in the order of the calls; those of one batch come together."""
        for thread_id in {item.thread_id for item in self.items}:
            latest = -1
            for item in self.items:
                if item.thread_id != thread_id or item.number not in acknowledged:
                    continue
                if isinstance(item, _Put) and item.whole:
                    continue  # may have been left out of its batch and have come with the next
                if commits := self._commits(item):
                    assert min(commits) >= latest
                    latest = max(commits)


# --- actions --------------------------------------------------------------------------------------

_Action = tuple[str, Any]
_SMALL = st.sampled_from(["1", "2"])
_THREADS = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def _puts(draw: st.DrawFn) -> _Action:
    thread_id = draw(_THREADS)
    keys = [(thread_id, "", channel, version) for channel in "xy" for version in "12"]
    values = draw(st.lists(st.sampled_from(keys), max_size=2, unique_by=lambda key: key[2]))
    others = [(*key, None) for key in keys if key[2] not in {value[2] for value in values}]
    needs: list[NeededValue] = draw(st.lists(st.sampled_from(others), max_size=1) if others else st.just([]))
    return "put", (
        thread_id,
        draw(st.sampled_from(["1", "2", "3"])),
        values,
        needs,
        draw(st.sampled_from([4, 4, 4, _POISON])),
        draw(st.booleans()),
    )


@st.composite
def _write_calls(draw: st.DrawFn) -> _Action:
    replace = draw(st.booleans())
    idx = st.integers(-2, -1) if replace else st.integers(0, 1)
    return "writes", (
        draw(_THREADS),
        draw(_SMALL),
        draw(st.lists(idx, min_size=1, max_size=2, unique=True)),
        replace,
        draw(st.sampled_from(["ordinary", "ordinary", "ordinary", "poison"])),
        draw(st.booleans()),
    )


_WHICH = st.integers(0, 10)
_OUTCOMES = st.sampled_from(
    ["ok"] * 6 + ["unavailable", "lost before commit", "lost after commit", "refused", "internal error"]
)
_ACTIONS = st.lists(
    st.one_of(
        _puts(),
        _puts(),
        _write_calls(),
        st.tuples(st.just("delete"), _THREADS),
        st.tuples(st.just("delete elsewhere"), _THREADS),
        st.tuples(st.just("ready"), _WHICH),
        st.tuples(st.just("abandon"), _WHICH),
        st.tuples(st.just("cancel"), _WHICH),
        st.tuples(st.just("end"), st.tuples(_WHICH, _OUTCOMES)),
        st.tuples(st.just("end"), st.tuples(_WHICH, _OUTCOMES)),
        st.tuples(st.just("settle"), st.none()),
        st.tuples(st.just("advance"), st.sampled_from([0.05, 1.0, 6.0, 20.0])),
        st.tuples(st.just("close"), st.none()),
    ),
    max_size=50,
)
_SETTINGS = st.builds(
    Settings,
    lanes=st.integers(1, 3),
    max_batch_rows=st.sampled_from([1, 3, 1000]),
    max_backlog_rows=st.sampled_from([1, 2, 5, 1000]),
    backlog_timeout_seconds=st.sampled_from([0, 5, 50]),
    batch_delay_seconds=st.sampled_from([0, 0, 0.1]),
    retry_deadline_seconds=st.sampled_from([0, _RETRY_SECONDS]),
)


def _item(number: int, kind: str, arguments: Any) -> _Any:
    if kind == "delete":
        return _Delete(thread_id=arguments, number=number)
    thread_id, checkpoint_id, *_ = arguments
    if kind == "put":
        _, _, values, needs, langgraph_v, ready = arguments
        refs = {key[2]: key[3] for key in [*values, *needs]}
        return _Put(
            number=number,
            thread_id=thread_id,
            rows=1 + len(values),
            size_bytes=10,
            ready=ready,
            row=(thread_id, "", checkpoint_id, None, None, langgraph_v, "{}", json.dumps(refs), b""),
            values=[(*key, None, "t", str(number).encode()) for key in values],
            needs=needs,
            whole=tuple((*need[:4], None, "t", b"whole") for need in needs),
        )
    _, _, idxs, replace, channel, ready = arguments
    frame = str(number).encode()
    made = [(thread_id, "", checkpoint_id, "task", idx, "", channel, "t", frame) for idx in idxs]
    return _Writes(
        number=number,
        thread_id=thread_id,
        rows=len(made),
        size_bytes=5,
        ready=ready,
        replace=replace,
        made=made,
    )


async def _play(actions: list[_Action], settings: Settings, *, group_commit: bool, in_time: bool) -> _World:
    world = _World(settings, group_commit=group_commit)
    for number, (kind, arguments) in enumerate(actions):
        if kind in ("put", "writes", "delete"):
            world.submit(_item(number, kind, arguments))
        elif kind == "delete elsewhere":
            world.deleted_elsewhere.add(arguments)
            world.tables.delete([arguments])
        elif kind == "ready":
            world.make_ready(arguments)
        elif kind == "abandon":
            world.abandon(arguments)
        elif kind == "cancel":
            world.cancel(arguments)
        elif kind == "end":
            await settle()
            world.end_call(*arguments)
        elif kind == "settle":
            await settle()
        elif kind == "advance":
            await advance(arguments)
        else:
            world.close()
    await world.finish(in_time=in_time)
    return world


@settings(max_examples=300, deadline=None)
@given(_ACTIONS, _SETTINGS, st.booleans(), st.booleans())
def test_every_caller_gets_one_true_answer(
    actions: list[_Action], chosen: Settings, group_commit: bool, in_time: bool
) -> None:
    world = run_stepping(_play(actions, chosen, group_commit=group_commit, in_time=in_time))
    world.check()
    for item in world.items:
        if not item.answer.cancelled():
            event(type(item.answer.exception()).__name__)


# --- histories that went wrong once ----------------------------------------------------------------


def _put(thread_id: str, checkpoint_id: str = "1", *, poison: bool = False, ready: bool = True) -> _Action:
    return "put", (thread_id, checkpoint_id, [], [], _POISON if poison else 4, ready)


def _end(outcome: str) -> _Action:
    return "end", (0, outcome)


def _replay(actions: list[_Action], *, in_time: bool = True, **changes: Any) -> list[BaseException | None]:
    """Play a history, check it, and return how each call ended."""
    world = run_stepping(_play(actions, Settings(**changes), group_commit=True, in_time=in_time))
    world.check()
    return [
        asyncio.CancelledError() if item.answer.cancelled() else item.answer.exception()
        for item in world.items
    ]


_SETTLE: _Action = ("settle", None)
_CLOSE: _Action = ("close", None)


def test_a_cancelled_call_whose_bytes_cannot_be_made_commits_nothing() -> None:
    [ended] = _replay([_put("a", ready=False), ("cancel", 0), ("abandon", 0)])
    assert isinstance(ended, asyncio.CancelledError)


def test_a_close_that_interrupts_the_search_for_a_bad_item_answers_the_others() -> None:
    gathered = [_put("a"), _SETTLE, _put("b", poison=True), _put("c"), _put("d"), _end("ok")]
    _, poisoned, *others = _replay([*gathered, _end("ok")], in_time=False, lanes=1)
    assert isinstance(poisoned, OutcomeUnknown)
    assert [type(ended) for ended in others] == [OutcomeUnknown, OutcomeUnknown]


def test_a_lane_that_dies_answers_who_waits_and_gives_back_the_backlog() -> None:
    ended = _replay([_put("a"), _SETTLE, _put("b"), _end("internal error"), _SETTLE, _put("c")], lanes=1)
    assert [type(each) for each in ended] == [OutcomeUnknown, PgcairnError, type(None)]


def test_a_close_flushes_what_waits_at_the_gate_for_a_lane_without_a_task() -> None:
    # Of three lanes thread a is in the first and b in the last.
    assert _replay([_put("a"), _put("b"), _SETTLE, _CLOSE], lanes=3, max_backlog_rows=1) == [None, None]


def test_a_close_does_not_wait_for_a_gate_that_has_emptied_by_timeouts() -> None:
    history = [_put("a"), _SETTLE, _end("ok"), _put("b"), _SETTLE, _put("a", "2"), _CLOSE, ("advance", 6.0)]
    ended = _replay(history, lanes=3, max_backlog_rows=1, backlog_timeout_seconds=5)
    assert [type(each) for each in ended] == [type(None), type(None), BacklogFull]


@pytest.mark.parametrize("failure", ["unavailable", "refused"])
def test_a_checkpoint_that_was_committed_is_never_said_not_to_be(failure: str) -> None:
    # A put of an id that exists sends its whole batch through the replacing, one by one; that may fail.
    history = [
        *(_put("a"), _SETTLE, _end("ok"), _SETTLE),
        *(_put("b"), _SETTLE, _put("a"), _put("c"), _end("ok")),  # gathered: the known id and a new one
        *(_end("ok"), _end("ok"), _end(failure)),
    ]
    *_, ended = _replay(history, lanes=1, retry_deadline_seconds=0)
    assert ended is None or isinstance(ended, OutcomeUnknown)


@pytest.mark.parametrize("later", ["refused", "unavailable"])
def test_an_outcome_that_is_unknown_stays_unknown(later: str) -> None:
    history = [_put("a"), _SETTLE, _end("lost after commit"), ("advance", 0.05), _end(later)]
    [ended] = _replay([*history, ("advance", 20.0)], in_time=False)
    assert isinstance(ended, OutcomeUnknown)
