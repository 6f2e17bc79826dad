# SPDX-License-Identifier: Apache-2.0
"""Requests of HTTP as bytes: templates of a plan, and whole requests made of them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from pytriton.client.http_message import request_head
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.choices import Choice
from pytriton.tools.perf.load.plan import InputSet, LoadPlan, TensorFormat, TensorMemory
from pytriton.tools.perf.load.recipe import Recipe, RequestTemplate
from pytriton.tools.perf.load.tensors import PlainTensor, json_values, plain_tensor


def http_head(plan: LoadPlan, host: str) -> bytes:
    """The head of all requests of a plan, without their lengths and the empty line."""
    version = f"/versions/{quote(plan.version, safe='')}" if plan.version else ""
    route = "generate_stream" if plan.streaming else "infer"
    target = f"/v2/models/{quote(plan.model, safe='')}{version}/{route}"
    headers: dict[str, str] = {}
    if not has_binary(plan):
        headers["Content-Type"] = "application/json"
    else:
        headers["Content-Type"] = "application/octet-stream"
    if plan.compression.value != "none":
        headers["Content-Encoding"] = plan.compression.value
    headers |= dict(plan.headers)
    try:
        head = request_head("POST", target, host, headers)
    except ValueError as error:
        raise GeneratorError(str(error)) from error
    return head.removesuffix(b"\r\n")


def has_binary(plan: LoadPlan) -> bool:
    """Whether requests have tensors after their JSON."""
    is_inline = plan.shared_memory is TensorMemory.NONE
    return plan.input_format is TensorFormat.BINARY and is_inline and not plan.streaming


def http_template(plan: LoadPlan, inputs: InputSet, regions: Mapping[str, str]) -> RequestTemplate:
    """The template of a request.

    Args:
        plan: What is sent where.
        inputs: The tensors.
        regions: The regions of shared memory, by `i:` or `o:` and the tensor's name.
    """
    tensors = [
        plain_tensor(name, array, inputs.datatypes.get(name, ""))
        for name, array in inputs.tensors.items()
    ]
    parameters: dict[str, Any] = dict(plan.parameters)
    if plan.streaming:
        return _generate_template(tensors, parameters)
    members: dict[str, Any] = {"inputs": [_input(plan, tensor, regions) for tensor in tensors]}
    if outputs := _outputs(plan, regions):
        members["outputs"] = outputs
    elif plan.output_format is TensorFormat.BINARY:
        parameters["binary_data_output"] = True
    binary = b"".join(tensor.data for tensor in tensors) if has_binary(plan) else b""
    if plan.sequences is None:
        document = members | ({"parameters": parameters} if parameters else {})
        return RequestTemplate(orjson.dumps(document), b"", binary)
    before = orjson.dumps(members)[:-1] + b',"parameters":{'
    after = b"," + orjson.dumps(parameters)[1:] + b"}" if parameters else b"}}"
    return RequestTemplate(before, after, binary)


def _generate_template(
    tensors: Sequence[PlainTensor], parameters: Mapping[str, Any]
) -> RequestTemplate:
    """The generate extension has flat members: tensors, and everything else is a parameter."""
    members: dict[str, Any] = dict(parameters)
    for tensor in tensors:
        values = json_values(tensor)
        members[tensor.name] = values[0] if len(values) == 1 else values
    return RequestTemplate(orjson.dumps(members)[:-1], b"}")


def _input(plan: LoadPlan, tensor: PlainTensor, regions: Mapping[str, str]) -> dict[str, Any]:
    member: dict[str, Any] = {
        "name": tensor.name,
        "shape": tensor.shape,
        "datatype": tensor.datatype,
    }
    if plan.shared_memory is not TensorMemory.NONE:
        member["parameters"] = {
            "shared_memory_region": regions[f"i:{tensor.name}"],
            "shared_memory_byte_size": len(tensor.data),
        }
    elif plan.input_format is TensorFormat.BINARY:
        member["parameters"] = {"binary_data_size": len(tensor.data)}
    else:
        member["data"] = json_values(tensor)
    return member


def _outputs(plan: LoadPlan, regions: Mapping[str, str]) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    for name in plan.outputs:
        parameters: dict[str, Any] = {}
        if plan.shared_memory is not TensorMemory.NONE:
            parameters["shared_memory_region"] = regions[f"o:{name}"]
            parameters["shared_memory_byte_size"] = plan.output_region_bytes
        elif plan.output_format is TensorFormat.BINARY:
            parameters["binary_data"] = True
        outputs.append({"name": name} | ({"parameters": parameters} if parameters else {}))
    return outputs


class HttpRequests:
    """Makes the bytes of whole requests; those without a sequence are made once."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._templates = [template for stream in recipe.streams for template in stream]
        self._separator = b"," if recipe.is_streaming else b""
        self._whole: list[bytes] = []
        if recipe.sequences is None:
            self._whole = [self._render(template, b"") for template in self._templates]

    def whole(self, choice: Choice) -> bytes:
        """The bytes of a request."""
        if self._whole:
            return self._whole[choice.input_index]
        members = b'%s"sequence_id":%d,"sequence_start":%s,"sequence_end":%s' % (
            self._separator,
            choice.sequence_id,
            b"true" if choice.is_start else b"false",
            b"true" if choice.is_end else b"false",
        )
        return self._render(self._templates[choice.input_index], members)

    def _render(self, template: RequestTemplate, members: bytes) -> bytes:
        text = template.before + members + template.after
        body = compressed(text + template.binary, self._recipe.encoding)
        lengths = b"Content-Length: %d\r\n\r\n" % len(body)
        if self._recipe.has_binary:
            lengths = b"Inference-Header-Content-Length: %d\r\n%s" % (len(text), lengths)
        return self._recipe.head + lengths + body


def compressed(data: bytes, encoding: str) -> bytes:
    """The data, compressed with gzip or deflate (which is zlib's format), or as it is."""
    if encoding == "gzip":
        return gzip.compress(data)
    return zlib.compress(data) if encoding == "deflate" else data
