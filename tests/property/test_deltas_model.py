"""Any sequence of puts, forks, reads and deletions by two savers that forget: a dict could not tell the difference."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgcairn import AsyncPostgresSaver
from tests.support.savers import checkpoint, checkpoint_id, config, listed, put, saver_on, version

_numbers = itertools.count(1)

# Long enough for a row of its own, and for most of a later version to be found in it.
_START = [f"{number} lorem ipsum dolor sit amet {number * 7919}" for number in range(60)]

_ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("drop first"), st.integers(1, 70)),
    st.tuples(st.just("drop"), st.integers(0, 60)),
    st.tuples(st.just("replace"), st.integers(0, 60)),
    st.tuples(st.just("none"), st.just(0)),
    st.tuples(st.just("start"), st.integers(0, 3)),
    st.tuples(st.just("unchanged"), st.just(0)),
    st.tuples(st.just("fork"), st.integers(0, 30)),
    st.tuples(st.just("read"), st.integers(0, 30)),
    st.tuples(st.just("read latest"), st.just(0)),
    st.tuples(st.just("list"), st.just(0)),
    st.tuples(st.just("delete"), st.just(0)),
    st.tuples(st.just("restore"), st.just(0)),
    st.tuples(st.just("other saver"), st.just(0)),
    st.tuples(st.just("other saver"), st.just(0)),
)


class _Model:
    """What one thread should hold, and the savers that make it so."""

    def __init__(self, savers: list[AsyncPostgresSaver]) -> None:
        self.savers = savers
        self.thread_id = f"thread {next(_numbers)}"
        self.stored: dict[int, Any] = {}
        self.value: Any = list(_START)
        self.version = ""
        self.parent: int | None = None
        self.versions: dict[int, str] = {}

    @property
    def saver(self) -> AsyncPostgresSaver:
        return self.savers[0]

    async def step(self, action: str, amount: int) -> None:
        if action == "other saver":
            self.savers.reverse()
        elif action == "delete":
            await self.saver.adelete_thread(self.thread_id)
            self.stored.clear()  # what the caller has in hand stays
        elif action == "list":
            await self.check_list(self.saver)
        elif action == "read latest":
            await self.check(max(self.stored, default=None), latest=True)
        elif action in ("read", "fork"):
            number = sorted(self.stored)[amount % len(self.stored)] if self.stored else None
            await self.check(number)
            if action == "fork" and number is not None:
                self.parent, self.value, self.version = number, self.stored[number], self.versions[number]
        else:
            await self.put(action, amount)

    async def put(self, action: str, amount: int) -> None:
        number = next(_numbers)
        # "unchanged" names no channel as new; "restore" brings the same version along again.
        if action not in ("unchanged", "restore") or not self.version:
            self.value = self.changed(action, amount, number)
            self.version = version(number)
        new = {} if action == "unchanged" else {"c": self.version}
        await put(
            self.saver,
            config(self.thread_id, "", self.parent),
            checkpoint(number, {"c": self.value, "n": number}, {"c": self.version}),
            new_versions=new,
        )
        self.stored[number], self.versions[number], self.parent = self.value, self.version, number

    def changed(self, action: str, amount: int, number: int) -> Any:
        lines = list(self.value or _START)
        if action == "append":
            return [*lines, *(f"{number} appended {each}" * 5 for each in range(amount))]
        if action == "drop first":
            return lines[amount:]
        if action == "drop":
            return lines[:amount] + lines[amount + 1 :]
        if action == "replace":
            return [*lines[:amount], f"{number} replaced", *lines[amount + 1 :]]
        if action == "none":
            return None
        return [f"{number} {line}" for line in _START[: 20 * (amount + 1)]]

    async def check(self, number: int | None, *, latest: bool = False) -> None:
        if number is None:
            assert await self.saver.aget_tuple(config(self.thread_id)) is None
            return
        found = await self.saver.aget_tuple(config(self.thread_id, "", None if latest else number))
        assert found is not None
        assert found.checkpoint["id"] == checkpoint_id(number)
        assert found.checkpoint["channel_values"] == {"c": self.stored[number], "n": number}

    async def check_list(self, saver: AsyncPostgresSaver) -> None:
        found = [each.checkpoint for each in await listed(saver, config(self.thread_id))]
        assert {each["id"]: each["channel_values"] for each in found} == {
            checkpoint_id(number): {"c": value, "n": number} for number, value in self.stored.items()
        }


# The third version is stored again, on nothing, by a saver that does not know it; the other one goes on.
_STORED_ANEW = [
    *[("append", 1)] * 3,
    *[("other saver", 0), ("delete", 0), ("restore", 0)],
    *[("other saver", 0), ("append", 1), ("read latest", 0)],
]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_ACTIONS, min_size=10, max_size=40), st.sampled_from([0, 30_000, 10_000_000]))
@example(_STORED_ANEW, 10_000_000)
def test_any_history_reads_back_as_it_was_put(
    dsn: str, schema: str, actions: list[tuple[str, int]], base_cache_bytes: int
) -> None:
    async def run() -> None:
        overrides: dict[str, Any] = {"base_cache_bytes": base_cache_bytes, "max_size": 1, "lanes": 1}
        async with saver_on(dsn, schema, **overrides) as one, saver_on(dsn, schema, **overrides) as two:
            model = _Model([one, two])
            for action, amount in actions:
                await model.step(action, amount)
            for saver in (one, two):
                await model.check_list(saver)
            for number in model.stored:
                await model.check(number)

    asyncio.run(run())
