"""What ``pgcairn tune`` chooses, with a measure that the test makes up."""

from __future__ import annotations

from pgcairn import Settings
from pgcairn.cli.search import AXES, alternate, nearly_best, search, sweep
from pgcairn.cli.tables import table
from pgcairn.cli.workload import Workload


def _rate(settings: Settings) -> float:
    return 100.0 * min(settings.lanes, 3) + settings.compression_level


async def _measure(settings: Settings) -> float:
    return _rate(settings)


def test_the_default_stays_unless_another_is_clearly_better() -> None:
    assert nearly_best((2, 1, 3), (95.0, 90.0, 100.0)) == 2
    assert nearly_best((2, 1, 3), (80.0, 90.0, 100.0)) == 3


async def test_points_take_turns_and_medians_count() -> None:
    order: list[int] = []
    noise = iter([0.0, 0, 500, 0, 0, 0])

    async def measure(settings: Settings) -> float:
        order.append(settings.lanes)
        return settings.lanes + next(noise)

    assert await alternate(measure, [Settings(lanes=1), Settings(lanes=2)], 3) == [1, 2]
    assert sorted(order) == [1, 1, 1, 2, 2, 2]
    assert order != [1, 1, 1, 2, 2, 2]


async def test_each_setting_is_chosen_in_turn() -> None:
    told: list[str] = []
    chosen, curves = await search(_measure, Settings(), 1, lambda axis: told.append(axis.name))
    assert told == [axis.name for axis in AXES] == [curve.name for curve in curves]
    assert chosen.lanes == 3
    assert chosen.max_size > chosen.lanes
    assert chosen.compression_level == Settings().compression_level


async def test_a_sweep_knows_the_best() -> None:
    best, best_rate, rate, points = await sweep(_measure, Settings(), 1)
    assert best.lanes == 4
    assert best_rate == _rate(best) > rate == _rate(Settings())
    assert points == 1 + 3 * 3 * 2 * 2


def test_every_axis_begins_with_its_default() -> None:
    for axis in AXES:
        assert axis.candidates[0] == getattr(Settings(), axis.name)


def test_tables_are_aligned() -> None:
    assert table(("what", "n"), [("a", "1"), ("longer", "1,000")]).splitlines() == [
        "| what   |     n |",
        "| ------ | ----: |",
        "| a      |     1 |",
        "| longer | 1,000 |",
    ]


def test_invented_states_have_the_size_that_was_asked_for() -> None:
    for size in (1_000, 8_000, 100_000):
        one = Workload.invented(size, 3)
        assert one.conversations == Workload.invented(size, 3).conversations
        text = sum(len(str(message.content)) for message in one.conversations[0][: one.first])
        assert size * 0.8 <= text <= size * 1.05
