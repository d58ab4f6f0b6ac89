"""The pure half of the write path: what leaves a queue, in which order, and what a batch then holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from pgcairn.coalescer import AsideItem, DeleteItem, Item, PutItem, Queue, WritesItem, assemble
from pgcairn.storage.rows import CheckpointRow, ValueRow, WriteRow

_THREADS = st.sampled_from(["a", "b", "c"])
_MAX_ROWS = 5
_MAX_BYTES = 10


def _checkpoint(thread_id: str, checkpoint_id: str, body: bytes = b"") -> CheckpointRow:
    return (thread_id, "", checkpoint_id, None, None, 4, "{}", None, body)


def _items() -> st.SearchStrategy[Item]:
    sizes = {
        "thread_id": _THREADS,
        "rows": st.integers(0, _MAX_ROWS + 2),
        "size_bytes": st.integers(0, _MAX_BYTES + 2),
        "ready": st.booleans(),
    }
    puts = st.builds(
        lambda checkpoint_id, **rest: PutItem(row=_checkpoint(rest["thread_id"], checkpoint_id), **rest),
        st.sampled_from(["1", "2"]),
        **sizes,
    )
    writes = st.builds(WritesItem, replace=st.booleans(), **sizes)
    deletes = st.builds(DeleteItem, thread_id=_THREADS)
    return st.one_of(puts, writes, deletes)


@dataclass
class _Step:
    kind: Literal["append", "ready", "take", "end"]
    item: Item | None = None
    which: int = 0


_STEPS = st.lists(
    st.one_of(
        st.builds(_Step, st.just("append"), _items()),
        st.builds(_Step, st.just("ready"), which=st.integers(0, 20)),
        st.just(_Step("take")),
    ),
    max_size=40,
)


def _check_batch(batch: list[Item], max_items: int | None) -> None:
    assert all(item.ready for item in batch)
    assert len({isinstance(item, DeleteItem) for item in batch}) <= 1
    keys = [item.row[:3] for item in batch if isinstance(item, PutItem)]
    assert len(keys) == len(set(keys))
    if len(batch) > 1:
        assert sum(item.rows for item in batch) <= _MAX_ROWS
        assert sum(item.size_bytes for item in batch) <= _MAX_BYTES
    if max_items is not None:
        assert len(batch) <= max_items


@given(_STEPS, st.sampled_from([None, 1]))
def test_every_interleaving_keeps_order_kind_keys_and_bounds(
    steps: list[_Step], max_items: int | None
) -> None:
    queue = Queue(max_rows=_MAX_ROWS, max_bytes=_MAX_BYTES, max_items=max_items)
    waiting: list[Item] = []
    order: list[Item] = []
    left: list[Item] = []
    for step in steps:
        if step.item is not None:
            # Hypothesis may hand the same object out twice while it shrinks; identity is what counts here.
            if any(step.item is seen for seen in order):
                continue
            queue.append(step.item)
            order.append(step.item)
            waiting.append(step.item)
        elif step.kind == "ready":
            if waiting:
                waiting[step.which % len(waiting)].ready = True
        else:
            batch = queue.take()
            _check_batch(batch, max_items)
            # Something leaves whenever the oldest item of any thread is ready.
            first_of_thread = {item.thread_id: item for item in reversed(waiting)}
            assert bool(batch) == any(item.ready for item in first_of_thread.values())
            left += batch
            waiting = [item for item in waiting if not any(item is gone for gone in batch)]
        assert len(queue) == len(waiting)
    for item in waiting:
        item.ready = True
    while waiting:
        batch = queue.take()
        _check_batch(batch, max_items)
        assert batch
        left += batch
        waiting = [item for item in waiting if not any(item is gone for gone in batch)]
    assert queue.take() == []
    assert len(left) == len(order)
    for thread_id in "abc":
        assert [id(item) for item in left if item.thread_id == thread_id] == [
            id(item) for item in order if item.thread_id == thread_id
        ]


def test_a_checkpoint_waits_for_one_of_its_thread_that_may_be_sent_again() -> None:
    queue = Queue(max_rows=100, max_bytes=100)
    first = PutItem(thread_id="t", row=_checkpoint("t", "1"), needs=[("t", "", "c", "v", None)])
    writes = WritesItem(thread_id="t", replace=False)
    second = PutItem(thread_id="t", row=_checkpoint("t", "2"))
    other = PutItem(thread_id="u", row=_checkpoint("u", "1"))
    for item in (first, writes, second, other):
        queue.append(item)
    assert queue.take() == [first, writes, other]
    assert queue.take() == [second]


# --- asides ---------------------------------------------------------------------------------------


async def _operation(_: object) -> None:
    """Nobody runs it here."""


def _aside(thread_id: str) -> AsideItem:
    return AsideItem(thread_id=thread_id, operation=_operation)


@given(
    st.lists(
        st.one_of(
            st.builds(_Step, st.just("append"), _items()),
            st.builds(_Step, st.just("append"), st.builds(_aside, _THREADS)),
            st.builds(_Step, st.just("ready"), which=st.integers(0, 20)),
            st.builds(_Step, st.just("end"), which=st.integers(0, 20)),
            st.just(_Step("take")),
        ),
        max_size=40,
    ),
    st.sampled_from([None, 1]),
)
def test_an_aside_begins_in_its_turn_and_only_its_thread_waits_for_it(
    steps: list[_Step], max_items: int | None
) -> None:
    queue = Queue(max_rows=_MAX_ROWS, max_bytes=_MAX_BYTES, max_items=max_items)
    waiting: list[Item] = []
    begun: list[AsideItem] = []
    seen: list[Item] = []

    def take() -> bool:
        batch = queue.take()
        due = queue.due()
        assert queue.due() == []
        under_way = {item.thread_id for item in begun}
        assert not under_way & {item.thread_id for item in batch}, "something went past an aside"
        _check_batch(batch, max_items)
        assert not any(isinstance(item, AsideItem) for item in batch)
        for item in batch:
            waiting.remove(item)
        for aside in due:
            assert aside not in begun
            assert aside.thread_id not in {item.thread_id for item in batch}, "its thread is at the server"
            first = next(item for item in waiting if item.thread_id == aside.thread_id)
            assert first is aside
            begun.append(aside)
        return bool(batch or due)

    def end(which: int) -> None:
        aside = begun.pop(which % len(begun))
        waiting.remove(aside)
        assert queue.remove(aside)
        assert not queue.remove(aside)

    for step in steps:
        if step.item is not None:
            if any(step.item is each for each in seen):
                continue
            seen.append(step.item)
            waiting.append(step.item)
            queue.append(step.item)
        elif step.kind == "ready" and waiting:
            waiting[step.which % len(waiting)].ready = True
        elif step.kind == "end" and begun:
            end(step.which)
        elif step.kind == "take":
            take()
        assert len(queue) == len(waiting)
        assert queue.threads() == {item.thread_id for item in waiting}
    for item in waiting:
        item.ready = True
    while waiting:
        progress = take()
        if begun:
            end(0)
        else:
            assert progress, "nothing is under way, and nothing leaves"


def test_an_aside_waits_for_the_batch_that_its_thread_is_in() -> None:
    queue = Queue(max_rows=100, max_bytes=100)
    before, aside, after = (
        WritesItem(thread_id="t", replace=False),
        _aside("t"),
        WritesItem(thread_id="t", replace=False),
    )
    other, second = WritesItem(thread_id="u", replace=False), _aside("v")
    for item in (before, aside, after, other, second):
        queue.append(item)
    assert queue.take() == [before, other]
    assert queue.due() == [second]
    assert queue.take() == []
    assert queue.due() == [aside]
    queue.remove(aside)
    assert queue.take() == [after]
    assert queue.drain() == [second]


@given(st.lists(_items(), max_size=10))
def test_drain_returns_everything_in_order(items: list[Item]) -> None:
    queue = Queue(max_rows=_MAX_ROWS, max_bytes=_MAX_BYTES)
    for item in items:
        queue.append(item)
    assert [id(item) for item in queue.drain()] == [id(item) for item in items]
    assert len(queue) == 0
    assert queue.drain() == []


# --- assemble ------------------------------------------------------------------------------------

_Values = dict[tuple[str, ...], bytes]
_Writes = dict[tuple[str, str, str, str, int], WriteRow]


@dataclass
class _Tables:
    """What the statements do, row by row."""

    checkpoints: dict[tuple[str, ...], bytes]
    values: _Values
    writes: _Writes

    def insert_value(self, row: ValueRow) -> None:
        self.values.setdefault(row[:4], row[6])

    def insert_write(self, row: WriteRow) -> None:
        self.writes.setdefault(row[:5], row)

    def upsert_write(self, row: WriteRow) -> None:
        stored = self.writes.get(row[:5])
        self.writes[row[:5]] = row if stored is None else (*row[:5], stored[5], *row[6:])


_SHORT = st.sampled_from(["1", "2"])
_ROW_BYTES = st.binary(min_size=1, max_size=2)


@st.composite
def _written_items(draw: st.DrawFn) -> Item:
    thread_id = draw(_SHORT)
    if draw(st.booleans()):
        values = draw(
            st.lists(
                st.builds(
                    lambda channel, version, frame: (thread_id, "", channel, version, None, "msgpack", frame),
                    _SHORT,
                    _SHORT,
                    _ROW_BYTES,
                ),
                max_size=3,
                unique_by=lambda row: row[:4],
            )
        )
        needs = draw(
            st.lists(
                st.tuples(st.just(thread_id), st.just(""), _SHORT, _SHORT, st.sampled_from([None, "{}"])),
                max_size=2,
            )
        )
        row = _checkpoint(thread_id, draw(st.sampled_from("123456789")), draw(_ROW_BYTES))
        return PutItem(thread_id=thread_id, row=row, values=values, needs=needs)
    replace = draw(st.booleans())
    idx = st.integers(-2, -1) if replace else st.integers(-2, 1)
    writes = draw(
        st.lists(
            st.builds(
                lambda checkpoint_id, idx, path, channel, frame: (
                    *(thread_id, "", checkpoint_id, "task", idx),
                    *(path, channel, "msgpack", frame),
                ),
                _SHORT,
                idx,
                _SHORT,
                _SHORT,
                _ROW_BYTES,
            ),
            max_size=4,
        )
    )
    return WritesItem(thread_id=thread_id, writes=writes, replace=replace)


_BATCHES = st.lists(
    _written_items(),
    max_size=8,
    unique_by=lambda item: item.row[:3] if isinstance(item, PutItem) else id(item),
)


def _first_batch(items: list[Item]) -> list[Item]:
    queue = Queue(max_rows=1000, max_bytes=1000)
    for item in items:
        queue.append(item)
    return queue.take()


def _one_by_one(tables: _Tables, items: list[Item], left_out: frozenset[int]) -> None:
    for number, item in enumerate(items):
        if isinstance(item, PutItem) and number not in left_out:
            for value in item.values:
                tables.insert_value(value)
            tables.checkpoints[item.row[:3]] = item.row[8]
        elif isinstance(item, WritesItem):
            for write in item.writes:
                if item.replace:
                    tables.upsert_write(write)
                else:
                    tables.insert_write(write)


def _as_one_batch(tables: _Tables, items: list[Item], left_out: frozenset[int]) -> None:
    batch = assemble(items)
    for number, value in batch.values:
        if number not in left_out:
            tables.insert_value(value)
    for number, row in batch.checkpoints:
        if number not in left_out:
            tables.checkpoints[row[:3]] = row[8]
    for write in batch.writes_kept:
        tables.insert_write(write)
    for write in batch.writes_replaced:
        tables.upsert_write(write)


@given(_BATCHES, _BATCHES, st.sets(st.integers(0, 8)))
def test_a_batch_equals_its_items_one_by_one(stored: list[Item], items: list[Item], gone: set[int]) -> None:
    items = _first_batch(items)
    # Only an item with needs can be left out by the statement, and then so is every other with the same needs.
    missing = [i.needs for number in gone if number < len(items) and isinstance(i := items[number], PutItem)]
    left_out = frozenset(
        number
        for number, item in enumerate(items)
        if isinstance(item, PutItem) and item.needs and item.needs in missing
    )
    expected, found = _Tables({}, {}, {}), _Tables({}, {}, {})
    for tables in (expected, found):
        _one_by_one(tables, stored, frozenset())
    _one_by_one(expected, items, left_out)
    _as_one_batch(found, items, left_out)
    assert found == expected


@given(_BATCHES)
def test_a_batch_is_sorted_and_updates_no_row_twice(items: list[Item]) -> None:
    batch = assemble(_first_batch(items))
    checkpoints = [row[:3] for _, row in batch.checkpoints]
    assert checkpoints == sorted(set(checkpoints))
    values = [row[:4] for _, row in batch.values]
    assert values == sorted(set(values))
    needs = [need for _, need in batch.needs]
    assert needs == sorted(needs, key=lambda need: need[:4])
    kept = [row[:5] for row in batch.writes_kept]
    replaced = [row[:5] for row in batch.writes_replaced]
    assert kept == sorted(set(kept))
    assert replaced == sorted(set(replaced))
    assert not set(kept) & set(replaced)
    assert batch.rows == len(checkpoints) + len(values) + len(kept) + len(replaced)
