# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from pytriton.decorators import batch, fill_optionals, first_value, pad_batch
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonRuntimeError,
    PyTritonValidationError,
)
from pytriton.model_config.common import DynamicBatcher
from pytriton.model_config.triton_model_config import TensorSpec
from pytriton.proxy.types import Request
from tests.decorators.binding import bound

A = TensorSpec("a", (2,), np.float32)
ONES = np.ones((3, 2), dtype=np.float32)
DEFAULT = np.array([7, 8], dtype=np.float32)


def _fill(*, inputs=(A, "b"), batching=True, **defaults):
    return bound(
        fill_optionals(**defaults)(lambda requests: requests), inputs=inputs, batching=batching
    )


def test_missing_input_gets_its_default_for_every_row():
    given, filled = _fill(a=DEFAULT)([Request({"a": ONES}), Request({"b": ONES})])

    assert given["a"] is ONES
    assert filled["a"].tolist() == [[7, 8]] * 3


def test_filled_rows_can_be_written():
    (request,) = _fill(a=DEFAULT)([Request({"b": ONES})])

    request["a"][0] = 0

    assert DEFAULT.tolist() == [7, 8]
    assert request["a"].tolist() == [[0, 0], [7, 8], [7, 8]]


def test_missing_input_of_a_model_without_batching_gets_the_default_itself():
    (request,) = _fill(a=DEFAULT, batching=False)([Request({"b": ONES})])

    assert request["a"] is DEFAULT


def test_request_without_inputs_is_one_row():
    (request,) = _fill(a=DEFAULT)([Request({})])

    assert request["a"].shape == (1, 2)


def test_filling_works_above_batch():
    infer = bound(fill_optionals(a=DEFAULT)(batch(lambda a, b: {"x": a + b})), inputs=(A, "b"))

    responses = infer([Request({"b": ONES}), Request({"a": ONES, "b": ONES})])

    assert [item["x"][0].tolist() for item in responses] == [[8, 9], [2, 2]]


@pytest.mark.parametrize("declared", [np.bytes_, np.object_])
@pytest.mark.parametrize("dtype", ["S", "O"])
def test_byte_strings_have_defaults_of_either_dtype(declared, dtype):
    fill = _fill(inputs=[TensorSpec("a", (1,), declared), "b"], a=np.array([b"x"], dtype=dtype))

    (request,) = fill([Request({"b": ONES})])

    assert request["a"].tolist() == [[b"x"]] * 3


def test_shape_of_any_size_takes_any_default():
    fill = _fill(inputs=[TensorSpec("a", (-1, 2), np.float32)], a=ONES)

    assert fill([Request({})])[0]["a"].shape == (1, 3, 2)


@pytest.mark.parametrize(
    "default, expected",
    [
        ([1.0, 2.0], "Could not use a=.* they are not NumPy arrays"),
        (
            np.array([1.0, 2.0]),
            "Could not use a: dtype=.* have different than input signature dtypes",
        ),
        (np.array([1j, 2j]), "Could not use a: dtype=complex128 expected_dtype="),
        (ONES, "Could not use a: shape=.*have different than input signature shapes"),
        (DEFAULT[:1], "Could not use a: shape=.*have different than input signature shapes"),
    ],
)
def test_default_that_is_not_the_models_is_refused_at_every_call(default, expected):
    fill = _fill(a=default)

    for _ in range(2):
        with pytest.raises(PyTritonBadParameterError, match=expected):
            fill([Request({"b": ONES})])


def test_default_of_no_input_is_refused():
    with pytest.raises(PyTritonBadParameterError, match="find the inputs z; the model has a, b"):
        _fill(z=DEFAULT)([Request({"b": ONES})])


def test_filling_below_batch_is_refused():
    infer = bound(batch(fill_optionals(a=DEFAULT)(lambda **inputs: inputs)), inputs=(A, "b"))

    with pytest.raises(PyTritonRuntimeError, match="must be the outermost decorator"):
        infer([Request({"b": ONES})])


