"""Every knob of a saver, in one frozen dataclass.

Owns names, defaults, units and ranges. Never reads environment variables and never talks to a server.
Each field says: what it is, what goes wrong when it is too low or too high, special values, default
and where the default comes from ("guess" is said where nobody measured).
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from pgcairn.errors import SettingsError

Driver = Literal["psycopg", "asyncpg"]
PasswordSource = Callable[[], "str | Awaitable[str]"]

# PostgreSQL truncates identifiers at 63 bytes (manual, 4.1.1); a truncated name would be another schema.
_MAX_IDENTIFIER_BYTES = 63


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a saver connects, batches, stores and waits.

    All durations are seconds, all sizes bytes. The pool's fields apply to a pool that pgcairn makes
    (``from_conn_string``); a pool of your own keeps its own limits.

    Raises:
        SettingsError: A field is out of its range; the message names the field, its value and the range.
    """

    # --- where -----------------------------------------------------------------------------------

    schema: str = "pgcairn"
    """Schema that holds pgcairn's tables. Any name up to 63 bytes; it is quoted wherever it is used.
    Two savers on one schema share state; two schemas are two worlds. Default "pgcairn"."""

    driver: Driver = "psycopg"
    """Driver for a pool that pgcairn makes: "psycopg" or "asyncpg" (extra ``pgcairn[asyncpg]``).
    Both pass the same suite; see docs/benchmarks.md for the difference. Default "psycopg"."""

    application_name: str = "pgcairn {host}:{pid}"
    """Name shown in ``pg_stat_activity`` and in the server's log; PostgreSQL cuts it at 63 bytes. ``{host}`` and ``{pid}`` stand for the
    machine's name and the process's number, so that instances can be told apart at 3 a.m. Give each deployment its own:
    "checkout {host}:{pid}". Default "pgcairn {host}:{pid}"."""

    password: PasswordSource | None = dataclasses.field(default=None, repr=False)
    """Called for each new session when passwords are tokens that rotate; may be async. ``None``
    (default) takes the password from the connection string or the usual libpq places."""

    prepared_statements: bool | None = None
    """Prepare the constant statements once per session; without, each call costs a parse and a plan. ``None`` (default): yes,
    unless a pooler between here and the server loses them (PgBouncer in transaction mode before 1.21 does). psycopg notices that
    by the first statement that is lost, and repeats it; with asyncpg, whose names of statements can clash with those
    of other clients, every pooler counts as one that does. ``True``: in any case (PgBouncer from 1.21 on). ``False``: never."""

    # --- the pool --------------------------------------------------------------------------------

    min_size: int = 1
    """Sessions kept open when idle. Too low: the first calls after a lull wait for a connect (5–50 ms).
    Too high: idle sessions count against ``max_connections``. 0 is allowed. Default 1 (guess)."""

    max_size: int = 10
    """Most sessions at once. Group commit needs ``lanes`` for writes; the rest serve reads. Too low:
    reads queue behind each other. Too high: the server context-switches; beyond 2–3 per server core
    nothing is gained. Default 10, as the official saver's users choose."""

    max_idle_seconds: float = 300.0
    """A session above ``min_size`` that idled this long is closed. Too low: reconnects at every lull.
    Too high: firewalls drop it first. Default 300."""

    max_lifetime_seconds: float = 1800.0
    """A session is replaced after this age (jittered, so that they do not expire together). Bounds
    server-side memory growth and follows DNS after a failover. Default 1800."""

    acquire_timeout_seconds: float = 30.0
    """How long a call waits for a free session before ``UnavailableError``, within its retry deadline. Default 30."""

    open_timeout_seconds: float = 0.0
    """How long opening waits for a database that cannot be reached: ``from_conn_string``, ``open`` and ``setup``.
    0 (default): one attempt, then ``UnavailableError`` with the reason, so that a wrong address shows at once. For
    deployments where the database may start later than the program: 60, say. It never goes on without a database.
    The graph's calls wait for ``retry_deadline_seconds`` in any case."""

    connect_timeout_seconds: float = 10.0
    """How long one attempt to connect to one host may take. With psycopg whole seconds, at least 2
    (libpq's ``connect_timeout``). Default 10."""

    statement_timeout_seconds: float = 15.0
    """How long a statement may go unanswered, whatever the reason: a lock, a slow disk, a peer that is silent. Then it is
    cancelled, its session is dropped, and it is repeated until ``retry_deadline_seconds``. Counted by the client, so it also
    works behind poolers, and where the server cannot count because it is gone. A statement that copies or deletes
    whole threads gets ten times as long. Too low: large batches over slow links are repeated in vain. Too high: calls
    hang on a dead connection for as long. Default 15 (guess: two attempts before the deadline)."""

    check_after_idle_seconds: float = 10.0
    """A session that nobody used for this long is asked whether it still works before it is lent (one round trip; no
    answer within 2 s counts as no). Too low: a round trip more for every call after a pause. Too high: the first call
    after a pause may meet a connection that a firewall has dropped, and waits ``statement_timeout_seconds`` for
    it. Default 10 (guess)."""

    # --- writing ---------------------------------------------------------------------------------

    lanes: int = 2
    """Parallel write lanes; a thread always uses the same one. Each holds at most one session while a
    batch is at the server and, if the pool has more than ``lanes``, for 5 ms after it. 1: largest batches, no overlap of client and server. More than 4: small
    batches, more commits. Default 2 (measured, docs/benchmarks.md)."""

    max_batch_rows: int = 1000
    """Most rows in one transaction. Too low: more commits. Too high: one batch holds its callers longer
    and a retry repeats more. Default 1000 (guess)."""

    max_batch_bytes: int = 8 * 1024 * 1024
    """Most payload in one transaction. A single item may exceed it and then goes alone. Default 8 MiB (guess)."""

    batch_delay_seconds: float = 0.0
    """Wait this long for company before sending a batch. 0 (default): never; while one batch is at
    the server the next one gathers by itself. A millisecond or two can pay over long links."""

    max_backlog_rows: int = 50_000
    """Most rows queued or at the server; beyond it callers wait. Default 50,000 (guess)."""

    max_backlog_bytes: int = 256 * 1024 * 1024
    """Most payload queued or at the server; beyond it callers wait. Default 256 MiB (guess)."""

    backlog_timeout_seconds: float = 30.0
    """How long a caller waits for room in the backlog before ``BacklogFull``. 0: refuse at once. Default 30."""

    retry_deadline_seconds: float = 30.0
    """How long one call is retried over lost connections, restarts, failovers, deadlocks and serialization
    failures, counted from the call. No call takes longer than that by more than about a second, but for
    those that a full backlog holds up, and for whole threads. 0: never retry. Default 30."""

    close_timeout_seconds: float = 30.0
    """How long ``aclose()`` flushes what is queued before it fails the rest. Default 30."""

    # --- storing ---------------------------------------------------------------------------------

    inline_max_bytes: int = 1024
    """A channel value up to this serialized size travels inside its checkpoint's row; a larger one gets
    a row of its own and is stored once per version. Too low: more rows. Too high: unchanged values are
    stored again at every step. Default 1024 (guess; bench/inline_threshold.py measures it on your machine)."""

    compress_min_bytes: int = 64
    """Payloads below this are stored as they are: zstd's frame costs about what it saves. Default 64 (guess)."""

    compression_level: int = 1
    """zstd level, -7 to 19. 1 (default) makes 29 KB of chat 4.2 times smaller in 62 µs; 3 gains 4 % of space
    for 50 % more time, -5 loses 51 % for 19 % less (bench/compression_levels.py); above 9 is for archives.
    Whole payloads from 4 to 16 KB use -1 where this is higher: the client's CPU limits throughput before the disk does."""

    compress_in_thread_min_bytes: int = 256 * 1024
    """Payloads from this size are compressed and decompressed in a worker thread, so that they do not stall the event loop.
    Too low: the hand-over costs more than the compression (about 60 µs). Default 256 KiB (guess: one to two ms)."""

    max_value_bytes: int = 512 * 1024 * 1024
    """A stored value that claims to decompress to more than this is refused unread. Also the largest value
    that is accepted for storing (PostgreSQL's own limit for a bytea is 1 GB). Default 512 MiB."""

    allow_plaintext: bool = False
    """With an ``EncryptedSerializer``: accept stored values that are not encrypted. ``False`` (default)
    refuses them with ``StoredDataError``; ``True`` is for the time in which old threads are moved over."""

    placement_cache_entries: int = 20_000
    """How many (thread, namespace) pairs the saver remembers the stored versions of, so that an unchanged
    large channel is not serialized again. Too low: one superfluous serialization per run. About 300 bytes
    each. Default 20,000 (guess)."""

    base_cache_bytes: int = 128 * 1024 * 1024
    """Memory for the latest versions of large channel values. A new version is stored as what differs from one of them,
    so that a conversation that grows costs about what is added; of a value that is not remembered the next version is
    stored whole. ``aget_tuple``, which opens every run, fills it, too. An entry takes about as much as the serialized
    value, and none more than an eighth of this. Too low: threads that are worked on push each other out, and storage
    grows (``base_cache_misses``). 0: every version is stored whole. Default 128 MiB (guess)."""

    # --- reading ---------------------------------------------------------------------------------

    page_rows: int = 100
    """Most checkpoints fetched at once by ``alist``. Default 100 (guess)."""

    page_bytes: int = 8 * 1024 * 1024
    """``alist`` shrinks its pages so that one holds about this much. Default 8 MiB (guess)."""

    read_batch_rows: int = 64
    """Most latest-state reads that are answered by one statement when many are asked for at once.
    1: every read is a statement of its own. Default 64 (measured, docs/benchmarks.md)."""

    snapshot_warn_bytes: int = 1024 * 1024
    """A checkpoint above this size is logged once per thread and counted. 0: never. Default 1 MiB."""

    def __post_init__(self) -> None:
        name_bytes = len(self.schema.encode("utf-8", "replace"))
        if not 1 <= name_bytes <= _MAX_IDENTIFIER_BYTES or not _storable(self.schema):
            raise SettingsError(
                f"schema={self.schema!r} is not a usable schema name: 1 to {_MAX_IDENTIFIER_BYTES} bytes of UTF-8 without NUL."
            )
        if self.driver not in ("psycopg", "asyncpg"):
            raise SettingsError(f"driver={self.driver!r} is unknown: use 'psycopg' or 'asyncpg'.")
        if self.prepared_statements not in (None, True, False):
            raise SettingsError(
                f"prepared_statements={self.prepared_statements!r} is none of None, True, False."
            )
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise SettingsError(f"{name}={value!r} is not a number.")
            if name in _WHOLE and not isinstance(value, int):
                raise SettingsError(f"{name}={value!r} is not a whole number.")
            if not low <= value <= high:
                raise SettingsError(f"{name}={value!r} is out of range: {low} to {high}.")
        if self.min_size > self.max_size:
            raise SettingsError(f"min_size={self.min_size} is above max_size={self.max_size}.")

    def session_name(self) -> str:
        """``application_name`` with the names of machine and process."""
        return self.application_name.replace("{host}", platform.node()).replace("{pid}", str(os.getpid()))

    def replace(self, **changes: object) -> Settings:
        """Return a copy with some fields changed.

        Raises:
            SettingsError: A field does not exist or is out of its range.
        """
        unknown = sorted(set(changes) - {f.name for f in dataclasses.fields(self)})
        if unknown:
            known = ", ".join(f.name for f in dataclasses.fields(self))
            raise SettingsError(f"Unknown setting(s) {', '.join(unknown)}. Known are: {known}.")
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def _storable(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


_DAY_SECONDS = 86_400.0
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("min_size", 0, 10_000),
    ("max_size", 1, 10_000),
    ("max_idle_seconds", 1, 30 * _DAY_SECONDS),
    ("max_lifetime_seconds", 1, 30 * _DAY_SECONDS),
    ("acquire_timeout_seconds", 0.001, _DAY_SECONDS),
    ("open_timeout_seconds", 0, _DAY_SECONDS),
    ("connect_timeout_seconds", 0.001, _DAY_SECONDS),
    ("statement_timeout_seconds", 0.001, _DAY_SECONDS),
    ("check_after_idle_seconds", 0, _DAY_SECONDS),
    ("lanes", 1, 1024),
    ("max_batch_rows", 1, 1_000_000),
    ("max_batch_bytes", 1024, 1024**3),
    ("batch_delay_seconds", 0, 60),
    ("max_backlog_rows", 1, 100_000_000),
    ("max_backlog_bytes", 1024, 1024**4),
    ("backlog_timeout_seconds", 0, _DAY_SECONDS),
    ("retry_deadline_seconds", 0, _DAY_SECONDS),
    ("close_timeout_seconds", 0, _DAY_SECONDS),
    ("inline_max_bytes", 0, 1024**2),
    ("compress_min_bytes", 0, 1024**3),
    ("compression_level", -7, 19),
    ("compress_in_thread_min_bytes", 0, 1024**3),
    ("max_value_bytes", 1024, 1024**3),
    ("placement_cache_entries", 1, 100_000_000),
    ("base_cache_bytes", 0, 1024**4),
    ("page_rows", 1, 100_000),
    ("page_bytes", 1024, 1024**3),
    ("read_batch_rows", 1, 10_000),
    ("snapshot_warn_bytes", 0, 1024**4),
)
# Fields of this module's annotations, which are text here.
_WHOLE = frozenset(field.name for field in dataclasses.fields(Settings) if field.type == "int")
