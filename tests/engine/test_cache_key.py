# SPDX-License-Identifier: Apache-2.0
"""The keys of plain requests tell them apart just as those of all requests do."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from pytriton.base.dtypes import BYTES, FP32, INT32
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.base.model_spec import ModelSpec, ModelTensor
from pytriton.serving.engine.answer_cache import EXACT_BYTES, CacheKeys, cache_key
from pytriton.serving.engine.validation import validate
from tests.fakes import infer_request, model_spec

A, B = b"\x01\x02\x03\x04", b"\x05\x06\x07\x08"


def spec_of(*dims: int, dtypes=(FP32, INT32), **fields: Any) -> ModelSpec:
    inputs = {
        name: ModelTensor(
            name=name, dtype=dtype, dims=dims, shape=(-1, *dims), has_variable_dims=-1 in dims
        )
        for name, dtype in zip("ab", dtypes, strict=True)
    }
    outputs = {name: ModelTensor(name=name, dtype=FP32, dims=(1,), shape=(-1, 1)) for name in "xy"}
    return model_spec(inputs=inputs, outputs=outputs, **{"max_batch_size": 4096, **fields})


FIXED, VARIABLE = spec_of(1), spec_of(-1)


def request(spec: ModelSpec, a: Any = A, b: Any = B, shape=(1, 1), **fields: Any) -> InferRequest:
    first, second = (each.dtype for each in spec.inputs.values())
    inputs = {"a": InferTensor("a", first, shape, a), "b": InferTensor("b", second, shape, b)}
    made = infer_request("m", fields.pop("inputs", inputs), **fields)
    validate(made, spec)
    return made


def is_plain(key: bytes) -> bool:
    return key.endswith(A + B)


@pytest.mark.parametrize("spec", [FIXED, VARIABLE])
def test_key_of_a_plain_request_ends_with_its_inputs(spec):
    keys = CacheKeys(spec, 7)

    assert is_plain(keys.key(request(spec)))
    assert keys.key(request(spec)) == keys.key(request(spec, id="other", priority=1))
    assert keys.key(request(spec)) != cache_key(request(spec), spec.version, 7)


def test_order_of_the_inputs_and_kind_of_buffer_do_not_change_the_key():
    keys = CacheKeys(FIXED, 7)
    one = request(FIXED)
    turned = request(FIXED, inputs=dict(reversed(one.inputs.items())))

    assert keys.key(turned) == keys.key(one)
    assert keys.key(request(FIXED, bytearray(A), memoryview(B))) == keys.key(one)


def test_everything_that_a_model_sees_changes_the_key():
    two, flat = (A + B, B + A), {"shape": (2, 1)}
    different = [
        request(VARIABLE),
        request(VARIABLE, b=A),
        request(VARIABLE, B, A),
        request(VARIABLE, *two, **flat),
        request(VARIABLE, *two, shape=(1, 2)),
        request(VARIABLE, b"", b"", shape=(1, 0)),
        request(VARIABLE, outputs=("x",)),
        request(VARIABLE, outputs=("y",)),
        request(VARIABLE, outputs=("x", "y")),
        request(VARIABLE, outputs=()),
        request(VARIABLE, parameters={"p": 1}),
        request(VARIABLE, correlation_id=1),
        request(VARIABLE, correlation_id=""),
        request(VARIABLE, flags=1),
        request(VARIABLE, timeout_us=1),
    ]
    loads = [CacheKeys(VARIABLE, load_id) for load_id in (0, 1, 148)]

    found = [keys.key(each) for keys, each in itertools.product(loads, different)]

    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "field",
    [
        {"parameters": {"p": 1}},
        {"correlation_id": 1},
        {"correlation_id": ""},
        {"flags": 1},
        {"timeout_us": 1},
    ],
)
def test_request_that_is_not_plain_has_the_key_of_all_requests(field):
    each = request(FIXED, **field)

    assert CacheKeys(FIXED, 7).key(each) == cache_key(each, FIXED.version, 7)


def test_large_inputs_are_not_in_the_key():
    count = EXACT_BYTES // 4
    keys = CacheKeys(FIXED, 7)
    largest = request(FIXED, A * count, B * count, shape=(count, 1))
    larger = request(FIXED, A * (count + 1), B * (count + 1), shape=(count + 1, 1))

    assert keys.key(largest).endswith(A * count + B * count)
    assert keys.key(larger) == cache_key(larger, FIXED.version, 7)
    assert len(keys.key(larger)) < 200


def test_strings_of_different_length_have_different_keys():
    spec = spec_of(1, dtypes=(BYTES, BYTES))
    keys = CacheKeys(spec, 7)
    short, long = b"\x01\x00\x00\x00u", b"\x02\x00\x00\x00uu"

    assert keys.key(request(spec, short, long)) != keys.key(request(spec, long, short))


def test_missing_optional_input_changes_the_key():
    optional = msgspec.structs.replace(FIXED, required_inputs=frozenset("a"))
    keys = CacheKeys(optional, 7)
    both = request(optional)
    alone = request(optional, inputs={"a": both.inputs["a"]})

    assert keys.key(alone) != keys.key(both)


def test_keys_stay_the_same_after_many_shapes():
    keys = CacheKeys(VARIABLE, 7)
    first = keys.key(request(VARIABLE))
    shapes = [(rows, size) for rows in range(1, 65) for size in range(2, 19)]

    others = {
        keys.key(request(VARIABLE, *[bytes(4 * rows * size)] * 2, shape=(rows, size)))
        for rows, size in shapes
    }

    assert len(others) == len(shapes) > 1024
    assert keys.key(request(VARIABLE)) == first


def test_ragged_inputs_of_the_same_bytes_together_have_different_keys():
    inputs = {
        name: msgspec.structs.replace(each, is_ragged=True)
        for name, each in VARIABLE.inputs.items()
    }
    spec = msgspec.structs.replace(VARIABLE, inputs=inputs)
    keys = CacheKeys(spec, 7)

    def key(a: bytes, b: bytes) -> bytes:
        tensors = {
            name: InferTensor(name, spec.inputs[name].dtype, (1, len(data) // 4), data)
            for name, data in (("a", a), ("b", b))
        }
        return keys.key(request(spec, inputs=tensors))

    assert key(A + A, A) != key(A, A + A)
