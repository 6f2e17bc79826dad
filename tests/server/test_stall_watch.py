# SPDX-License-Identifier: Apache-2.0
"""Models that execute for long are mentioned, and no others; time is a number here."""

from __future__ import annotations

from types import SimpleNamespace

from pytriton.serving.engine.stats import BatchRecord, ModelStatistics, ResponseOutcome
from pytriton.serving.server.core import StallWatch
from tests.fakes import model_spec


def serving(running=1, name="m"):
    statistics = ModelStatistics()

    class Fake(SimpleNamespace):
        __hash__ = object.__hash__

    return Fake(spec=model_spec(name=name), statistics=statistics, running_count=running)


def test_model_that_finishes_nothing_is_mentioned_after_a_time_and_then_less_and_less():
    watch, model = StallWatch(), serving(running=2)
    model.statistics.pending_count = 5
    reports = {now: watch.check([model], now) for now in range(0, 301, 10)}

    assert [now for now, texts in reports.items() if texts] == [30, 60, 120, 240]
    assert reports[60] == [
        "model 'm' version 1 has finished nothing for 60 s: 2 requests are being executed, 5 wait"
    ]


def test_models_that_are_idle_or_make_progress_are_not_mentioned():
    watch = StallWatch()
    idle, busy, stream = serving(0), serving(), serving()
    for now in range(0, 301, 10):
        busy.statistics.record_batch(BatchRecord(1, succeeded=1, succeeded_rows=1), now)
        stream.statistics.record_response(0, ResponseOutcome.SUCCESS, 1)

        assert watch.check([idle, busy, stream], float(now)) == []


def test_time_begins_anew_when_something_was_finished():
    watch, model = StallWatch(), serving()
    watch.check([model], 0.0)
    model.statistics.record_batch(BatchRecord(1), 0)

    assert watch.check([model], 29.0) == []
    assert watch.check([model], 58.0) == []
    assert len(watch.check([model], 59.0)) == 1


def test_model_that_is_gone_is_forgotten():
    watch, model = StallWatch(), serving()
    watch.check([model], 0.0)
    watch.check([], 10.0)

    assert watch.check([model], 40.0) == []
