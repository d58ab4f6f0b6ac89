"""The load: requests leave at the times of a schedule, whether or not earlier ones have been answered.

Open loop, by a dispatcher of our own. Locust's users wait for their answers, so a service that slows down is asked less,
and the requests that it kept from being sent are in no percentile (coordinated omission); ``constant_throughput`` makes
up for it only as long as there are enough idle users. Here there is one Locust user. It walks through the schedule
(``loadtest.mix``), sleeps until the next request is due and spawns a greenlet for it. The latency that Locust is told
begins when the request was due, so lateness of the client counts, too.

Locust's part is its HTTP client (FastHttpUser, about a third of the CPU of the other one), its statistics and its report.
``python -m loadtest`` starts it; it also runs by itself::

    locust -f loadtest/locustfile.py --headless -u 1 --load-services http://127.0.0.1:8000 --load-journal turns.jsonl
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gevent
from gevent.pool import Group
from locust import FastHttpUser, events, task

from loadtest import scripts
from loadtest.journal import JournalWriter
from loadtest.mix import Book, Call, schedule

# More than any rate times any wait that is of interest: what waits here would not be seen as load.
_CONCURRENCY = 10_000
_JSON = {"Content-Type": "application/json"}


@events.init_command_line_parser.add_listener
def _options(parser: Any) -> None:
    parser.add_argument(
        "--load-services", default="http://127.0.0.1:8000", help="addresses, separated by commas"
    )
    parser.add_argument("--load-rps", type=float, default=200.0)
    parser.add_argument("--load-seconds", type=float, default=60.0)
    parser.add_argument("--load-ramp", type=float, default=10.0)
    parser.add_argument("--load-seed", type=int, default=1)
    parser.add_argument("--load-arrivals", default="constant")
    parser.add_argument("--load-journal", default="journal.jsonl")
    parser.add_argument("--load-conversations", default="")
    parser.add_argument(
        "--load-patience", type=float, default=60.0, help="seconds to wait for the last answers"
    )


class Dispatcher(FastHttpUser):
    """Sends everything; there is one."""

    host = "http://127.0.0.1"  # every request has its own address
    concurrency = _CONCURRENCY
    fixed_count = 1

    def on_start(self) -> None:
        """Prepare what is sent before the clock starts."""
        given = self.environment.parsed_options
        self.services = [address.rstrip("/") for address in given.load_services.split(",")]
        self.scripts = scripts.load(Path(given.load_conversations) if given.load_conversations else None)
        self.book = Book(given.load_seed)
        self.arrivals = list(
            schedule(
                given.load_rps, given.load_seconds, given.load_ramp, given.load_seed, given.load_arrivals
            )
        )

    @task
    def run_schedule(self) -> None:
        """Walk through the schedule, wait for the last answers, end Locust."""
        given = self.environment.parsed_options
        sending = Group()
        with JournalWriter(Path(given.load_journal)) as self.journal:
            for number, arrival in enumerate(self.arrivals):
                if (early := arrival.at_seconds - self.journal.now()) > 0:
                    gevent.sleep(early)
                call = self.book.begin(arrival.wanted, self.journal.now())
                sending.spawn(self._send, call, arrival.at_seconds, number)
            sending.join(given.load_patience)
            sending.kill()
        gevent.spawn(self.environment.runner.quit)  # not from here: it ends this greenlet
        gevent.sleep(given.load_patience)

    def _send(self, call: Call, due_seconds: float, number: int) -> None:
        sent_seconds = self.journal.now()
        method, path, body = _request(call, self.scripts)
        address = self.services[number % len(self.services)]
        status, ids = 0, ()
        error: str | None = "unanswered"
        try:
            with self.client.request(
                method,
                f"{address}/threads/{call.thread.id}/{path}",
                name=call.kind,
                data=body,
                headers=_JSON if body else None,
                catch_response=True,
            ) as response:
                status = response.status_code or 0
                error = None
                if status != 200:
                    error = f"{status} {(response.text or str(response.error))[:200]}"
                elif call.is_write:
                    answer = json.loads(response.content)
                    ids = tuple(answer["ids"])
                    if call.token not in ("", answer["token"]) or answer["turn"] < 1:
                        error = "the answer is about another turn"
                # From when it was due, and for Locust's own figures, too.
                response.request_meta["response_time"] = (self.journal.now() - due_seconds) * 1e3
                response.request_meta["start_time"] = time.time() - (self.journal.now() - due_seconds)
                if error is None:
                    response.success()
                else:
                    response.failure(error)
        finally:
            # Also when it is killed because nobody waits for it any longer.
            self.journal.note(call, due_seconds, sent_seconds, status=status, ids=ids, error=error)
            self.book.end(call, error is None, self.journal.now())


def _request(call: Call, of: scripts.Scripts) -> tuple[str, str, str]:
    if call.kind == "state":
        return "GET", "state", ""
    if call.kind == "history":
        return "GET", "history?limit=10", ""
    if call.kind == "resume":
        return "POST", "resume", '{"allowed": true}'
    turn = of.of(call.thread.id).turn(call.turn, with_tool=call.kind == "interrupt")
    path = {"turn": "turns", "fork": "fork", "interrupt": "interrupt-turn"}[call.kind]
    return "POST", path, json.dumps({"token": call.token, "text": turn.user})
