# SPDX-License-Identifier: Apache-2.0
"""Measures candidates on a server."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pytriton.tools.commands.perf.session import PerfTarget
from pytriton.tools.commands.tune.changing import Changeable
from pytriton.tools.commands.tune.search import Candidate, Trial
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.levels import Concurrency
from pytriton.tools.perf.load.plan import LoadPlan
from pytriton.tools.perf.load.process_load import ProcessLoad
from pytriton.tools.perf.measuring.source import LoadSource, WindowRules
from pytriton.tools.perf.measuring.summary import SummaryRules, summarise
from pytriton.tools.perf.measuring.watching import Live

_WINDOWS = 3
_PATIENCE_S = 30.0  # for the first answer in a window: models and machines may be slow


class Interrupted(Exception):  # noqa: N818  it is no error
    """Somebody wants the search to end."""


class Trials:
    """Measures candidates of one model.

    Args:
        target: The server with the model.
        model: What its configuration is changed with.
        concurrency: Requests under way.
        window_s: Length of a window, of which a trial has three.
        make_load: Makes the load generator.
        is_interrupted: Whether somebody wants the search to end.
    """

    def __init__(
        self,
        target: PerfTarget,
        model: Changeable,
        concurrency: int,
        window_s: float,
        make_load: Callable[[LoadPlan], ProcessLoad],
        is_interrupted: Callable[[], bool],
    ) -> None:
        self._target = target
        self._model = model
        self._level = Concurrency(concurrency)
        self._window_s = window_s
        self._make_load = make_load
        self._is_interrupted = is_interrupted
        self._loaded: Candidate | None = None

    def measure(self, candidate: Candidate, watch: Callable[[Live], None]) -> Trial:
        """Load a candidate and measure it; one that cannot be loaded is a trial with a problem.

        Raises:
            Interrupted: Somebody wants the search to end.
        """
        try:
            self._load(candidate)
        except PerfError as error:
            return Trial(candidate, problem=str(error).splitlines()[0])
        source = LoadSource(
            lambda: self._make_load(self._target.plan),
            self._target.statistics,
            WindowRules(self._window_s, patience_s=_PATIENCE_S),
            self._is_interrupted,
        )
        try:
            return self._windows(candidate, source, watch)
        finally:
            source.end(at_once=True)

    def _windows(
        self, candidate: Candidate, source: LoadSource, watch: Callable[[Live], None]
    ) -> Trial:
        source.begin(self._level)
        # The first window warms the model up.
        windows = [source.window(watch) for _ in range(_WINDOWS + 1)][1:]
        if any(window.is_cut for window in windows):
            raise Interrupted
        rules = SummaryRules(is_decoupled=self._target.model.is_decoupled)
        whole = summarise(windows, rules)
        rates = np.array([summarise([window], rules).throughput for window in windows])
        if whole.latency is None:
            texts = "; ".join(list(whole.errors)[:2]) or "no request was answered"
            return Trial(candidate, problem=texts)
        counted = whole.server.model if whole.server is not None else None
        return Trial(
            candidate,
            throughput=whole.throughput,
            p50_us=whole.latency.percentiles[50],
            p99_us=whole.latency.percentiles[99],
            noise=float(np.abs(rates / rates.mean() - 1).max()) if rates.mean() else 0.0,
            mean_batch=counted.inferences / counted.executions
            if counted is not None and counted.executions
            else 0.0,
        )

    def _load(self, candidate: Candidate) -> None:
        if candidate == self._loaded:
            return
        self._loaded = None
        self._model.load(candidate)
        self._loaded = candidate
