# SPDX-License-Identifier: Apache-2.0
"""Generate and generate_stream requests."""

from __future__ import annotations

import gzip
from typing import Any

from tests.differential.case import Case, error, get, post
from tests.differential.cases_mistakes import model_failure, prefixed


def generate(name: str, model: str, body: object, **options: Any) -> Case:
    return post(f"generate {name}", f"/v2/models/{model}/generate", body, **options)


def stream(name: str, model: str, body: object, **options: Any) -> Case:
    return post(f"stream {name}", f"/v2/models/{model}/generate_stream", body, **options)


INPUTS = [
    generate("scalars", "add_sub", {"a": 1, "b": 2}),
    generate("arrays of one", "add_sub", {"a": [1], "b": [2]}),
    generate("batch of two", "add_sub", {"a": [1, 2], "b": [3, 4]}),
    generate("nested input", "add_sub", {"a": 1, "parameters": {"b": 2}}),
    generate("id", "add_sub", {"id": "z", "a": 1, "b": 2}),
    generate("text", "id_bytes", {"IN": "hello"}),
    generate("texts", "id_bytes", {"IN": ["a", "b"]}),
    generate("nested texts", "id_bytes", {"IN": [["a"], ["b"]]}),
    generate("no text", "id_bytes", {"IN": []}),
    generate("empty text", "id_bytes", {"IN": ""}),
    generate("words", "word", {"IN": ["a", "b", "c"]}),
    generate("fixed shape", "fixed", {"IN": [1, 2, 3, 4, 5, 6]}),
    generate("two variable dimensions", "matrix", {"IN": [1, 2, 3, 4]}),
    generate("rows", "vector", {"IN": [1, 2, 3, 4]}),
    generate("boolean", "id_bool", {"IN": True}),
    generate("special values", "special", {"IN": 1}),
    generate("bytes that are not UTF-8", "raw_bytes", {"IN": 1}),
    generate("no numbers", "id_fp32", {"IN": []}),
    generate("not a number", "id_fp32", '{"IN": NaN}'),
    generate("decoupled model", "decoupled", {"IN": [1, 2]}),
    post("generate version", "/v2/models/add_sub/versions/1/generate", {"a": 1, "b": 2}),
    generate("accepting gzip", "word", {"IN": "x"}, headers={"Accept-Encoding": "gzip"}),
]

PARAMETERS = [
    generate("parameters", "parameters", {"IN": 1, "x": 1, "y": "s", "z": True, "w": 1.5}),
    generate("nested parameters", "parameters", {"IN": 1, "parameters": {"q": 1, "id": "p"}}),
    generate("id is a parameter too", "parameters", {"IN": 1, "id": "hello"}),
    generate("known names", "parameters", {"IN": 1, "sequence_id": 5, "priority": 1, "timeout": 3}),
    generate("long integer", "parameters", {"IN": 1, "x": 2**63}),
    generate("null parameter", "parameters", {"IN": 1, "x": None}),
    generate("array parameter", "parameters", {"IN": 1, "x": [1]}),
    generate("nested null", "parameters", {"IN": 1, "parameters": {"x": None}}),
    generate("parameters of a wrong type", "parameters", {"IN": 1, "parameters": 1}),
    generate("parameters twice nested", "parameters", {"IN": 1, "parameters": {"parameters": {}}}),
    generate(
        "reserved parameter",
        "parameters",
        {"IN": 1, "triton_x": 1},
        ours=error(
            400,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not "
            "be specified.",
        ),
        because="a client must not set what only the server sets, whichever route it takes",
    ),
]

MISTAKES = [
    generate("not an object", "add_sub", []),
    generate("empty body", "add_sub", b""),
    generate("malformed", "add_sub", b"{"),
    generate("id of a wrong type", "add_sub", {"id": 1, "a": 1, "b": 2}),
    generate("missing input", "add_sub", {"a": 1}),
    generate("input twice", "add_sub", {"a": 1, "b": 2, "parameters": {"a": 1}}),
    generate("member twice", "add_sub", '{"a":1,"a":2,"b":1}'),
    generate("text for a number", "add_sub", {"a": "x", "b": 2}),
    generate("null for a number", "add_sub", {"a": None, "b": 2}),
    generate("object for a number", "add_sub", {"a": {}, "b": 2}),
    generate("number for text", "id_bytes", {"IN": 1}),
    generate("float for an integer", "parameters", {"IN": 1.5}),
    generate("integer beyond 64 bits", "id_int64", {"IN": 2**63}),
    generate("nested array", "add_sub", {"a": [[1, 2]], "b": 2}),
    generate("fp16", "id_fp16", {"IN": 1}),
    generate("indivisible", "fixed", {"IN": [1, 2, 3, 4, 5, 6, 7]}),
    generate("too few", "fixed", {"IN": [1, 2, 3]}),
    generate("too many", "fixed", {"IN": [1] * 12}),
    generate("nothing for a fixed shape", "fixed", {"IN": []}),
    generate(
        "another batch size",
        "add_sub",
        {"a": [1, 2], "b": [3]},
        ours=prefixed("input 'b' batch size does not match other inputs for 'add_sub'"),
        because="inputs are read in the order of the request, not in that of a hash table",
    ),
    generate("beyond the batch size", "add_sub", {"a": [1] * 9, "b": [1] * 9}),
    generate("unknown model", "nobody", {}),
    generate("compressed", "add_sub", gzip.compress(b'{"a":1,"b":2}', mtime=0),
             headers={"Content-Encoding": "gzip"}),
    get("generate by get", "/v2/models/add_sub/generate"),
]  # fmt: skip

FAILURE = "ValueError: this model always fails"
INTERNAL = "a model that fails is an internal error here too, as it is for infer requests"
STREAMS = [
    stream("of one", "id_bytes", {"IN": "hello"}),
    stream("decoupled", "decoupled", {"IN": [1, 2]}),
    stream(
        "failing",
        "failing",
        {"IN": 1},
        view=model_failure,
        ours=({"status": 500, "body": [FAILURE]},),
        because=INTERNAL,
    ),
    stream("unknown model", "nobody", {}),
    stream("missing input", "add_sub", {"a": 1}),
    stream("malformed", "add_sub", b"{"),
    generate(
        "failing",
        "failing",
        {"IN": 1},
        view=model_failure,
        ours=({"status": 500, "body": FAILURE},),
        because=INTERNAL,
    ),
]

CASES = [*INPUTS, *PARAMETERS, *MISTAKES, *STREAMS]
