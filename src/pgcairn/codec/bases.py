"""Which earlier version a value is stored against, and what is remembered so that nothing has to be read for it.

Versions of a value that are stored as edits form an *epoch*: the first, number 0, is stored whole, and version ``i``
against version ``i & (i - 1)``, which is ``i`` without its lowest set bit (the skip deltas of Subversion's FSFS). So a
value is rebuilt from at most log2(i) edits, and every possible base of the next version is one of those that the current
one is rebuilt from (docs/decisions/0004-skip-deltas.md).

A ``Lineage`` is one version with everything that it is rebuilt from. ``Bases`` remembers the latest lineage of each
value: a memory, not a truth. The statement that stores an edit makes sure that its base is still there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from pgcairn.codec.edits import apply_edit, make_edit

ValueKey = tuple[str, str, str]
"""(thread, namespace, channel)."""

# The longest epoch: its deepest version rests on 12 others. One more whole frame in thousands costs nothing (guess).
_MAX_NUMBER = 4095
# A value is stored whole once what it would be rebuilt from is this many times its own size: it has shrunk (guess).
_MAX_EXCESS = 4
# No single value may push out more than this part of everything that is remembered (guess).
_MAX_SHARE = 8
# What an entry takes beside its bytes: key, tuples, lists (measured: about 1 KB with four edits).
_ENTRY_BYTES = 600
_EDIT_BYTES = 200


class Edit(NamedTuple):
    """A step from a base to a later version; see ``edits.make_edit``."""

    ranges: list[int]
    literal: bytes


class Lineage(NamedTuple):
    """A version of a value and all that it is rebuilt from. Immutable, so worker threads may use it.

    Attributes:
        versions: This version first, then its base, the base's base, … to the first of the epoch.
        number: Its place in the epoch, counted from 0.
        root: Payload of the first of the epoch.
        edits: From each version to the one before it in ``versions``; one less than there are versions.
    """

    versions: tuple[str, ...]
    number: int
    root: bytes
    edits: tuple[Edit, ...]

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, roughly."""
        literals = sum(len(edit.literal) + 8 * len(edit.ranges) for edit in self.edits)
        return len(self.root) + literals + _EDIT_BYTES * len(self.edits) + _ENTRY_BYTES

    def payload(self, position: int = 0) -> bytes:
        """Rebuild the payload of ``versions[position]``.

        Raises:
            ValueError: An edit does not fit its base.
        """
        payload = self.root
        for edit in reversed(self.edits[position:]):
            payload = apply_edit(payload, edit.ranges, edit.literal)
        return payload

    def extended(self, version: str, payload: bytes) -> Lineage | None:
        """The lineage of the next version if it pays to store it as an edit, else ``None``."""
        number = self.number + 1
        if number > _MAX_NUMBER:
            return None
        # The base is ``number & self.number``: the set bits at the end of ``self.number`` are dropped, one version each.
        position = (self.number ^ number).bit_length() - 1
        edits = self.edits[position:]
        if len(self.root) + sum(len(edit.literal) for edit in edits) > _MAX_EXCESS * len(payload):
            return None
        edit = make_edit(self.payload(position), payload)
        if edit is None:
            return None
        return Lineage((version, *self.versions[position:]), number, self.root, (Edit(*edit), *edits))


def new_epoch(version: str, payload: bytes) -> Lineage:
    """The lineage of a version that is stored whole."""
    return Lineage((version,), 0, payload, ())


def can_be_base(version: object) -> bool:
    """Whether a version names one payload for ever.

    LangGraph's versions have a random part after a point. Counters do not: two forks may count to the same number with
    different values, and the row that is stored may not hold what this process has in mind.
    """
    return isinstance(version, str) and "." in version


class Bases:
    """The latest lineage of each value, for the values used last.

    Args:
        max_bytes: Memory for it; the entry unused for longest goes first. 0: nothing is remembered, so every value is
            stored whole.
    """

    def __init__(self, max_bytes: int) -> None:
        self._lineages: OrderedDict[ValueKey, tuple[Lineage, int]] = OrderedDict()
        self._of_thread: dict[str, set[ValueKey]] = {}
        self._max_bytes = max_bytes
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._lineages)

    def find(self, key: ValueKey) -> Lineage | None:
        """The lineage to extend, if there is one."""
        found = self._lineages.get(key)
        if found is None:
            return None
        self._lineages.move_to_end(key)
        return found[0]

    def remember(self, key: ValueKey, lineage: Lineage) -> None:
        """Note a lineage whose versions are all stored, in place of an earlier one."""
        size = lineage.size_bytes
        self._drop(key)
        if size * _MAX_SHARE > self._max_bytes:
            return
        self._lineages[key] = (lineage, size)
        self._of_thread.setdefault(key[0], set()).add(key)
        self.size_bytes += size
        while self.size_bytes > self._max_bytes:
            self._drop(next(iter(self._lineages)))

    def forget_thread(self, thread_id: str) -> None:
        """Drop what is known of a thread: it is being deleted."""
        for key in tuple(self._of_thread.get(thread_id, ())):
            self._drop(key)

    def _drop(self, key: ValueKey) -> None:
        dropped = self._lineages.pop(key, None)
        if dropped is not None:
            self.size_bytes -= dropped[1]
            keys = self._of_thread[key[0]]
            keys.discard(key)
            if not keys:
                del self._of_thread[key[0]]
