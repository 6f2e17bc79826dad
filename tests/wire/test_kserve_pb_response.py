# SPDX-License-Identifier: Apache-2.0
"""The infer response over gRPC: what protobuf reads of it, and that tensors stay where they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.protos import service_pb2
from pytriton.protocol import kserve_pb_response
from pytriton.protocol.kserve_pb_response import (
    encode_empty_final,
    encode_infer_response,
    encode_length,
    encode_stream_failure,
    encode_stream_refusal,
    encode_stream_response,
    message_size,
)

TENSORS = st.builds(
    InferTensor,
    st.text(max_size=8),
    st.sampled_from([dtypes.FP32, dtypes.BYTES, dtypes.BF16]),
    st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    st.binary(max_size=300),
)
PARAMETERS = st.dictionaries(
    st.text(max_size=4),
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    max_size=3,
)
RESPONSES = st.builds(
    InferResponse,
    st.text(max_size=8),
    st.text(max_size=3),
    st.text(max_size=200),
    st.lists(TENSORS, max_size=3),
    st.none() | PARAMETERS,
)
SUM = InferTensor("sum", dtypes.FP32, (1, 2), b"\0\0\x80\x3f\0\0\0\x40")


def read(parts, message_class=service_pb2.ModelInferResponse):
    return message_class.FromString(b"".join(parts))


def read_stream(parts):
    return read(parts, service_pb2.ModelStreamInferResponse)


def values(message) -> dict:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in message.parameters.items()
    }


@given(RESPONSES)
def test_response_is_read_as_it_was(response):
    message = read(encode_infer_response(response))

    assert message.model_name == response.model_name
    assert message.model_version == response.model_version
    assert message.id == response.id
    assert values(message) == (response.parameters or {})
    assert [
        (item.name, item.datatype, tuple(item.shape), data)
        for item, data in zip(message.outputs, message.raw_output_contents, strict=True)
    ] == [(item.name, item.dtype.name, item.shape, item.data) for item in response.outputs]


@given(RESPONSES, st.booleans())
def test_streamed_response_has_its_final_flag(response, is_final):
    parts = encode_stream_response(encode_infer_response(response), is_final=is_final)

    inner = read_stream(parts).infer_response
    assert values(inner)["triton_final_response"] is is_final
    assert inner.id == response.id
    assert len(inner.raw_output_contents) == len(response.outputs)


def test_tensors_are_passed_on_by_reference():
    data = memoryview(bytearray(100))
    response = InferResponse("m", "1", "", [InferTensor("y", dtypes.UINT8, (100,), data)])

    assert any(part is data for part in encode_infer_response(response))


def test_classes_take_the_place_of_a_tensor():
    response = InferResponse("m", "1", "", [SUM])

    message = read(encode_infer_response(response, {"sum": 1}, labels={"sum": ["a", "b"]}))

    assert message.outputs[0].datatype == "BYTES"
    assert list(message.outputs[0].shape) == [1, 1]
    assert message.raw_output_contents[0][4:] == b"2.000000:1:b"


def test_zero_classes_leave_the_tensor():
    message = read(encode_infer_response(InferResponse("m", "1", "", [SUM]), {"sum": 0}))

    assert message.raw_output_contents[0] == SUM.data


def test_empty_final_names_the_request():
    message = read_stream(encode_empty_final("m", "", "seven"))

    assert not message.error_message
    assert (message.infer_response.model_name, message.infer_response.id) == ("m", "seven")
    assert values(message.infer_response) == {"triton_final_response": True}


def test_refusal_has_only_text_and_id():
    message = read_stream(encode_stream_refusal("no", "seven"))

    assert message.error_message == "no"
    assert message.infer_response == service_pb2.ModelInferResponse(id="seven")


def test_failure_is_the_last_word_on_a_request():
    message = read_stream(encode_stream_failure("broken", "seven", "m", "2"))

    inner = message.infer_response
    assert message.error_message == "broken"
    assert (inner.id, inner.model_name, inner.model_version) == ("seven", "m", "2")
    assert values(inner) == {"triton_final_response": True}


@pytest.mark.parametrize(
    "size, encoded",
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\1"), (2**31 - 1, b"\xff" * 4 + b"\7")],
)
def test_lengths_are_written_as_protobuf_does(size, encoded):
    assert encode_length(size) == encoded


def test_message_that_grpc_cannot_carry_is_refused(monkeypatch):
    monkeypatch.setattr(kserve_pb_response, "MAX_MESSAGE_BYTES", 9)

    assert message_size([b"12345", b"6789"]) == 9
    with pytest.raises(InvalidArgumentError, match="byte size 10 which exceeds"):
        message_size([b"12345", b"67890"])


def test_memory_of_known_heads_is_bounded():
    for number in range(5000):
        tensor = InferTensor(f"y{number}", dtypes.UINT8, (number,), b"")
        encode_infer_response(InferResponse(f"m{number}", "1", "", [tensor]))

    assert read(encode_infer_response(InferResponse("m", "1", "", [SUM]))).outputs[0].name == "sum"
