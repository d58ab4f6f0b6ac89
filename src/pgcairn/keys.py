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


def surely_fine(*texts: str) -> bool:
    """Whether these texts need no closer look: all ASCII, no NUL, and short enough for any key together.

    The hot path asks this once for all its texts; which of them is at fault is only found out if one is.
    """
    joined = "".join(texts)
    return joined.isascii() and "\x00" not in joined and len(joined) <= MAX_KEY_BYTES


def check_text(**texts: str) -> dict[str, int]:
    """Check that texts, given by their names, can be stored; return their sizes in bytes.

    Raises:
        InvalidInput: One holds a NUL or a lone surrogate.
    """
    sizes = {}
    for name, text in texts.items():
        if "\x00" in text:
            raise InvalidInput(
                f"{name} {text!r} holds a NUL character, which PostgreSQL cannot store in a key."
            )
        try:
            sizes[name] = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{name} {text!r} is not valid Unicode: {error.reason}.") from error
    return sizes


def check_key(**parts: str) -> None:
    """Check that the parts of a key, given by their names, can be stored and fit into one index entry together.

    Raises:
        InvalidInput: One holds a NUL or a lone surrogate, or together they need more than ``MAX_KEY_BYTES``.
    """
    if surely_fine(*parts.values()):
        return
    sizes = check_text(**parts)
    total = sum(sizes.values())
    if total > MAX_KEY_BYTES:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
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
    """Return a thread id as text. What it holds is checked by ``check_key``.

    Raises:
        InvalidInput: It is ``None`` or empty.
    """
    if value is None:
        raise InvalidInput("thread_id is missing: set configurable.thread_id to a non-empty string.")
    text = value if type(value) is str else str(value)
    if not text:
        raise InvalidInput("thread_id is empty: set configurable.thread_id to a non-empty string.")
    return text


def namespace_of(configurable: Mapping[str, Any]) -> str:
    """Return the namespace of a config; a missing one is the root."""
    value = configurable.get("checkpoint_ns")
    return "" if not value else str(value)


def checkpoint_of(configurable: Mapping[str, Any]) -> str | None:
    """Return the checkpoint id of a config, or ``None``."""
    value = configurable.get("checkpoint_id")
    return None if not value else str(value)
