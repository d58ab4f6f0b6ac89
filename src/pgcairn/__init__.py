"""LangGraph state in PostgreSQL: group commit, no locks, nothing lost.

``AsyncPostgresSaver`` is a drop-in for the class of the same name in ``langgraph-checkpoint-postgres``;
``PostgresSaver`` is the same for programs without an event loop.
"""

from importlib.metadata import version as _version

from pgcairn.errors import (
    BacklogFull,
    ClosedError,
    DatabaseError,
    EmbeddedServerError,
    InvalidInput,
    OutcomeUnknown,
    PgcairnError,
    RejectedError,
    SchemaError,
    SerializationError,
    SettingsError,
    StoredDataError,
    UnavailableError,
    UsageError,
    WrongLoopError,
    WrongType,
)
from pgcairn.health import Readiness
from pgcairn.saver import AsyncPostgresSaver
from pgcairn.settings import Settings
from pgcairn.sync import PostgresSaver
from pgcairn.telemetry import Stats

__version__ = _version("pgcairn")

__all__ = [
    "AsyncPostgresSaver",
    "BacklogFull",
    "ClosedError",
    "DatabaseError",
    "EmbeddedServerError",
    "InvalidInput",
    "OutcomeUnknown",
    "PgcairnError",
    "PostgresSaver",
    "Readiness",
    "RejectedError",
    "SchemaError",
    "SerializationError",
    "Settings",
    "SettingsError",
    "Stats",
    "StoredDataError",
    "UnavailableError",
    "UsageError",
    "WrongLoopError",
    "WrongType",
    "__version__",
]
