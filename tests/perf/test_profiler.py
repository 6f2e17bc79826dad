# SPDX-License-Identifier: Apache-2.0
"""Levels are measured window by window, in the virtual time of a load that is a stand-in."""

from __future__ import annotations

import itertools

import pytest

from pytriton.tools.perf.load.plan import Concurrency, FixedSchedule, RequestRate
from pytriton.tools.perf.measuring.profiler import LoadRange, Profiler, ProfileRules, linear, sweep
from pytriton.tools.perf.measuring.results import (
    LevelResult,
    LevelStatus,
    Mode,
    StabilityRules,
    Watchers,
)
from pytriton.tools.perf.measuring.source import LoadSource, WindowRules
from pytriton.tools.perf.server_state import Counted, ServerCounts
from tests.perf.load.fake_load import FakeLoad


class Listener:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.live = []

    def level_begins(self, mode, value):
        self.told.append(f"level {value:g}")

    def window_begins(self, number):
        self.told.append(f"window {number}")

    def ticked(self, live):
        self.live.append(live)

    def window_ended(self, number, summary):
        self.told.append(f"end {number}")

    def level_ended(self, result):
        self.told.append(result.status.value)


class Counters:
    """A server that has run 7 requests between any two questions."""

    def __init__(self) -> None:
        self._counts = itertools.count(step=7)

    def read(self) -> ServerCounts:
        return ServerCounts(Counted(requests=next(self._counts)))


def rig(load: FakeLoad, rules: ProfileRules | None = None, *, stop_after: int | None = None,
        window: WindowRules | None = None, statistics: Counters | None = None):  # fmt: skip
    """A profiler on a load, which is interrupted after some questions whether it is."""
    asked = itertools.count(1)
    source = LoadSource(
        lambda: load,
        statistics,
        window or WindowRules(interval_s=1.0),
        lambda: stop_after is not None and next(asked) > stop_after,
    )
    listener = Listener()
    return Profiler(source, rules or ProfileRules(), Watchers([listener])), listener, source


def measure(profiler: Profiler, number: int = 1) -> LevelResult:
    return profiler.measure(Mode.CONCURRENCY, number, Concurrency(number))


def test_steady_load_is_stable_after_three_windows():
    profiler, listener, _ = rig(FakeLoad(), statistics=Counters())

    result = measure(profiler, 4)

    assert result.status is LevelStatus.STABLE
    assert result.trials == 3
    assert result.summary.throughput == pytest.approx(4000, rel=0.01)
    assert result.summary.latency_us(None) == pytest.approx(1000)
    assert result.summary.server is not None
    assert result.summary.server.model.requests == 21
    assert listener.told == [
        "level 4", "window 1", "end 1", "window 2", "end 2", "window 3", "end 3", "stable",
    ]  # fmt: skip


def test_windows_count_each_request_once():
    load = FakeLoad(latency_ns=lambda _level, number: 700_000 + number % 11 * 50_000)
    profiler, _, source = rig(load, ProfileRules(keeps_windows=True))

    result = measure(profiler)
    source.end()

    ends = [end for window in result.windows for end in window.records.last_ns.tolist()]
    assert len(ends) == len(set(ends))
    for window in result.windows:
        assert (window.records.last_ns > window.begin_ns).all()
        assert (window.records.last_ns <= window.end_ns).all()
    assert load.is_stopped


def test_load_that_becomes_steady_is_measured_from_then_on():
    def latency(_level, number):
        return 5_000_000 if number < 300 else 1_000_000

    profiler, _, _ = rig(FakeLoad(latency_ns=latency))

    result = measure(profiler)

    assert result.status is LevelStatus.STABLE
    assert 3 < result.trials < 10
    assert result.summary.latency_us(None) < 1200


