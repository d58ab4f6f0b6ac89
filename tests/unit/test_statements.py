"""The loader: numbering, casts, names, quoting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgcairn.storage import statements as module
from pgcairn.storage.migrations import all_ddl
from pgcairn.storage.statements import BatchShape, Statements, _shift, quote_identifier, statements_for


def test_parts_are_renumbered() -> None:
    assert _shift("$1 $2 $10 $1", 5) == ("$6 $7 $15 $6", 10)
    assert _shift("none", 5) == ("none", 0)


def test_a_batch_has_the_parameters_of_its_parts_in_their_order() -> None:
    statements = Statements("s")
    whole = statements.batch(BatchShape(True, True, True, True, True))
    parts = [
        statements.batch(BatchShape(False, False, True, False, False)).types,
        statements.batch(BatchShape(False, False, False, True, False)).types,
    ]
    assert len(whole.types) == 6 + 8 + 10 + 9 + 9
    assert whole.types[14:24] == parts[0]
    assert whole.types[24:33] == whole.types[33:] == parts[1]
    assert statements.batch(BatchShape(True, True, True, True, True)) is whole


def test_every_statement_is_whole() -> None:
    queries = Statements("s").all()
    assert len({query.text for query in queries}) == len(queries)
    for query in queries:
        assert query.text.startswith(f"/* pgcairn:{query.name} */ ")
        assert re.findall(r"/\*(?! pgcairn:)", query.text) == []
        assert "--" not in query.text
        numbers = {int(number) for number in re.findall(r"\$(\d+)", query.text)}
        assert numbers == set(range(1, len(query.types) + 1))


@pytest.mark.parametrize(
    ("name", "quoted"), [("a", '"a"'), ('a"b', '"a""b"'), ("схема x", '"схема x"'), ("$1 %s", '"$1 %s"')]
)
def test_names_are_quoted_wherever_they_are_used(name: str, quoted: str) -> None:
    assert quote_identifier(name) == quoted
    statements = Statements(name)
    for query in statements.all():
        tables = re.findall(
            r"(\S*)\b(?:checkpoints|channel_values|writes|schema_version)\b(?= (?:AS|\(|WHERE))",
            query.text.replace(quoted, "SCHEMA"),
        )
        assert set(tables) <= {"SCHEMA.", "stored_", "replaced_"}, query.text
    assert f"CREATE SCHEMA {quoted};" in all_ddl(statements)


def test_a_schema_may_be_called_like_a_marker() -> None:
    assert Statements("/* schema name */").qualify("/* schema */t /* schema name */") == (
        '"/* schema name */".t "/* schema name */"'
    )


def test_statements_are_loaded_once() -> None:
    assert statements_for("x") is statements_for("x")


@pytest.mark.parametrize(
    "text", ["SELECT $1", "SELECT $2::text", "SELECT $1::text, $3::text", "SELECT $1::text, $2"]
)
def test_a_parameter_without_number_or_cast_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="every parameter needs"):
        Statements("s")._query("x", text)


def test_a_name_that_is_used_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = tmp_path / "queries"
    queries.mkdir()
    (queries / "a.sql").write_text(
        "-- name: x :one\n-- What.\nSELECT 1 -- kept: no line of its own\n\n-- More.\n"
    )
    monkeypatch.setattr(module, "sql_directory", lambda: tmp_path)
    assert module._texts.__wrapped__() == {"x": "SELECT 1 -- kept: no line of its own"}
    (queries / "b.sql").write_text("-- name: x :one\nSELECT 2\n")
    with pytest.raises(ValueError, match="x is used twice"):
        module._texts.__wrapped__()
