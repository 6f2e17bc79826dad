# SPDX-License-Identifier: Apache-2.0
"""What clients get of errors if texts of exceptions are hidden, and what the log has of them."""

from __future__ import annotations

import logging
import re

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.base.failure_records import FailureOrigin, origin_of
from pytriton.base.request_ids import add_to_log_records
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.hidden_exceptions import HiddenExceptions
from pytriton.serving.engine.instance_pool import Outage
from pytriton.serving.engine.model import Model
from tests.fakes import FakeLoop, model_spec

SPEC = model_spec()
NUMBER = re.compile(r"model 'm' failed; the server's log says why \(failure ([0-9a-f]{8})\)")


class Time:
    """A clock that stands still until it is moved."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock_s():
    return Time()


@pytest.fixture
def hidden(clock_s):
    return HiddenExceptions(clock_s)


@pytest.fixture
def ids_in_the_log():
    factory = logging.getLogRecordFactory()
    add_to_log_records()
    yield
    logging.setLogRecordFactory(factory)


def raised(message="ValueError: /secret", place="model.py:7 execute", kind=InternalError):
    error = kind(message)
    error.origin = FailureOrigin("ValueError", place, "Traceback (most recent call last):\n  …")
    return error


def number_of(shown):
    return NUMBER.fullmatch(shown.message)[1]


@pytest.mark.parametrize("kind", [InternalError, ServerError])
def test_text_of_an_exception_is_in_the_log_under_a_number(hidden, kind, caplog, ids_in_the_log):
    shown = hidden.shown(SPEC, raised(kind=kind), ["", "mine"])

    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    number = number_of(shown)
    assert line.getMessage() == f"failure {number} of model 'm' version 1: ValueError: /secret"
    assert line.exc_text.startswith("Traceback")
    assert line.triton_request_ids == ["mine"]
    assert type(shown) is kind
    assert shown.origin is not None  # the list of failures groups by it


@pytest.mark.parametrize(
    "error",
    [
        InternalError("the model answered with this error"),
        raised("at most 8 rows", kind=InvalidArgumentError),
    ],
)
def test_what_is_meant_for_clients_stays(hidden, error, caplog):
    assert hidden.shown(SPEC, error, []) is error
    assert not caplog.records


def test_exception_that_is_meant_for_clients_loses_frames_alone(hidden):
    error = InternalError(
        "TritonModelException: too long\n\nAt:\n  /models/m/1/model.py(7): execute"
    )
    error.origin = origin_of(TritonModelException("too long"))

    assert hidden.shown(SPEC, error, []).message == "too long"


def test_number_is_that_of_the_place(hidden):
    numbers = [
        number_of(hidden.shown(SPEC, error, []))
        for error in (
            raised("value 1"),
            raised("value 2"),
            raised(place="model.py:8 execute"),
            raised("no room for 17", place=""),
            raised("no room for 18", place=""),
        )
    ]

    assert numbers[0] == numbers[1]
    assert numbers[3] == numbers[4]
    assert len(set(numbers)) == 3
    assert number_of(HiddenExceptions().shown(SPEC, raised(), [])) not in numbers


def test_log_has_a_place_once_and_then_counts(hidden, clock_s, caplog):
    for value in range(1000):
        hidden.shown(SPEC, raised(f"value {value}"), [])
    clock_s.now_s = 11.0
    number = number_of(hidden.shown(SPEC, raised("value 1000"), []))

    first, repeated = [each.getMessage() for each in caplog.records]
    assert first.endswith(": value 0")
    assert repeated == (
        f"failure {number} of model 'm' version 1: value 1000 (1000 more times in the last 11 s)"
    )


def test_long_text_is_cut(hidden, caplog):
    hidden.shown(SPEC, raised("x" * 1_000_000), [])

    assert len(caplog.records[0].getMessage()) < 10_000


@pytest.mark.parametrize("hides", [False, True])
def test_models_of_an_engine_hide_exceptions_if_it_does(hides):
    engine = Engine(hides_exceptions=hides)
    model = Model(SPEC, FakeLoop())
    engine.add(model)

    assert (model.hidden is not None) == hides


@pytest.mark.parametrize("version", ["", "1"])
def test_reason_of_a_model_that_is_not_ready_is_hidden(version):
    engine = Engine(hides_exceptions=True)
    model = Model(SPEC, FakeLoop())
    engine.add(model)
    model.fail("FileNotFoundError: /secret")

    with pytest.raises(ServerError, match=r"version 1: the server's log says why\)$") as caught:
        engine.lookup("m", version)
    assert "secret" not in str(caught.value)


def test_reason_of_an_outage_is_hidden():
    outage = Outage(SPEC, FakeLoop(), lambda: None)
    outage.begin("FileNotFoundError: /secret")

    assert outage.error(tells_reason=False).message.endswith("for one: the server's log says why")
    assert outage.error().message.endswith("for one: FileNotFoundError: /secret")
