"""Which large values are known to be stored, so that unchanged ones are not serialized again.

A memory, not a truth: rows may be deleted by anybody at any time. Therefore whatever rests on an entry is
checked in the statement that writes it, and encoded anew if the row is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping


class Placements:
    """The latest stored version of each large channel, for the namespaces used last.

    Args:
        max_entries: How many (thread, namespace) pairs to remember; the one unused for longest goes first.
    """

    def __init__(self, max_entries: int) -> None:
        self._versions: OrderedDict[tuple[str, str], dict[str, str]] = OrderedDict()
        self._max_entries = max_entries

    def __len__(self) -> int:
        return len(self._versions)

    def is_stored(self, key: tuple[str, str], channel: str, version: str) -> bool:
        """Whether this version of a channel of (thread, namespace) is known to have a row."""
        known = self._versions.get(key)
        return known is not None and known.get(channel) == version

    def remember(self, key: tuple[str, str], versions: Mapping[str, str]) -> None:
        """Note that these versions (channel → version) of (thread, namespace) have rows."""
        known = self._versions.get(key)
        if known is None:
            self._versions[key] = dict(versions)
            if len(self._versions) > self._max_entries:
                self._versions.popitem(last=False)
        else:
            known.update(versions)
            self._versions.move_to_end(key)
