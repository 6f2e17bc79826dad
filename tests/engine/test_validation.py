# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import msgspec
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError, UnsupportedError
from pytriton.base.messages import DevicePlace, DeviceUse, InferTensor
from pytriton.base.model_spec import SequenceSpec
from pytriton.serving.engine.validation import validate
from tests.wire.specs import ADD_SUB, model_spec, request, single, tensor_spec

# Most texts are compared with the real Triton's in tests/differential, over HTTP. Here are those
# that HTTP cannot reach, and what a request that passes is given.

OPTIONAL = model_spec(
    tensor_spec("must", dtypes.FP32, (1,), batched=True),
    tensor_spec("may", dtypes.FP32, (1,), batched=True, optional=True),
    tensor_spec("any", dtypes.FP32, (-1,), batched=True, optional=True),
    max_batch_size=4,
)


def tensor(name, *shape, dtype=dtypes.FP32, size=None):
    count = 1
    for dim in shape:
        count *= dim
    return InferTensor(name, dtype, shape, bytes(count * dtype.itemsize if size is None else size))


def strings(*elements, shape=None):
    return InferTensor("IN", dtypes.BYTES, shape or (len(elements),), dtypes.encode_bytes(elements))


def refusal(spec, *tensors, **fields):
    with pytest.raises(InvalidArgumentError) as caught:
        validate(request(*tensors, **fields), spec)
    return caught.value.message


def validated(spec, *tensors, **fields):
    accepted = request(*tensors, **fields)
    validate(accepted, spec)
    return accepted


def test_request_gets_its_batch_size():
    assert validated(ADD_SUB, tensor("a", 3, 1), tensor("b", 3, 1)).rows == 3


def test_request_to_a_model_without_batches_is_one_row():
    assert validated(single(dtypes.FP32), tensor("IN", 5)).rows == 1


def test_requests_of_fixed_shapes_share_a_batch():
    assert validated(ADD_SUB, tensor("a", 3, 1), tensor("b", 3, 1)).batch_key is None


def test_requests_of_equal_variable_shapes_share_a_batch():
    spec = single(dtypes.FP32, (-1, 2), 4)
    keys = [
        validated(spec, tensor("IN", *shape)).batch_key
        for shape in ((1, 5, 2), (3, 5, 2), (1, 6, 2))
    ]

    assert keys[0] == keys[1] != keys[2]
    assert hash(keys[0]) == hash(keys[1])


def test_requests_with_other_shapes_of_a_ragged_input_share_a_batch():
    spec = model_spec(
        tensor_spec("any", dtypes.FP32, (-1,), batched=True, is_ragged=True),
        tensor_spec("like", dtypes.FP32, (-1,), batched=True),
        tensor_spec("may", dtypes.FP32, (-1,), batched=True, optional=True, is_ragged=True),
        max_batch_size=4,
    )
    first, second, with_may, other_may, unlike = (
        validated(spec, *[tensor(name, 1, size) for name, size in sizes.items()]).batch_key
        for sizes in (
            {"any": 1, "like": 2},
            {"any": 3, "like": 2},
            {"any": 3, "like": 2, "may": 1},
            {"any": 3, "like": 2, "may": 2},
            {"any": 1, "like": 3},
        )
    )

    assert first == second
    assert with_may == other_may
    assert len({first, with_may, unlike}) == 3


def test_order_of_inputs_makes_no_difference_to_the_batch():
    spec = model_spec(
        tensor_spec("a", dtypes.FP32, (-1,), batched=True),
        tensor_spec("b", dtypes.FP32, (-1,), batched=True),
        max_batch_size=4,
    )
    first = validated(spec, tensor("a", 1, 2), tensor("b", 1, 3))
    second = validated(spec, tensor("b", 1, 3), tensor("a", 1, 2))
    other = validated(spec, tensor("b", 1, 2), tensor("a", 1, 3))

    assert first.batch_key == second.batch_key != other.batch_key


def test_requests_of_other_optional_inputs_do_not_share_a_batch():
    keys = {
        validated(OPTIONAL, *tensors).batch_key
        for tensors in (
            [tensor("must", 1, 1)],
            [tensor("must", 1, 1), tensor("may", 1, 1)],
            [tensor("must", 1, 1), tensor("any", 1, 1)],
            [tensor("must", 1, 1), tensor("any", 1, 0)],
            [tensor("must", 1, 1), tensor("may", 1, 1), tensor("any", 1, 1)],
        )
    }

    assert len(keys) == 5
    assert None not in keys


def test_model_may_have_no_required_input():
    spec = model_spec(
        tensor_spec("may", dtypes.FP32, (1,), batched=True, optional=True), max_batch_size=4
    )

    assert validated(spec).rows == 1


@pytest.mark.parametrize(
    "outputs,message",
    [
        (("nobody",), "unexpected inference output 'nobody' for model 'model'"),
        (("OUT", "OUT"), "[request id: 7] output 'OUT' already exists in request"),
    ],
)
def test_requested_outputs_are_the_models_and_distinct(outputs, message):
    assert refusal(single(dtypes.FP32), tensor("IN", 1), outputs=outputs, id="7") == message


def test_requested_outputs_are_checked_before_inputs():
    assert "output 'nobody'" in refusal(ADD_SUB, outputs=("nobody",))


def test_missing_inputs_are_named():
    assert refusal(ADD_SUB, tensor("a", 1, 1)) == (
        "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'model'. Got "
        "input(s) ['a'], but missing required input(s) ['b']. Please provide all required input(s)."
    )


