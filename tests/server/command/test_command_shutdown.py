# SPDX-License-Identifier: Apache-2.0
"""How a server of the command ends."""

from __future__ import annotations

import asyncio
import io
import logging
import signal
import sys

import pytest

from pytriton.serving.server.command.lifecycle import (
    Exit,
    ExitSignals,
    Remaining,
    exit_lines,
    exit_signals,
    shut_down,
)
from pytriton.serving.server.options.server_options import ServerOptions
from tests.server.serving_fakes import FakeServing

SECOND_S = 0.001
FOREVER_S = 1000.0


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.INFO, "pytriton")
    return lambda: [record.getMessage() for record in caplog.records]


def end(serving, *, options=None, second_s=SECOND_S, number_of_signals=1):
    async def scenario():
        signals = ExitSignals(asyncio.get_running_loop(), same_signal_s=0.0)
        for _ in range(number_of_signals):
            signals.on_signal(signal.SIGTERM)
        return await shut_down(
            serving, options or ServerOptions(exit_timeout_s=3), signals, second_s
        )

    return asyncio.run(scenario())


def test_end_in_order_is_clean(messages):
    serving = FakeServing()

    assert end(serving) is Exit.CLEAN
    assert serving.calls == ["begin_exit", "stop 0.003"]
    assert messages() == [
        "Waiting for in-flight requests to complete.",
        "Timeout 3: Found 0 live models and 0 in-flight non-inference requests",
    ]


def test_signal_is_heard_although_nobody_reads_the_output(monkeypatch):
    class Broken(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Broken())

    assert end(FakeServing()) is Exit.CLEAN


def test_every_second_says_what_is_waited_for_until_time_is_over(messages):
    serving = FakeServing(stop_result=None)
    serving.remains = Remaining(busy_models=2)

    assert end(serving) is Exit.AT_ONCE
    assert messages()[1:] == [
        *(
            f"Timeout {left_s}: Found 2 model versions that have in-flight inferences"
            for left_s in (3, 2, 1, 0)
        ),
        "Exit timeout expired. Exiting immediately.",
    ]


def test_requests_that_were_given_up_are_no_clean_end(messages):
    assert end(FakeServing(stop_result=False)) is Exit.AT_ONCE
    assert messages()[-1] == "Exit timeout expired. Exiting immediately."


def test_no_time_to_exit_is_enough_for_an_idle_server():
    assert end(FakeServing(), options=ServerOptions(exit_timeout_s=0)) is Exit.CLEAN


def test_second_signal_ends_at_once(messages):
    serving = FakeServing(stop_result=None)

    assert end(serving, second_s=FOREVER_S, number_of_signals=2) is Exit.AT_ONCE
    assert "Exit timeout expired. Exiting immediately." not in messages()


def test_server_goes_on_serving_for_the_grace_period(messages):
    serving = FakeServing()

    assert end(serving, options=ServerOptions(exit_grace_s=5, exit_timeout_s=1)) is Exit.CLEAN
    assert serving.calls == ["begin_exit", "let_clients_leave", "stop 0.001"]
    assert messages()[0] == "Not ready any more, but serving for 5 seconds."


def test_second_signal_cuts_the_grace_period_short():
    serving = FakeServing()
    options = ServerOptions(exit_grace_s=5)

    assert end(serving, options=options, second_s=FOREVER_S, number_of_signals=2) is Exit.AT_ONCE
    assert serving.calls == ["begin_exit"]


def test_signals_are_counted_and_told(capsys):
    async def scenario():
        with exit_signals(asyncio.get_running_loop()) as signals:
            signal.raise_signal(signal.SIGINT)
            await signals.first
            return signals.second.done()

    assert asyncio.run(scenario()) is False
    assert capsys.readouterr().out == "Signal (2) received.\n"


def test_signal_is_a_line_of_the_log_where_programs_read_it(capsys, caplog):
    async def scenario():
        with exit_signals(asyncio.get_running_loop(), is_logged=True) as signals:
            signal.raise_signal(signal.SIGINT)
            await signals.first

    with caplog.at_level("INFO"):
        asyncio.run(scenario())

    assert capsys.readouterr().out == ""
    assert caplog.messages == ["Signal (2) received."]


def test_one_signal_that_comes_twice_is_one():
    async def scenario():
        signals = ExitSignals(asyncio.get_running_loop(), same_signal_s=FOREVER_S)
        signals.on_signal(signal.SIGTERM)
        signals.on_signal(signal.SIGTERM)
        return signals.first.done(), signals.second.done()

    assert asyncio.run(scenario()) == (True, False)


@pytest.mark.parametrize(
    "remaining, expected",
    [
        (
            Remaining(),
            ["Timeout 7: Found 0 live models and 0 in-flight non-inference requests"],
        ),
        (
            Remaining(http_connections=1, grpc_connections=2, busy_models=3, live_models=4),
            [
                "Timeout 7: Found 1 HTTP service connections",
                "Timeout 7: Found 2 gRPC service connections and inference handlers",
                "Timeout 7: Found 3 model versions that have in-flight inferences",
            ],
        ),
        (
            Remaining(live_models=4),
            ["Timeout 7: Found 4 live models and 0 in-flight non-inference requests"],
        ),
    ],
)
def test_lines_are_tritons(remaining, expected):
    assert list(exit_lines(7, remaining)) == expected
