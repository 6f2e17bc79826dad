# SPDX-License-Identifier: Apache-2.0
"""Large gRPC requests, and small ones that could become large: read in pieces, or refused early."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.protos import service_pb2
from pytriton.protocol import kserve_pb, tensor_contents
from pytriton.protocol.kserve_pb import MAX_DIMENSIONS, MAX_FIELDS
from pytriton.protocol.protobuf_fields import FieldError, split_fields
from pytriton.protocol.tensor_contents import LargeContents, tensor_from_contents

EMPTY = {"parameters": b"\x22\x00", "inputs": b"\x2a\x00", "outputs": b"\x32\x00"}
RAW = b"\x3a\x00"
LARGE = 1 << 20  # fields of which a message must not make objects

_Request = service_pb2.ModelInferRequest


def refusal(content: bytes) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        kserve_pb.parse_message(content)
    return caught.value.message


@pytest.mark.parametrize("count", [MAX_FIELDS + 1, LARGE])
@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_too_many_parts_are_refused_before_they_are_made(what, count):
    content = b"\x0a\x01m" + EMPTY[what] * count

    assert refusal(content) == (
        f"expected at most {MAX_FIELDS} {what} in a request, got at least {MAX_FIELDS + 1}"
    )


@pytest.mark.parametrize("count", [MAX_FIELDS + 1, LARGE])
def test_too_many_raw_tensors_are_refused_before_they_are_made(count):
    assert "raw_input_contents in a request" in refusal(b"\x0a\x01m" + RAW * count)


def test_too_many_parameters_are_refused_before_they_are_made():
    assert "parameters in a request" in refusal(b"\x0a\x01m" + EMPTY["parameters"] * LARGE)


def test_too_many_fields_that_nobody_knows_are_refused():
    assert "unknown fields in a request" in refusal(b"\x0a\x01m" + b"\x7a\x00" * LARGE)


def test_as_many_parts_as_are_allowed_are_read():
    request = _Request(model_name="m")
    for at in range(MAX_FIELDS):
        request.inputs.add(name=str(at))
        request.outputs.add(name=str(at))
        request.parameters[str(at)].int64_param = at
        request.raw_input_contents.append(b"ab")
    parsed, raw = kserve_pb.parse_message(request.SerializeToString())

    assert (
        len(parsed.inputs)
        == len(parsed.outputs)
        == len(parsed.parameters)
        == len(raw)
        == MAX_FIELDS
    )


def test_shape_of_too_many_dimensions_is_refused():
    request = _Request(model_name="m")
    request.inputs.add(name="x", shape=[1] * (MAX_DIMENSIONS + 1))

    assert refusal(request.SerializeToString()) == (
        f"expected at most {MAX_DIMENSIONS} dimensions of an input, got {MAX_DIMENSIONS + 1}"
    )


@pytest.mark.parametrize("field", ["model_name", "model_version", "id"])
def test_text_that_is_very_long_is_refused(field):
    text = "a" * (kserve_pb.MAX_HEAD_BYTES + 1)
    message = refusal(_Request(**{field: text}).SerializeToString())

    assert str(kserve_pb.MAX_HEAD_BYTES) in message
    assert str(len(text)) in message


def test_long_texts_and_parameters_are_read():
    text = "é" * 100_000
    request = _Request(model_name="m", id=text)
    request.parameters["prompt"].string_param = text
    request.inputs.add(name="x", datatype="FP32", shape=[2, 3])
    request.inputs[0].parameters["note"].string_param = text
    request.outputs.add(name=text)
    request.raw_input_contents.append(bytes(24))
    parsed, raw = kserve_pb.parse_message(request.SerializeToString())

    assert parsed.id == text
    assert parsed.parameters["prompt"].value == text
    assert parsed.inputs[0][:3] == ("x", dtypes.FP32, (2, 3))
    assert parsed.outputs[0].name == text
    assert [bytes(part) for part in raw] == [bytes(24)]


def test_large_message_in_any_order_is_read():
    first = _Request(raw_input_contents=[bytes(100_000), b"ab"])
    second = _Request(model_name="old", model_version="1")
    third = _Request(model_name="m", raw_input_contents=[b"c"])
    third.inputs.add(name="x", datatype="UINT8", shape=[100_000])
    content = b"".join(part.SerializeToString() for part in (first, second, third))
    parsed, raw = kserve_pb.parse_message(content + b"\x78\x05")  # and an unknown field

    assert (parsed.model_name, parsed.model_version) == ("m", "1")
    assert parsed.inputs[0].name == "x"
    assert [len(part) for part in raw] == [100_000, 2, 1]


@pytest.mark.parametrize("damage", [b"\x2a\xff\xff\x7f", b"\x0a\x01\xff", b"\x0b", b"\x00\x00"])
def test_large_message_that_is_damaged_is_refused(damage):
    content = _Request(raw_input_contents=[bytes(100_000)]).SerializeToString()
    with pytest.raises(InternalError, match="Unable to parse request"):
        kserve_pb.parse_message(content + damage)


# Typed tensors


def large(**fields) -> LargeContents:
    contents = service_pb2.InferTensorContents(**fields)
    return LargeContents([memoryview(contents.SerializeToString())])


def unpacked(tag: int, elements: list[bytes]) -> LargeContents:
    return LargeContents([memoryview(b"".join(bytes((tag,)) + part for part in elements))])


NUMBERS = np.random.default_rng(1).integers(-(2**63), 2**63, 50_000)
SMALL_NUMBERS = np.arange(300_000) % 100
SIGNED = [("INT8", "int_contents"), ("INT16", "int_contents"), ("INT32", "int_contents")]
UNSIGNED = [("UINT8", "uint_contents"), ("UINT16", "uint_contents"), ("UINT32", "uint_contents")]


@pytest.mark.parametrize("numbers", [NUMBERS, SMALL_NUMBERS, NUMBERS[:1]], ids=len)
@pytest.mark.parametrize(
    "datatype, field",
    [*SIGNED, *UNSIGNED, ("INT64", "int64_contents"), ("UINT64", "uint64_contents")],
)
def test_large_integers_are_read_as_small_ones_are(numbers, datatype, field):
    dtype = dtypes.BY_NAME[datatype]
    wide = {"int_contents": np.int32, "uint_contents": np.uint32}.get(field, dtype.numpy)
    elements = numbers.astype(wide).tolist()
    plain = service_pb2.InferTensorContents(**{field: elements})
    read = tensor_from_contents(large(**{field: elements}), dtype, "x", "m")

    assert bytes(read) == tensor_from_contents(plain, dtype, "x", "m")


def test_large_booleans_floats_and_texts_are_read_as_small_ones_are():
    cases = [
        ("BOOL", "bool_contents", (NUMBERS > 0).tolist()),
        ("FP32", "fp32_contents", np.arange(1000, dtype=np.float32).tolist()),
        ("FP64", "fp64_contents", np.arange(1000).astype(float).tolist()),
        ("BYTES", "bytes_contents", [b"a" * (at % 300) for at in range(1000)]),
    ]
    for datatype, field, elements in cases:
        dtype = dtypes.BY_NAME[datatype]
        plain = service_pb2.InferTensorContents(**{field: elements})
        read = tensor_from_contents(large(**{field: elements}), dtype, "x", "m")
        assert bytes(read) == bytes(tensor_from_contents(plain, dtype, "x", "m")), datatype


def test_elements_that_are_not_packed_are_read():
    numbers = unpacked(0x10, [b"\x01", b"\x80\x01", b"\x02"])
    floats = unpacked(0x35, [bytes(4), b"\0\0\x80\x3f"])

    assert bytes(tensor_from_contents(numbers, dtypes.INT32, "x", "m")) == bytes(
        np.array([1, 128, 2], np.int32)
    )
    assert bytes(tensor_from_contents(floats, dtypes.FP32, "x", "m")) == bytes(
        np.array([0, 1], np.float32)
    )


def test_contents_in_several_parts_are_one_tensor():
    parts = [
        memoryview(service_pb2.InferTensorContents(fp32_contents=[at]).SerializeToString())
        for at in (1, 2)
    ]

    assert bytes(tensor_from_contents(LargeContents(parts), dtypes.FP32, "x", "m")) == bytes(
        np.array([1, 2], np.float32)
    )


def test_field_with_a_wrong_wire_type_is_ignored_as_protobuf_does():
    assert not tensor_from_contents(unpacked(0x30, [b"\x01"]), dtypes.FP32, "x", "m")


def test_wrong_field_of_a_large_tensor_is_refused_with_the_same_words():
    with pytest.raises(InvalidArgumentError, match="of type 'INT32', expected datatype 'FP32'"):
        tensor_from_contents(large(int_contents=[1]), dtypes.FP32, "x", "m")


@pytest.mark.parametrize("content", [b"\x12\x01\x80", b"\x12\x0b" + b"\x80" * 11, b"\x12\x05a"])
def test_damaged_contents_are_refused(content):
    with pytest.raises(InternalError, match="Unable to parse request"):
        tensor_from_contents(LargeContents([memoryview(content)]), dtypes.INT32, "x", "m")


def test_texts_of_a_tensor_of_40_mebibytes_with_nothing_in_them_are_not_too_many():
    texts = (40 << 20) // len(dtypes.encode_bytes([b""]))  # Triton's own tests send that many

    assert texts <= tensor_contents.MAX_TEXTS


def test_too_many_texts_are_refused(monkeypatch):
    monkeypatch.setattr(tensor_contents, "MAX_TEXTS", 100)

    with pytest.raises(InvalidArgumentError, match="at most 100 texts"):
        tensor_from_contents(large(bytes_contents=[b""] * 101), dtypes.BYTES, "x", "m")


def test_too_many_numbers_that_are_not_packed_are_refused(monkeypatch):
    monkeypatch.setattr(tensor_contents, "MAX_SINGLE_NUMBERS", 100)

    with pytest.raises(InvalidArgumentError, match="at most 100 numbers that are not packed"):
        tensor_from_contents(unpacked(0x10, [b"\x01"] * 101), dtypes.INT32, "x", "m")


@pytest.mark.parametrize("content", [b"\x42", b"\x42\x02a", b"\x42\x80", b"\x42\x81\x01a"])
def test_texts_that_are_cut_off_are_refused(content):
    with pytest.raises(InternalError, match="Unable to parse request"):
        tensor_from_contents(LargeContents([memoryview(content)]), dtypes.BYTES, "x", "m")


def test_typed_tensor_of_a_large_message_is_only_found():
    request = _Request(model_name="m")
    request.inputs.add(name="x", datatype="INT32", shape=[100_000])
    request.inputs[0].contents.int_contents.extend(range(100_000))
    parsed, raw = kserve_pb.parse_message(request.SerializeToString())

    (item,) = parsed.inputs
    assert (item.name, item.dtype, item.shape) == ("x", dtypes.INT32, (100_000,))
    assert isinstance(item.contents, LargeContents)
    assert not raw


def test_fields_are_cut_where_protobuf_cuts_them():
    content = b"\x0a\x02ab\x10\x96\x01\x1d\0\0\0\0\x21" + bytes(8) + b"\xfa\x01\x00"

    fields = [
        (item.number, item.wire_type, item.stop - item.start) for item in split_fields(content)
    ]
    assert fields == [(1, 2, 2), (2, 0, 2), (3, 5, 4), (4, 1, 8), (31, 2, 0)]


@pytest.mark.parametrize("content", [b"\x0a\x05a", b"\x10", b"\x0b\x0c", b"\x02\x00", b"\x1d\0"])
def test_bytes_that_are_no_fields_are_refused(content):
    with pytest.raises(FieldError):
        list(split_fields(content))
