# SPDX-License-Identifier: Apache-2.0
"""Infer requests with a mistake, down to the wording of the answer."""

from __future__ import annotations

from typing import Any

from tests.differential.case import Case, Observation, binary, error, infer, tensor
from tests.differential.cases_forms import (
    ONE,
    binary_identity,
    identity,
    in_binary,
    output,
    outputs,
    strings,
)
from tests.differential.cases_server import ADD_SUB, ADD_SUB_BODY

MAX = 2**63 - 1
TOO_DEEP = "JSON nesting depth exceeds maximum allowed limit (100)"
DEEP = f"Unable to parse 'data': {TOO_DEEP}"
LISTED = "the names that would have been right follow the real server's words"
NEWER = "a later release of the real server answers so"


def without_place(body: Any) -> Any:
    """An error without the name of the member that it is in.

    It depends on the versions of Python and orjson whether text with thousands of arrays is parsed
    at all, and only then the member is known.
    """
    return {"error": body["error"].removeprefix("Unable to parse 'data': ")}


def prefixed(text: str) -> tuple[Observation]:
    return error(400, f"[request id: <id_unknown>] {text}")


def first_line(document: Any) -> Any:
    """Of a failure its text; the places in the model's file follow, which are the server's own."""
    return {"error": document["error"].split("\n")[0]}


def model_failure(document: Any) -> Any:
    """Of a model's failure the type and the text, without the name of the instance."""
    _, found, text = document["error"].partition("ValueError: ")
    return found + text.split("\n")[0]


def parse_error(text: str) -> tuple[Observation]:
    return error(500, f"failed to parse the request JSON buffer: {text}")


SYNTAX = [
    infer(f"text {text!r}", "add_sub", text)
    for text in (
        " ", "{", "[", "}", "]", "{}", "[]", "1", '"a"', "null", "tru", "true x", "{}x", "{} {}",
        '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', "{a:1}", '{"a" 1}', '{"a":1 "b":2}',
        '{"a":[1 2]}', '{"a":[1', '{"a":[1,', '{"a":[1,]}', '{"a":[,1]}', '{"a":tru}', '{"a":nulx}',
        '{"a":falsy}', '{"a":Nax}', '{"a":Inx}', '{"a":Infinitx}', '{"a":-x}', '{"a":-}',
        '{"a":-Inx}', '{"a":01}', '{"a":1.}', '{"a":1.x}', '{"a":.5}', '{"a":1e}', '{"a":1e+}',
        '{"a":1e400}', '{"a":-1e400}', '{"a":+1}', "{'a':1}", '{"a":"x', r'{"a":"x\q"}',
        r'{"a":"\u12g4"}', r'{"a":"\u12', r'{"a":"\ud800"}', r'{"a":"\ud800\u0041"}',
        '{"a":"x\ny"}', '{"a":"\x01"}', '{"a":"\x00"}', '{"a":"\\', '{"\u00e9":"\u00e9","a" 1}',
        "{1:2}", '{"a":1]', "[1}", "{,}", '{"a":{"b":1]}', "/*c*/{}", '{"a":0x10}', '{"a":1.5.5}',
        '{"a":--1}', '{"a":1-1}', "\ufeff{", '[{"b":1 2}]', '{"a":[{"b":[1,2 3]}]}',
    )
] + [
    infer("text that is not UTF-8", "add_sub", b'{"\xff":1 1}'),
    infer(
        "lone low surrogate",
        "add_sub",
        r'{"a":"\udc00"}',
        ours=parse_error("The surrogate pair in string is invalid. at 6"),
        because="half a character is no text; later releases of the parser refuse it too",
    ),
    infer(
        "text after a NUL",
        "add_sub",
        ADD_SUB_BODY + b"\0more",
        ours=parse_error(
            f"The document root must not be followed by other values. at {len(ADD_SUB_BODY)}"
        ),
        because="a NUL does not end the body",
    ),
]  # fmt: skip

