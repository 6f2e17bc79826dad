# SPDX-License-Identifier: Apache-2.0
"""ModelInfer, right and wrong: contents, parameters, outputs, and the words of every refusal."""

from __future__ import annotations

from typing import Any

from tests.differential.case import BECAUSE_OF_DIVISION, NO_CLASSES_OF_STRINGS
from tests.differential.grpc_case import (
    GrpcCase,
    Observation,
    add_sub,
    floats,
    infer,
    integers,
    message,
    output,
    tensor,
)


def first_line(seen: Observation) -> Observation:
    """Of a failure its text; the places in the model's file follow, which are the server's own."""
    return {**seen, "details": seen.get("details", "").split("\n")[0]}


def failure(seen: Observation) -> Observation:
    """Of a model's failure the type and the text, without the name of the instance."""
    _, found, text = seen.get("details", "").partition("ValueError: ")
    return {"status": seen["status"], "details": found + text.split("\n")[0]}


NEWER = "a later release of the real server answers so"
UNKNOWN_C = {
    "ours": {
        "status": "INVALID_ARGUMENT",
        "details": "unexpected inference input 'c' for model 'add_sub'. "
        "Its input(s) are ['a','b'].",
    },
    "because": "the names that would have been right follow the real server's words",
}


def refusal(text: str, **options: Any) -> dict[str, Any]:
    """Our answer with the prefix of the core's errors, and why it differs."""
    details = f"[request id: <id_unknown>] {text}"
    return {"ours": {"status": "INVALID_ARGUMENT", "details": details}, **options}


def overflow(text: str) -> dict[str, Any]:
    return {"ours": {"status": "INVALID_ARGUMENT", "details": text}, "because": NEWER}


def identity(datatype: str, contents: dict[str, Any], count: int = 2, **fields: Any) -> Any:
    """A request to the identity model of a datatype with typed contents."""
    model = f"id_{fields.pop('model', datatype).lower()}"
    return message(model, [tensor("IN", datatype, [count], **contents)], **fields)


def parameters(**values: Any) -> Any:
    """A request to the model that shows its parameters."""
    inputs = [tensor("IN", "INT32", [1, 1])]
    return message("parameters", inputs, raw=[integers(0)], parameters=values)


def matrix(shape: list[int], *raw: bytes, **fields: Any) -> Any:
    return message("matrix", [tensor("IN", "FP32", shape)], raw=raw, **fields)


def strings(shape: list[int], *raw: bytes) -> Any:
    return message("id_bytes", [tensor("IN", "BYTES", shape)], raw=raw)


AB = [tensor("a", "FP32", [1, 1]), tensor("b", "FP32", [1, 1])]
ONE = {"fp32_contents": [1.0]}
TYPED_AB = [tensor("a", "FP32", [1, 1], **ONE), tensor("b", "FP32", [1, 1], **ONE)]

CONTENTS = [
    infer("raw contents", add_sub()),
    infer("typed contents", add_sub(inputs=TYPED_AB, raw=[])),
    infer("an id", add_sub(id="seven")),
    infer("a version", add_sub(model_version="1")),
    infer("a batch", add_sub(inputs=[tensor("a", "FP32", [2, 1]), tensor("b", "FP32", [2, 1])],
                             raw=[floats(1, 2), floats(3, 4)])),
    infer("BOOL contents", identity("BOOL", {"bool_contents": [True, False]})),
    infer("INT8 contents", identity("INT8", {"int_contents": [-1, 127]})),
    infer("INT8 contents that overflow", identity("INT8", {"int_contents": [128, 511]})),
    infer("INT16 contents", identity("INT16", {"int_contents": [-1, 70000]})),
    infer("INT32 contents", identity("INT32", {"int_contents": [-1, 2**31 - 1]})),
    infer("INT64 contents", identity("INT64", {"int64_contents": [-1, 2**62]})),
    infer("UINT8 contents", identity("UINT8", {"uint_contents": [1, 256]})),
    infer("UINT16 contents", identity("UINT16", {"uint_contents": [1, 65535]})),
    infer("UINT32 contents", identity("UINT32", {"uint_contents": [1, 2**32 - 1]})),
    infer("UINT64 contents", identity("UINT64", {"uint64_contents": [1, 2**64 - 1]})),
    infer("FP32 contents", identity("FP32", {"fp32_contents": [1.5, -0.0]})),
    infer("FP64 contents", identity("FP64", {"fp64_contents": [1.5, 1e300]})),
    infer("BYTES contents", identity("BYTES", {"bytes_contents": [b"one", b""]})),
    infer("raw BYTES", strings([2], b"\x03\x00\x00\x00one\x00\x00\x00\x00")),
    infer("raw FP16", message("id_fp16", [tensor("IN", "FP16", [2])], raw=[b"\x00\x3c\x00\x40"])),
    infer("raw BF16", message("id_bf16", [tensor("IN", "BF16", [1])], raw=[b"\x80\x3f"])),
    infer("special values", message("special", [tensor("IN", "FP32", [1])], raw=[floats(0)])),
    infer("bytes that are not UTF-8", message("raw_bytes", [tensor("IN", "FP32", [1])],
                                              raw=[floats(0)])),
    infer("no elements", message("id_int32", [tensor("IN", "INT32", [0])], raw=[b""])),
    infer("surplus raw contents", add_sub(raw=[floats(1), floats(2), b"more"])),
    infer("an optional input", message("optional", [tensor("required", "FP32", [1, 1])],
                                       raw=[floats(5)])),
]  # fmt: skip