@pytest.mark.parametrize(
    "rows, batcher, expected",
    [
        (3, DynamicBatcher(preferred_batch_size=[4, 2]), 4),
        (2, DynamicBatcher(preferred_batch_size=[4, 2]), 2),
        (5, DynamicBatcher(preferred_batch_size=[4, 2]), 8),
        (3, DynamicBatcher(), 8),
        (3, None, 8),
        (8, None, 8),
    ],
)
def test_batch_is_padded_with_its_last_row(rows, batcher, expected):
    infer = bound(pad_batch(lambda **inputs: inputs), batcher=batcher, max_batch_size=8)

    outputs = infer(a=np.arange(rows), b=np.arange(rows * 2).reshape(rows, 2))

    padding = expected - rows
    assert outputs["a"].tolist() == [*range(rows), *[rows - 1] * padding]
    assert outputs["b"][rows:].tolist() == [[2 * rows - 2, 2 * rows - 1]] * padding


def test_batch_above_the_largest_size_is_refused():
    infer = bound(pad_batch(lambda **inputs: inputs), max_batch_size=2)

    with pytest.raises(IndexError, match="at most 2 rows, got 3"):
        infer(a=ONES)


def _first(*keys, batching=True, **options):
    return bound(first_value(*keys, **options)(lambda **inputs: inputs), batching=batching)


@pytest.mark.parametrize(
    "array, expected",
    [
        (np.array([[5], [5]]), 5),
        (np.array([5, 5]), 5),
        (np.array([[[5]], [[5]]]), 5),
        (np.array([[b"x"], [b"x"]], dtype=object), b"x"),
        (np.array([["x"], ["x"]]), "x"),
    ],
)
def test_first_value_with_one_element_is_a_scalar(array, expected):
    outputs = _first("a", "missing")(a=array, b=array)

    assert outputs["a"] == expected
    assert not isinstance(outputs["a"], np.ndarray)
    assert outputs["b"] is array


def test_first_value_keeps_the_numpy_type():
    assert isinstance(_first("a")(a=np.array([[5]], np.int32))["a"], np.int32)


@pytest.mark.parametrize(
    "array, options",
    [
        (np.array([[1, 2], [1, 2]]), {}),
        (np.array([[b"x", b"y"], [b"x", b"y"]], dtype=object), {}),
        (np.array([[1], [1]]), {"squeeze_single_values": False}),
    ],
)
def test_first_value_with_more_elements_is_a_row(array, options):
    outputs = _first("a", **options)(a=array)

    assert outputs["a"].tolist() == array[0].tolist()


def test_first_value_wants_equal_rows():
    array = np.array([[1], [2]])

    with pytest.raises(PyTritonRuntimeError, match=r"The values on the .* input are not equal"):
        _first("a")(a=array)
    assert _first("a", strict=False)(a=array)["a"] == 1


def test_first_value_takes_a_list_of_requests():
    infer = bound(first_value("a")(lambda requests: requests))

    (request,) = infer([Request({"a": np.array([[1], [1]]), "b": ONES})])

    assert request["a"] == 1
    assert request["b"] is ONES


def test_first_value_needs_a_model_that_batches():
    expected = "The @first_value decorator can only be used with models that support batching."
    with pytest.raises(PyTritonRuntimeError, match=expected):
        _first("a", batching=False)(a=ONES)


def test_first_value_of_the_context_is_refused():
    with pytest.raises(
        PyTritonBadParameterError, match=r"not allowed as keys for @first_value wrapper."
    ):
        first_value("a", "__triton_context__")


@pytest.mark.parametrize("decorator", [pad_batch, first_value("a")])
def test_decorators_that_need_the_model_refuse_callables_that_are_not_bound(decorator):
    expected = "Wrapped function or object must bound with triton to get  __triton_context__"
    with pytest.raises(PyTritonValidationError, match=expected):
        decorator(lambda **inputs: inputs)(a=ONES)
