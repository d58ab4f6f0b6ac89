"""Bases: which version rests on which, when an epoch begins, and what is remembered in how much memory."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcairn.codec import bases as bases_module
from pgcairn.codec.bases import Bases, Edit, Lineage, ValueKey, can_be_base, new_epoch

_NOISE = random.Random(3).randbytes(200_000)


def _name(number: int) -> str:
    return f"{number}.0"


def _payload(number: int) -> bytes:
    return _NOISE[:300] + b"step %d" % number


def _chain(number: int) -> list[int]:
    """The numbers that this one is rebuilt from, nearest first."""
    chain = []
    while number:
        number &= number - 1
        chain.append(number)
    return chain


# --- numbers ----------------------------------------------------------------------------------------


def test_every_version_rests_on_the_right_ones() -> None:
    lineage = new_epoch(_name(0), _payload(0))
    began = 0
    for number in range(1, 5000):
        following = lineage.extended(_name(number), _payload(number))
        if following is None:
            began = number
            lineage = new_epoch(_name(number), _payload(number))
            continue
        lineage = following
        place = number - began
        assert lineage.number == place
        assert lineage.versions == (_name(number), *(_name(began + each) for each in _chain(place)))
        assert len(lineage.edits) == place.bit_count()
        if number % 61 == 0 or place.bit_count() == 1:
            assert lineage.payload() == _payload(number)
            for position, each in enumerate(_chain(place), 1):
                assert lineage.payload(position) == _payload(began + each)
    assert began == 4096, "an epoch has 4,096 versions"


def test_a_lineage_is_not_changed_by_what_is_made_of_it() -> None:
    first = new_epoch("1.0", _payload(1))
    second = first.extended("2.0", _payload(2))
    assert second is not None
    kept = (second.versions, second.number, second.edits)
    branches = [second.extended(f"3.{branch}", _payload(3 + branch)) for branch in range(3)]
    for branch, lineage in enumerate(branches):
        assert lineage is not None
        assert (lineage.number, lineage.versions) == (2, (f"3.{branch}", "1.0"))
        assert lineage.payload() == _payload(3 + branch)
    assert (second.versions, second.number, second.edits) == kept
    assert second.payload() == _payload(2)


# --- where an epoch ends ----------------------------------------------------------------------------


def test_an_unrelated_value_begins_an_epoch() -> None:
    lineage = new_epoch("1.0", _NOISE[:5000])
    assert lineage.extended("2.0", _NOISE[50_000:55_000]) is None


def test_a_value_that_shrank_begins_an_epoch() -> None:
    lineage = new_epoch("1.0", _NOISE[:40_000])
    smaller = lineage.extended("2.0", _NOISE[:10_000])
    assert smaller is not None
    assert smaller.payload() == _NOISE[:10_000]
    assert lineage.extended("2.0", _NOISE[:9_999]) is None


def test_edits_count_for_what_a_value_is_rebuilt_from() -> None:
    # 1 → 2 adds 9,000 bytes, and a third version that rests on both is smaller than a quarter of the sum.
    first = new_epoch("1.0", _NOISE[:10_000])
    second = first.extended("2.0", _NOISE[:19_000])
    assert second is not None
    third = second.extended("3.0", _NOISE[:4_000])  # number 2 rests on the first alone
    assert third is not None
    assert third.versions == ("3.0", "1.0")
    fourth = third.extended("4.0", _NOISE[:4_200])
    assert fourth is not None
    assert fourth.versions == ("4.0", "3.0", "1.0")
    grown = Lineage(second.versions, 2, second.root, (*second.edits,))  # as if the next rested on both
    assert grown.extended("5.0", _NOISE[:4_749]) is None
    assert grown.extended("5.0", _NOISE[:4_750]) is not None


def test_an_empty_value_is_never_an_edit() -> None:
    assert new_epoch("1.0", _payload(1)).extended("2.0", b"") is None
    assert new_epoch("1.0", b"").extended("2.0", _payload(1)) is None


# --- versions that can be bases ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("00000000000000000000000000000001.0000000000000000", True),
        ("1.0", True),
        ("1", False),
        (1, False),
        (1.5, False),
        (None, False),
        ("", False),
    ],
)
def test_only_versions_with_a_random_part_are_bases(version: object, expected: bool) -> None:
    assert can_be_base(version) is expected


# --- memory -----------------------------------------------------------------------------------------


def _lineage(payload_bytes: int, version: str = "1.0") -> Lineage:
    return new_epoch(version, bytes(payload_bytes))


def test_a_size_counts_all_that_is_held() -> None:
    empty = _lineage(0).size_bytes
    assert _lineage(1000).size_bytes == empty + 1000
    edit = Edit([0, 0, 10], b"four")
    with_edit = Lineage(("2.0", "1.0"), 1, bytes(10), (edit,))
    assert with_edit.size_bytes - _lineage(10).size_bytes >= 4 + 3 * 8
    longer = with_edit._replace(edits=(Edit([0, 0, 5, 4, 5, 5], b"four, five"),))
    assert longer.size_bytes - with_edit.size_bytes == 3 * 8 + 6


def test_the_one_unused_for_longest_goes_first() -> None:
    one = _lineage(1000).size_bytes
    bases = Bases(10 * one)
    keys = [("thread", "", str(number)) for number in range(11)]
    for key in keys[:10]:
        bases.remember(key, _lineage(1000))
    assert bases.size_bytes == 10 * one
    assert len(bases) == 10
    assert bases.find(keys[0]) is not None  # used, so the second is the oldest now
    bases.remember(keys[10], _lineage(1000))
    assert [key for key in keys if bases.find(key) is None] == [keys[1]]
    bases.remember(keys[2], _lineage(1000))  # known already: nothing has to go
    assert len(bases) == 10
    bases.remember(("thread", "", "larger"), _lineage(1001))
    assert len(bases) == 9, "two had to go for it"


def test_a_later_lineage_takes_the_place_of_an_earlier_one() -> None:
    bases = Bases(100_000)
    key = ("thread", "", "c")
    bases.remember(key, _lineage(1000, "1.0"))
    bases.remember(key, _lineage(500, "2.0"))
    found = bases.find(key)
    assert found is not None
    assert found.versions == ("2.0",)
    assert len(bases) == 1
    assert bases.size_bytes == _lineage(500).size_bytes


def test_no_value_takes_more_than_its_share() -> None:
    limit = _lineage(1000).size_bytes
    bases = Bases(8 * limit)
    key = ("thread", "", "c")
    bases.remember(key, _lineage(1000, "1.0"))
    assert bases.find(key) is not None
    bases.remember(key, _lineage(1001, "2.0"))
    assert bases.find(key) is None, "the earlier one must not stay either: it is no longer the latest"
    assert (len(bases), bases.size_bytes) == (0, 0)


def test_nothing_is_remembered_in_no_memory() -> None:
    bases = Bases(0)
    bases.remember(("thread", "", "c"), new_epoch("1.0", b""))
    assert bases.find(("thread", "", "c")) is None
    assert (len(bases), bases.size_bytes) == (0, 0)


def test_a_thread_is_forgotten_in_all_its_namespaces() -> None:
    bases = Bases(100_000)
    gone = [("thread", "", "c"), ("thread", "", "d"), ("thread", "ns", "c")]
    kept = [("thread 2", "", "c"), ("", "thread", "c")]
    for key in gone + kept:
        bases.remember(key, _lineage(100))
    bases.forget_thread("thread")
    bases.forget_thread("nobody")
    assert [bases.find(key) for key in gone] == [None] * 3
    assert all(bases.find(key) is not None for key in kept)
    assert bases.size_bytes == 2 * _lineage(100).size_bytes
    bases.remember(gone[0], _lineage(100))
    assert bases.find(gone[0]) is not None


_KEYS: st.SearchStrategy[ValueKey] = st.tuples(
    st.sampled_from(["t", "u"]), st.sampled_from(["", "ns"]), st.sampled_from(["c", "d"])
)
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("remember"), _KEYS, st.integers(0, 3000)),
        st.tuples(st.just("find"), _KEYS, st.just(0)),
        st.tuples(st.just("forget"), _KEYS, st.just(0)),
    ),
    max_size=40,
)


@given(_OPERATIONS, st.integers(0, 20_000))
def test_memory_is_accounted_for_exactly(operations: list[tuple[str, ValueKey, int]], max_bytes: int) -> None:
    bases = Bases(max_bytes)
    model: OrderedDict[ValueKey, Lineage] = OrderedDict()
    for what, key, size in operations:
        if what == "remember":
            lineage = _lineage(size)
            bases.remember(key, lineage)
            model.pop(key, None)
            if lineage.size_bytes * bases_module._MAX_SHARE <= max_bytes:
                model[key] = lineage
            while sum(each.size_bytes for each in model.values()) > max_bytes:
                model.popitem(last=False)
        elif what == "find":
            assert bases.find(key) is model.get(key)
            if key in model:
                model.move_to_end(key)
        else:
            bases.forget_thread(key[0])
            for each in [each for each in model if each[0] == key[0]]:
                del model[each]
        assert len(bases) == len(model)
        assert bases.size_bytes == sum(each.size_bytes for each in model.values())
    for key, lineage in model.items():
        assert bases.find(key) is lineage
    for thread_id in ("t", "u"):
        bases.forget_thread(thread_id)
    assert (len(bases), bases.size_bytes) == (0, 0)