CONTENT_MISTAKES = [
    infer("no contents", add_sub(raw=[])),
    infer("too few raw contents", add_sub(raw=[floats(1)])),
    infer("raw and typed contents", add_sub(inputs=TYPED_AB)),
    infer("typed then raw", add_sub(inputs=[TYPED_AB[0], AB[1]], raw=[floats(2)])),
    infer("raw then typed", add_sub(inputs=[AB[0], TYPED_AB[1]], raw=[floats(2)])),
    infer("typed then nothing", add_sub(inputs=[TYPED_AB[0], AB[1]], raw=[])),
    infer("another field", identity("INT32", {"int64_contents": [1, 2]})),
    infer("another field, small", identity("INT8", {"uint_contents": [1, 2]})),
    infer("another field, FP16", identity("FP16", {"fp32_contents": [1, 2]})),
    infer("another field, BYTES", identity("BYTES", {"int_contents": [1, 2]})),
    infer("another field, BOOL", identity("BOOL", {"int_contents": [1, 0]})),
    infer("two fields", identity("INT32", {"int_contents": [1, 2], "fp32_contents": [1.0]})),
    infer("empty typed contents", identity("INT32", {"int_contents": []}, count=0)),
    infer("typed contents of no field", identity("INT32", {"int_contents": []})),
    infer("too many elements", identity("INT32", {"int_contents": [1, 2, 3]})),
    infer("too few elements", identity("FP32", {"fp32_contents": [1]})),
    infer("too few strings", identity("BYTES", {"bytes_contents": [b"one"]})),
    infer("too many bytes", add_sub(raw=[floats(1, 2), floats(2)])),
    infer("too few bytes", add_sub(raw=[b"\x00", floats(2)])),
    infer("a broken length of a string", strings([1], b"\x03\x00")),
    infer("more strings than the shape", strings([1], b"\x00\x00\x00\x00" * 2)),
    infer("fewer strings than the shape", strings([2], b"\x00\x00\x00\x00")),
]