def test_load_that_is_never_steady_is_unstable():
    def latency(_level, number):
        return 1_000_000 * (1 + number // 100 % 9)

    profiler, listener, _ = rig(
        FakeLoad(latency_ns=latency), ProfileRules(StabilityRules(max_trials=4, percentage=1))
    )

    assert measure(profiler).status is LevelStatus.UNSTABLE
    assert listener.told[-1] == "unstable"


def test_counted_run_measures_just_its_requests():
    load = FakeLoad()
    profiler, _, _ = rig(load, ProfileRules(request_count=25, warmup_count=5))

    result = measure(profiler, 2)

    assert load.levels == [(Concurrency(2), 5), (Concurrency(2), 25)]
    assert result.status is LevelStatus.COUNTED
    assert result.summary.requests == 25
    assert result.summary.throughput == pytest.approx(2000, rel=0.1)


class HastyLoad(FakeLoad):
    """Requests end before `change` returns, as they may on a busy machine."""

    def change(self, level, requests=None):
        super().change(level, requests)
        self.wait(0.01)


def test_counted_run_has_requests_that_end_at_once():
    profiler, _, _ = rig(HastyLoad(), ProfileRules(request_count=25, warmup_count=5))

    assert measure(profiler, 2).summary.requests == 25


def test_window_of_requests_ends_after_enough_and_a_second():
    slow = FakeLoad(latency_ns=lambda _level, _number: 100_000_000)
    profiler, _, _ = rig(slow, window=WindowRules(requests=50))

    result = measure(profiler)

    assert all(len(window.records) >= 50 for window in result.windows)
    assert all(4.9 <= window.duration_s < 6 for window in result.windows)


def test_window_without_an_answer_goes_on_until_there_is_one():
    slow = FakeLoad(latency_ns=lambda _level, _number: 3_000_000_000)
    _, _, source = rig(slow, window=WindowRules(interval_s=1.0, patience_s=30.0))
    source.begin(Concurrency(1))

    window = source.window(lambda _live: None)

    assert len(window.records) == 1
    assert 3 <= window.duration_s < 4


@pytest.mark.parametrize("patience_s", [0.0, 2.0])
def test_window_without_an_answer_ends_when_the_patience_is_over(patience_s):
    slow = FakeLoad(latency_ns=lambda _level, _number: 60_000_000_000)
    _, _, source = rig(slow, window=WindowRules(interval_s=1.0, patience_s=patience_s))
    source.begin(Concurrency(1))

    window = source.window(lambda _live: None)

    assert len(window.records) == 0
    assert window.duration_s == pytest.approx(max(1.0, patience_s), abs=0.3)


def test_schedule_is_measured_once_until_its_end():
    load = FakeLoad()
    profiler, _, _ = rig(load, ProfileRules(single_window=True))

    result = profiler.measure(Mode.SCHEDULE, 1, FixedSchedule((0, 10, 20)))

    assert result.status is LevelStatus.COUNTED
    assert result.summary.requests == 3


def test_failures_end_a_level_that_has_no_answers():
    profiler, _, _ = rig(FakeLoad(fail=lambda _number: True))

    result = measure(profiler)

    assert result.status is LevelStatus.FAILED
    assert result.trials == 1
    assert list(result.summary.errors) == ["it failed"]


def test_some_failures_are_counted_and_measured_on():
    profiler, _, _ = rig(FakeLoad(fail=lambda number: number % 10 == 0))

    result = measure(profiler)

    assert result.status is LevelStatus.STABLE
    assert result.summary.failed == pytest.approx(result.summary.requests / 9, rel=0.05)


def test_interrupt_reports_the_windows_so_far():
    profiler, listener, _ = rig(FakeLoad(), stop_after=8)

    result = measure(profiler)

    assert result.status is LevelStatus.INTERRUPTED
    assert result.summary.requests > 0
    assert listener.told[-1] == "interrupted"


def test_interrupt_in_the_first_window_reports_its_piece():
    profiler, _, _ = rig(FakeLoad(), stop_after=2)

    result = measure(profiler)

    assert result.status is LevelStatus.INTERRUPTED
    assert 0 < result.summary.duration_s < 1
    assert result.summary.throughput == pytest.approx(1000, rel=0.05)


def test_watcher_sees_a_window_grow():
    profiler, listener, _ = rig(FakeLoad())

    measure(profiler)

    shares = [live.done for live in listener.live[:4]]
    assert shares == sorted(shares)
    assert listener.live[3].rate == pytest.approx(1000, rel=0.01)
    assert listener.live[3].p50_us == pytest.approx(1000)


def test_sweep_changes_the_level_and_stops_over_the_limit():
    load = FakeLoad(latency_ns=lambda level, _number: level.number * 1_000_000)
    rules = ProfileRules(StabilityRules(limit_us=2_500))
    profiler, _, _ = rig(load, rules)

    rows = sweep(linear(LoadRange(1, 0)), lambda value: [measure(profiler, int(value))])

    assert [row[0].status for row in rows] == [
        LevelStatus.STABLE, LevelStatus.STABLE, LevelStatus.OVER_LIMIT,
    ]  # fmt: skip
    assert [level for level, _ in load.levels] == [Concurrency(1), Concurrency(2), Concurrency(3)]


@pytest.mark.parametrize("keeps, expected", [(False, 1), (True, 3)])
def test_sweep_goes_beyond_unstable_levels_only_if_asked(keeps, expected):
    load = FakeLoad(latency_ns=lambda _level, number: 1_000_000 * (1 + number // 150 % 7))
    rules = ProfileRules(StabilityRules(max_trials=3, percentage=0.1))
    profiler, _, _ = rig(load, rules)

    rows = sweep(
        linear(LoadRange(1, 3)),
        lambda value: [measure(profiler, int(value))],
        keeps_unstable=keeps,
    )

    assert len(rows) == expected


def test_rate_is_measured_as_requests_a_second():
    profiler, _, _ = rig(FakeLoad())

    result = profiler.measure(Mode.RATE, 200, RequestRate(200))

    assert result.summary.throughput == pytest.approx(200, rel=0.02)
