"""The load test's own parts: when what is asked of whom, and the check that must notice a missing turn."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from loadtest import report, results, scripts
from loadtest.__main__ import parse
from loadtest.ceiling import Search
from loadtest.journal import Entry, Journal, JournalWriter, read
from loadtest.mix import MIX, Book, Call, Kind, Thread, schedule
from loadtest.verify import Verdict, claims_of, missing_in, turn_of


class TestSchedule:
    def test_the_rate_grows_and_then_stays(self) -> None:
        due = [arrival.at_seconds for arrival in schedule(200, 60, 10, seed=1)]
        assert sum(10 <= at < 70 for at in due) == pytest.approx(200 * 60, abs=1)
        assert sum(at < 10 for at in due) == pytest.approx(200 * 10 / 2, abs=1)
        assert sum(at < 5 for at in due) == pytest.approx(200 * 5 / 4, abs=1)
        assert due == sorted(due)

    def test_constant_arrivals_are_evenly_spaced(self) -> None:
        due = [arrival.at_seconds for arrival in schedule(50, 2, 0, seed=1)]
        assert all(b - a == pytest.approx(0.02) for a, b in itertools.pairwise(due))

    def test_poisson_arrivals_offer_the_same_and_are_not_evenly_spaced(self) -> None:
        due = [arrival.at_seconds for arrival in schedule(200, 60, 0, seed=1, arrivals="poisson")]
        assert len(due) == pytest.approx(200 * 60, rel=0.05)
        gaps = [b - a for a, b in itertools.pairwise(due)]
        assert min(gaps) < 0.0005
        assert max(gaps) > 0.025

    def test_the_mix_is_as_promised(self) -> None:
        wanted = Counter(arrival.wanted for arrival in schedule(1000, 20, 0, seed=3))
        for name, share in MIX.items():
            assert wanted[name] / wanted.total() == pytest.approx(share / 100, abs=0.01)

    def test_a_seed_decides(self) -> None:
        assert list(schedule(100, 2, 1, seed=5)) == list(schedule(100, 2, 1, seed=5))
        assert list(schedule(100, 2, 1, seed=5)) != list(schedule(100, 2, 1, seed=6))


class TestBook:
    def test_nobody_else_gets_a_thread_that_is_being_changed(self) -> None:
        book, open_calls = Book(1), list[Call]()
        for number, arrival in enumerate(schedule(500, 10, 0, seed=1)):
            call = book.begin(arrival.wanted, arrival.at_seconds)
            if call.is_write:
                assert call.thread not in [each.thread for each in open_calls if each.is_write]
            open_calls.append(call)
            if len(open_calls) > 20:
                book.end(open_calls.pop(number % 20), True, arrival.at_seconds)

    def test_all_kinds_come_up_and_tokens_are_unique(self) -> None:
        book, calls = Book(1), list[Call]()
        for arrival in schedule(200, 60, 0, seed=1):
            calls.append(book.begin(arrival.wanted, arrival.at_seconds))
            book.end(calls[-1], True, arrival.at_seconds)
        kinds = Counter(call.kind for call in calls)
        assert set(kinds) == {"turn", "state", "history", "fork", "interrupt", "resume"}
        tokens = [call.token for call in calls if call.token]
        assert len(set(tokens)) == len(tokens)
        assert all(turn_of(f"{token}-answer") == token for token in tokens)
        new = sum(call.turn == 1 for call in calls if call.kind == "turn")
        assert 0 < new < kinds["turn"] / 4

    def test_a_person_thinks_before_the_answer(self) -> None:
        book = Book(1)
        asked = book.begin("consent", 0.0)
        book.end(asked, True, 0.1)
        assert asked.kind == "interrupt"
        assert book.begin("consent", 1.0).kind == "interrupt"
        answered = book.begin("consent", 2.2)
        assert (answered.kind, answered.thread) == ("resume", asked.thread)

    def test_a_thread_whose_request_failed_is_left_alone(self) -> None:
        book = Book(1)
        failed = book.begin("turn", 0.0)
        book.end(failed, False, 0.1)
        later = [book.begin(wanted, 1.0) for wanted in ("turn", "state", "history", "fork", "consent") * 20]
        assert failed.thread not in [call.thread for call in later]

    def test_only_a_thread_with_two_turns_is_forked(self) -> None:
        book = Book(1)
        first = book.begin("turn", 0.0)
        book.end(first, True, 0.1)
        assert book.begin("fork", 1.0).kind == "turn"


def entry(kind: Kind, token: str, *, thread: str = "t", ids: tuple[str, ...] | None = None) -> Entry:
    claimed = (token, f"{token}-answer") if ids is None else ids
    return Entry(kind, thread, 1, token, claimed, 0.0, 0.0, 0.1, 200, None)


def messages(*tokens: str) -> list[str]:
    return [each for token in tokens for each in (token, f"{token}-calls", f"{token}-answer")]


class TestVerification:
    def test_what_is_stored_in_order_is_accepted(self) -> None:
        claims = claims_of([entry("turn", "t.1.a"), entry("turn", "t.2.b")])
        assert missing_in("t", claims["t"], messages("t.1.a", "t.2.b"), ()) == []

    @pytest.mark.parametrize("lost", ["t.1.a", "t.1.a-answer", "t.2.b", "t.2.b-answer"])
    def test_each_lost_message_is_noticed(self, lost: str) -> None:
        claims = claims_of([entry("turn", "t.1.a"), entry("turn", "t.2.b")])
        stored = [each for each in messages("t.1.a", "t.2.b") if each != lost]
        [line] = missing_in("t", claims["t"], stored, messages("t.1.a", "t.2.b"))
        assert line.startswith(f"{turn_of(lost)}: {lost} is missing")

    def test_an_empty_thread_has_lost_everything(self) -> None:
        claims = claims_of([entry("turn", "t.1.a")])
        assert len(missing_in("t", claims["t"], (), ())) == 2

    def test_turns_in_another_order_are_noticed(self) -> None:
        claims = claims_of([entry("turn", "t.1.a"), entry("turn", "t.2.b")])
        found = missing_in("t", claims["t"], messages("t.2.b", "t.1.a"), ())
        assert found
        assert all("out of its place" in line for line in found)

    def test_an_interrupt_claims_the_question_and_a_resume_the_answer(self) -> None:
        asked = entry("interrupt", "t.1.a", ids=("t.1.a",))
        resumed = entry("resume", "", ids=("t.1.a", "t.1.a-answer"))
        assert claims_of([asked])["t"].latest == ["t.1.a"]
        assert claims_of([asked, resumed])["t"].latest == ["t.1.a", "t.1.a-answer"]

    def test_what_a_fork_left_behind_must_be_in_the_history(self) -> None:
        claims = claims_of([entry("turn", "t.1.a"), entry("turn", "t.2.b"), entry("fork", "t.3.c")])
        latest = messages("t.1.a", "t.3.c")
        assert missing_in("t", claims["t"], latest, messages("t.1.a", "t.2.b", "t.3.c")) == []
        assert len(missing_in("t", claims["t"], latest, latest)) == 2

    def test_what_came_after_a_fork_must_be_in_the_latest_state(self) -> None:
        claims = claims_of([entry("turn", "t.1.a"), entry("fork", "t.2.b"), entry("turn", "t.3.c")])
        found = missing_in("t", claims["t"], messages("t.1.a", "t.2.b"), messages("t.1.a", "t.2.b", "t.3.c"))
        assert len(found) == 2

    def test_a_failed_request_claims_nothing(self) -> None:
        failed = Entry("turn", "t", 1, "t.1.a", (), 0.0, 0.0, 0.1, 503, "503")
        assert claims_of([failed]) == {}

    def test_turns_are_counted_not_messages(self) -> None:
        lines = ("t.1.a: t.1.a is missing", "t.1.a: t.1.a-answer is missing", "u.1.b: u.1.b is missing")
        assert Verdict(5, 2, 10, lines, 0).turns_missing == 2


class TestJournal:
    def test_it_reads_what_was_written(self, tmp_path: Path) -> None:
        call = Call("turn", Thread("t"), "t.1.a", 1)
        with JournalWriter(tmp_path / "journal") as writer:
            written = writer.note(call, 0.5, 0.6, status=200, ids=("t.1.a",))
        found = read(tmp_path / "journal")
        assert found == Journal(writer.began, [written])
        assert written.is_acknowledged
        assert written.latency_seconds == written.done_seconds - 0.5


class TestResults:
    options: dict[str, object] = {"ramp_seconds": 1.0, "seconds": 2.0, "rps": 2}  # noqa: RUF012

    def entries(self) -> list[Entry]:
        return [
            Entry("turn", "t", 1, "t.1.a", ("t.1.a",), due, due + 0.5, due + latency, 200, None)
            for due, latency in ((0.5, 0.6), (1.0, 0.6), (1.5, 0.7), (2.0, 0.8), (2.5, 9.0))
        ]

    def test_only_the_measured_seconds_count_and_lateness_does(self) -> None:
        verdict = Verdict(5, 1, 5, ("t.1.a: t.1.a is missing",), 0)
        run = results.make(self.options, Journal(0.0, self.entries()), [], [], verdict, "")
        assert run.figures["offered_rps"] == 2.0
        assert run.figures["served_rps"] == 2.0  # one from the ramp is answered in time, the last one is not
        assert run.figures["p50_ms"] == pytest.approx(700)
        assert run.figures["max_ms"] == pytest.approx(9000)
        assert run.figures["sent_late_p99_ms"] == pytest.approx(500)
        assert run.figures["turns_missing"] == 1
        assert [row["offered"] for row in run.seconds] == [1, 2, 2]

    def test_a_document_is_filled_by_name(self) -> None:
        run = results.make(
            self.options | {"saver": "pgcairn", "processes": 1, "faults": False},
            *(Journal(0.0, self.entries()), [], [], Verdict(5, 1, 5, (), 0), ""),
        )
        target = {"what": "p95 ms", "found": 9000.0, "bound": "≤ 100", "is_met": False}
        result = {"name": "run", "command": "python -m loadtest", "targets": [target], "notes": []}
        result["runs"] = [results.as_json(run)]
        before = "a\n<!-- loadtest:run -->\nold\n<!-- /loadtest -->\n<!-- loadtest:x -->\nkept\n<!-- /loadtest -->\n"
        after = report.fill(before, {"run": result})
        assert "old" not in after
        assert "kept" in after
        assert "`python -m loadtest`" in after
        assert "**not met**" in after


class TestCeiling:
    @pytest.mark.parametrize("limit", [7, 42, 100, 137, 555])
    def test_it_comes_near_the_limit_from_below(self, limit: float) -> None:
        search, tries = Search(100), 0
        while (rps := search.next_rps()) is not None:
            search.told(rps, rps <= limit)
            tries += 1
        assert search.best_rps <= limit
        assert search.best_rps >= limit / 1.2 - 1
        assert tries < 30

    def test_one_hiccup_does_not_decide(self) -> None:
        search = Search(100)
        search.told(100, False)
        assert search.next_rps() == 100
        search.told(100, True)
        assert search.next_rps() == 150

    def test_it_gives_up_where_nothing_is_sustained(self) -> None:
        search = Search(100)
        while (rps := search.next_rps()) is not None:
            search.told(rps, False)
        assert search.best_rps == 0


class TestScripts:
    def test_client_and_service_know_the_same_script(self) -> None:
        assert scripts.load(None).of("chat-1-7") == scripts.load(None).of("chat-1-7")

    def test_a_turn_for_consent_always_has_a_tool(self) -> None:
        found = scripts.load(None)
        assert all(found.of(f"t{i}").turn(n, with_tool=True).calls for i in range(50) for n in range(1, 9))

    def test_recorded_turns_are_complete(self) -> None:
        sample = Path(__file__).parents[2] / "src" / "pgcairn" / "cli" / "sample_conversations.jsonl"
        found = scripts.load(sample)
        turns = [turn for i in range(200) for turn in found.of(f"t{i}").turns]
        assert {bool(turn.calls) for turn in turns} == {False, True}
        assert all(len(turn.results) == len(turn.calls) and turn.user and turn.answer for turn in turns)

    def test_a_file_without_conversations_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "empty").write_text("\n")
        with pytest.raises(ValueError, match="no conversation"):
            scripts.load(tmp_path / "empty")


class TestCommandLine:
    def test_what_is_quoted_has_no_addresses_and_no_folders(self) -> None:
        given = [
            "run",
            "--dsn",
            "postgresql://secret",
            "--rps",
            "50",
            "--conversations",
            "/home/x/chats.jsonl",
            "--out=/x",
        ]
        assert parse(given).command == "python -m loadtest run --rps 50 --conversations chats.jsonl"

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ([], "run"),
            (["compare"], "compare"),
            (["run", "--faults"], "faults"),
            (["run", "--processes", "2"], "processes"),
            (["compare", "--faults"], "compare-faults"),
            (["run", "--name", "mine"], "mine"),
        ],
    )
    def test_results_are_named_after_what_is_done(self, given: list[str], name: str) -> None:
        assert parse(given).name == name

    @pytest.mark.parametrize(
        "wrong", [["--rps", "0"], ["--processes", "0"], ["ceiling", "--saver", "memory"]]
    )
    def test_what_cannot_be_measured_is_refused(
        self, wrong: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            parse(wrong)
        assert "error:" in capsys.readouterr().err
