# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import numpy as np
import pytest
from openapi_spec_validator import validate

from pytriton.base import dtypes
from pytriton.base.documentation import Documentation
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.protocol.generate import encode_generate_response
from pytriton.protocol.openapi import openapi_document
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.server.operations.openapi import described_paths
from pytriton.serving.server.operations.table import OPERATIONS

CONFIG = """name: "%s" backend: "python" max_batch_size: 8
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "note" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [ { name: "y" data_type: TYPE_INT64 dims: [ -1 ] } ]"""


def spec_of(name: str, version: int = 1, text: str = CONFIG):
    config = config_from_text(text % name, "config.pbtxt")
    return spec_from_config(normalise_config(config), version)


def document_of(*specs, **headers):
    others = described_paths(OPERATIONS)
    return openapi_document(specs, "http://localhost:8000", "0.1.0", headers, others)


def body_schema(document, path):
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def is_valid(document, schema, value) -> bool:
    whole = {**schema, "components": document["components"]}
    return jsonschema.Draft202012Validator(whole).is_valid(value)


def test_document_without_models_is_valid():
    document = document_of()

    validate(document)
    assert document["servers"] == [{"url": "http://localhost:8000"}]
    assert "/v2/health/ready" in document["paths"]


def test_document_has_paths_for_each_model_once():
    document = document_of(spec_of("a b/c"), spec_of("m", 1), spec_of("m", 2))

    validate(document)
    paths = document["paths"]
    own = [path for path in paths if path.startswith("/v2/models/m/")]
    assert own == [
        "/v2/models/m/generate",
        "/v2/models/m/generate_stream",
        "/v2/models/m/infer",
        "/v2/models/m/versions/{version}/generate",
        "/v2/models/m/versions/{version}/generate_stream",
        "/v2/models/m/versions/{version}/infer",
    ]
    versioned = paths["/v2/models/m/versions/{version}/infer"]["post"]
    assert versioned["parameters"][0]["schema"]["enum"] == ["1", "2"]
    assert "/v2/models/a%20b%2Fc/generate_stream" in paths
    assert not any(path.startswith("/v2/models/a%20b%2Fc/versions") for path in paths)
    assert paths["/v2/models/{model}/config"]["get"]["parameters"][0]["schema"]["enum"] == [
        "a b/c",
        "m",
    ]
    identifiers = [each["operationId"] for path in paths.values() for each in path.values()]
    assert len(set(identifiers)) == len(identifiers)


def test_versions_with_other_inputs_share_a_path():
    other = CONFIG.replace('"note"', '"remark"')
    document = document_of(spec_of("m", 1), spec_of("m", 2, other))

    validate(document)
    schema = body_schema(document, "/v2/models/m/versions/{version}/generate")
    assert [list(each["properties"]) for each in schema["anyOf"]] == [
        ["id", "x", "note"],
        ["id", "x", "remark"],
    ]


def annotated_spec():
    text = """name: "%s" backend: "python"
        input [
          { name: "name" data_type: TYPE_STRING dims: [ 1 ] },
          { name: "rows" data_type: TYPE_FP64 dims: [ -1, 3 ] },
          { name: "excited" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
        ]
        output [ { name: "output" data_type: TYPE_STRING dims: [ 1 ] } ]"""
    documentation = Documentation(
        text="Greet a person.",
        inputs={"name": "Whom to greet."},
        output="The greeting.",
        examples={"excited": False},
    )
    return msgspec.structs.replace(
        spec_of("greet", text=text), takes_parameters=False, documentation=documentation
    )


def test_docstrings_describe_models_and_their_fields():
    document = document_of(annotated_spec(), spec_of("m"))

    validate(document)
    assert document["tags"] == [
        {"name": "greet", "description": "Greet a person."},
        {"name": "m"},
    ]
    operation = document["paths"]["/v2/models/greet/generate"]["post"]
    assert operation["description"] == "Greet a person."
    members = body_schema(document, "/v2/models/greet/generate")["properties"]
    assert members["name"] == {"type": "string", "description": "Whom to greet."}
    assert members["excited"] == {"type": "boolean", "default": False}
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["properties"]["output"]["description"] == "The greeting."


def test_output_with_the_name_of_an_input_has_its_own_description():
    text = (
        'name: "%s" input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ] '
        'output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]'
    )
    documentation = Documentation(inputs={"text": "What is said."}, output="What is heard.")
    spec = msgspec.structs.replace(
        spec_of("echo", text=text), takes_parameters=False, documentation=documentation
    )
    document = document_of(spec)
    operation = document["paths"]["/v2/models/echo/generate"]["post"]
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]

    asked = body_schema(document, "/v2/models/echo/generate")["properties"]["text"]
    assert asked["description"] == "What is said."
    assert answer["properties"]["text"]["description"] == "What is heard."