ROOT = [
    infer("id of a wrong type", "add_sub", {"id": 1, **ADD_SUB}),
    infer("id null", "add_sub", {"id": None, **ADD_SUB}),
    infer("inputs missing", "add_sub", {"id": "x"}),
    infer("inputs of a wrong type", "add_sub", {"inputs": {}}),
    infer("no inputs", "add_sub", {"inputs": []}),
    infer("id before inputs", "add_sub", {"inputs": 1, "id": 1}),
    infer(
        "member twice",
        "add_sub",
        '{"id":"first","id":"last","inputs":[]}',
        ours=error(
            400,
            "[request id: last] expected 2 inputs but got 0 inputs for model 'add_sub'. Got "
            "input(s) [], but missing required input(s) ['a','b']. Please provide all required "
            "input(s).",
        ),
        because="of a repeated member the last counts, as in every JSON parser of Python",
    ),
    infer(
        "id with a NUL",
        "add_sub",
        {"id": "a\0b", "inputs": []},
        ours=error(
            400,
            "[request id: a\0b] expected 2 inputs but got 0 inputs for model 'add_sub'. Got "
            "input(s) [], but missing required input(s) ['a','b']. Please provide all required "
            "input(s).",
        ),
        because="an id is echoed whole, not up to its first NUL",
    ),
]


def parameters(name: str, value: Any, **options: Any) -> Case:
    body = {"parameters": value, "inputs": [tensor("IN", "INT32", [1, 1], [1])]}
    return infer(f"parameters {name}", "parameters", body, **options)


PARAMETERS = [
    parameters("none", {}),
    parameters("of every type", {"a": 1, "b": -1, "c": 1.5, "d": "text", "e": True}),
    parameters("beyond 64 bits", {"a": 2**63, "b": 2**70}),
    parameters("consumed", {"sequence_id": 5, "sequence_start": True, "sequence_end": False,
                            "priority": 1, "timeout": 1000000, "binary_data_output": False}),
    parameters("sequence id text", {"sequence_id": "abc"}),
    parameters("sequence id too long", {"sequence_id": "x" * 129}),
    parameters("sequence id negative", {"sequence_id": -1}),
    parameters("sequence id boolean", {"sequence_id": True}),
    parameters("sequence start number", {"sequence_start": 1}),
    parameters("sequence end text", {"sequence_end": "x"}),
    parameters("priority text", {"priority": "1"}),
    parameters("priority negative", {"priority": -1}),
    parameters("timeout float", {"timeout": 1.5}),
    parameters("binary output number", {"binary_data_output": 1}),
    parameters("reserved", {"triton_x": 1}),
    parameters("null", {"a": None}),
    parameters("array", {"a": []}),
    parameters("object", {"a": {}}),
    parameters("not an object", []),
    parameters("root null", None),
]  # fmt: skip

A, B = ADD_SUB["inputs"]
ELSEWHERE = {"shared_memory_region": "r", "shared_memory_byte_size": 4}


def inputs(name: str, *entries: Any, model: str = "add_sub", **options: Any) -> Case:
    return infer(f"input {name}", model, {"inputs": list(entries)}, **options)


def without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


