"""Edits: what they find in common, what they cost, and that whatever they say, they say exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import ormsgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from pgcairn.codec.edits import _MAX_RANGES, apply_edit, make_edit

_SERDE = JsonPlusSerializer()
_RANDOM = random.Random(5)


def _dump(value: Any) -> bytes:
    payload = _SERDE.dumps_typed(value)[1]
    assert type(payload) is bytes
    return payload


def _words(count: int, seed: int) -> str:
    """Text in which nothing repeats for long."""
    return " ".join(f"{word:x}" for word in random.Random(seed).choices(range(16**5), k=count))


def _plain_message(number: int) -> Any:
    return {"role": "user", "id": f"id-{number}", "content": _words(80, number)}


def _langchain_message(number: int) -> Any:
    kind = AIMessage if number % 2 else HumanMessage
    return kind(content=_words(80, number), id=f"id-{number}")


_MESSAGES = pytest.mark.parametrize(
    "message", [_plain_message, _langchain_message], ids=["plain", "langchain"]
)
Message = Callable[[int], Any]


def _cost(base: bytes, target: bytes) -> int:
    """Bytes of the edit, which must rebuild the target."""
    edit = make_edit(base, target)
    assert edit is not None, "no edit was found"
    ranges, literal = edit
    assert apply_edit(base, ranges, literal) == target
    _check_form(base, target, ranges, literal)
    return len(ormsgpack.packb(ranges)) + len(literal)


def _check_form(base: bytes, target: bytes, ranges: list[int], literal: bytes) -> None:
    assert len(ranges) % 3 == 0
    assert len(ranges) <= 3 * (_MAX_RANGES + 1)
    for take, offset, length in zip(ranges[::3], ranges[1::3], ranges[2::3], strict=True):
        assert min(take, offset, length) >= 0
        assert offset + length <= len(base)
    assert len(literal) == sum(ranges[::3])
    assert 2 * len(literal) <= len(target), "half of it comes from the base"


# --- what changes in a conversation -----------------------------------------------------------------


@_MESSAGES
def test_appending_a_message_costs_little_more_than_the_message(message: Message) -> None:
    for size in (2, 15, 16, 300):  # msgpack's header of a list changes its width at 16
        earlier = [message(number) for number in range(size)]
        added = message(size)
        cost = _cost(_dump(earlier), _dump([*earlier, added]))
        assert cost < len(_dump(added)) + 80, size
        assert cost < 2 * len(_dump(added))


@_MESSAGES
def test_messages_dropped_at_the_beginning(message: Message) -> None:
    messages = [message(number) for number in range(100)]
    assert _cost(_dump(messages), _dump(messages[1:])) < 100
    assert _cost(_dump(messages), _dump(messages[60:])) < 100
    for dropped in (1, 2, 10):  # a window that slides
        for kept in (0, 1):
            window = [*messages[:kept], *messages[kept + dropped :], message(100)]
            assert _cost(_dump(messages), _dump(window)) < len(_dump(message(100))) + 100


@_MESSAGES
def test_messages_dropped_in_the_middle(message: Message) -> None:
    messages = [message(number) for number in range(100)]
    assert _cost(_dump(messages), _dump(messages[:40] + messages[41:])) < 100
    assert _cost(_dump(messages), _dump(messages[:40] + messages[70:])) < 100


@_MESSAGES
def test_a_message_replaced_or_inserted(message: Message) -> None:
    messages = [message(number) for number in range(100)]
    for position in (0, 50, 99):
        replaced = [*messages[:position], message(1000), *messages[position + 1 :]]
        assert _cost(_dump(messages), _dump(replaced)) < len(_dump(message(1000))) + 150
        inserted = [*messages[:position], message(1000), *messages[position:]]
        assert _cost(_dump(messages), _dump(inserted)) < len(_dump(message(1000))) + 150


@_MESSAGES
def test_a_summary_in_place_of_the_beginning(message: Message) -> None:
    messages = [message(number) for number in range(60)]
    assert _cost(_dump(messages), _dump([message(1000), *messages[30:]])) < len(_dump(message(1000))) + 150


def _files(count: int) -> dict[str, str]:
    return {f"src/module_{number}.py": _words(300, number) for number in range(count)}


def test_one_changed_file_of_a_hundred() -> None:
    files = _files(100)
    base = _dump(files)
    for name in ("src/module_0.py", "src/module_50.py", "src/module_99.py"):
        text = files[name]
        at = len(text) // 2
        assert _cost(base, _dump({**files, name: text[:at] + "a changed line\n" + text[at:]})) < 1024
        assert _cost(base, _dump({**files, name: text[:at] + text[at + 200 :]})) < 1024


def test_files_added_removed_and_reordered() -> None:
    files = _files(40)
    base = _dump(files)
    assert _cost(base, _dump({**files, "new": "short"})) < 100
    assert _cost(base, _dump({name: text for name, text in files.items() if "_20" not in name})) < 100
    first, *rest = files.items()
    moved = dict([*rest, first])  # written anew, so it is now the last
    assert _cost(base, _dump(moved)) < len(first[1]) + 100


def test_a_counter_in_every_entry() -> None:
    entries = [{"name": _words(10, number), "seen": 1} for number in range(100)]
    later = [{**entry, "seen": 1_000_000} for entry in entries]
    assert _cost(_dump(entries), _dump(later)) < 100 * 24


def test_the_same_and_less_and_nothing() -> None:
    base = _dump([_plain_message(number) for number in range(30)])
    assert make_edit(base, base) == ([0, 0, len(base)], b"")
    assert _cost(base, base[: len(base) // 3]) < 20
    assert _cost(base, base[len(base) // 3 :]) < 60
    assert make_edit(base, b"") == ([], b"")
    assert apply_edit(base, [], b"") == b""
    assert make_edit(b"", base) is None
    assert make_edit(b"", b"") == ([], b"")


def test_something_else_is_no_edit() -> None:
    noise = _RANDOM.randbytes(20_000)
    assert make_edit(noise, _RANDOM.randbytes(20_000)) is None
    assert make_edit(noise, _RANDOM.randbytes(100)) is None
    assert make_edit(noise[:100], noise) is None


def test_at_least_half_comes_from_the_base() -> None:
    shared, other = _RANDOM.randbytes(1000), _RANDOM.randbytes(1000)
    assert _cost(shared, shared + other) < 1050
    assert make_edit(shared, shared + other + b"!!") is None
    assert _cost(shared, other + shared) < 1050
    assert make_edit(shared, other + b"!!" + shared) is None


def test_too_many_differences_are_no_edit_or_one_that_fits() -> None:
    base = _RANDOM.randbytes(100 * (_MAX_RANGES + 200))
    target = bytearray(base)
    target[50::100] = bytes(byte ^ 1 for byte in target[50::100])
    edit = make_edit(base, bytes(target))
    assert edit is not None
    _check_form(base, bytes(target), *edit)
    assert apply_edit(base, *edit) == target


def test_a_long_way_back_and_forward() -> None:
    # Further than a search looks at first.
    parts = [_RANDOM.randbytes(30_000) for _ in range(4)]
    base = b"".join(parts)
    assert _cost(base, parts[0] + parts[3]) < 50
    assert _cost(base, _RANDOM.randbytes(40) + parts[2] + parts[3]) < 100


def test_a_short_piece_from_far_away() -> None:
    start, between, piece = _RANDOM.randbytes(5000), _RANDOM.randbytes(30_000), _RANDOM.randbytes(200)
    assert _cost(start + between + piece + b"old", start + piece + b"new") < 60


def test_a_find_is_extended_to_where_it_begins() -> None:
    # The last byte differs, so the end that both have in common is not known from the end.
    base, inserted = _RANDOM.randbytes(20_000), _RANDOM.randbytes(1000)
    assert _cost(base, base[:5000] + inserted + base[5000:-1] + bytes((base[-1] ^ 1,))) < 1050


def test_a_piece_that_was_passed_over_is_found() -> None:
    start, long, short, rest = (_RANDOM.randbytes(size) for size in (1000, 400, 160, 400))
    assert _cost(start + long + short + rest, start + short + long + b"end") < 60


# --- edits that do not fit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranges", "literal"),
    [
        ([0, 0, 11], b""),
        ([0, 10, 1], b""),
        ([0, 11, 0], b""),
        ([0, 2**63, 1], b""),
        ([0, 0, 2**64], b""),
        ([0, -1, 1], b""),
        ([0, -5, 3], b""),
        ([0, 3, -1], b""),
        ([-1, 0, 1], b""),
        ([2, 0, 0, -1, 0, 0], b"x"),
        ([1, 0, 1], b""),
        ([2, 0, 1], b"x"),
        ([0, 0, 1], b"x"),
        ([1, 0, 1], b"xx"),
        ([], b"x"),
        ([0], b""),
        ([0, 1], b""),
        ([0, 0, 1, 0], b""),
        ([0, 0, 1, 0, 0], b""),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(ranges: list[int], literal: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 the caller adds what it was
        apply_edit(b"ten bytes.", ranges, literal)


def test_an_edit_is_applied_as_it_says() -> None:
    assert apply_edit(b"ten bytes.", [1, 0, 3, 0, 3, 1, 3, 9, 1], b"/six") == b"/ten six."
    assert apply_edit(b"", [1, 0, 0], b"x") == b"x"
    assert apply_edit(b"ab", [0, 1, 1, 0, 0, 1, 0, 0, 2], b"") == b"baab"


# --- any payloads -----------------------------------------------------------------------------------

_SMALL_ALPHABETS = st.text("ab", max_size=400).map(str.encode) | st.binary(max_size=300)


@st.composite
def _rearranged(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two payloads of the same blocks, in any order, with repetitions and a little noise between them."""
    source = random.Random(draw(st.integers(0, 2**32)))
    blocks = [
        source.randbytes(draw(st.sampled_from([1, 2, 3, 5, 23, 24, 25, 47, 48, 49, 64, 600, 5000])))
        for _ in range(draw(st.integers(1, 6)))
    ]
    orders = st.lists(st.sampled_from(range(len(blocks))), max_size=12)
    return tuple(b"".join(blocks[each] for each in draw(orders)) for _ in range(2))  # type: ignore[return-value]


