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
TEXT = [Tensor(name="y", dtype=bytes, shape=(-1,))]

DICTS = (
    "Outputs returned by `Wrong` model callable must be list of response dicts with numpy arrays. "
)
COUNT = (
    "Number of outputs returned by `Wrong` inference callable ({}) does not match number of "
    "requests (1) received from Triton."
)
VALUES = "Not all values returned by `Wrong` model callable are numpy arrays. Got {} for `y`."
KINDS = (
    "Only bool, numeric, string, unicode and object arrays are supported by Triton (dtype.kind: "
    "biufOSU). Returned `y` for model `Wrong` has `{}` dtype.kind."
)
OBJECTS = (
    "Only bytes as objects dtype are supported by PyTriton. Returned `y` from `Wrong` has "
    "`{}` type."
)
STRINGS = (
    "Use string/byte-string instead of object for passing string in NumPy array from model `Wrong`."
)
UNCONVERTIBLE = "Returned output `y` cannot be converted. Returned: <U3. Expected: FP32."
STRICT = "Returned output `y` for model `Wrong` has invalid "

# What the callable returned, and what the client reads after the name of the exception.
WRONG = {
    "None": (None, DICTS + "Got outputs=None (is a return statement missing?)."),
    "tuple": (({"y": 1},), DICTS + "Got outputs=({'y': 1},)."),
    "dict": ({"y": 1}, DICTS + "Got outputs={'y': 1}."),
    "text": ("y", DICTS + "Got outputs='y'."),
    "no response": ([], COUNT.format(0)),
    "two responses": ([{"y": GOOD}] * 2, COUNT.format(2)),
    "response None": ([None], DICTS + "Got response=None."),
    "response list": ([["y"]], DICTS + "Got response=['y']."),
    "key int": (
        [{1: GOOD}], "Not all keys returned by `Wrong` model callable are string. Got 1."
    ),
    "value list": ([{"y": [[0.0, 0.0]]}], VALUES.format("<class 'list'>")),
    "value float": ([{"y": 1.5}], VALUES.format("<class 'float'>")),
    "value None": ([{"y": None}], VALUES.format("<class 'NoneType'>")),
    "value numpy scalar": ([{"y": np.float32(1)}], VALUES.format("<class 'numpy.float32'>")),
    "complex": ([{"y": GOOD.astype(complex)}], KINDS.format("c")),
    "times": ([{"y": np.array([["2020-01-01"]], "datetime64[D]")}], KINDS.format("M")),
    "records": ([{"y": np.zeros((1, 2), "i4,f4")}], KINDS.format("V")),
    "objects str": (
        [{"y": np.array([["a"]], object)}],
        STRINGS,
    ),
    "objects int": ([{"y": np.array([[1]], object)}], OBJECTS.format("<class 'int'>")),
    "objects mixed": (
        [{"y": np.array([[b"a", None]], object)}], OBJECTS.format("<class 'NoneType'>")
    ),
    "text for floats": (
        [{"y": np.array([["abc"]])}],
        UNCONVERTIBLE,
    ),
}  # fmt: skip

# The same where the model is bound with strict=True.
WRONG_STRICT = {
    "unknown output": (
        [{"z": GOOD}],
        "Returned output `z` is not defined in model config for model `Wrong`.",
    ),
    "type": (
        [{"y": GOOD.astype(np.int64)}],
        STRICT + "type. Returned: int64 (i). Expected: <class 'numpy.float32'>.",
    ),
    "rank": ([{"y": GOOD[0]}], STRICT + "shapes. Returned: (). Expected: (2,)."),
    "dimension": (
        [{"y": np.zeros((1, 3), np.float32)}],
        STRICT + "shapes at one or more positions. Returned: (3,). Expected: (2,).",
    ),
}

ROWS = "Received output tensors with different batch sizes: y: {}. Expected batch size: 1."

# The same for callables that take whole batches; the names of the exceptions differ there.
WRONG_BATCHES = {
    "rows": ({"y": np.zeros((3, 2), np.float32)}, ROWS.format("(3, 2)")),
    "scalar": ({"y": np.array(1.0)}, ROWS.format("()")),
    "value list": (
        {"y": [[1.0, 2.0]]},
        "Not all values returned by model callable are numpy arrays: output `y` is <class 'list'>.",
    ),
    "no dictionary": (5, "<class 'int'>"),
    "list too long": ([GOOD, GOOD], "2"),
}


def message(text: str) -> str:
    return f"Failed to process the request(s) for model 'Wrong_0_0', message: ValueError: {text}"


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_result_is_an_error_that_says_what_is_wrong(host, kind):
    returned, text = WRONG[kind]
    model = host.bind(lambda requests: returned, X, Y, name="Wrong")

    assert host.error(model, x=ONE) == (500, message(text))


@pytest.mark.parametrize("kind", WRONG_STRICT)
def test_strict_model_refuses_what_was_not_declared(host, kind):
    returned, text = WRONG_STRICT[kind]
    model = host.bind(lambda requests: returned, X, Y, name="Wrong", strict=True)

    assert host.error(model, x=ONE) == (500, message(text))


@pytest.mark.parametrize("kind", WRONG_BATCHES)
def test_wrong_batch_is_an_error_that_says_what_is_wrong(host, kind):
    returned, expected = WRONG_BATCHES[kind]
    model = host.bind(batch(lambda x: returned), X, Y, name="Wrong")

    status, text = host.error(model, x=ONE)

    assert status == 500
    assert text.startswith("Failed to process the request(s) for model 'Wrong_0_0', message: ")
    assert expected in text


def test_numbers_for_text_are_written_out(host):
    model = host.bind(lambda requests: [{"y": np.array([[1, 20]])}], X, TEXT)

    assert host.infer(model, x=ONE)["y"].tolist() == [[b"1", b"20"]]


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


def test_unrecoverable_error_of_a_coroutine_ends_everything_too(ports):
    async def fail(requests):
        raise PyTritonUnrecoverableError("no further inferences possible")

    triton = Triton(config=TritonConfig(**ports))
    triton.bind("Model", fail, X, Y)
    triton.run()

    with pytest.raises(InferFailedError, match="no further inferences possible"):
        infer(ports["http_port"], "Model", {"x": ONE})

    assert eventually(lambda: not triton.is_alive())
    assert eventually(lambda: is_port_free(ports["http_port"]))
