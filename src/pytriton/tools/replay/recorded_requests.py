# SPDX-License-Identifier: Apache-2.0
"""Makes requests of what was recorded, for both protocols. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from pytriton.client.http_message import request_head
from pytriton.client.kserve.address import Address
from pytriton.client.kserve.messages import ASKS_FOR_FINAL, infer_message
from pytriton.client.kserve.records import input_entry, model_path
from pytriton.protocol.recording import Exchange
from pytriton.tools.perf.data.recorded import plain
from pytriton.tools.perf.load.recipe import RequestTemplate

_FIRST, _LAST = 1, 2  # the flags of a sequence


def parameters_of(exchange: Exchange) -> dict[str, Any]:
    """Returns the parameters as the client sent them, with those that the server has as fields."""
    parameters: dict[str, Any] = dict(exchange.parameters)
    if exchange.priority:
        parameters["priority"] = exchange.priority
    if exchange.timeout_us:
        parameters["timeout"] = exchange.timeout_us
    if exchange.correlation_id:
        parameters["sequence_id"] = exchange.correlation_id
        parameters["sequence_start"] = bool(exchange.flags & _FIRST)
        parameters["sequence_end"] = bool(exchange.flags & _LAST)
    return parameters


def http_body(exchange: Exchange) -> tuple[bytes, bytes]:
    """Returns the JSON of a request over HTTP, and the tensors behind it."""
    tensors = [plain(each) for each in exchange.inputs]
    members: dict[str, Any] = {"inputs": [input_entry(each) for each in tensors]}
    if exchange.id:
        members["id"] = exchange.id
    parameters = parameters_of(exchange)
    if exchange.outputs is None:
        parameters["binary_data_output"] = True
    else:
        binary = {"binary_data": True}
        members["outputs"] = [{"name": name, "parameters": binary} for name in exchange.outputs]
    if parameters:
        members["parameters"] = parameters
    return orjson.dumps(members), b"".join(each.data for each in tensors)


def http_template(
    exchange: Exchange, address: Address, headers: Mapping[str, str]
) -> RequestTemplate:
    """Returns a request over HTTP, with its tensors in binary.

    Raises:
        ValueError: A header cannot be sent.
    """
    target = f"{address.path}{model_path(exchange.model, exchange.version)}/infer"
    every = {"Content-Type": "application/octet-stream", **headers}
    head = request_head("POST", target, address.host_and_port, every)
    document, tensors = http_body(exchange)
    return RequestTemplate(document, b"", tensors, head.removesuffix(b"\r\n"))


def grpc_message(exchange: Exchange, *, is_stream: bool) -> Any:
    """Returns a ModelInferRequest; one on a stream has no id, as the sender puts in its own."""
    request = infer_message(
        exchange.model,
        exchange.version,
        parameters_of(exchange),
        [plain(each) for each in exchange.inputs],
        exchange.outputs or (),
    )
    if is_stream:
        request.parameters[ASKS_FOR_FINAL].bool_param = True
    else:
        request.id = exchange.id
    return request
