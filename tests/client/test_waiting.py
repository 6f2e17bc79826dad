# SPDX-License-Identifier: Apache-2.0
"""Waits, without a server and without time passing."""

from __future__ import annotations

import pytest

from pytriton.client import waiting
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.client.protocols import GRPC, HTTP
from pytriton.client.service import ServiceError
from pytriton.client.waiting import ClientCall, ModelVersion, ReadinessWait
from pytriton.testing import FakeClock


def pauses_of(timeout_s):
    clock = FakeClock(start_s=100.0)
    wait = ReadinessWait(timeout_s, clock)
    pauses = []
    while (pause := wait.next_pause_s()) is not None:
        pauses.append(pause)
        clock.sleep(pause)
    return pauses


def test_wait_looks_again_soon_at_first_and_every_second_later():
    pauses = pauses_of(10.0)

    assert pauses[0] == 0.01
    assert max(pauses) == 1.0
    assert pauses[:-1] == sorted(pauses[:-1])


def test_wait_ends_exactly_in_time():
    assert abs(sum(pauses_of(10.0)) - 10.0) < 1e-9


def test_wait_of_no_time_looks_once():
    assert pauses_of(0.0) == []


def test_limit_of_a_call_is_what_is_left():
    clock = FakeClock(start_s=100.0)
    wait = ReadinessWait(5.0, clock)
    clock.sleep(3.0)

    assert wait.limit_s() == 2.0


def test_limit_of_a_call_stays_positive():
    assert ReadinessWait(-1.0, FakeClock(start_s=100.0)).limit_s() > 0


def test_pause_may_be_told():
    wait = ReadinessWait(waiting.NO_TIMEOUT_S, FakeClock(start_s=100.0), pause_s=7.0)

    assert [wait.next_pause_s() for _ in range(3)] == [7.0, 7.0, 7.0]


class Script:
    """Answers the calls of a wait in order, the last answer for ever, and passes its pauses."""

    def __init__(self, *answers):
        self.calls = []
        self._answers = list(answers)
        self.clock = FakeClock(start_s=100.0)

    def wait(self, timeout_s=5.0, *, gives_up=False):
        return ReadinessWait(timeout_s, self.clock, gives_up=gives_up)

    def carry_out(self, steps):
        outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = None
            if isinstance(step, ClientCall):
                self.calls.append(step)
                outcome = self._next(step.method)
            else:
                self.clock.sleep(step)

    def _next(self, method):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return answer(method) if isinstance(answer, Server) else answer

    @property
    def methods(self):
        return [call.method for call in self.calls]


MODEL = ModelVersion("Model", "3")
UNKNOWN = ServiceError("Request for unknown model: 'Model'", "404")
RESTRICTED = ServiceError("This API is restricted", "403")


class Server:
    """A server that is ready, as a `Script` asks it, and has other models than the one wanted."""

    def __init__(self, config=UNKNOWN, index=()):
        self._answers = {
            "is_server_ready": True,
            "is_server_live": True,
            "is_model_ready": False,
            "get_model_config": config,
            "get_model_repository_index": index,
        }

    def __call__(self, method):
        return self._answers[method]


def test_server_is_asked_again_until_it_is_ready_and_live():
    script = Script(OSError("refused"), True, False, True)
    script.carry_out(waiting.server_ready(script.wait(), {"x": "y"}))

    ready, live = "is_server_ready", "is_server_live"
    assert script.methods == [ready, ready, live, ready, live]
    assert {call.named_arguments["headers"]["x"] for call in script.calls} == {"y"}


def test_model_is_asked_for_once_the_server_is_ready():
    script = Script(True, True, False, UNKNOWN, True)
    script.carry_out(waiting.model_ready(script.wait(), None, MODEL))

    assert script.methods[2:] == ["is_model_ready", "get_model_config", "is_model_ready"]
    assert script.calls[-1].arguments == ("Model", "3")


def test_each_call_may_take_what_is_left():
    script = Script(False)
    with pytest.raises(PyTritonClientTimeoutError):
        script.carry_out(waiting.server_ready(script.wait(5.0), None))

    limits = [call.limit_s for call in script.calls]
    assert limits[0] == 5.0
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] < 0.01


def test_server_that_is_not_ready_in_time_is_told_in_the_words_that_users_look_for():
    script = Script(OSError("refused"))
    with pytest.raises(PyTritonClientTimeoutError) as raised:
        script.carry_out(waiting.model_ready(script.wait(), None, MODEL))

    assert str(raised.value) == (
        "Waiting for server to be ready timed out. Timeout while waiting for model Model version "
        "3: 5 s. Last problem: OSError: refused."
    )
    assert not isinstance(raised.value, PyTritonClientModelUnavailableError)


def in_vain(server, timeout_s=5.0):
    """The error of a wait for a model that a server does not have."""
    script = Script(server)
    wait = script.wait(timeout_s)
    with pytest.raises(PyTritonClientModelUnavailableError) as raised:
        script.carry_out(waiting.model_ready(wait, None, MODEL))
    return str(raised.value), script.methods


def test_model_that_is_not_ready_in_time_is_told_in_the_words_that_users_look_for():
    error, _ = in_vain(Server())

    assert "Waiting for model Model version 3 to be ready timed out." in error
    assert "Timeout while waiting for model" in error


