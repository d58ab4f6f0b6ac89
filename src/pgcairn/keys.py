"""What may be a key: the checks on everything that goes into an index, made before anything is queued.

Owns the limits and their messages. PostgreSQL's text has no NUL and no lone surrogates; a B-tree entry has
at most 2,704 bytes (manual, 65.1.4.1: a third of a page).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgcairn.errors import InvalidInput

# 2,704 less the entry's header, the columns' length words, alignment and the integer of writes_pkey.
MAX_KEY_BYTES = 2600
# Whatever the characters are, UTF-8 needs at most four bytes for each.
_SURELY_SHORT_CHARACTERS = MAX_KEY_BYTES // 4


def check_text(text: str, name: str) -> str:
    """Return a text that PostgreSQL can hold.

    Raises:
        InvalidInput: It holds a NUL or a lone surrogate.
    """
    if "\x00" in text:
        raise InvalidInput(f"{name} {text!r} holds a NUL character, which PostgreSQL cannot store in a key.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{name} {text!r} is not valid Unicode: {error.reason}.") from error
    return text


def check_key(*parts: tuple[str, str]) -> None:
    """Check that the (name, text) parts fit into one index entry together.

    Raises:
        InvalidInput: They need more than ``MAX_KEY_BYTES`` bytes.
    """
    if sum(len(text) for _, text in parts) <= _SURELY_SHORT_CHARACTERS:
        return
    sizes = [(name, len(text.encode())) for name, text in parts]
    total = sum(size for _, size in sizes)
    if total > MAX_KEY_BYTES:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes)
        raise InvalidInput(
            f"The key is too long for an index: {total} bytes, limit {MAX_KEY_BYTES} ({listed})."
        )


def configurable_of(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the ``configurable`` part of a config.

    Raises:
        InvalidInput: There is none.
    """
    found = config.get("configurable") if config is not None else None
    if not isinstance(found, Mapping):
        raise InvalidInput('The config has no "configurable": pass {"configurable": {"thread_id": ...}}.')
    return found


def thread_of(value: object) -> str:
    """Return a thread id as text.

    Raises:
        InvalidInput: It is ``None``, empty, holds a NUL, or is too long for an index.
    """
    if value is None:
        raise InvalidInput("thread_id is missing: set configurable.thread_id to a non-empty string.")
    text = value if type(value) is str else str(value)
    if not text:
        raise InvalidInput("thread_id is empty: set configurable.thread_id to a non-empty string.")
    check_text(text, "thread_id")
    check_key(("thread_id", text))
    return text


def namespace_of(configurable: Mapping[str, Any]) -> str:
    """Return the namespace of a config; a missing one is the root.

    Raises:
        InvalidInput: It cannot be stored.
    """
    value = configurable.get("checkpoint_ns")
    return "" if not value else check_text(str(value), "checkpoint_ns")


def checkpoint_of(configurable: Mapping[str, Any]) -> str | None:
    """Return the checkpoint id of a config, or ``None``.

    Raises:
        InvalidInput: It cannot be stored.
    """
    value = configurable.get("checkpoint_id")
    return None if not value else check_text(str(value), "checkpoint_id")