@pytest.mark.parametrize(
    "shape, values", [((1,), [2.5]), ((-1,), [2.5]), ((-1,), [1.5, 2.5]), ((-1, 2), [1, 2, 3, 4])]
)
@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_answers_of_an_annotated_function_fit_their_schema(shape, values, max_batch_size):
    dims = " ".join(map(str, shape))
    text = f"""name: "%s" backend: "python" max_batch_size: {max_batch_size}
        input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
        output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {dims.replace(" ", ", ")} ] }} ]"""
    spec = msgspec.structs.replace(spec_of("m", text=text), takes_parameters=False)
    array = np.array(values, np.float32).reshape(shape)
    rows = array[None] if max_batch_size else array
    output = InferTensor("y", dtypes.FP32, rows.shape, rows.tobytes())
    answer = json.loads(encode_generate_response(InferResponse("m", "1", "", [output]), spec))
    document = document_of(spec)

    operation = document["paths"]["/v2/models/m/generate"]["post"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert is_valid(document, schema, answer), answer


@pytest.mark.parametrize(
    "body, expected",
    [
        ({"name": "Ada", "rows": [[1, 2, 3]]}, True),
        ({"name": "Ada", "rows": [1, 2, 3]}, True),
        ({"name": ["Ada"], "rows": [[1, 2, 3]]}, False),
        ({"name": "Ada", "rows": [[1, 2]]}, False),
        ({"name": "Ada", "rows": [], "exited": True}, False),
        ({"name": "Ada"}, False),
    ],
)
def test_schema_of_an_annotated_function_has_its_types(body, expected):
    document = document_of(annotated_spec())

    schema = body_schema(document, "/v2/models/greet/generate")
    assert is_valid(document, schema, body) is expected


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, True),
        ({"shape": [2, 3], "data": [[1, 2, 3], [4, 5, 6]]}, True),
        ({"shape": [2, 4]}, False),
        ({"shape": [3]}, False),
        ({"datatype": "FP64"}, False),
        ({"name": "z"}, False),
        ({"data": ["text"]}, False),
    ],
)
def test_schema_of_an_infer_request_knows_the_tensors(change, expected):
    document = document_of(spec_of("m"))
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2.5, 3], **change}

    schema = body_schema(document, "/v2/models/m/infer")
    assert is_valid(document, schema, {"inputs": [tensor]}) is expected


@pytest.mark.parametrize(
    "body, expected",
    [
        ({"x": [1, 2, 3]}, True),
        ({"x": 1, "note": "hello", "temperature": 0.5}, True),
        ({"note": "hello"}, False),
        ({"x": "text"}, False),
    ],
)
def test_schema_of_a_generate_request_knows_the_inputs(body, expected):
    document = document_of(spec_of("m"))

    schema = body_schema(document, "/v2/models/m/generate")
    assert is_valid(document, schema, body) is expected


def test_answers_of_decoupled_models_are_events():
    text = CONFIG + "model_transaction_policy { decoupled: true }"
    document = document_of(spec_of("m", text=text))

    answer = document["paths"]["/v2/models/m/infer"]["post"]["responses"]["200"]
    assert list(answer["content"]) == ["text/event-stream"]
    validate(document)


def test_openai_routes_are_there_if_models_have_opted_in():
    text = """name: "%s" backend: "python"
        input [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] } ]
        output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
        parameters { key: "openai" value { string_value: "chat,completions" } }"""
    document = document_of(spec_of("m"), spec_of("talker", text=text))

    validate(document)
    assert {"/v1/models", "/v1/chat/completions", "/v1/completions"} <= set(document["paths"])
    assert "/v1/embeddings" not in document["paths"]
    schema = body_schema(document, "/v1/chat/completions")
    messages = [{"role": "user", "content": "hello"}]
    assert is_valid(document, schema, {"model": "talker", "messages": messages})
    assert not is_valid(document, schema, {"model": "m", "messages": messages})
    assert not any(path.startswith("/v1") for path in document_of(spec_of("m"))["paths"])


def test_restricted_operations_name_their_header():
    document = document_of(spec_of("m"), statistics="token", inference="key")

    validate(document)
    paths = document["paths"]
    assert paths["/v2/models/{model}/stats"]["get"]["security"] == [{"header-token": []}]
    assert paths["/v2/models/m/infer"]["post"]["security"] == [{"header-key": []}]
    assert "security" not in paths["/v2/models/{model}"]["get"]
    scheme = document["components"]["securitySchemes"]["header-key"]
    assert scheme == {"type": "apiKey", "in": "header", "name": "key"}