NAME_MISTAKES = [
    infer("unknown model", message("nobody")),
    infer("no model", message("")),
    infer("unknown version", add_sub(model_version="4")),
    infer("bad version", add_sub(model_version="first")),
    infer("negative version", add_sub(model_version="-2")),
    infer("a decoupled model", message("repeat", [tensor("IN", "INT32", [1])], raw=[integers(1)])),
    infer("no inputs", message("add_sub")),
    infer("one input of two", add_sub(inputs=AB[:1])),
    infer("an input too many", add_sub(inputs=[*AB, tensor("c", "FP32", [1, 1])],
                                       raw=[floats(1)] * 3), **refusal(
        "expected 2 inputs but got 3 inputs for model 'add_sub'. Got input(s) ['a','b','c'], but "
        "missing required input(s) []. Please provide all required input(s).",
        because="names are in the client's order, and the bracket is opened")),
    infer("another input", add_sub(inputs=[AB[0], tensor("c", "FP32", [1, 1])]), **UNKNOWN_C),
    infer("an input twice", add_sub(inputs=[AB[0], AB[0]])),
    infer("another input than the optional", message(
        "optional", [tensor("extra", "FP32", [1, 1])], raw=[floats(1)]), **refusal(
        "expected number of inputs between 1 and 2 but got 1 inputs for model 'optional'. "
        "Got input(s) ['extra'], but missing required input(s) ['required']. "
        "Please provide all required input(s).",
        because="a model never runs without an input that it requires"), view=first_line),
    infer("unknown datatype", add_sub(inputs=[tensor("a", "FLOAT", [1, 1]), AB[1]])),
    infer("no datatype", add_sub(inputs=[tensor("a", "", [1, 1]), AB[1]])),
    infer("another datatype", add_sub(inputs=[tensor("a", "INT32", [1, 1]), AB[1]])),
    infer("datatype in small letters", add_sub(inputs=[tensor("a", "fp32", [1, 1]), AB[1]])),
    infer("unknown datatype with contents", add_sub(
        inputs=[tensor("a", "FLOAT", [1, 1], **ONE), TYPED_AB[1]], raw=[])),
    infer("an unknown datatype of an unknown input", add_sub(
        inputs=[AB[0], tensor("c", "FLOAT", [1, 1])]), **UNKNOWN_C),
]  # fmt: skip

SHAPE_MISTAKES = [
    infer("no shape", add_sub(inputs=[tensor("a", "FP32", []), AB[1]])),
    infer("no batch dimension", add_sub(inputs=[tensor("a", "FP32", [1]), AB[1]])),
    infer("another shape", add_sub(inputs=[tensor("a", "FP32", [1, 2]), AB[1]],
                                   raw=[floats(1, 2), floats(2)])),
    infer("batches that differ", add_sub(inputs=[tensor("a", "FP32", [2, 1]), AB[1]],
                                         raw=[floats(1, 2), floats(2)]), **refusal(
        "input 'b' batch size does not match other inputs for 'add_sub'",
        because="the first input sets the size, whatever the order in a table")),
    infer("a batch too large", add_sub(
        inputs=[tensor("a", "FP32", [9, 1]), tensor("b", "FP32", [9, 1])],
        raw=[floats(*range(9))] * 2)),
    infer("another rank", matrix([1, 2], floats(1, 2))),
    infer("a negative dimension", matrix([1, -1, 2], floats(1, 2))),
    infer("a negative batch", matrix([-1, 1, 2], floats(1, 2)), **refusal(
        "All input dimensions should be specified for input 'IN' for model 'matrix', got [-1,1,2]",
        because="a negative size is no size")),
    infer("a negative fixed dimension", message("fixed", [tensor("IN", "INT32", [-2, 3])],
                                                raw=[integers(1)]), **refusal(
        "All input dimensions should be specified for input 'IN' for model 'fixed', got [-2,3]",
        because="a negative size is no size")),
    infer("a shape that overflows", matrix([1, 2**62, 4], floats(1)),
          **overflow("element count for tensor 'IN' exceeds maximum size of 9223372036854775807")),
    infer("a size that overflows", matrix([1, 2**61, 1], floats(1)),
          **overflow("byte size for tensor 'IN' exceeds maximum size of 9223372036854775807")),
    infer("another fixed shape", message("fixed", [tensor("IN", "INT32", [3, 2])],
                                         raw=[integers(*range(6))])),
]  # fmt: skip

PARAMETERS = [
    infer("custom parameters", parameters(flag=True, number=-5, text="hé", real=1.5)),
    infer("an unsigned parameter", parameters(number=("uint64_param", 5))),
    infer("a parameter without a value", parameters(nothing=None)),
    infer("a reserved parameter", parameters(triton_secret="x")),
    infer("the empty final parameter", parameters(triton_enable_empty_final_response=True)),
    infer("the empty final parameter as text", parameters(triton_enable_empty_final_response="x")),
    infer("sequence parameters", parameters(sequence_id=5, sequence_start=True, sequence_end=True)),
    infer("a sequence id as text", parameters(sequence_id="five")),
    infer("a long sequence id", parameters(sequence_id="x" * 129)),
    infer("a sequence id as a flag", parameters(sequence_id=True)),
    infer("a sequence start as a number", parameters(sequence_start=1)),
    infer("a sequence end as text", parameters(sequence_end="true")),
    infer("a priority", parameters(priority=1)),
    infer("an unsigned priority", parameters(priority=("uint64_param", 2))),
    infer("a negative priority", parameters(priority=-1)),
    infer("a priority as text", parameters(priority="1")),
    infer("a timeout", parameters(timeout=1_000_000)),
    infer("a timeout as text", parameters(timeout="1")),
    infer("a negative timeout", parameters(timeout=-1)),
    infer("binary_data_output", parameters(binary_data_output=True)),
    infer("headers", parameters(headers="x")),
    infer("forwarded metadata", parameters(), metadata=(("x-name", "value"), ("y-name", "other"))),
    infer("forwarded metadata beside parameters", parameters(a=1), metadata=(("x-b", "2"),)),
]

