# SPDX-License-Identifier: Apache-2.0
"""Infer requests in every form: datatypes, binary parts, requested outputs, compression, raw."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from typing import Any

from tests.differential.case import (
    BECAUSE_OF_DIVISION,
    NO_CLASSES_OF_STRINGS,
    Case,
    Observation,
    binary,
    error,
    infer,
    tensor,
)
from tests.differential.cases_server import ADD_SUB, ADD_SUB_BODY

ONE = struct.pack("<f", 1.0)


def strings(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def in_binary(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    description = {"name": name, "datatype": datatype, "shape": shape}
    return {**description, "parameters": {"binary_data_size": size}}


def identity(name: str, datatype: str, data: str, count: int = 1, **options: Any) -> Case:
    """An identity of JSON data, given as text."""
    model = f"id_{datatype.lower()}"
    body = f'{{"inputs":[{{"name":"IN","datatype":"{datatype}","shape":[{count}],"data":{data}}}]}}'
    return infer(name, model, body, **options)


def beyond(name: str, datatype: str, data: str, count: int, limits: str, value: int) -> Case:
    """An identity of integers that the datatype has not."""
    text = (
        f"Unable to parse 'data': expected {datatype} numbers from {limits} for input 'IN', "
        f"got {value}"
    )
    because = "the real server computes with other numbers than the client sent"
    return identity(name, datatype, data, count, ours=error(400, text), because=because)


def binary_identity(
    name: str, datatype: str, count: int, blob: bytes, *, binary_out: bool = True, **options: Any
) -> Case:
    header: dict[str, Any] = {"inputs": [in_binary("IN", datatype, [count], len(blob))]}
    if binary_out:
        header["parameters"] = {"binary_data_output": True}
    return binary(name, f"id_{datatype.lower()}", header, blob, **options)


JSON_VALUES = [
    identity("bool", "BOOL", "[true,false,true]", 3),
    *(
        identity(f"{datatype.lower()} largest", datatype, f"[0,1,{2**bits - 1}]", 3)
        for datatype, bits in (("UINT8", 8), ("UINT16", 16), ("UINT32", 32), ("UINT64", 64))
    ),
    *(
        identity(f"{datatype.lower()} extremes", datatype, f"[{-(2**bits)},0,{2**bits - 1}]", 3)
        for datatype, bits in (("INT8", 7), ("INT16", 15), ("INT32", 31), ("INT64", 63))
    ),
    beyond("uint8 truncated", "UINT8", "[300,18446744073709551615]", 2, "0 to 255", 300),
    beyond("int8 truncated", "INT8", "[300,-129,9223372036854775807]", 3, "-128 to 127", 300),
    beyond(
        "int32 truncated", "INT32", "[4294967297,2147483648]", 2, "-2147483648 to 2147483647",
        4294967297,
    ),
    identity("minus zero as integer", "UINT8", "[-0]"),
    identity("fp32 of integers", "FP32", "[1,-2,18446744073709551615]", 3),
    identity("fp32 of floats", "FP32", "[0.1,1e-5,123456789.5,-0.0]", 4),
    identity("fp32 beyond its range", "FP32", "[1e39,-1e39,1e-50]", 3),
    identity("fp32 of a long integer", "FP32", "[123456789012345678901234567890]"),
    identity("fp32 not a number", "FP32", "[NaN,-NaN,Infinity,-Infinity,Inf,-Inf]", 6),
    identity("fp64", "FP64", "[0.1,1e300,1e-300,1.7976931348623157e308,12345678901234567890]", 5),
    identity("fp64 not a number", "FP64", "[NaN,Inf]", 2),
    identity("fp32, many", "FP32", str([number / 3 for number in range(200)]), 200),
    identity("int32, many", "INT32", str(list(range(-100, 100))), 200),
    identity("nested arrays", "FP32", "[[1,2],[3,4]]", 4),
    identity("uneven arrays", "INT32", "[[1,[2]],3,[[4]]]", 4),
    identity("no elements", "FP32", "[]", 0),
    identity("strings", "BYTES", '["a","","caf\u00e9 \\u00e9","\\ud83d\\ude00"]', 4),
    identity("strings with escapes", "BYTES", r'["a\u0000b","\n\t\"\\\/","\u0001"]', 3),
    identity("nested strings", "BYTES", '[["a"],["b"]]', 2),
    identity("no strings", "BYTES", "[]", 0),
    infer(
        "strings that are not UTF-8",
        "id_bytes",
        b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["\xff\xfe"]}]}',
    ),
    infer("special values", "special", {"inputs": [tensor("IN", "FP32", [1], [0])]}),
    infer("bytes that are not UTF-8", "raw_bytes", {"inputs": [tensor("IN", "FP32", [1], [0])]}),
    infer("batch of two", "add_sub", {
        "inputs": [tensor("a", "FP32", [2, 1], [1, 2]), tensor("b", "FP32", [2, 1], [[3], [4]])]
    }),
    infer("fixed shape", "fixed", {"inputs": [tensor("IN", "INT32", [2, 3], [1, 2, 3, 4, 5, 6])]}),
    infer("zero dimension", "matrix", {"inputs": [tensor("IN", "FP32", [2, 0, 3], [])]}),
    infer("optional input left out", "optional", {
        "inputs": [tensor("required", "FP32", [1, 1], [1])]
    }),
    infer("optional input given", "optional", {
        "inputs": [tensor("extra", "FP32", [1, 1], [5]), tensor("required", "FP32", [1, 1], [1])]
    }),
    infer("byte order mark", "add_sub", b"\xef\xbb\xbf" + ADD_SUB_BODY),
    infer("blanks around", "add_sub", b" \r\n\t" + ADD_SUB_BODY + b" \n"),
    infer("unknown members", "add_sub", {**ADD_SUB, "more": [{"deep": [None]}], "x": 1e5}),
    infer("id", "add_sub", {"id": "request 1", **ADD_SUB}),
    infer("id with escapes", "add_sub", {"id": 'q"\n\u00e9', **ADD_SUB}),
    infer("empty id", "add_sub", {"id": "", **ADD_SUB}),
]  # fmt: skip

BINARY = [
    binary("two binary inputs", "add_sub", {
        "inputs": [in_binary("a", "FP32", [1, 1], 4), in_binary("b", "FP32", [1, 1], 4)]
    }, ONE + ONE),
    binary("binary and JSON inputs", "add_sub", {
        "inputs": [in_binary("a", "FP32", [1, 1], 4), tensor("b", "FP32", [1, 1], [2])]
    }, ONE),
    binary_identity("binary bool", "BOOL", 3, b"\1\0\2"),
    binary_identity("binary uint16", "UINT16", 2, b"\1\2\3\4"),
    binary_identity("binary int64", "INT64", 1, bytes(range(8))),
    binary_identity("binary fp16", "FP16", 2, b"\0<\0="),
    binary_identity("binary bf16", "BF16", 2, b"\x80?\0@"),
    binary_identity("binary fp64", "FP64", 1, struct.pack("<d", 0.1)),
    binary_identity("binary fp32 as JSON", "FP32", 1, ONE, binary_out=False),
    binary_identity("binary strings", "BYTES", 4, strings(b"", b"a\0b", b"\xff\xfe", b"x" * 300)),
    binary_identity(
        "binary strings as JSON", "BYTES", 2, strings(b"a\0b", b"\xff"), binary_out=False
    ),
    binary_identity("binary without elements", "FP32", 0, b""),
    binary_identity("binary without strings", "BYTES", 0, b""),
    binary_identity("fp16 as JSON", "FP16", 1, b"\0<", binary_out=False),
    binary_identity("bf16 as JSON", "BF16", 1, b"\x80?", binary_out=False),
]  # fmt: skip


def outputs(name: str, entries: Any, default_binary: bool | None = None, **options: Any) -> Case:
    body: dict[str, Any] = {**ADD_SUB, "outputs": entries}
    if default_binary is not None:
        body["parameters"] = {"binary_data_output": default_binary}
    return infer(name, "add_sub", body, **options)


def output(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def classes(name: str, model: str, inputs: dict[str, Any], count: int, **options: Any) -> Case:
    body = {"inputs": [inputs], "outputs": [output("OUT", classification=count)]}
    return infer(name, model, body, **options)


ROWS = tensor("IN", "FP32", [2, 2, 3], [3, 1, 2, 9, 9, 4, 0, -1, 5, 1e20, 1e-9, 7])
OUTPUTS = [
    outputs("one output", [output("add")]),
    outputs("outputs in another order", [output("sub"), output("add")]),
    outputs("no listed outputs", []),
    outputs("binary output", [output("add", binary_data=True)]),
    outputs("binary and JSON output", [output("add", binary_data=True), output("sub")]),
    outputs("JSON output by request", [output("add", binary_data=False)]),
    outputs("binary by default", [], default_binary=True),
    outputs("listed output under a binary default", [output("add")], default_binary=True),
    outputs("JSON by default", [], default_binary=False),
    outputs("class of a scalar", [output("add", classification=1)]),
    outputs("binary classes", [output("add", classification=5, binary_data=True)]),
    outputs("zero classes", [output("add", classification=0)]),
    classes("best of each row", "vector", ROWS, 1),
    classes("all classes of each row", "vector", ROWS, 99),
    classes("classes of integers", "id_int32", tensor("IN", "INT32", [5], [3, 1, -2, 9, 9]), 4),
    classes("classes of doubles", "id_fp64", tensor("IN", "FP64", [3], [1e300, 1e-9, -2.5]), 3),
    classes(
        "classes of unsigned",
        "id_uint64",
        tensor("IN", "UINT64", [3], [18446744073709551615, 0, 5]),
        3,
    ),
    classes(
        "classes of strings",
        "id_bytes",
        tensor("IN", "BYTES", [2], ["a", "b"]),
        1,
        only_ours=True,
        ours=error(400, NO_CLASSES_OF_STRINGS),
        because=BECAUSE_OF_DIVISION,
    ),
    classes("classes of booleans", "id_bool", tensor("IN", "BOOL", [2], [True, False]), 1),
    classes(
        "classes of nothing",
        "id_fp32",
        tensor("IN", "FP32", [0], []),
        3,
        only_ours=True,
        ours=(
            {
                "status": 200,
                "type": "application/json",
                "body": {
                    "model_name": "id_fp32",
                    "model_version": "1",
                    "outputs": [{"name": "OUT", "datatype": "BYTES", "shape": [0], "data": []}],
                },
            },
        ),
        because="the real server divides by zero and dies",
    ),
]

RAW = [
    infer("raw vector", "id_fp32", ONE * 3, headers={"Inference-Header-Content-Length": "0"}),
    infer("raw rows", "vector", ONE * 4, headers={"Inference-Header-Content-Length": "0"}),
    infer("raw fixed", "fixed", ONE * 6, headers={"Inference-Header-Content-Length": "0"}),
    infer("raw word", "word", b"hello", headers={"Inference-Header-Content-Length": "0"}),
    infer("raw empty word", "word", b"", headers={"Inference-Header-Content-Length": "0"}),
    infer("empty body", "id_fp32", b""),
    infer("empty body, two inputs", "add_sub", b""),
    infer("raw of two inputs", "add_sub", ONE, headers={"Inference-Header-Content-Length": "0"}),
    infer("raw matrix", "matrix", ONE, headers={"Inference-Header-Content-Length": "0"}),
    infer("raw strings", "id_bytes", b"hi", headers={"Inference-Header-Content-Length": "0"}),
    infer(
        "raw of a broken size",
        "vector",
        ONE * 3,
        headers={"Inference-Header-Content-Length": "0"},
        ours=error(
            400,
            "[request id: <id_unknown>] input byte size mismatch for input 'IN' for model "
            "'vector'. Expected 8, got 12",
        ),
        because="the input is named as the model names it, not by an internal name",
    ),
]


def encoded(name: str, encoding: str, body: bytes, **options: Any) -> Case:
    return infer(name, "add_sub", body, headers={"Content-Encoding": encoding}, **options)


def accepting(value: str, **options: Any) -> Case:
    headers = {"Accept-Encoding": value}
    return infer(f"accept {value!r}", "add_sub", ADD_SUB, headers=headers, **options)


def damaged(encoding: str, reason: str) -> tuple[Observation]:
    text = f"expected a request body in {encoding} format, got data that does not inflate: {reason}"
    return error(400, text)


PACKED = gzip.compress(ADD_SUB_BODY, mtime=0)
PACKED_HEADER = json.dumps(
    {"inputs": [in_binary("IN", "FP32", [1], 4)], "parameters": {"binary_data_output": True}}
).encode()
COMPRESSION = [
    encoded("gzip body", "gzip", PACKED),
    encoded("deflate body", "deflate", zlib.compress(ADD_SUB_BODY)),
    encoded("identity body", "identity", ADD_SUB_BODY),
    encoded("gzip body called deflate", "deflate", PACKED),
    encoded("unknown encoding", "br", ADD_SUB_BODY),
    encoded("list of encodings", "gzip, deflate", ADD_SUB_BODY),
    encoded("empty gzip body", "gzip", b""),
    encoded("gzip body with a tail", "gzip", PACKED + b"tail"),
    encoded(
        "plain body called gzip",
        "gzip",
        ADD_SUB_BODY,
        ours=damaged("gzip", "Error -3 while decompressing data: incorrect header check"),
        because="the real server takes the damaged body for an empty one",
    ),
    encoded(
        "gzip body cut short",
        "gzip",
        PACKED[:-12],
        ours=damaged("gzip", "the data ends early"),
        because="the real server parses the part that it could inflate",
    ),
    *map(
        accepting,
        [
            "gzip", "deflate", "identity", "gzip, deflate", "deflate, gzip", "br", "*", "br, gzip",
            "gzip;q=0.5, deflate;q=0.6", "gzip;q=0", "identity, gzip", "gzip, identity",
            "identity;q=0.1, gzip;q=0.9", "gzip;q=0.5", "gzip;q=x",
        ],
    ),
    infer(
        "gzip both ways with binary parts",
        "id_fp32",
        gzip.compress(PACKED_HEADER + ONE, mtime=0),
        headers={
            "Content-Encoding": "gzip",
            "Accept-Encoding": "gzip",
            "Inference-Header-Content-Length": str(len(PACKED_HEADER)),
        },
    ),
]  # fmt: skip

CASES = [*JSON_VALUES, *BINARY, *OUTPUTS, *RAW, *COMPRESSION]