def test_missing_required_input_is_named_though_the_number_fits():
    assert refusal(OPTIONAL, tensor("may", 1, 1)) == (
        "[request id: <id_unknown>] expected number of inputs between 1 and 3 but got 1 inputs for "
        "model 'model'. Got input(s) ['may'], but missing required input(s) ['must']. Please "
        "provide all required input(s)."
    )


def test_unknown_input_is_named_where_the_number_fits():
    assert refusal(ADD_SUB, tensor("a", 1, 1), tensor("c", 1, 1)) == (
        "unexpected inference input 'c' for model 'model'. Its input(s) are ['a','b']."
    )


@pytest.mark.parametrize(
    "tensors,problem",
    [
        ([tensor("a", size=4), tensor("b", 1, 1)], "input 'a' has no shape but model requires"),
        ([tensor("a", 1, 1), tensor("b", 2, 1)], "input 'b' batch size does not match"),
        ([tensor("a", 9, 1), tensor("b", 9, 1)], "batch-size must be <= 8 for 'model'"),
        ([tensor("a", 0, 1), tensor("b", 0, 1)], "batch-size must be >= 1 for 'model'"),
        (
            [tensor("a", -1, 1, size=4), tensor("b", -1, 1, size=4)],
            "should be specified for input 'a'",
        ),
        ([tensor("a", 1, 1, dtype=dtypes.INT32), tensor("b", 1, 1)], "data-type is 'INT32', but"),
        ([tensor("a", 1, 2), tensor("b", 1, 1)], "Expected [-1,1], got [1,2]. NOTE: Setting a non"),
        ([tensor("a", 1), tensor("b", 1)], "Expected [-1,1], got [1]. NOTE"),
        ([tensor("a", 1, 1, size=3), tensor("b", 1, 1)], "Expected 4, got 3"),
        ([tensor("a", 1, 1), tensor("b", 1, 1, size=8)], "mismatch for input 'b'"),
    ],
)
def test_inputs_must_fit_the_model(tensors, problem):
    assert problem in refusal(ADD_SUB, *tensors)


def test_batch_is_checked_before_the_datatype():
    first = tensor("a", 9, 1, dtype=dtypes.INT32)

    assert "batch-size must be <= 8" in refusal(ADD_SUB, first, tensor("b", 9, 1))


def test_shape_of_a_model_without_batches_is_named_without_the_note():
    assert refusal(single(dtypes.FP32, (2,)), tensor("IN", 3)) == (
        "[request id: <id_unknown>] unexpected shape for input 'IN' for model 'model'. "
        "Expected [2], got [3]. "
    )


@pytest.mark.parametrize("shape", [(-1, 2), (-1, -2), (2, -1)])
def test_negative_dimensions_are_refused(shape):
    # gRPC carries signed sizes; the product of two negative ones looks right.
    message = refusal(single(dtypes.FP32, (-1, -1)), tensor("IN", *shape, size=8))

    assert message == (
        "[request id: <id_unknown>] All input dimensions should be specified for input 'IN' for "
        f"model 'model', got [{shape[0]},{shape[1]}]"
    )


@pytest.mark.parametrize("dtype", [dtypes.FP32, dtypes.BYTES], ids=repr)
def test_element_count_beyond_63_bits_is_refused(dtype):
    huge = tensor("IN", 2**32, 2**32, dtype=dtype, size=4)

    assert refusal(single(dtype, (-1, -1)), huge) == (
        "element count for tensor 'IN' exceeds maximum size of 9223372036854775807"
    )


def test_byte_size_beyond_63_bits_is_refused():
    huge = tensor("IN", 2**62, size=4)

    assert refusal(single(dtypes.FP32), huge) == (
        "byte size for tensor 'IN' exceeds maximum size of 9223372036854775807"
    )


def test_strings_pass_where_they_are_as_many_as_the_shape_says():
    assert validated(single(dtypes.BYTES), strings(b"", b"a\0", b"\xff" * 300)).rows == 1


def test_zero_dimensions_pass_where_the_model_leaves_them_open():
    assert validated(single(dtypes.FP32, (-1, 3), 4), tensor("IN", 2, 0, 3)).rows == 2


@pytest.mark.parametrize(
    "data,problem",
    [
        (b"\1\0", "incomplete string length indicator for inference input 'IN' for model 'model'"),
        (b"\5\0\0\0ab", "expecting string of length 5 but only 2 bytes available"),
        (b"\xff\xff\xff\xff", "expecting string of length 4294967295 but only 0 bytes available"),
        (b"", "expected 1 string elements for inference input 'IN' for model 'model', got 0"),
        (bytes(8), "unexpected number of string elements 2 for inference input 'IN'"),
    ],
)
def test_broken_strings_are_refused(data, problem):
    broken = InferTensor("IN", dtypes.BYTES, (1,), memoryview(data))

    assert problem in refusal(single(dtypes.BYTES), broken)


# GPU memory

IN_REGION = DevicePlace("r", 1, b"h", 0, 4, 0, 4)


def test_strings_in_gpu_memory_are_refused():
    use = DeviceUse({"IN": IN_REGION}, {})
    with pytest.raises(UnsupportedError, match="has strings, which the server does not"):
        validate(
            request(tensor("IN", 1, dtype=dtypes.BYTES, size=4), device=use), single(dtypes.BYTES)
        )


def test_gpu_memory_is_refused_by_a_model_of_sequences():
    spec = msgspec.structs.replace(ADD_SUB, sequence=SequenceSpec())
    with pytest.raises(UnsupportedError, match="is a model of sequences, which takes no tensors"):
        validated(
            spec, tensor("a", 1, 1), tensor("b", 1, 1), device=DeviceUse({"a": IN_REGION}, {})
        )
