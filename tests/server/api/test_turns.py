# SPDX-License-Identifier: Apache-2.0
"""Turns of connections: units end them, iterations of the loop renew them, fairly."""

from __future__ import annotations

import logging

from pytriton.serving.server.api.turns import TURN_UNITS, Turn, Turns
from tests.fakes import FakeLoop


class Worker:
    """Has pieces of work left, which cost what a test says."""

    def __init__(self, turns: Turns, log: list[str], name: str, pieces: list[int]) -> None:
        self.turn = Turn(turns, self)
        self.name = name
        self.pieces = pieces
        self.is_aborted = False
        self._log = log

    def end_turn(self) -> None:
        self._log.append(f"{self.name} ends")

    def begin_turn(self) -> None:
        while self.pieces and not self.turn.is_over:
            self._log.append(self.name)
            self.turn.spend(self.pieces.pop(0))

    def abort(self) -> None:
        self.is_aborted = True


class CountingLoop(FakeLoop):
    """Runs one iteration at a time."""

    def run_once(self) -> None:
        for _ in range(len(self._ready)):
            callback, arguments = self._ready.popleft()
            callback(*arguments)

    @property
    def is_idle(self) -> bool:
        return not self._ready


def test_turn_is_over_when_its_units_are_spent():
    log: list[str] = []
    worker = Worker(Turns(FakeLoop()), log, "a", [])
    worker.turn.spend(TURN_UNITS - 1)
    assert not worker.turn.is_over

    worker.turn.spend(5)
    worker.turn.spend(5)

    assert worker.turn.is_over
    assert log == ["a ends"]


def test_turn_is_renewed_in_the_next_iteration_and_goes_on():
    loop, log = CountingLoop(), []
    worker = Worker(Turns(loop), log, "a", [1, TURN_UNITS, 1])
    worker.turn.end()

    loop.run_once()
    assert log == ["a ends", "a", "a", "a ends"]
    loop.run_once()
    assert log[4:] == ["a"]
    loop.run_once()

    assert loop.is_idle
    assert not worker.turn.is_over


def test_turn_that_is_not_over_is_renewed_without_a_word():
    loop, log = CountingLoop(), []
    worker = Worker(Turns(loop), log, "a", [1])
    worker.turn.spend(TURN_UNITS - 1)
    loop.run_once()
    worker.turn.spend(TURN_UNITS - 1)

    assert not worker.turn.is_over
    assert not log


def test_work_that_is_left_in_a_turn_that_goes_on_gets_the_next_one():
    loop, log = CountingLoop(), []
    worker = Worker(Turns(loop), log, "a", [1])
    worker.turn.want_next(1)
    assert not worker.turn.is_over

    loop.run_once()

    assert log == ["a"]


def test_connections_go_on_one_after_the_other():
    loop, log = CountingLoop(), []
    turns = Turns(loop)
    workers = [Worker(turns, log, name, [TURN_UNITS] * 2) for name in "abc"]
    for worker in workers:
        worker.turn.end()
    log.clear()

    for _ in range(6):
        before = len(log)
        loop.run_once()
        assert len(log) == before + 2, "expected the work of one turn in each iteration"

    assert [name for name in log if "ends" not in name] == list("abcabc")


def test_little_work_of_many_connections_is_done_in_one_iteration():
    loop, log = CountingLoop(), []
    turns = Turns(loop)
    for number in range(10):
        Worker(turns, log, str(number), [2]).turn.end()
    log.clear()

    loop.run_once()

    assert log == [str(number) for number in range(10)]


def test_connection_that_fails_is_ended_and_others_go_on(caplog):
    loop, log = CountingLoop(), []
    turns = Turns(loop)
    failing = Worker(turns, log, "a", [None])  # no number
    other = Worker(turns, log, "b", [1])
    failing.turn.end()
    other.turn.end()

    with caplog.at_level(logging.ERROR):
        loop.run_once()

    assert failing.is_aborted
    assert not other.is_aborted
    assert log[-1] == "b"
    assert "a client could not be served" in caplog.text


def test_lost_connection_gets_no_turn():
    loop, log = CountingLoop(), []
    worker = Worker(Turns(loop), log, "a", [1])
    worker.turn.end()
    worker.turn.close()
    worker.turn.end()

    loop.run_once()

    assert log == ["a ends"]
    assert loop.is_idle
