"""The error vocabulary: what each error says, to people and to programs, also in another process."""

from __future__ import annotations

import pickle

import pytest

from pgcairn import errors
from pgcairn.connection.pool import error_for, session_is_lost
from pgcairn.errors import (
    BacklogFull,
    ClosedError,
    DatabaseError,
    InvalidInput,
    OutcomeUnknown,
    PgcairnError,
    RejectedError,
    SerializationError,
    SettingsError,
    StoredDataError,
    UnavailableError,
    UsageError,
    WrongLoopError,
)

ALL = [
    found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, PgcairnError)
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_survives_another_process(kind: type[PgcairnError]) -> None:
    error = kind("what happened", hint="do this", thread_id="t\ud800", checkpoint_id="c")
    error.extra = {"more": 1}  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert copy.__dict__ == error.__dict__
    assert copy.args == error.args == ("what happened",)
    assert str(copy) == str(error)


def test_attributes_of_their_own_survive_too() -> None:
    for error in (
        SerializationError("m", path="$.x"),
        StoredDataError("m", checkpoint_ns="n", channel="c", version="v"),
        DatabaseError("m", sqlstate="53100"),
        RejectedError("m", sqlstate="22P05"),
    ):
        assert pickle.loads(pickle.dumps(error)).__dict__ == error.__dict__


@pytest.mark.parametrize("kind", ALL)
def test_the_docstring_is_the_default_message(kind: type[PgcairnError]) -> None:
    error = kind()
    assert error.message == (kind.__doc__ or "").split("\n")[0]
    assert str(error).startswith(error.message)
    assert error.hint == kind.default_hint
    assert (f"Hint: {error.hint}" in str(error)) == bool(error.hint)


def test_an_error_names_thread_and_checkpoint_unless_its_message_does() -> None:
    assert str(UnavailableError("no route", hint="")) == "no route"
    error = UnavailableError("no route", hint="", thread_id="t", checkpoint_id="c")
    assert str(error) == "no route (thread 't', checkpoint 'c')"
    assert str(UnavailableError("thread 't' is gone", hint="", thread_id="t")) == "thread 't' is gone"
    assert str(UnavailableError("m", hint="h", thread_id="t")) == "m (thread 't') Hint: h"


def test_stored_data_error_names_the_whole_place() -> None:
    error = StoredDataError(
        "gone", thread_id="t", checkpoint_id="c", checkpoint_ns="", channel="x", version="1", hint=""
    )
    assert str(error) == "gone (thread 't', namespace '', checkpoint 'c', channel 'x', version '1')"


def test_the_tree_answers_whose_fault_it_is() -> None:
    for kind in (InvalidInput, SerializationError, ClosedError, WrongLoopError, SettingsError):
        assert issubclass(kind, UsageError)
        assert not kind.retryable
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(SettingsError, ValueError)
    assert issubclass(SerializationError, TypeError)
    assert issubclass(WrongLoopError, RuntimeError)
    assert issubclass(RejectedError, DatabaseError)
    assert issubclass(BacklogFull, UnavailableError)
    assert {kind for kind in ALL if kind.retryable} == {UnavailableError, BacklogFull, OutcomeUnknown}


def test_each_caller_gets_a_copy_of_its_own() -> None:
    cause = OSError("cut")
    error = RejectedError("m", sqlstate="22P05")
    error.__cause__ = cause
    one, other = error.for_thread("a"), error.for_thread("b")
    assert (one.thread_id, other.thread_id, error.thread_id) == ("a", "b", None)
    assert one.__cause__ is other.__cause__ is cause
    assert type(one) is RejectedError
    assert one.sqlstate == "22P05"
    assert one.__traceback__ is None


@pytest.mark.parametrize(
    ("sqlstate", "kind", "says"),
    [
        ("25006", UnavailableError, "target_session_attrs"),
        ("42501", DatabaseError, "Grant"),
        ("53100", DatabaseError, "disk is full"),
        ("53200", DatabaseError, "out of memory"),
        ("53300", UnavailableError, "max_connections"),
        ("55P03", UnavailableError, "lock_timeout"),
        ("57014", DatabaseError, "statement_timeout"),
    ],
)
def test_what_a_server_refuses_comes_with_what_to_do(
    sqlstate: str, kind: type[PgcairnError], says: str
) -> None:
    error = error_for(sqlstate, "what the server said\n")
    assert type(error) is kind
    assert error.message == f"PostgreSQL: what the server said [{sqlstate}]"
    assert error.hint is not None
    assert says in error.hint
    assert session_is_lost(sqlstate) == (sqlstate == "25006")


def test_a_code_without_a_hint_of_its_own_has_that_of_its_class() -> None:
    assert error_for("58000", "m").hint == DatabaseError.default_hint
    assert error_for("57P03", "m").hint == UnavailableError.default_hint
