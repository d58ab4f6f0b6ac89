"""The client's record of what it asked and what it was answered: one JSON object a line, written by Locust.

The first line says when the schedule began; every other one is a request, written when its answer is known. Standard
library only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from loadtest.mix import Call


@dataclass(frozen=True)
class Entry:
    """A request and its answer; times are seconds since the schedule began.

    Attributes:
        ids: Ids of messages that are committed, says the answer; empty for reads and failures.
        due_seconds: When it should have been sent.
        sent_seconds: When it was.
        done_seconds: When its answer had come.
        status: HTTP's; 0 if there was none.
    """

    kind: str
    thread: str
    turn: int
    token: str
    ids: tuple[str, ...]
    due_seconds: float
    sent_seconds: float
    done_seconds: float
    status: int
    error: str | None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the service said that it is done."""
        return self.error is None

    @property
    def latency_seconds(self) -> float:
        """From when it was due: a client that comes late hides nothing."""
        return self.done_seconds - self.due_seconds


@dataclass(frozen=True)
class Journal:
    """All of it.

    Attributes:
        began: ``time.monotonic()`` of the schedule's beginning, comparable between processes of a machine.
        entries: In the order of the answers.
    """

    began: float
    entries: Sequence[Entry]


class JournalWriter:
    """Writes a journal while the load goes on."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self.began = time.monotonic()
        self._write({"began": self.began})
        self._file.flush()  # whoever waits for the beginning sees it

    def now(self) -> float:
        """Seconds since the schedule began."""
        return time.monotonic() - self.began

    def note(
        self,
        call: Call,
        due_seconds: float,
        sent_seconds: float,
        *,
        status: int,
        ids: Sequence[str] = (),
        error: str | None = None,
    ) -> Entry:
        """Write a request whose answer has come now."""
        found = Entry(
            *(call.kind, call.thread.id, call.turn, call.token, tuple(ids)),
            *(due_seconds, sent_seconds, self.now(), status, error),
        )
        self._write(found.__dict__)
        return found

    def close(self) -> None:
        """Write what is buffered."""
        self._file.close()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


def read(path: Path) -> Journal:
    """Read a journal that is complete."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    began = float(next(lines)["began"])
    return Journal(began, [Entry(**line | {"ids": tuple(line["ids"])}) for line in lines])