INPUTS = [
    inputs("not an object", 1, B),
    inputs("empty object", {}, B),
    inputs("without a name", without(A, "name"), B),
    inputs("name of a wrong type", {**A, "name": 1}, B),
    inputs("without a datatype", without(A, "datatype"), B),
    inputs("datatype of a wrong type", {**A, "datatype": 1}, B),
    inputs("unknown datatype", {**A, "datatype": "FP99"}, B),
    inputs("datatype in lower case", {**A, "datatype": "fp32"}, B),
    inputs("empty datatype", {**A, "datatype": ""}, B),
    inputs("without a shape", without(A, "shape"), B),
    inputs("shape of a wrong type", {**A, "shape": 1}, B),
    inputs("shape with a negative", {**A, "shape": [-1, 1]}, B),
    inputs("shape with a float", {**A, "shape": [1.0, 1]}, B),
    inputs("shape with a boolean", {**A, "shape": [True, 1]}, B),
    inputs("shape with text", {**A, "shape": ["1", 1]}, B),
    inputs("without data", without(A, "data"), B),
    inputs("data of a wrong type", {**A, "data": 1}, B),
    inputs("data null", {**A, "data": None}, B),
    inputs("two sources", {**A, "parameters": {"binary_data_size": 4}}, B),
    inputs("three sources", {**A, "parameters": {"binary_data_size": 4, **ELSEWHERE}}, B),
    inputs("parameters of a wrong type", {**A, "parameters": []}, B),
    inputs("unknown parameters", {**A, "parameters": {"x": None}}, B),
    inputs("in an unknown region", {**without(A, "data"), "parameters": ELSEWHERE}, B),
    inputs("region of a wrong type",
           {**without(A, "data"), "parameters": {"shared_memory_region": 1}}, B),
    inputs("twice", A, A),
    inputs("missing", A),
    inputs("unknown", A, {**B, "name": "c"},
           ours=error(400, "unexpected inference input 'c' for model 'add_sub'. Its input(s) are "
                           "['a','b']."),
           because=LISTED),
    inputs("one too many", A, B, {**B, "name": "c"},
           ours=prefixed("expected 2 inputs but got 3 inputs for model 'add_sub'. Got input(s) "
                         "['a','b','c'], but missing required input(s) []. Please provide all "
                         "required input(s)."),
           because="names come in the order of the request and the list that is empty is closed"),
    inputs("optional only", tensor("extra", "FP32", [1, 1], [1]), model="optional", view=first_line,
           ours=prefixed("expected number of inputs between 1 and 2 but got 1 inputs for model "
                         "'optional'. Got input(s) ['extra'], but missing required input(s) "
                         "['required']. Please provide all required input(s)."),
           because="the real server lets the model fail on the input that is missing"),
    inputs("none for an optional model", model="optional"),
    inputs("unknown for an optional model", {**A, "name": "required"}, {**A, "name": "c"},
           model="optional",
           ours=error(400, "unexpected inference input 'c' for model 'optional'. Its input(s) are "
                           "['required','extra']."),
           because=LISTED),
    inputs("without a batch", {**A, "shape": []}, B),
    inputs("of another batch size", A, {**B, "shape": [2, 1], "data": [1, 2]},
           ours=prefixed("input 'b' batch size does not match other inputs for 'add_sub'"),
           because="inputs are read in the order of the request, not in that of a hash table"),
    inputs("beyond the batch size", tensor("a", "FP32", [9, 1], [0] * 9),
           tensor("b", "FP32", [9, 1], [0] * 9)),
    inputs("of batch size zero", tensor("a", "FP32", [0, 1], []), tensor("b", "FP32", [0, 1], []),
           ours=prefixed("inference request batch-size must be >= 1 for 'add_sub'"),
           because="the real server counts one row, and then misses its bytes"),
    inputs("of another datatype", {**A, "datatype": "INT32"}, B),
    inputs("of another rank", {**A, "shape": [1, 1, 1]}, B),
    inputs("of another size", {**A, "shape": [1, 2], "data": [1, 2]}, B),
    inputs("transposed", tensor("IN", "INT32", [3, 2], [0] * 6), model="fixed"),
    inputs("of rank zero", tensor("IN", "FP32", [], [1]), model="id_fp32"),
    inputs("with an unknown mistake and a batch mistake", {**A, "datatype": "INT32"},
           {**B, "shape": [9, 1], "data": [0] * 9},
           ours=prefixed("input 'b' batch size does not match other inputs for 'add_sub'"),
           because="inputs are read in the order of the request, not in that of a hash table"),
]  # fmt: skip

