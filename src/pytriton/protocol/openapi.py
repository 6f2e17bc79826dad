# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI 3.1 document of the HTTP port, with a schema for each model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from pytriton.base.model_spec import ModelSpec, ModelTensor

Schema = dict[str, Any]

_UNSIGNED = {f"UINT{bits}": {"type": "integer", "minimum": 0} for bits in (8, 16, 32, 64)}
_SIGNED = {f"INT{bits}": {"type": "integer"} for bits in (8, 16, 32, 64)}
_FLOATS = {name: {"type": "number"} for name in ("FP32", "FP64")}
_ELEMENTS: dict[str, Schema] = {
    "BOOL": {"type": "boolean"},
    **_UNSIGNED,
    **_SIGNED,
    **_FLOATS,
    "BYTES": {"type": "string"},
    # JSON has no form of these; they are sent as binary tensors.
    "FP16": {},
    "BF16": {},
}
_SECURITY = "header-{}"
_ACTIONS = {
    "generate": "Run the model on plain values",
    "generate_stream": "Run the model on plain values; responses are server-sent events",
    "infer": "Run the model on tensors",
}


class DescribedPath(NamedTuple):
    """A path that is about no model, or the same for each model."""

    path: str  # with `{model}` for each model
    method: str
    api: str
    id: str
    summary: str
    answer: Mapping[str, Any] | None  # its schema; None: the status says it all


def openapi_document(
    specs: Iterable[ModelSpec],
    url: str,
    version: str,
    headers_of_apis: Mapping[str, str],
    others: Sequence[DescribedPath],
) -> dict[str, Any]:
    """Make the document for the models that are ready, as plain values.

    Each model has its own paths for inference, with its own fields. Everything else is there once
    for all models, as `others` describe it. `headers_of_apis` has the header that each restricted
    API needs.
    """
    models: dict[str, list[ModelSpec]] = {}
    for spec in sorted(specs, key=lambda spec: (spec.name, spec.version)):
        models.setdefault(spec.name, []).append(spec)
    newest = [versions[-1] for versions in models.values()]
    paths: dict[str, Any] = {}
    for versions in models.values():
        paths |= _model_paths(versions)
    paths |= _openai_paths(newest)
    paths |= _every_model_paths(list(models), others)
    paths |= _server_paths(others)
    for operations in paths.values():
        _restrict(operations, headers_of_apis)
    schemes = {
        _SECURITY.format(header): {"type": "apiKey", "in": "header", "name": header}
        for header in sorted(set(headers_of_apis.values()))
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pytriton",
            "version": version,
            "description": "The KServe v2 protocol and Triton's extensions, for the models that "
            "are ready now.",
        },
        "servers": [{"url": url}],
        "tags": [_tag(versions) for versions in models.values()],
        "paths": paths,
        "components": {"schemas": _shared_schemas(), "securitySchemes": schemes},
    }


def _tag(versions: list[ModelSpec]) -> dict[str, str]:
    """Returns the description of a model, which all its operations have in common."""
    spec = versions[-1]
    text = spec.documentation.text
    if len(versions) > 1:
        numbers = " and ".join(str(each.version) for each in versions)
        text = f"{text} Versions {numbers} are ready.".strip()
    return {"name": spec.name, "description": text} if text else {"name": spec.name}


def _restrict(operations: dict[str, Any], headers_of_apis: Mapping[str, str]) -> None:
    """Name the header that an operation needs, and remove what only this function reads."""
    for operation in operations.values():
        header = headers_of_apis.get(operation.pop("api"))
        if header is not None:
            operation["security"] = [{_SECURITY.format(header): []}]
            operation["responses"]["403"] = _error("The header is missing or wrong")


def _server_paths(others: Iterable[DescribedPath]) -> dict[str, Any]:
    paths = {}
    for path, method, api, name, summary, answer in others:
        if "{model}" in path:
            continue
        operation = _operation(api, name, summary, answer or {})
        if answer is None:
            text: Schema = {"description": "It is"}
            operation["responses"] = {"200": text, "400": _error("It is not, and why")}
        paths[path] = {method: operation}
    return paths


def _model_paths(versions: list[ModelSpec]) -> dict[str, Any]:
    """Returns the paths for inference; if several versions are ready, also those with a version."""
    spec = versions[-1]
    at = f"/v2/models/{quote(spec.name, safe='')}"
    paths = {
        f"{at}/{action}": {"post": _tagged(spec, _inference([spec], action, spec.name))}
        for action in _ACTIONS
    }
    if len(versions) > 1:
        known = [str(each.version) for each in versions]
        for action in _ACTIONS:
            operation = _inference(versions, action, f"{spec.name} version")
            operation["parameters"] = [_path_parameter("version", known)]
            path = f"{at}/versions/{{version}}/{action}"
            paths[path] = {"post": _tagged(spec, operation)}
    return paths


