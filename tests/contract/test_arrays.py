# SPDX-License-Identifier: Apache-2.0
"""Arrays into and out of a callable: every type, layout and size arrives as it was sent."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import Tensor

pytestmark = pytest.mark.e2e

NUMBERS = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "bfloat16",
]  # fmt: skip

# Inside the message, in a block of shared memory, and in a segment of its own.
SIZES = [3, 100_000, 5_000_000]


def named(dtype, shape=(-1,)):
    return [Tensor(name="x", dtype=dtype, shape=shape)], [
        Tensor(name="y", dtype=dtype, shape=shape)
    ]


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def random_array(dtype, shape):
    generator = np.random.default_rng(7)
    raw = generator.integers(0, 2 if dtype.kind == "b" else 256, size=(*shape, dtype.itemsize))
    return raw.astype(np.uint8).view(dtype).reshape(shape)


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@batch
def echo_batch(x):
    return {"y": x}


@pytest.mark.parametrize("function", [echo, echo_batch])
@pytest.mark.parametrize("name", NUMBERS)
def test_every_bit_of_every_type_comes_back(host, function, name):
    dtype = numpy_dtype(name)
    sent = random_array(dtype, (2, 301))
    model = host.bind(function, *named(dtype.type))

    received = host.infer(model, x=sent)["y"]

    assert received.dtype == dtype
    assert received.tobytes() == sent.tobytes()
    assert received.shape == sent.shape


def test_bytes_arrive_as_objects_whatever_type_was_declared(host):
    seen = []

    def record(requests):
        seen.extend((request["x"].dtype, type(request["x"].flat[0])) for request in requests)
        return echo(requests)

    for declared in (bytes, object, np.bytes_, np.object_):
        model = host.bind(record, *named(declared))
        host.infer(model, x=np.array([[b"word"]], dtype=object))

    assert seen == [(np.dtype(object), bytes)] * 4


@pytest.mark.parametrize(
    "returned",
    [np.array([["ä", "☃☃☃"]]), np.array([[b"\xc3\xa4", b"\xe2\x98\x83" * 3]]),
     np.array([["ä".encode(), "☃☃☃".encode()]], dtype=object)],
    ids=["unicode", "bytes", "object"],
)  # fmt: skip
@pytest.mark.parametrize("decorate", [False, True])
def test_text_may_be_returned_in_any_form(host, returned, decorate):
    function = batch(lambda x: {"y": returned}) if decorate else lambda requests: [{"y": returned}]
    model = host.bind(function, named(np.float32)[0], named(bytes)[1])

    received = host.infer(model, x=np.zeros((1, 1), np.float32))["y"]

    assert received.tolist() == [["ä".encode(), "☃☃☃".encode()]]


LAYOUTS = {
    "transposed": lambda array: np.ascontiguousarray(array.T).T,
    "every second": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "backwards": lambda array: np.ascontiguousarray(array[:, ::-1])[:, ::-1],
    "fortran order": np.asfortranarray,
    "big-endian": lambda array: array.astype(">f4"),
    "read-only": lambda array: np.frombuffer(array.tobytes(), np.float32).reshape(array.shape),
    "another type": lambda array: array.astype(np.float64),
    "integers": lambda array: array.astype(np.int64),
    "unaligned": lambda array: np.frombuffer(
        b"\x00" + array.tobytes(), np.uint8
    )[1:].view("<f4").reshape(array.shape),
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES[:2])
@pytest.mark.parametrize("decorate", [False, True], ids=["list", "batch"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_output_of_any_layout_arrives_in_order(host, layout, decorate, size):
    def function(x):
        return {"y": LAYOUTS[layout](x)}

    model = host.bind(
        batch(function)
        if decorate
        else lambda requests: [function(request["x"]) for request in requests]
    )
    sent = np.arange(2 * size, dtype=np.float32).reshape(2, size)

    received = host.infer(model, x=sent)["y"]

    assert received.dtype == np.float32
    assert np.array_equal(received, sent)


def test_broadcast_output_is_written_out(host):
    model = host.bind(lambda rs: [{"y": np.broadcast_to(r["x"][:, :1], (2, 40_000))} for r in rs])

    received = host.infer(model, x=np.array([[1, 9], [2, 9]], np.float32))["y"]

    assert np.array_equal(received, np.repeat([[1], [2]], 40_000, axis=1))


@pytest.mark.parametrize("array", [np.array(3.5, np.float32), np.zeros((2, 0, 3), np.float32)])
def test_output_without_batching_may_have_any_shape(host, array):
    model = host.bind(lambda requests: [{"y": array}], batching=False)

    received = host.infer(model, x=np.zeros(1, np.float32))["y"]

    assert received.shape == array.shape
    assert np.array_equal(received, array)


def test_view_of_an_input_may_be_returned(host):
    model = host.bind(
        lambda requests: [{"y": r["x"][:, 1:-1], "z": r["x"].reshape(-1, 2)} for r in requests],
        outputs=[*named(np.float32)[1], Tensor(name="z", dtype=np.float32, shape=(-1,))],
    )
    sent = np.arange(200_000, dtype=np.float32).reshape(2, -1)

    received = host.infer(model, x=sent)

    assert np.array_equal(received["y"], sent[:, 1:-1])
    assert np.array_equal(received["z"], sent.reshape(-1, 2))


def test_one_array_may_be_returned_under_two_names(host):
    outputs = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "yz"]
    model = host.bind(batch(lambda x: {"y": x, "z": x}), outputs=outputs)
    sent = np.arange(100_000, dtype=np.float32)[None]

    received = host.infer(model, x=sent)

    assert np.array_equal(received["y"], sent)
    assert np.array_equal(received["z"], sent)
