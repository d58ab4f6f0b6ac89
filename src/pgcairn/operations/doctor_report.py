"""What an examination reports: kinds of findings, findings, totals.

Owns the names that users and programs see, and how bad each kind is. Reads nothing and decides nothing; ``doctor`` does.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


class Severity(enum.Enum):
    """How bad a finding is."""

    DAMAGE = "damage"
    """Something that is needed is missing, or does not decode: reading it raises an error."""
    GARBAGE = "garbage"
    """Nothing refers to it; it only takes space."""
    NOTE = "note"
    """Worth knowing; nothing is wrong with what is stored."""


class Kind(enum.Enum):
    """What can be found; docs/doctor.md says what to do about each."""

    CORRUPT_BODY = "corrupt-body"
    FOREIGN_BODY = "foreign-body"
    MALFORMED_REFERENCES = "malformed-references"
    MISSING_VALUE = "missing-value"
    CORRUPT_VALUE = "corrupt-value"
    MISSING_BASE = "missing-base"
    WRONG_CHAIN = "wrong-chain"
    CORRUPT_WRITE = "corrupt-write"
    NOT_ENCRYPTED = "not-encrypted"
    UNREADABLE = "unreadable"
    ORPHANED_VALUE = "orphaned-value"
    ORPHANED_WRITE = "orphaned-write"
    EARLY_WRITE = "early-write"
    UNNEEDED_HIDDEN = "unneeded-hidden"
    DANGLING_PARENT = "dangling-parent"
    LOST_CALL = "lost-call"
    EMPTY_THREAD = "empty-thread"

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return _KINDS[self][0]

    @property
    def meaning(self) -> str:
        """What it means, in one line."""
        return _KINDS[self][1]


_KINDS: dict[Kind, tuple[Severity, str]] = {
    Kind.CORRUPT_BODY: (Severity.DAMAGE, "a checkpoint's body does not decode"),
    Kind.FOREIGN_BODY: (Severity.DAMAGE, "a checkpoint's body belongs to another checkpoint"),
    Kind.MALFORMED_REFERENCES: (Severity.DAMAGE, "a checkpoint's references are no JSON object"),
    Kind.MISSING_VALUE: (Severity.DAMAGE, "a checkpoint refers to a value that has no row"),
    Kind.CORRUPT_VALUE: (Severity.DAMAGE, "a value does not decode"),
    Kind.MISSING_BASE: (Severity.DAMAGE, "a value that another one is an edit of has no row"),
    Kind.WRONG_CHAIN: (Severity.DAMAGE, "a value's chain is not its base followed by the base's chain"),
    Kind.CORRUPT_WRITE: (Severity.DAMAGE, "a pending write does not decode"),
    Kind.NOT_ENCRYPTED: (Severity.DAMAGE, "a row is not encrypted, and the serializer refuses such rows"),
    Kind.UNREADABLE: (Severity.DAMAGE, "the bytes are intact, but the serializer cannot read them"),
    Kind.ORPHANED_VALUE: (Severity.GARBAGE, "a value that no checkpoint needs"),
    Kind.ORPHANED_WRITE: (
        Severity.GARBAGE,
        "pending writes whose checkpoint does not exist, older than the grace",
    ),
    Kind.EARLY_WRITE: (
        Severity.NOTE,
        "pending writes whose checkpoint does not exist; it may still arrive, or its id does not tell its age",
    ),
    Kind.UNNEEDED_HIDDEN: (Severity.NOTE, "a hidden checkpoint that no visible one descends from"),
    Kind.DANGLING_PARENT: (Severity.NOTE, "a checkpoint's parent is not what its link says"),
    Kind.LOST_CALL: (Severity.NOTE, "checkpoints of a subgraph call whose root checkpoint is gone"),
    Kind.EMPTY_THREAD: (Severity.NOTE, "a thread that was asked for has nothing stored"),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that was found, and where. What does not apply is ``None``.

    Attributes:
        kind: What it is.
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        channel: The channel.
        version: The channel's version.
        task_id: The task of a pending write.
        idx: The index of a pending write.
        detail: What exactly is the matter.
        is_swept: It was deleted by this examination.
    """

    kind: Kind
    thread_id: str
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    channel: str | None = None
    version: str | None = None
    task_id: str | None = None
    idx: int | None = None
    detail: str = ""
    is_swept: bool = False

    def __str__(self) -> str:
        where = ", ".join(
            f"{name} {value!r}"
            for name, value in (
                ("thread", self.thread_id),
                ("namespace", self.checkpoint_ns),
                ("checkpoint", self.checkpoint_id),
                ("channel", self.channel),
                ("version", self.version),
                ("task", self.task_id),
                ("index", self.idx),
            )
            if value is not None
        )
        return f"{where}: {self.detail}" if self.detail else where

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the fields that apply."""
        found = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "kind"
        }
        return {
            "kind": self.kind.value,
            "severity": self.kind.severity.value,
            **{name: value for name, value in found.items() if value is not None},
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What was examined.

    Attributes:
        threads: Threads that have any row.
        checkpoints: Checkpoints, hidden ones among them.
        hidden_checkpoints: Checkpoints that a prune keeps out of sight.
        values: Channel values with a row of their own.
        edits: Those of them that are stored as edits of others.
        deepest_chain: The most values that one rests on.
        writes: Pending writes.
        stored_bytes: Frames and bodies as they are stored, without the server's overhead.
        sealed_rows: Rows that are encrypted, and were not checked because there is no key.
    """

    threads: int = 0
    checkpoints: int = 0
    hidden_checkpoints: int = 0
    values: int = 0
    edits: int = 0
    deepest_chain: int = 0
    writes: int = 0
    stored_bytes: int = 0
    sealed_rows: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of an examination.

    Attributes:
        totals: What was examined.
        counts: How many findings of each kind there are, without what was swept.
        swept: How many of each kind were deleted.
        swept_bytes: Stored bytes of what was deleted.
        findings: The first ``max_findings`` of each kind, and as many that were swept, in the order of discovery.
        unswept_threads: With ``repair``, threads in which nothing was swept because they are damaged.
    """

    totals: Totals
    counts: Mapping[Kind, int]
    swept: Mapping[Kind, int]
    swept_bytes: int
    findings: tuple[Finding, ...]
    unswept_threads: int

    @property
    def is_clean(self) -> bool:
        """Whether there is neither damage nor garbage; notes do not count."""
        return all(kind.severity is Severity.NOTE for kind in self.counts)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "is_clean": self.is_clean,
            "totals": dataclasses.asdict(self.totals),
            "counts": {kind.value: count for kind, count in self.counts.items()},
            "swept": {kind.value: count for kind, count in self.swept.items()},
            "swept_bytes": self.swept_bytes,
            "unswept_threads": self.unswept_threads,
            "findings": [finding.as_dict() for finding in self.findings],
        }
