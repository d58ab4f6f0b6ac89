"""The demo runs from its beginning to its end, shows its signs, and leaves nothing behind."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psycopg
import pytest

from pgcairn.cli.main import main


def demo(*arguments: str) -> int:
    return main(["demo", "--threads", "4", "--seconds-per-saver", "0.5", *arguments])


def test_the_whole_demo(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        count = "SELECT count(*) FROM pg_database WHERE datname LIKE 'pgcairn_demo_%'"
        before = connection.execute(count).fetchone()

        code = demo("--dsn", database)

        printed = capsys.readouterr()
        assert code == 0, printed.out + printed.err
        assert connection.execute(count).fetchone() == before
    for sign in (
        r"SIGKILL to worker 1 \(pid \d+\) after \d+ of \d+ turns",
        r"snapshot read: 4 threads",
        r"last finished step",
        r"next step",
        r"finished before the kill and never run again: [1-9]\d* of \d+ steps",
        r"ok no finished step ran twice; nothing lost: all \d+ messages of 4 threads",
        r"ok both branches are there",
        r"pgcairn +│ +[\d,]+ │",
        r"official, pool of 10 +│ +[\d,]+ │ +1\.0×",
        r"in memory .* lost at exit",
        r"Every check held",
    ):
        assert re.search(sign, printed.out), f"{sign}\n{printed.out}"
    assert "\x1b" not in printed.out  # plain where there is no terminal


def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("{}\n", encoding="utf-8")

    assert demo("--conversations", str(path), "--dsn", "host=/nonexistent") == 1

    assert f"{path}, line 1: " in capsys.readouterr().err


def test_a_missing_package_is_an_error_that_names_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)

    assert demo() == 1

    assert 'pip install "pgcairn[demo]"' in capsys.readouterr().err


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo("--dsn", "host=/nonexistent") == 1

    assert "pgcairn: The server cannot be used" in capsys.readouterr().err