def _every_model_paths(names: list[str], others: Iterable[DescribedPath]) -> dict[str, Any]:
    """Returns what is the same for all models: their metadata, configuration and so on."""
    paths = {}
    for path, method, api, name, summary, answer in others:
        if names and "{model}" in path:
            operation = _operation(api, name, summary, answer or {})
            operation["parameters"] = [_path_parameter("model", names)]
            operation["responses"]["400"] = _error("The model is not there, or not ready")
            paths[path] = {method: {**operation, "tags": ["All models"]}}
    return paths


def _path_parameter(name: str, values: list[str]) -> dict[str, Any]:
    schema = {"type": "string", "enum": values}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _openai_paths(specs: Iterable[ModelSpec]) -> dict[str, Any]:
    """Returns OpenAI's routes, if models have opted in; their bodies have many other members."""
    wanted = {name: _opted_in(specs, name) for name in ("chat", "completions", "embeddings")}
    if not any(wanted.values()):
        return {}
    summary = "The models that answer OpenAI's routes"
    paths = {"/v1/models": {"get": _operation("metadata", "openai models", summary, {})}}
    text: Schema = {"type": "string"}
    messages: Schema = {"type": "array", "items": {"type": "object", "required": ["role"]}}
    for name, path, member, schema in (
        ("chat", "/v1/chat/completions", "messages", messages),
        ("completions", "/v1/completions", "prompt", {}),
        ("embeddings", "/v1/embeddings", "input", {}),
    ):
        if not wanted[name]:
            continue
        properties = {
            "model": {"enum": wanted[name]},
            member: schema,
            "stream": {"type": "boolean"},
        }
        body = {"type": "object", "properties": properties, "required": ["model", member]}
        operation = _operation("inference", f"openai {name}", f"OpenAI's {name}", {})
        if name != "embeddings":
            content = operation["responses"]["200"]["content"]
            content["text/event-stream"] = {"schema": text}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
        paths[path] = {"post": operation}
    for operations in paths.values():
        for operation in operations.values():
            operation["tags"] = ["OpenAI"]
    return paths


def _opted_in(specs: Iterable[ModelSpec], route: str) -> list[str]:
    return [spec.name for spec in specs if spec.openai is not None and getattr(spec.openai, route)]


def _tagged(spec: ModelSpec, operation: dict[str, Any]) -> dict[str, Any]:
    return {**operation, "tags": [spec.name]}


def _inference(versions: list[ModelSpec], action: str, name: str) -> dict[str, Any]:
    """Returns the operation of a model; its versions may have different inputs and outputs."""
    is_infer = action == "infer"
    spec = versions[-1]
    body = _one_of([_infer_request(e) if is_infer else _generate_request(e) for e in versions])
    answer = _one_of([_infer_response(e) if is_infer else _generate_response(e) for e in versions])
    operation = _operation("inference", f"{action} {name}", _ACTIONS[action], answer)
    if spec.documentation.text:
        operation["description"] = spec.documentation.text
    is_stream = action == "generate_stream" or (is_infer and spec.decoupled)
    kind = "text/event-stream" if is_stream else "application/json"
    # The schema is that of the data of an event, which the specification does not express.
    content = {kind: {"schema": {"type": "string"} if is_stream else answer}}
    operation["responses"]["200"] = {"description": "The answer", "content": content}
    operation["responses"]["400"] = _error("The request is wrong")
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": body}},
    }
    return operation


def _one_of(schemas: list[Schema]) -> Schema:
    different = [schema for at, schema in enumerate(schemas) if schema not in schemas[:at]]
    return different[0] if len(different) == 1 else {"anyOf": different}


def _operation(api: str, name: str, summary: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": answer or {"type": "object"}}}
    return {
        "api": api,
        "operationId": name,
        "summary": summary,
        "responses": {"200": {"description": "The answer", "content": content}},
    }


def _error(description: str) -> Schema:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


# Bodies


def _infer_request(spec: ModelSpec) -> Schema:
    inputs = [_tensor(each, spec) for each in spec.inputs.values()]
    outputs = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": {"enum": list(spec.outputs)}, "parameters": {"type": "object"}},
            "required": ["name"],
        },
    }
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": {"type": "array", "items": {"oneOf": inputs} if inputs else {}},
            "outputs": outputs if spec.outputs else {"type": "array"},
        },
        "required": ["inputs"],
    }


def _infer_response(spec: ModelSpec) -> Schema:
    outputs = [_tensor(each, spec) for each in spec.outputs.values()]
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "model_name": {"const": spec.name},
            "model_version": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": {"type": "array", "items": {"oneOf": outputs} if outputs else {}},
        },
        "required": ["model_name", "model_version", "outputs"],
    }


