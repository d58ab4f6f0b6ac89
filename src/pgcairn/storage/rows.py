"""What the write path hands to the repository: rows, ready to be sent.

Plain data, no behaviour beyond telling its key and its size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class ValueRow(NamedTuple):
    """A large channel value. A stored row of the same key is never replaced."""

    thread_id: str
    checkpoint_ns: str
    channel: str
    version: str
    type: str
    frame: bytes


class NeededValue(NamedTuple):
    """A stored value that a checkpoint rests on and that must still be there when it is committed."""

    thread_id: str
    checkpoint_ns: str
    channel: str
    version: str


class WriteRow(NamedTuple):
    """A pending write of a task."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    idx: int
    task_path: str
    channel: str
    type: str
    frame: bytes


@dataclass(slots=True)
class CheckpointRow:
    """A checkpoint together with the values it brings and the values it rests on."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    run_id: str | None
    langgraph_v: int
    metadata: str
    refs: str | None
    body: bytes
    values: list[ValueRow] = field(default_factory=list)
    needs: list[NeededValue] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, str]:
        """The primary key."""
        return self.thread_id, self.checkpoint_ns, self.checkpoint_id
