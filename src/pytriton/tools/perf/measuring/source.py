# SPDX-License-Identifier: Apache-2.0
"""Takes windows from a load: the edge between deciding what to measure and the generator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pytriton.tools.perf.load.plan import Level
from pytriton.tools.perf.load.process_load import ProcessLoad
from pytriton.tools.perf.load.records import Records
from pytriton.tools.perf.measuring.results import Live, LiveWindow
from pytriton.tools.perf.measuring.summary import Window, choose, join
from pytriton.tools.perf.server_state import GpuGauges, ServerCounts, StatisticsReader

_TICK_S = 0.25
_SHORTEST_S = 1.0  # of a window that counts requests
_WAIT_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class WindowRules:
    """When a window ends.

    Attributes:
        interval_s: After so long.
        requests: After so many requests, but not sooner than a second; 0: the time counts.
        patience_s: A window without any answer goes on for at most so long.
    """

    interval_s: float = 5.0
    requests: int = 0
    patience_s: float = 0.0


class LoadSource:
    """Measures windows of one server."""

    def __init__(
        self,
        make_load: Callable[[], ProcessLoad],
        statistics: StatisticsReader | None,
        rules: WindowRules,
        is_interrupted: Callable[[], bool],
        gauges: GpuGauges | None = None,
    ) -> None:
        self._make_load = make_load
        self._statistics = statistics
        self._rules = rules
        self._is_interrupted = is_interrupted
        self._gauges = gauges
        self._load: ProcessLoad | None = None
        self._carried: Records | None = None
        self._before: ServerCounts | None = None  # the counters before a counted load began

    @property
    def is_interrupted(self) -> bool:
        return self._is_interrupted()

    def now_ns(self) -> int:
        assert self._load is not None
        return self._load.now_ns()

    def begin(self, level: Level, requests: int | None = None) -> None:
        """Make this load from now on."""
        self._carried = None
        self._before = None if requests is None else self._read()
        if self._load is None:
            load = self._make_load()
            load.start(level, requests)
            self._load = load
        else:
            # Before the change, after which a request that counts may end at any time.
            self._load.take()
            self._load.change(level, requests)

    def wait_until_done(self) -> None:
        """Let a load with an end come to it, and forget what it measured."""
        assert self._load is not None
        while not self._load.wait(_TICK_S) and not self.is_interrupted:
            self._load.take()
        self._load.take()

    def end(self, *, at_once: bool = False) -> None:
        """End the load; `begin` starts another one."""
        if self._load is not None:
            load, self._load = self._load, None
            load.stop(at_once=at_once)

    def window(self, watch: Callable[[Live], None], count: int = 0) -> Window:
        """Measure a window.

        Args:
            watch: Is told how far the window has come.
            count: The requests that the load sends in all; the window ends with the last.
        """
        load = self._load
        assert load is not None
        before = self._before if count and self._before is not None else self._read()
        if self._gauges is not None:
            self._gauges.begin()
        begin_ns = load.now_ns()
        if count:
            begin_ns = 0  # the load has just begun: all of its requests count
        parts = self._collect(load, begin_ns or load.now_ns(), watch, count)
        end_ns = load.now_ns()
        parts.append(load.take())
        records = join([*([self._carried] if self._carried is not None else []), *parts])
        if count and len(records):
            begin_ns, end_ns = int(records.begin_ns.min()), int(records.last_ns.max())
            begin_ns -= 1
        later = records.last_ns > end_ns
        self._carried = dataclasses.replace(choose(records, later), errors={})
        after = self._read()
        return Window(
            begin_ns=begin_ns,
            end_ns=end_ns,
            records=choose(records, (records.last_ns > begin_ns) & ~later),
            server=None if before is None or after is None else after - before,
            gpu=self._gauges.end() if self._gauges is not None else {},
            is_cut=self.is_interrupted,
        )

    def _collect(
        self, load: ProcessLoad, begin_ns: int, watch: Callable[[Live], None], count: int
    ) -> list[Records]:
        parts: list[Records] = []
        live = LiveWindow()
        ended = 0
        while not self.is_interrupted:
            elapsed_s = (load.now_ns() - begin_ns) / 1e9
            left_s, done = self._left(elapsed_s, ended, count)
            if left_s <= 0:
                break
            is_done = load.wait(min(_TICK_S, left_s))
            part = load.take()
            parts.append(part)
            ended += len(part)
            if self._gauges is not None:
                self._gauges.tick()
            watch(live.add(part, (load.now_ns() - begin_ns) / 1e9, done))
            if is_done:
                break
        return parts

    def _left(self, elapsed_s: float, ended: int, count: int) -> tuple[float, float]:
        """The time that the window still needs, and the share of it that has passed."""
        if count:
            return _WAIT_S, ended / count
        rules = self._rules
        if rules.requests:
            done = min(ended / rules.requests, elapsed_s / _SHORTEST_S)
            return (_TICK_S if done < 1 else 0.0), done
        if not ended and elapsed_s >= rules.interval_s:
            return min(rules.patience_s - elapsed_s, _TICK_S), 1.0
        return rules.interval_s - elapsed_s, elapsed_s / rules.interval_s

    def _read(self) -> ServerCounts | None:
        return None if self._statistics is None else self._statistics.read()
