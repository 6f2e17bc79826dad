# SPDX-License-Identifier: Apache-2.0
"""A stream counts only if every request got all of its responses, in their order."""

from __future__ import annotations

import struct

import pytest
from tritonclient.grpc import service_pb2

from benchmarks.stream_loads import check_responses, repeat_request


def response(request: int, index: int, value: int | None = None) -> bytes:
    message = service_pb2.ModelStreamInferResponse()
    answer = message.infer_response
    answer.id = str(request)
    number = index if value is None else value
    for name, raw in (("OUT", struct.pack("<i", number)), ("IDX", struct.pack("<I", index))):
        answer.outputs.add(name=name)
        answer.raw_output_contents.append(raw)
    return message.SerializeToString()


def test_responses_of_several_requests_may_be_mixed():
    mixed = [response(0, 0), response(1, 0), response(1, 1), response(0, 1)]

    check_responses(mixed, requests=2, responses=2)  # raises for a response that is wrong


@pytest.mark.parametrize(
    "responses",
    [
        pytest.param([response(0, 0)], id="one is missing"),
        pytest.param([response(0, 0), response(0, 1), response(0, 1)], id="one came twice"),
        pytest.param([response(0, 1), response(0, 0)], id="out of order"),
        pytest.param([response(0, 0), response(0, 1, value=7)], id="another value"),
    ],
)
def test_wrong_responses_are_an_error(responses):
    with pytest.raises(RuntimeError, match=r"expected 0 to 1 for every request, not so for \['0'"):
        check_responses(responses, requests=1, responses=2)


def test_error_on_the_stream_keeps_its_text():
    error = service_pb2.ModelStreamInferResponse(error_message="no such model")

    with pytest.raises(RuntimeError, match="got the error 'no such model'"):
        check_responses([error.SerializeToString()], requests=1, responses=1)


def test_request_asks_for_as_many_responses_as_it_has_elements():
    request = service_pb2.ModelInferRequest.FromString(repeat_request(3, request_id=7)[5:])

    shapes = {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in request.inputs}
    assert request.id == "7"
    assert shapes == {"IN": ("INT32", [3]), "DELAY": ("UINT32", [3]), "WAIT": ("UINT32", [1])}
    assert request.raw_input_contents[0] == struct.pack("<3i", 0, 1, 2)
