"""The error vocabulary: one tree that answers whose fault it is, whether to retry, and whether data is safe.

Owns every exception that pgcairn raises by itself. Drivers' exceptions never leave the package: the two
driver modules map them here by SQLSTATE and keep the original as ``__cause__``. Cancellation is never
mapped. Nothing in this module imports another module of the package.

How to read the tree::

    PgcairnError
    ├── UsageError            your call is at fault; retrying it unchanged cannot help
    │   ├── InvalidInput      a key or an argument that cannot be stored (also a ValueError)
    │   │   └── WrongType     a text where a list of texts belongs (also a TypeError)
    │   ├── SerializationError  a value that the serializer cannot carry (also a TypeError)
    │   ├── ClosedError       the saver, or the pool you gave it, is closed
    │   ├── WrongLoopError    called from an event loop from which it cannot be answered
    │   └── SettingsError     a setting out of its range (also a ValueError)
    ├── SchemaError           the database has no pgcairn schema, or another version of it
    ├── StoredDataError       stored bytes are missing or corrupt; never shown as an empty state
    ├── DatabaseError         PostgreSQL refused the statement: permission, disk full, a timeout
    │   └── RejectedError     PostgreSQL refused this one item; the others of its batch are committed
    ├── UnavailableError      the database could not be reached; nothing was written
    │   └── BacklogFull       more waits to be written than the settings allow; nothing was written
    ├── OutcomeUnknown        the connection was lost after the statement was sent; repeating is safe
    └── EmbeddedServerError   the embedded server could not be started, stopped or found
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self


class PgcairnError(Exception):
    """An error raised by pgcairn.

    Attributes:
        hint: What to do about it, in one sentence. May be empty.
        retryable: Whether the same call may succeed later with no change to the program.
        thread_id: The LangGraph thread concerned, if there is one.
        checkpoint_id: The checkpoint concerned, if there is one.
    """

    retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or type(self).__name__).split("\n", 1)[0]
        self.hint = self.default_hint if hint is None else hint
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        super().__init__(self.message)

    def __str__(self) -> str:
        where = "".join(
            f", {name} {value!r}"
            for name, value in (
                ("thread", self.thread_id),
                ("checkpoint", self.checkpoint_id),
            )
            if value is not None and repr(value) not in self.message
        )
        text = f"{self.message} ({where[2:]})" if where else self.message
        return f"{text} Hint: {self.hint}" if self.hint else text

    def for_thread(self, thread_id: str | None) -> Self:
        """Return a copy for one of several callers that an error concerns.

        Each gets its own: a traceback grows on whoever raises it, and each names its own thread.
        """
        own = copy.copy(self)
        own.thread_id = thread_id
        own.__cause__ = self.__cause__
        return own

    def __reduce__(self) -> tuple[object, ...]:
        # The default pickles only ``args``; the keyword state would be lost between processes.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(cls: type[PgcairnError], state: dict[str, object]) -> PgcairnError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    error.args = (state["message"],)
    return error


class UsageError(PgcairnError):
    """The call cannot be carried out as it was made."""


class InvalidInput(UsageError, ValueError):
    """A key or an argument cannot be stored."""


class WrongType(InvalidInput, TypeError):
    """An argument is a single text where a list of texts belongs."""


class SettingsError(UsageError, ValueError):
    """A setting is out of its range."""


class SerializationError(UsageError, TypeError):
    """A value cannot be carried by the serializer.

    Attributes:
        path: Where the value sits, for instance ``$.channel_values.messages[3].content``.
    """

    default_hint = (
        "Convert the value to a type that LangGraph's serializer supports, or pass a serde that does."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        path: str = "$",
        hint: str | None = None,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, thread_id=thread_id, checkpoint_id=checkpoint_id)
        self.path = path


class ClosedError(UsageError):
    """The saver is closed."""

    default_hint = "Keep the saver open for as long as graphs run: create it in the program's lifespan."


class WrongLoopError(UsageError, RuntimeError):
    """The saver belongs to another event loop, which cannot answer."""


class SchemaError(PgcairnError):
    """The database has no pgcairn schema, or another version of it."""

    default_hint = "Run `await saver.setup()` or `pgcairn setup --dsn ...` once per database."


class StoredDataError(PgcairnError):
    """Stored bytes are missing or corrupt.

    Attributes:
        checkpoint_ns: The namespace concerned.
        channel: The channel concerned, if it is a channel's value.
        version: The version of that channel.
    """

    default_hint = "Nothing was changed. Restore the row from a backup, or resume from an earlier checkpoint."

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
        checkpoint_ns: str | None = None,
        channel: str | None = None,
        version: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, thread_id=thread_id, checkpoint_id=checkpoint_id)
        self.checkpoint_ns = checkpoint_ns
        self.channel = channel
        self.version = version

    def __str__(self) -> str:
        where = ", ".join(
            f"{name} {value!r}"
            for name, value in (
                ("thread", self.thread_id),
                ("namespace", self.checkpoint_ns),
                ("checkpoint", self.checkpoint_id),
                ("channel", self.channel),
                ("version", self.version),
            )
            if value is not None
        )
        text = f"{self.message} ({where})" if where else self.message
        return f"{text} Hint: {self.hint}" if self.hint else text


class DatabaseError(PgcairnError):
    """PostgreSQL refused the statement for a reason that concerns no single item.

    Attributes:
        sqlstate: PostgreSQL's five-character error code (manual, appendix A).
    """

    default_hint = "Nothing of this call was written. Look the code up in PostgreSQL's manual, appendix A."

    def __init__(
        self,
        message: str | None = None,
        *,
        sqlstate: str | None = None,
        hint: str | None = None,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, thread_id=thread_id, checkpoint_id=checkpoint_id)
        self.sqlstate = sqlstate


class RejectedError(DatabaseError):
    """PostgreSQL refused the data of this one call."""

    default_hint = "Nothing of this call was written; other calls were not affected."


class UnavailableError(PgcairnError):
    """The database could not be reached; nothing was written.

    Attributes:
        sqlstate: PostgreSQL's code, if it did answer: that it is read-only or shutting down, that a lock was not to be had.
    """

    retryable = True
    default_hint = "Retry the call once the database answers again."

    def __init__(
        self,
        message: str | None = None,
        *,
        sqlstate: str | None = None,
        hint: str | None = None,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, thread_id=thread_id, checkpoint_id=checkpoint_id)
        self.sqlstate = sqlstate


class BacklogFull(UnavailableError):
    """More waits to be written than the settings allow; nothing was written."""

    default_hint = "The database is slower than the load. Retry later, shed load, or raise max_backlog_bytes/max_backlog_rows."


class OutcomeUnknown(PgcairnError):
    """The connection was lost after the statement was sent: it may or may not have been committed."""

    retryable = True
    default_hint = "Every operation of pgcairn can be repeated safely: retry the call."


class EmbeddedServerError(PgcairnError):
    """The embedded server could not be started, stopped or found."""