def test_misspelt_model_is_told_once_in_the_log_and_in_the_error_with_those_there_are(caplog):
    index = [{"name": "Models"}, {"name": "Other"}]
    error, methods = in_vain(Server(index=index), timeout_s=300.0)

    known = (
        "Request for unknown model: 'Model'. Its models are: Models, Other. Did you mean Models?"
    )
    assert error.endswith(f" at the server: 300 s. The server is ready, but not the model: {known}")
    (told,) = caplog.messages
    assert told.startswith("Still waiting for model Model version 3 at the server, for up to 29")
    assert told.endswith(known)
    assert methods.count("get_model_repository_index") == 1


def test_timeout_at_the_end_does_not_replace_the_reason():
    script = Script(True, True, False, UNKNOWN, False, TimeoutError("timed out"))
    with pytest.raises(PyTritonClientModelUnavailableError, match="unknown model: 'Model'"):
        script.carry_out(waiting.model_ready(script.wait(0.005), None, MODEL))


def test_short_wait_is_not_logged_and_its_error_gives_the_reason(caplog):
    error, _ = in_vain(Server(), timeout_s=0.5)

    assert error.endswith("not the model: Request for unknown model: 'Model'.")
    assert caplog.messages == []


@pytest.mark.parametrize(
    "server, problem",
    [
        (
            Server(index=RESTRICTED),
            "unknown model: 'Model'. `pytriton models -u the server` lists its models.",
        ),
        (Server(index=OSError("gone")), "unknown model: 'Model'."),
        (Server(index=[]), "unknown model: 'Model'. It has no models."),
        (
            Server(config=RESTRICTED, index=RESTRICTED),
            "not the model: it is not ready. `pytriton models -u the server` lists its models.",
        ),
        (Server(config={}, index=[{"name": "Model"}]), "not the model: it is not ready."),
    ],
)
def test_what_a_server_does_not_tell_is_not_guessed(server, problem):
    assert problem in in_vain(server)[0]


SIMILAR = ServiceError(
    "Request for unknown model: 'Model' is not found. Did you mean 'Models'?", "404"
)


@pytest.mark.parametrize(
    "server, taken_s",
    [
        (Server(index=[{"name": "Models"}]), 5),
        (Server(SIMILAR, index=RESTRICTED), 5),
        (Server(index=[{"name": "Another"}]), 30),
    ],
)
def test_model_that_a_ready_server_does_not_know_is_given_up_soon(server, taken_s):
    script = Script(server)
    wait = script.wait(300.0, gives_up=True)
    with pytest.raises(PyTritonClientModelUnavailableError) as raised:
        script.carry_out(waiting.model_ready(wait, None, MODEL))

    assert str(raised.value).startswith(
        f"Waiting for model Model version 3 to be ready timed out after {taken_s} s, because the "
        "server is ready and does not know it: Request for unknown model: 'Model'"
    )
    assert str(raised.value).endswith("for a model that comes later, give init_timeout_s.")
    assert taken_s <= script.clock() - 100 <= taken_s + 2.1


@pytest.mark.parametrize(
    "server",
    [
        Server(index=[]),
        Server(index=RESTRICTED),
        Server(index=[{"name": "Model"}]),
        Server(config={}, index=[{"name": "Models"}]),
    ],
)
def test_model_that_may_come_is_waited_for_until_the_end(server):
    script = Script(server)
    wait = script.wait(300.0, gives_up=True)
    with pytest.raises(PyTritonClientModelUnavailableError, match=" at the server: 300 s"):
        script.carry_out(waiting.model_ready(wait, None, MODEL))

    assert script.clock() - 100 >= 300


def test_server_that_becomes_ready_late_takes_no_patience_away():
    script = Script(*[False] * 60, True, True, Server(index=[{"name": "Models"}]))
    wait = script.wait(300.0, gives_up=True)
    with pytest.raises(PyTritonClientModelUnavailableError, match="timed out after 5 s") as raised:
        script.carry_out(waiting.model_ready(wait, None, MODEL))

    ready_s = 100 + sum(min(0.01 * 2**number, 1.0) for number in range(60))
    assert script.clock() >= ready_s + 5
    assert "Its models are: Models. Did you mean Models?" in str(raised.value)


def test_long_wait_for_a_server_is_told_once_in_the_log(caplog):
    script = Script(ConnectionRefusedError(111, "Connection refused"))
    wait = ReadinessWait(60.0, script.clock, address="http://localhost:8000")
    with pytest.raises(PyTritonClientTimeoutError):
        script.carry_out(waiting.server_ready(wait, None))

    (told,) = caplog.messages
    assert told.startswith("Still waiting for server at http://localhost:8000, for up to 59 s more")
    assert told.endswith("ConnectionRefusedError: [Errno 111] Connection refused")


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_config_is_read_once_the_model_is_ready(protocol):
    config = {"name": "Model", "max_batch_size": 4, "backend": "python"}
    script = Script(True, True, True, {"config": config} if protocol is GRPC else config)
    read = script.carry_out(waiting.model_config(script.wait(), None, MODEL, protocol))

    assert (read.model_name, read.max_batch_size) == ("Model", 4)
    assert script.calls[-1].arguments == ("Model", "3")


def test_refused_config_is_the_server_s_error():
    refusal = ServiceError("not allowed")
    script = Script(True, True, True, refusal)
    with pytest.raises(PyTritonClientInferenceServerError, match="not allowed") as raised:
        script.carry_out(waiting.model_config(script.wait(), None, MODEL, HTTP))

    assert raised.value.__cause__ is refusal
