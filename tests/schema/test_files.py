"""The SQL files by themselves: named, described, cast; and no SQL anywhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pgcairn.storage.migrations import all_ddl, migrations
from pgcairn.storage.statements import Statements, sql_directory

_QUERIES = sorted(sql_directory().joinpath("queries").iterdir())
_NAME = re.compile(r"^-- name: (\w+) :(part|one|many|execrows|script)$")
_SOURCE = Path(__file__).resolve().parents[2] / "src" / "pgcairn"


def _statements() -> list[tuple[str, str, list[str]]]:
    """(file, name, lines after the name) of every statement."""
    found: list[tuple[str, str, list[str]]] = []
    for file in _QUERIES:
        current: list[str] | None = None
        for line in file.read_text(encoding="utf-8").splitlines():
            if match := _NAME.match(line):
                current = []
                found.append((file.name, match[1], current))
            else:
                assert not line.startswith("-- name"), f"{file.name}: {line!r} is not understood"
                if current is not None:
                    current.append(line)
                else:
                    assert not line or line.startswith("--"), f"{file.name}: {line!r} has no name"
    return found


_ALL = _statements()
# Fragments of a statement that is described where it is put together.
_FRAGMENTS = {
    "unless_missing",
    "count_checkpoints",
    "count_none",
    "count_values",
    "list_missing",
    "list_none",
    "order_newest",
}
_DDL = {"create_schema", "create_version_table"}


def test_names_are_used_once() -> None:
    names = [name for _, name, _ in _ALL]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("file", "name", "lines"), _ALL, ids=[name for _, name, _ in _ALL])
def test_a_statement_is_described_and_its_parameters_are_cast(file: str, name: str, lines: list[str]) -> None:
    comments = [line for line in lines if line.startswith("--")]
    text = "\n".join(line for line in lines if not line.strip().startswith("--"))
    if name not in _FRAGMENTS | _DDL:
        assert lines[0].startswith("-- "), f"{file}: {name} is not described"
        assert lines[0][3:4].isupper(), f"{file}: the description of {name} begins with what it does"
    uncast = re.findall(r"\$\d+(?!\d|::\w)", text)
    assert not uncast, f"{file}: {name}: {uncast} without a cast"
    numbers = {int(number) for number in re.findall(r"\$(\d+)", text)}
    assert numbers == set(range(1, len(numbers) + 1))
    for number in numbers:
        assert re.search(rf"\${number}\b", "\n".join(comments)), f"{file}: {name}: ${number} is not described"


@pytest.mark.parametrize(("file", "name", "lines"), _ALL, ids=[name for _, name, _ in _ALL])
def test_a_statement_names_schema_index_and_lock(file: str, name: str, lines: list[str]) -> None:
    comments = "\n".join(line for line in lines if line.startswith("--"))
    text = "\n".join(line for line in lines if not line.strip().startswith("--"))
    for table in ("checkpoints", "channel_values", "writes", "schema_version"):
        for match in re.finditer(rf"(?:FROM|INTO|JOIN|UPDATE|TABLE|ON)\s+(\S*\s\S*\s\S*?){table}\b", text):
            assert match[1] == "/* schema */", f"{file}: {name}: {match[0]!r}"
    if re.search(r"INSERT|UPDATE|DELETE", text) and "/* schema */schema_version" not in text:
        assert "Locks:" in comments, f"{file}: {name} does not say what it locks"
    if re.search(r"/\* schema \*/(checkpoints|channel_values|writes)", text) and not re.search(
        r"\bINDEX\b", text
    ):
        assert re.search(r"[Ii]ndex", comments), f"{file}: {name} does not say which index serves it"


def test_the_schema_file_is_the_sum_of_the_migrations() -> None:
    shipped = sql_directory().joinpath("schema.sql").read_text(encoding="utf-8")
    assert shipped == all_ddl(Statements("pgcairn")), (
        "write migrations.all_ddl(Statements('pgcairn')) into it"
    )


def test_migrations_count_up_and_are_numbered_like_their_files() -> None:
    found = migrations()
    assert [migration.version for migration in found] == list(range(1, len(found) + 1))
    assert all(migration.name.startswith(f"{migration.version:04}_{migration.phase}_") for migration in found)
    assert all(len(migration.digest) == 64 for migration in found)


def test_there_is_no_sql_in_python() -> None:
    allowed = {
        # ``all_ddl`` writes the rows of the version table as literals, for people who run DDL by hand.
        "migrations.py": "INSERT INTO /* schema */schema_version",
        # The demo measures the size of any saver's schema; it is no statement of the library.
        "demo_databases.py": "SELECT coalesce(sum(pg_total_relation_size(",
    }
    sql = re.compile(
        r"\b(SELECT\s+\S+.*\sFROM\b|INSERT\s+INTO\b|UPDATE\s+\S+\s+SET\b|DELETE\s+FROM\b|"
        r"(CREATE|ALTER|DROP)\s+(TABLE|INDEX|SCHEMA|UNIQUE|VIEW)\b|TRUNCATE\s+\w)",
        re.DOTALL,
    )
    for file in sorted(_SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in documentation
                and sql.search(node.value)
            ):
                exempt = allowed.get(file.name)
                assert exempt is not None, f"{file.name}:{node.lineno}: {node.value!r}"
                assert node.value.strip().startswith(exempt), f"{file.name}:{node.lineno}: {node.value!r}"
