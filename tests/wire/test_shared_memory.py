# SPDX-License-Identifier: Apache-2.0
"""Tensors in regions, as requests of both protocols and large JSON describe them."""

from __future__ import annotations

import orjson
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.protocol.kserve_json import parse_infer
from pytriton.protocol.kserve_response import encode_infer_response, encode_large_infer_response
from pytriton.protocol.shared_memory import RegionPlace, SystemRegion, read_system_region
from pytriton.serving.server.codec.child import run_job
from pytriton.serving.server.codec.messages import (
    Job,
    JobKind,
    ParsedModel,
    decode_reply,
    encode,
)
from pytriton.serving.server.codec.pool import _request
from tests.wire.specs import model_spec, tensor_spec

SPEC = model_spec(
    tensor_spec("a", dtypes.INT32, (-1,), batched=False),
    tensor_spec("b", dtypes.INT32, (-1,), batched=False),
    outputs=("c", "d"),
    max_batch_size=0,
)
PLACE = RegionPlace("r", 8, 16)
PARAMETERS = {
    "shared_memory_region": "r",
    "shared_memory_offset": 8,
    "shared_memory_byte_size": 16,
}
INPUT = {"name": "a", "datatype": "INT32", "shape": [4]}
BODY = {
    "inputs": [
        {**INPUT, "parameters": PARAMETERS},
        {**INPUT, "name": "b", "data": [1, 2, 3, 4]},
    ],
    "outputs": [{"name": "c", "parameters": PARAMETERS}, {"name": "d"}],
}


def test_request_with_places_is_read():
    request, output_format = parse_infer(orjson.dumps(BODY), None, SPEC)

    assert request.uses_regions
    assert request.inputs["a"].data == PLACE
    assert bytes(request.inputs["b"].data) == bytes(
        [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]
    )
    assert output_format.places() == {"c": PLACE}


def test_request_without_places_does_not_say_that_it_has_some():
    body = {"inputs": [{**INPUT, "data": [1, 2, 3, 4]}], "outputs": [{"name": "d"}]}

    request, output_format = parse_infer(orjson.dumps(body), None, SPEC)

    assert not request.uses_regions
    assert output_format.places() == {}


def test_binary_data_of_other_inputs_follows_the_json():
    body = {
        "inputs": [
            BODY["inputs"][0],
            {**INPUT, "name": "b", "parameters": {"binary_data_size": 16}},
        ]
    }
    text = orjson.dumps(body)

    request, _ = parse_infer(text + bytes(range(16)), len(text), SPEC)

    assert request.inputs["a"].data == PLACE
    assert bytes(request.inputs["b"].data) == bytes(range(16))


def test_places_survive_the_process_that_parses_large_json():
    text = orjson.dumps(BODY)
    job = Job(JobKind.INFER, len(text), 1 << 20, len(text), ParsedModel.of(SPEC))

    reply, payload = run_job(job, text)
    copy = decode_reply(encode(reply))
    request = _request(copy, payload, memoryview(b""), SPEC)

    assert copy.payload_sizes == [16]
    assert request.uses_regions
    assert request.inputs["a"].data == PLACE
    assert copy.output_choices["c"] == (False, 0, PLACE)
    assert copy.output_choices["d"] == (False, 0, None)


@pytest.mark.parametrize("encode_response", [encode_infer_response, encode_large_infer_response])
def test_output_in_a_region_has_no_data_in_the_response(encode_response):
    _, output_format = parse_infer(orjson.dumps(BODY), None, SPEC)
    tensors = [
        InferTensor("c", dtypes.INT32, (4,), b""),
        InferTensor("d", dtypes.INT32, (1,), b"\1\0\0\0"),
    ]

    length, parts = encode_response(InferResponse("m", "1", "", tensors), output_format)

    assert length is None
    assert orjson.loads(b"".join(parts))["outputs"] == [
        {"name": "c", "datatype": "INT32", "shape": [4]},
        {"name": "d", "datatype": "INT32", "shape": [1], "data": [1]},
    ]


@pytest.mark.parametrize("other", [{"classification": 1}, {"binary_data": True}])
def test_output_is_in_one_place_only(other):
    body = {**BODY, "outputs": [{"name": "c", "parameters": {**PARAMETERS, **other}}]}

    with pytest.raises(InvalidArgumentError, match="Output can't set both 'shared_memory_region'"):
        parse_infer(orjson.dumps(body), None, SPEC)


def test_first_of_repeated_members_registers_a_region():
    body = b'{"key": "/a", "byte_size": 1, "key": "/b", "offset": 2, "byte_size": 3, "offset": 4}'

    assert read_system_region(body) == SystemRegion("/a", 2, 1)
