"""What a prune keeps and in which order the rest goes: the choice by itself."""

from __future__ import annotations

from pgcairn.operations.retention import choose_gone, choose_kept
from pgcairn.storage.thread_repository import Checkpoints

FOUND = {
    "": Checkpoints(["9", "7", "5"], ["4", "3"]),
    "call:a": Checkpoints(["8", "6"], ["1"]),
    "state": Checkpoints(["2"], []),
}


def test_the_newest_of_each_namespace_are_kept() -> None:
    assert choose_kept(FOUND, {}, 2) == [
        ("", "9"),
        ("", "7"),
        ("call:a", "8"),
        ("call:a", "6"),
        ("state", "2"),
    ]
    assert choose_kept({}, {}, 1) == []


def test_a_call_goes_with_its_root_checkpoint() -> None:
    for root, goes in (("9", False), ("7", True), ("4", True), ("unknown", False), (None, False)):
        kept = choose_kept(FOUND, {"call:a": root}, 1)
        assert (("call:a", "8") not in kept) == goes, root


def test_the_root_goes_last_and_the_newest_first() -> None:
    gone, rest = choose_gone(FOUND, [("", "9"), ("state", "2")], {("", "7"), ("", "4")})
    assert gone == [("call:a", "8"), ("call:a", "6"), ("call:a", "1"), ("", "7"), ("", "5"), ("", "3")]
    assert rest == [("", "9"), ("state", "2"), ("", "4"), ("", "7")]
