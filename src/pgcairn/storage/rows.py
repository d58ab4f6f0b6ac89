"""Rows as they are sent: plain tuples in the order of the statements' parameters.

Tuples and not objects, because they are made for every call and turned into columns for every batch; the
aliases say what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence

CheckpointRow = tuple[str, str, str, "str | None", "str | None", int, str, "str | None", bytes]
"""Thread, namespace, checkpoint, parent, run, LangGraph format, searchable metadata, references, body.
The first three are the key."""

ValueRow = tuple[str, str, str, str, "str | None", str, bytes]
"""A large channel value: thread, namespace, channel, version, chain (see ``chain_text``), type, frame. The first four
are the key. A stored row is never replaced."""

NeededValue = tuple[str, str, str, str, "str | None"]
"""A value row that must still be there at commit: thread, namespace, channel, version; and of a base its chain, because
a row that was deleted may have been stored again, on other ones; ``None`` where the chain does not matter."""

WriteRow = tuple[str, str, str, str, int, str, str, str, bytes]
"""A pending write: thread, namespace, checkpoint, task, index, task path, channel, type, frame.
The first five are the key; a special write that is replaced keeps its path."""


def chain_text(versions: Sequence[str]) -> str:
    """Versions as PostgreSQL writes an array, because an array parameter cannot hold arrays of different lengths."""
    if not versions:
        return "{}"
    joined = '","'.join(versions)
    if "\\" in joined or joined.count('"') > 2 * len(versions) - 2:
        joined = '","'.join(version.replace("\\", "\\\\").replace('"', '\\"') for version in versions)
    return f'{{"{joined}"}}'
