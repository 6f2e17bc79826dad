# SPDX-License-Identifier: Apache-2.0
"""What clients read when a callable raises or returns something that cannot be sent."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.model_config import DynamicBatcher, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.e2e.http_client import InferFailedError, infer, is_port_free, is_ready
from tests.e2e.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.both_front_end_modes

ONE = np.ones((1, 1), np.float32)
GOOD = np.zeros((1, 2), np.float32)
X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(2,))]
X_AS_Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]


DICTS = (
    "Outputs returned by `Wrong` model callable must be list of response dicts with numpy arrays. "
)
STRICT = "Returned output `y` for model `Wrong` has invalid "

# What the callable returned, and what the client reads after the name of the exception.
WRONG = {
    "None": (None, DICTS + "Got outputs=None (is a return statement missing?)."),
    "text for floats": (
        [{"y": np.array([["abc"]])}],
        "Returned output `y` cannot be converted. Returned: <U3. Expected: FP32.",
    ),
}


def message(text: str) -> str:
    return f"Failed to process the request(s) for model 'Wrong_0_0', message: ValueError: {text}"


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_result_is_an_error_that_says_what_is_wrong(host, kind):
    returned, text = WRONG[kind]
    model = host.bind(lambda requests: returned, X, Y, name="Wrong")

    assert host.error(model, x=ONE) == (500, message(text))


def test_strict_model_refuses_what_was_not_declared(host):
    model = host.bind(lambda requests: [{"y": GOOD[0]}], X, Y, name="Wrong", strict=True)

    text = message(STRICT + "shapes. Returned: (). Expected: (2,).")
    assert host.error(model, x=ONE) == (500, text)


def test_wrong_batch_is_an_error_that_says_what_is_wrong(host):
    model = host.bind(batch(lambda x: {"y": np.zeros((3, 2), np.float32)}), X, Y, name="Wrong")

    status, text = host.error(model, x=ONE)

    assert status == 500
    assert text.startswith("Failed to process the request(s) for model 'Wrong_0_0', message: ")
    assert "different batch sizes: y: (3, 2). Expected batch size: 1." in text


def test_undeclared_outputs_are_left_out(host):
    model = host.bind(lambda requests: [{"other": GOOD, "y": GOOD}], X, Y)

    np.testing.assert_equal(host.infer(model, x=ONE), {"y": GOOD})


@pytest.mark.parametrize(
    "error",
    [ValueError("the user's own words"), KeyError("the user's own words"), SystemExit("no exit"),
     KeyboardInterrupt("no interrupt"), MemoryError("too much"), RuntimeError("☃\n\x00\"'")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("decorate", [False, True], ids=["list", "batch"])
def test_exception_reaches_the_client_and_the_model_goes_on(host, error, decorate):
    failing = threading.Event()
    failing.set()

    def function(x):
        if failing.is_set():
            raise error
        return {"y": np.zeros((len(x), 2), np.float32)}

    model = host.bind(
        batch(function) if decorate else lambda rs: [function(r["x"]) for r in rs], X, Y
    )

    for _ in range(3):
        status, text = host.error(model, x=ONE)
        assert status == 500
        assert text == (
            f"Failed to process the request(s) for model '{model}_0_0', message: "
            f"{type(error).__name__}: {error}"
        )
    failing.clear()
    assert host.infer(model, x=ONE)["y"].shape == (1, 2)
    assert is_ready(host.port, model)
    assert host.triton.is_alive()


def test_exception_fails_its_batch_and_no_other(host):
    def divide(requests):
        values = [request["x"].item() for request in requests]
        if 0 in values:
            raise ZeroDivisionError(f"in a batch of {len(values)}")
        return [{"y": 1 / request["x"]} for request in requests]

    # Exactly four requests make a batch, so each of the two calls gets half of them.
    batcher = DynamicBatcher(max_queue_delay_microseconds=60_000_000, preferred_batch_size=[4])
    model = host.bind(divide, X, X_AS_Y, max_batch_size=4, batcher=batcher)

    def ask(value):
        try:
            return infer(host.port, model, {"x": ONE * value})["y"].item()
        except InferFailedError as error:
            return error.text.rpartition(": ")[2]

    with ThreadPoolExecutor(4) as pool:
        failed = list(pool.map(ask, [1, 2, 0, 4]))
        good = list(pool.map(ask, [1, 2, 4, 8]))

    assert failed == ["in a batch of 4"] * 4
    assert good == [1, 0.5, 0.25, 0.125]


def test_unrecoverable_error_is_answered_and_then_everything_ends(ports, caplog):
    def fail(requests):
        raise PyTritonUnrecoverableError("no further inferences possible")

    triton = Triton(config=TritonConfig(**ports))
    triton.bind("Model", fail, X, Y)
    serving = threading.Thread(target=triton.serve)
    serving.start()
    assert eventually(triton.is_connected)  # a model is ready before the thread knows it

    with pytest.raises(InferFailedError, match="no further inferences possible") as failure:
        infer(ports["http_port"], "Model", {"x": ONE})
    serving.join(DEADLINE_S)

    assert failure.value.status == 500
    assert not serving.is_alive()
    assert not triton.is_alive()
    assert all(is_port_free(port) for port in ports.values())
    assert "The server stops, because a model raised PyTritonUnrecoverableError" in caplog.text