DATA = [
    identity("bool of a number", "BOOL", "[1]"),
    identity("uint8 of a negative", "UINT8", "[-1]"),
    identity("uint8 of a float", "UINT8", "[1.0]"),
    identity("uint8 of a boolean", "UINT8", "[true]"),
    identity("uint8 beyond 64 bits", "UINT8", "[18446744073709551616]"),
    identity("int8 beyond 64 bits", "INT8", "[9223372036854775808]"),
    identity("int64 of an exponent", "INT64", "[1e2]"),
    identity("int64 of text", "INT64", '["1"]'),
    identity("fp32 of a boolean", "FP32", "[true]"),
    identity("fp32 of null", "FP32", "[null]"),
    identity("fp32 of an object", "FP32", "[{}]"),
    identity("fp16 in JSON", "FP16", "[1]"),
    identity("bf16 in JSON", "BF16", "[1]"),
    identity("strings of a number", "BYTES", "[1]"),
    identity("strings of null", "BYTES", "[null]"),
    identity("strings alone", "BYTES", '"a"'),
    identity("elements too many", "FP32", "[1,2]"),
    identity("elements too few", "FP32", "[1]", 2),
    identity("elements missing", "FP32", "[]", 1),
    identity("type mistake after the last", "FP32", '[1,"x"]'),
    identity("type mistake before the last", "FP32", '["x",1,2]'),
    identity("strings too many", "BYTES", '["a","b","c"]'),
    identity("strings too few", "BYTES", '["a"]', 3),
    identity("elements for a zero dimension", "FP32", "[1]", 0,
             ours=error(500, "Unable to parse 'data': Shape does not match true shape of 'data' "
                             "field"),
             because="what is sent and dropped is a mistake"),
    identity("nested 99 deep", "FP32", "[" * 99 + "1" + "]" * 99),
    identity("nested 100 deep", "FP32", "[" * 100 + "1" + "]" * 100,
             ours=error(400, DEEP), because=NEWER),
    identity("strings nested 100 deep", "BYTES", "[" * 100 + '"1"' + "]" * 100,
             ours=error(400, TOO_DEEP), because=NEWER),
    identity("nested 5000 deep", "FP32", "[" * 5000 + "1" + "]" * 5000,
             view=without_place, ours=error(400, TOO_DEEP), because=NEWER),
    identity("dimension beyond 63 bits", "FP32", "[1]", 2**63,
             ours=error(400, f"invalid shape for input 'IN': shape [{2**63}] contains one or more "
                             "invalid dimensions"),
             because=NEWER),
    identity("dimension of 64 bits", "FP32", "[1]", 2**64 - 1, only_ours=True,
             ours=error(400, f"invalid shape for input 'IN': shape [{2**64 - 1}] contains one or "
                             "more invalid dimensions"),
             because="the real server dies"),
    identity("bytes beyond 63 bits", "FP32", "[1]", 2**61, only_ours=True,
             ours=error(400, f"byte size overflow for input 'IN': element count ({2**61}) * data "
                             f"type size (4) exceeds maximum allowed size ({MAX})"),
             because="the real server may die allocating them"),
    inputs("of too many elements", tensor("IN", "FP32", [2**4, 2**60 + 2], [1]), model="matrix",
           only_ours=True,
           ours=error(400, f"invalid shape for input 'IN': shape [16,{2**60 + 2}] causes total "
                           f"element count to exceed maximum size of {MAX}"),
           because="the real server may die computing them"),
]  # fmt: skip

