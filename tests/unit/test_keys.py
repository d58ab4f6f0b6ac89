"""What may be a key, and what the error says if it may not."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from pgcairn.errors import InvalidInput
from pgcairn.keys import (
    MAX_KEY_BYTES,
    check_key,
    check_text,
    checkpoint_of,
    configurable_of,
    namespace_of,
    surely_fine,
    thread_of,
)


@pytest.mark.parametrize("text", ["a\x00", "\ud800", "x\udfffy"])
def test_what_postgresql_cannot_store_is_refused_by_name(text: str) -> None:
    assert not surely_fine("ok", text)
    with pytest.raises(InvalidInput, match="task_path"):
        check_text(task_path=text)
    with pytest.raises(InvalidInput, match="thread_id"):
        check_key(thread_id=text, checkpoint_ns="")


def test_sizes_are_bytes() -> None:
    assert check_text(a="é", b="", c="𝄞") == {"a": 2, "b": 0, "c": 4}


@pytest.mark.parametrize("character", ["x", "é", "𝄞"])
def test_a_key_may_be_as_long_as_an_index_entry_and_no_longer(character: str) -> None:
    count = MAX_KEY_BYTES // len(character.encode())
    check_key(thread_id=character * (count - 1), checkpoint_ns=character)
    with pytest.raises(InvalidInput, match=f"limit {MAX_KEY_BYTES} .*checkpoint_ns"):
        check_key(thread_id=character * count, checkpoint_ns=character)


def test_fine_texts_need_no_closer_look_and_others_do() -> None:
    assert surely_fine()
    assert surely_fine("a", "", "b" * (MAX_KEY_BYTES - 1))
    assert not surely_fine("a", "b" * MAX_KEY_BYTES)
    assert not surely_fine("é")
    check_key(thread_id="é")


@pytest.mark.parametrize("config", [None, {}, {"configurable": None}, {"configurable": "t"}])
def test_a_config_needs_a_configurable(config: Mapping[str, Any] | None) -> None:
    with pytest.raises(InvalidInput, match="configurable"):
        configurable_of(config)


def test_threads_of_other_types_become_text() -> None:
    number = uuid.uuid4()
    assert [thread_of(each) for each in ("t", 7, number, 0)] == ["t", "7", str(number), "0"]
    with pytest.raises(InvalidInput, match="missing"):
        thread_of(None)
    with pytest.raises(InvalidInput, match="empty"):
        thread_of("")


def test_a_missing_namespace_is_the_root_and_a_missing_checkpoint_is_none() -> None:
    assert [namespace_of(each) for each in ({}, {"checkpoint_ns": None}, {"checkpoint_ns": "a"})] == [
        "",
        "",
        "a",
    ]
    assert checkpoint_of({}) is None
    assert checkpoint_of({"checkpoint_id": ""}) is None
    assert checkpoint_of({"checkpoint_id": uuid.UUID(int=1)}) == str(uuid.UUID(int=1))