OUTPUTS = [
    infer("one output", add_sub(outputs=[output("sub")])),
    infer("outputs in another order", add_sub(outputs=[output("sub"), output("add")])),
    infer("unknown output", add_sub(outputs=[output("mul")])),
    infer("an output twice", add_sub(outputs=[output("add"), output("add")]),
          **refusal("output 'add' already exists in request", because=NEWER)),
    infer("classes", matrix([1, 1, 3], floats(1, 3, 2), outputs=[output("OUT", classification=2)])),
    infer("more classes than there are", matrix(
        [2, 1, 2], floats(1, 3, 2, 0), outputs=[output("OUT", classification=9)])),
    infer("classes of integers", message("fixed", [tensor("IN", "INT32", [2, 3])],
                                         raw=[integers(5, 4, 9, 9, 1, 2)],
                                         outputs=[output("OUT", classification=3)])),
    infer("no classes", matrix([1, 1, 1], floats(1), outputs=[output("OUT", classification=0)])),
    infer("negative classes", matrix([1, 1, 1], floats(1),
                                     outputs=[output("OUT", classification=-1)])),
    infer("classes as text", matrix([1, 1, 1], floats(1),
                                    outputs=[output("OUT", classification="1")])),
    infer("classes of strings", message(
        "id_bytes", [tensor("IN", "BYTES", [1])], raw=[b"\x00\x00\x00\x00"],
        outputs=[output("OUT", classification=1)]), only_ours=True, because=BECAUSE_OF_DIVISION,
        ours={"status": "INVALID_ARGUMENT", "details": NO_CLASSES_OF_STRINGS}),
    infer("classes of FP16", message(
        "id_fp16", [tensor("IN", "FP16", [1])], raw=[b"\x00\x00"],
        outputs=[output("OUT", classification=1)])),
    infer("an unknown parameter of an output", add_sub(outputs=[output("add", colour="red")])),
    infer("an unknown region for an output", add_sub(
        outputs=[output("add", shared_memory_region="r", shared_memory_byte_size=4)])),
    infer("an unknown region for an input", add_sub(inputs=[
        tensor("a", "FP32", [1, 1], {"shared_memory_region": "r", "shared_memory_byte_size": 4}),
        AB[1]], raw=[floats(1)])),
    infer("a region and classes", add_sub(outputs=[
        output("add", shared_memory_region="r", shared_memory_byte_size=4, classification=1)])),
]  # fmt: skip

OTHERS = [
    infer("a failing model", message("failing", [tensor("IN", "FP32", [1])], raw=[floats(1)]),
          view=failure),
    infer("bytes that are no request", b"\xff\xff"),
    infer("a request that ends early", b"\x0a\x06add"),
    infer("a name that is not UTF-8", b"\x0a\x02\xff\xfe"),
    infer("an unknown field", add_sub().SerializeToString() + b"\x98\x06\x01"),
    infer("fields in another order", b"".join(
        part.SerializeToString() for part in (
            message("", raw=[floats(1)]), message("", AB), message("add_sub", raw=[floats(2)])))),
    infer("a name twice", b"\x0a\x03bad" + add_sub().SerializeToString()),
    infer("nothing at all", b""),
]  # fmt: skip

UNARY_CASES: list[GrpcCase] = [
    *CONTENTS, *CONTENT_MISTAKES, *NAME_MISTAKES, *SHAPE_MISTAKES, *PARAMETERS, *OUTPUTS, *OTHERS,
]  # fmt: skip
