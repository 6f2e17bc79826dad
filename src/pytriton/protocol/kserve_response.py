# SPDX-License-Identifier: Apache-2.0
"""Encodes infer responses of the KServe protocol over HTTP: JSON, followed by binary outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from pytriton.protocol.classification import classify
from pytriton.protocol.json_text import dump_json
from pytriton.protocol.tensor_json import json_from_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferResponse
    from pytriton.protocol.kserve_json import OutputFormat

_dumps, _NUMPY = orjson.dumps, orjson.OPT_SERIALIZE_NUMPY


def encode_infer_response(
    response: InferResponse,
    output_format: OutputFormat,
    *,
    is_batched: bool = True,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> tuple[int | None, list[Buffer]]:
    """Encode the body of an infer response.

    Args:
        response: The response of the model.
        output_format: The format that the client requested.
        is_batched: Whether the first dimension is the batch; only used for classification.
        labels: The names of the classes, by output.

    Returns:
        The length of the JSON, or None if nothing follows it; and the buffers of the body in order.
        Binary outputs are not copied.

    Raises:
        ServerError: An output cannot be encoded in the requested format.
    """
    binary: list[Buffer] = []
    outputs: list[dict[str, Any]] = []
    default, listed = output_format
    for tensor in response.outputs:
        is_binary, class_count, place = listed.get(tensor.name, default)
        if class_count:
            names = labels.get(tensor.name, ()) if labels else ()
            tensor = classify(tensor, class_count, names, batched=is_batched)  # noqa: PLW2901
        name, datatype, shape = tensor.name, tensor.dtype.name, tensor.shape
        if is_binary:
            size = {"binary_data_size": len(tensor.data)}
            outputs.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
            if len(tensor.data):
                binary.append(tensor.data)
        elif place is not None:
            outputs.append({"name": name, "datatype": datatype, "shape": shape})
        else:
            data = json_from_tensor(tensor)
            outputs.append({"name": name, "datatype": datatype, "shape": shape, "data": data})
    header = _dumps(infer_document(response, outputs), None, _NUMPY)
    return (len(header), [header, *binary]) if binary else (None, [header])


def infer_document(response: InferResponse, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the root object of the JSON; the outputs are its last member."""
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    if response.parameters:
        document["parameters"] = orjson.Fragment(dump_json(response.parameters))
    document["outputs"] = outputs
    return document