def _check_round_trip(base: bytes, target: bytes) -> None:
    edit = make_edit(base, target)
    if edit is not None:
        _check_form(base, target, *edit)
        assert apply_edit(base, *edit) == target


@given(_SMALL_ALPHABETS, _SMALL_ALPHABETS)
@example(b"a" * 400, b"a" * 399)
@example(b"ab" * 200, b"ba" * 200)
@example(b"a" * 200 + b"b" + b"a" * 200, b"a" * 400)
def test_any_bytes_come_back(base: bytes, target: bytes) -> None:
    _check_round_trip(base, target)


@given(_SMALL_ALPHABETS, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 80), _SMALL_ALPHABETS)))
def test_any_changes_of_bytes_come_back(start: bytes, changes: list[tuple[int, int, bytes]]) -> None:
    base = start * 5
    target = base
    for offset, removed, added in changes:
        at = offset % (len(target) + 1)
        target = target[:at] + added + target[at + removed :]
    _check_round_trip(base, target)
    _check_round_trip(target, base)


@given(_rearranged())
def test_blocks_in_any_order_come_back(pair: tuple[bytes, bytes]) -> None:
    _check_round_trip(*pair)


_LEAVES = (
    st.none() | st.integers().filter(lambda n: -(2**63) <= n < 2**63) | st.floats() | st.text(max_size=60)
)
_NESTED = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@st.composite
def _evolving(draw: st.DrawFn) -> list[Any]:
    """Versions of a value, as steps of a graph make them."""
    state: dict[str, Any] = {"messages": [], "files": {}, "nested": draw(_NESTED)}
    versions = []
    for number in range(draw(st.integers(1, 12))):
        messages, files = list(state["messages"]), dict(state["files"])
        change = draw(st.sampled_from(["append", "drop first", "drop", "replace", "file", "nest"]))
        at = draw(st.integers(0, max(0, len(messages) - 1)))
        text = draw(st.text(max_size=40)) * draw(st.integers(1, 30))
        if change == "append" or not messages:
            messages += [{"id": number, "text": text}] * draw(st.integers(1, 3))
        elif change == "drop first":
            messages = messages[1:]
        elif change == "drop":
            del messages[at]
        elif change == "replace":
            messages[at] = {"id": number, "text": text}
        elif change == "file":
            files[draw(st.sampled_from("abc"))] = text
        else:
            state = {**state, "nested": [state["nested"], draw(_NESTED)]}
        state = {**state, "messages": messages, "files": files}
        versions.append(state)
    return versions


@settings(max_examples=50, deadline=None)
@given(_evolving())
def test_values_that_evolve_come_back(versions: list[Any]) -> None:
    payloads = [_dump(value) for value in versions]
    for number, target in enumerate(payloads):
        for base in (payloads[number - 1], payloads[number & (number - 1)]):
            _check_round_trip(base, target)
