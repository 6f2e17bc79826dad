# SPDX-License-Identifier: Apache-2.0
"""Exceptions in the engine's own code are logged and answered once, and the model goes on."""

from __future__ import annotations

import pytest

from pytriton.base.errors import UNEXPECTED
from pytriton.serving.engine import model
from pytriton.serving.engine.cache import ResponseStore
from tests.column_rig import ColumnScene


class Mistake:
    """Raises at its first call, then does what it stands for."""

    def __init__(self, owner, name, monkeypatch):
        self._original = getattr(owner, name)
        self.calls = 0
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args, **settings):
        self.calls += 1
        if self.calls == 1:
            raise ZeroDivisionError("a mistake")
        return self._original(*args, **settings)


@pytest.fixture
def make(clock):
    def make_scene(**settings):
        return ColumnScene(clock, max_batch_size=8, **settings)

    return make_scene


def logged_mistakes(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.exc_info and record.exc_info[0] is ZeroDivisionError
    ]


def check_model_goes_on(scene):
    """A later chunk and a later request are served, and nothing is left over."""
    chunk = scene.submit_chunk([1, 2], runs=False)
    sink = scene.submit()
    scene.loop.run()
    scene.instance.double()

    assert scene.ends.of(chunk) == scene.doubled(chunk)
    assert (len(sink.responses), sink.final_count) == (1, 1)
    assert ": 0 queued, 0 running, 1 of 1 instances free" in repr(scene.model)
    assert scene.model.statistics.pending_count == 0


@pytest.mark.parametrize(
    "place, activity",
    [
        (lambda made: (made._scheduler, "finished"), "it scheduled the answers of a batch"),
        (lambda _: (model, "record_answers"), "it counted the answers of a batch"),
    ],
    ids=["scheduler", "statistics"],
)
def test_answers_of_a_batch_become_errors(make, monkeypatch, caplog, place, activity):
    scene = make()
    chunk = scene.submit_chunk([1, 2], runs=False)
    sink = scene.submit()
    scene.loop.run()
    Mistake(*place(scene.model), monkeypatch)

    scene.instance.double()

    assert scene.ends.of(chunk) == [("failed", UNEXPECTED)] * 2
    assert [error.message for error in sink.errors] == [UNEXPECTED]
    assert sink.final_count == 1
    assert logged_mistakes(caplog) == [
        f"model m version 1: unexpected error in the server while {activity}"
    ]
    check_model_goes_on(scene)


def test_mistake_of_the_cache_comes_after_the_answers(make, monkeypatch, caplog):
    scene = make(cache=ResponseStore(1 << 20), response_cache=True)
    chunk = scene.submit_chunk([1, 2])
    Mistake(scene.model._cache, "store", monkeypatch)

    scene.instance.double()

    assert scene.ends.of(chunk) == scene.doubled(chunk)
    (line,) = logged_mistakes(caplog)
    assert line.endswith("while it stored the answers of a batch in the cache")
    check_model_goes_on(scene)


def test_mistake_while_the_next_batch_is_looked_for_costs_those_that_wait(
    make, monkeypatch, caplog
):
    scene = make()
    running = scene.submit_chunk([1])
    waiting = scene.submit_chunk([1, 1])
    Mistake(scene.model._scheduler, "next", monkeypatch)

    scene.instance.double()

    assert scene.ends.of(running) == scene.doubled(running)
    assert scene.ends.of(waiting) == [("failed", UNEXPECTED)] * 2
    assert len(logged_mistakes(caplog)) == 1
    check_model_goes_on(scene)


@pytest.mark.parametrize("place", ["cache", "queue"])
def test_members_that_cannot_be_queued_are_refused(make, monkeypatch, caplog, place):
    scene = make(cache=ResponseStore(1 << 20), response_cache=True)
    if place == "cache":
        Mistake(scene.model._cache, "answer_members", monkeypatch)
    else:
        Mistake(scene.model._scheduler, "add_all", monkeypatch)

    chunk = scene.submit_chunk([1, 2])

    assert scene.ends.of(chunk) == [("refused", UNEXPECTED)] * 2
    assert logged_mistakes(caplog) == [
        "model m version 1: unexpected error in the server while it queued requests"
    ]
    check_model_goes_on(scene)


def test_member_that_was_queued_before_the_mistake_is_answered_once(make, monkeypatch, caplog):
    scene = make()
    scheduler = scene.model._scheduler

    def add_all(members, now_ns):
        monkeypatch.undo()
        scheduler.add(members[0], now_ns)
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(scheduler, "add_all", add_all)
    chunk = scene.submit_chunk([1, 2])

    assert scene.ends.of(chunk) == [("refused", UNEXPECTED)] * 2
    assert scene.instance.frames == []


def test_sink_that_fails_costs_only_its_own_request(make, caplog):
    scene = make()
    chunk = scene.submit_chunk([1, 2], runs=False)
    sink = scene.submit()
    scene.loop.run()
    scene.ends.failure = ZeroDivisionError("a mistake")

    scene.instance.double()
    scene.ends.failure = None

    assert scene.ends.of(chunk) == [("failed", UNEXPECTED)] * 2
    assert (len(sink.responses), sink.final_count) == (1, 1)
    assert len(logged_mistakes(caplog)) == 1
    check_model_goes_on(scene)