def _tensor(tensor: ModelTensor, spec: ModelSpec) -> Schema:
    datatype = tensor.dtype.name
    schema: Schema = {
        "title": tensor.name,
        "type": "object",
        "properties": {
            "name": {"const": tensor.name},
            "datatype": {"const": datatype},
            "shape": _shape(tensor.shape),
            "parameters": {"type": "object"},
            "data": {"$ref": f"#/components/schemas/{datatype}"},
        },
        "required": ["name", "datatype", "shape"],
    }
    return schema | _described(tensor, spec)


def _described(tensor: ModelTensor, spec: ModelSpec) -> Schema:
    """Returns what the author says of an input or an output, if anything."""
    documentation = spec.documentation
    if spec.inputs.get(tensor.name) is tensor:
        text = documentation.inputs.get(tensor.name, "")
    else:
        text = documentation.output if len(spec.outputs) == 1 else ""
    return {"description": text} if text else {}


def _shape(shape: Sequence[int]) -> Schema:
    sizes = [{"type": "integer", "minimum": 0} if size < 0 else {"const": size} for size in shape]
    schema: Schema = {"type": "array", "minItems": len(shape), "maxItems": len(shape)}
    return {**schema, "prefixItems": sizes} if sizes else schema


def _generate_request(spec: ModelSpec) -> Schema:
    members = {each.name: _input_member(each, spec) for each in spec.inputs.values()}
    required = sorted(spec.required_inputs & set(spec.inputs))
    schema: Schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}, **members},
        # Others are parameters of the request.
        "additionalProperties": {"type": ["string", "number", "boolean", "object", "array"]},
    }
    if not spec.takes_parameters and spec.sequence is None:
        properties = {**schema["properties"], "parameters": {"type": "object"}}
        schema |= {"properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def _generate_response(spec: ModelSpec) -> Schema:
    members = {
        each.name: _output_member(each, spec) | _described(each, spec)
        for each in spec.outputs.values()
    }
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "model_name": {"const": spec.name},
            "model_version": {"type": "string"},
            **members,
        },
        "required": ["model_name", "model_version"],
    }


def _input_member(tensor: ModelTensor, spec: ModelSpec) -> Schema:
    schema = _member(tensor, spec)
    if tensor.name in spec.nullable:
        schema = {"anyOf": [schema, {"type": "null"}]}
    schema |= _described(tensor, spec)
    examples = spec.documentation.examples
    if tensor.name in examples:
        value = examples[tensor.name]
        schema |= {"default": value} if tensor.optional else {"examples": [value]}
    return schema


def _member(tensor: ModelTensor, spec: ModelSpec) -> Schema:
    """Returns the schema of a tensor as a plain member: one value, or a list of them.

    An annotated function says exactly which of the two; others take lists of one value as well.
    """
    element = _ELEMENTS[tensor.dtype.name]
    if spec.is_annotated and not spec.max_batch_size:
        schema = _annotated_member(tensor)
        if "items" not in schema:
            return schema
        # Also as one flat list, in the order of the elements.
        flat = {"type": "array", "items": element}
        return schema if len(tensor.dims) == 1 else {"anyOf": [schema, flat]}
    return {"anyOf": [element, {"type": "array", "items": element}]}


def _annotated_member(tensor: ModelTensor) -> Schema:
    """Returns the schema of a tensor as its annotation says: one value, or lists."""
    schema: Schema = dict(_ELEMENTS[tensor.dtype.name])
    if tensor.dims == (1,):
        return schema
    for size in reversed(tensor.dims):
        sizes = {} if size < 0 else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **sizes}
    return schema


def _output_member(tensor: ModelTensor, spec: ModelSpec) -> Schema:
    """Returns the schema of an output: as annotated; else lists are flat, unless of one value."""
    if spec.is_annotated:
        schema = _annotated_member(tensor)
        if not spec.max_batch_size:
            return schema
        return {"anyOf": [schema, {"type": "array", "items": schema}]}  # one row, or several
    element = _ELEMENTS[tensor.dtype.name]
    return {"anyOf": [element, {"type": "array", "items": element}]}


def _shared_schemas() -> dict[str, Schema]:
    error = {
        "type": "object",
        "properties": {"error": {"type": "string"}},
        "required": ["error"],
    }
    # The elements of a tensor may be flat or nested by its shape.
    data = {
        name: {
            "type": "array",
            "items": {"anyOf": [element, {"$ref": f"#/components/schemas/{name}"}]},
        }
        for name, element in _ELEMENTS.items()
    }
    return {"Error": error, **data}
