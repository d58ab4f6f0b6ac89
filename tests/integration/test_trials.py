"""``pgcairn bench`` and ``pgcairn tune`` on a database of the user's: they measure, write their reports, and leave nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgcairn.cli.main import main
from tests.support.server import run_sql

_SHORT = ["--seconds", "0.1", "--rounds", "1", "--callers", "4"]


def _schemas(dsn: str) -> list[str]:
    rows = run_sql(dsn, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pgcairn%'")
    return [name for (name,) in rows]


def test_tune(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", "--dsn", database, "--target-rps", "20", *_SHORT, "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "## Recommended" in capsys.readouterr().out
    found = json.loads((tmp_path / "tune.json").read_text())
    assert found["capacity"]["requests"] > 0
    assert found["processes"] >= 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".json", ".png", ".svg"}
    assert _schemas(database) == []


def test_bench(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--dsn", database, *_SHORT, "--out", str(tmp_path)]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    for name in ("pgcairn (psycopg)", "pgcairn (asyncpg)", "pipeline=False", "official, pool of 10"):
        assert name in said
    assert (tmp_path / "bench.png").stat().st_size > 0
    assert _schemas(database) == []


def test_what_cannot_be_measured(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "conversations.jsonl"
    bad.write_text("{}\n")
    for arguments, said in (
        (["bench", "--dsn", database, "--peers", "nobody"], "no peer 'nobody'"),
        (["bench", "--dsn", database, "--conversations", str(bad)], "line 1"),
        (["tune", "--dsn", "embedded:///x", "--target-rps", "1"], "running server"),
        (["tune", "--dsn", "postgresql://127.0.0.1:1/x", "--target-rps", "1"], "server cannot be used"),
    ):
        assert main(arguments) == 1
        assert said in capsys.readouterr().err
    assert _schemas(database) == []