BINARY = [
    binary("binary part too short", "add_sub", {
        "inputs": [in_binary("a", "FP32", [1, 1], 4), in_binary("b", "FP32", [1, 1], 4)]
    }, ONE + b"123"),
    binary("binary part too long", "add_sub", {
        "inputs": [in_binary("a", "FP32", [1, 1], 4), in_binary("b", "FP32", [1, 1], 4)]
    }, ONE + ONE + b"1"),
    binary("binary size of a wrong type", "add_sub", {
        "inputs": [{**without(A, "data"), "parameters": {"binary_data_size": "4"}}, B]
    }, ONE),
    binary("binary size negative", "add_sub", {
        "inputs": [{**without(A, "data"), "parameters": {"binary_data_size": -4}}, B]
    }, ONE),
    binary("binary size enormous", "add_sub", {
        "inputs": [{**without(A, "data"), "parameters": {"binary_data_size": 2**62}}, B]
    }, ONE),
    binary("binary size of another shape", "add_sub", {
        "inputs": [in_binary("a", "FP32", [1, 1], 3), B]
    }, b"123"),
    binary("binary tail without inputs", "add_sub", ADD_SUB, b"tail"),
    infer("binary part without a header length", "add_sub", {
        "inputs": [in_binary("a", "FP32", [1, 1], 4), B]
    }),
    binary_identity("string length cut", "BYTES", 1, b"\1\0"),
    binary_identity("second string length cut", "BYTES", 2, strings(b"a") + b"\1\0"),
    binary_identity("string cut", "BYTES", 1, b"\5\0\0\0ab"),
    binary_identity("string length enormous", "BYTES", 1, b"\xff\xff\xff\xff"),
    binary_identity("binary strings too many", "BYTES", 1, strings(b"a", b"b", b"c")),
    binary_identity("binary strings too few", "BYTES", 3, strings(b"a", b"b")),
    binary_identity("string for a zero dimension", "BYTES", 0, strings(b"")),
]  # fmt: skip


def header_length(value: str, **options: Any) -> Case:
    headers = {"Inference-Header-Content-Length": value}
    return infer(f"header length {value!r}", "add_sub", ADD_SUB_BODY, headers=headers, **options)


def not_a_number(value: str) -> Case:
    text = f"Unable to parse Inference-Header-Content-Length, got: {value}"
    return header_length(value, ours=error(400, text), because=NEWER)


def out_of_range(value: str) -> Case:
    text = (
        "Unable to parse Inference-Header-Content-Length, value is out of range "
        f"[ -2147483648, 2147483647 ], got: {value}"
    )
    return header_length(value, ours=error(400, text), because=NEWER)


HEADER_LENGTH = [
    header_length(str(len(ADD_SUB_BODY))),
    header_length(str(len(ADD_SUB_BODY) - 1)),
    header_length(str(len(ADD_SUB_BODY) + 1)),
    header_length("1"),
    header_length("-1"),
    header_length("100000"),
    not_a_number("x"),
    not_a_number("12abc"),
    not_a_number("1.5"),
    out_of_range("99999999999"),
    out_of_range("-2147483649"),
]

OUTPUTS = [
    outputs("outputs null", None),
    outputs("outputs of a wrong type", {}),
    outputs("output not an object", [1]),
    outputs("output without a name", [{}]),
    outputs("output name of a wrong type", [{"name": 1}]),
    outputs("output unknown", [output("nobody")]),
    outputs("output twice", [output("add"), output("add")],
            ours=prefixed("output 'add' already exists in request"), because=NEWER),
    outputs("output twice and more", [output("add")] * 5000,
            ours=prefixed("output 'add' already exists in request"), because=NEWER),
    outputs("binary data of a wrong type", [output("add", binary_data=1)]),
    outputs("classes of a wrong type", [output("add", classification="x")]),
    outputs("classes negative", [output("add", classification=-1)]),
    outputs("output parameters of a wrong type", [{"name": "add", "parameters": 1}]),
    outputs("output in an unknown region", [output("add", **ELSEWHERE)]),
    outputs("output in a region and classes", [output("add", classification=1, **ELSEWHERE)]),
    outputs("output in a region and binary", [output("add", binary_data=True, **ELSEWHERE)]),
    infer("outputs and a mistake in the inputs", "add_sub", {"inputs": [A], "outputs": 1}),
    infer("unknown output and a missing input", "add_sub", {
        "id": "x", "inputs": [A], "outputs": [{"name": "nobody"}]
    }),
]  # fmt: skip


FAILURES = [
    infer(
        "failing model",
        "failing",
        {"inputs": [tensor("IN", "FP32", [1], [1])]},
        view=model_failure,
    ),
]

CASES = [
    *SYNTAX, *ROOT, *PARAMETERS, *INPUTS, *DATA, *BINARY, *HEADER_LENGTH, *OUTPUTS, *FAILURES,
]  # fmt: skip
