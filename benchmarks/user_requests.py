# SPDX-License-Identifier: Apache-2.0
"""The requests that users send: each is made by a client library, checked and written down.

Two requests of a user differ, in their ids for example. So a request may have holes, at which load
generators put a number that counts requests.
"""

from __future__ import annotations

import asyncio
import copy
import http.client
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import tritonclient.grpc
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2

from benchmarks.grpc_loads import framed
from benchmarks.recorded_requests import GrpcCall, last_grpc_call, last_http_request, recording
from benchmarks.servers import RunningServer
from pytriton.client import ModelClient

HOLE = "@" * 8
# As a tracing library writes it; only the last part of the trace's id differs.
TRACEPARENT = f"00-4bf92f3577b34da6a3ce929d{HOLE}-00f067aa0ba902b7-01"
USER_HEADERS = {"traceparent": TRACEPARENT, "authorization": "Bearer " + "0123456789abcdef" * 4}
DEADLINE_S = 5.0
QUEUE_TIMEOUT_US = 5_000_000
SHAPES = ((1, 1), (1, 4), (2, 4), (1, 16), (4, 3))

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Example:
    """A model of the benchmarks, inputs for it, and the outputs that are right."""

    model: str
    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True)
class Form:
    """A way in which users write requests.

    `options` are those of the client's `infer`; `record` makes a call of the example with them
    through the relay to a server, and returns the outputs with what was sent.
    """

    key: str
    title: str
    examples: Sequence[Example]
    record: Callable[[int, Form, Example], tuple[Arrays, bytes | GrpcCall]]
    options: Mapping[str, Any] = field(default_factory=dict)
    names_outputs: bool = False
    binary: bool = True
    is_grpc: bool = False


def record(server: RunningServer, form: Form) -> list[bytes | GrpcCall]:
    """What a client sends to a server for each example; the answers have to be right."""
    requests = []
    for example in form.examples:
        port = server.grpc_port if form.is_grpc else server.port
        outputs, request = form.record(port, form, example)
        for name, expected in example.outputs.items():
            got = outputs[name]
            if not _are_equal(got, expected):
                raise RuntimeError(f"{form.title}: expected {name} to be {expected}, got {got}")
        requests.append(request)
    return requests


def _are_equal(got: np.ndarray, expected: np.ndarray) -> bool:
    """Whether values are the same; clients return texts of JSON as str."""
    values = [value.encode() if isinstance(value, str) else value for value in got.ravel()]
    return got.shape == expected.shape and values == list(expected.ravel())


def _add_sub(model: str, shape: tuple[int, int], dtype: Any) -> Example:
    a = np.arange(1, 1 + shape[0] * shape[1]).reshape(shape).astype(dtype)
    b = np.full(shape, 2, dtype)
    return Example(model, {"a": a, "b": b}, {"add": a + b, "sub": a - b})


def _echo(model: str, x: np.ndarray) -> Example:
    return Example(model, {"x": x}, {"y": x})


ADD_SUB = [_add_sub("AddSub", (1, 1), np.float32)]
HALF = [_add_sub("AddSubHalf", (1, 1), np.float16)]
BRAIN = [_echo("EchoBrain", np.array([[1.5]], ml_dtypes.bfloat16))]
ANY_SHAPE = [_add_sub("AddSubAny", shape, np.float32) for shape in SHAPES]
TEXT = [_echo("Text", np.array([[b"a short text"]], object))]
CHAIN = [_echo("Chain", np.ones((1, 1), np.float32))]
CALLER = [_add_sub("Caller", (1, 1), np.float32)]
CALLER_ASYNC = [_add_sub("CallerAsync", (1, 1), np.float32)]


def _tensors(library: Any, form: Form, example: Example) -> dict[str, Any]:
    """The arguments of a client's `infer`."""
    inputs = []
    # Only the HTTP clients let users choose between JSON and binary tensors.
    choice = {} if form.is_grpc else {"binary_data": form.binary}
    for name, array in example.inputs.items():
        datatype = tritonclient.utils.np_to_triton_dtype(array.dtype)
        tensor = library.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, **choice)
        inputs.append(tensor)
    # A copy, because the HTTP client adds its own headers to those that it gets.
    arguments = {"model_name": example.model, "inputs": inputs, **copy.deepcopy(form.options)}
    if form.names_outputs:
        arguments["outputs"] = [
            library.InferRequestedOutput(name, **choice) for name in example.outputs
        ]
    return arguments


def _outputs(example: Example, answer: Any) -> Arrays:
    return {name: answer.as_numpy(name) for name in example.outputs}


def _tritonclient_http(port: int, form: Form, example: Example) -> tuple[Arrays, bytes]:
    with recording(port) as relay:
        client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{relay.port}")
        answer = client.infer(**_tensors(tritonclient.http, form, example))
        client.close()
    return _outputs(example, answer), last_http_request(relay)


def _tritonclient_http_asyncio(port: int, form: Form, example: Example) -> tuple[Arrays, bytes]:
    async def call(url: str) -> Any:
        async with tritonclient.http.aio.InferenceServerClient(url) as client:
            return await client.infer(**_tensors(tritonclient.http.aio, form, example))

    with recording(port) as relay:
        answer = asyncio.run(call(f"127.0.0.1:{relay.port}"))
    return _outputs(example, answer), last_http_request(relay)


def _tritonclient_grpc(port: int, form: Form, example: Example) -> tuple[Arrays, GrpcCall]:
    with recording(port) as relay:
        client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{relay.port}")
        answer = client.infer(**_tensors(tritonclient.grpc, form, example))
        client.close()
    return _outputs(example, answer), last_grpc_call(relay)


def _model_client_http(port: int, _form: Form, example: Example) -> tuple[Arrays, bytes]:
    with (
        recording(port) as relay,
        ModelClient(f"http://127.0.0.1:{relay.port}", example.model) as client,
    ):
        outputs = client.infer_batch(*example.inputs.values())
    return outputs, http_with_hole(last_http_request(relay))


def _model_client_grpc(port: int, _form: Form, example: Example) -> tuple[Arrays, GrpcCall]:
    with (
        recording(port) as relay,
        ModelClient(f"grpc://127.0.0.1:{relay.port}", example.model) as client,
    ):
        outputs = client.infer_batch(*example.inputs.values())
    return outputs, grpc_with_hole(last_grpc_call(relay))


def http_with_hole(request: bytes) -> bytes:
    """The request with a hole as its id, which it has to have."""
    head, body = request.split(b"\r\n\r\n", 1)
    with_hole, found = re.subn(rb'"id":"[^"]*"', f'"id":"{HOLE}"'.encode(), body, count=1)
    if not found:
        raise ValueError(f"expected a request with an id, got {request!r}")
    grown = len(with_hole) - len(body)

    def longer(line: re.Match[bytes]) -> bytes:
        return line[1] + str(int(line[2]) + grown).encode()

    return re.sub(rb"(?i)(content-length: )(\d+)", longer, head) + b"\r\n\r\n" + with_hole


def grpc_with_hole(call: GrpcCall) -> GrpcCall:
    """The call with a hole as its id, whether it had one or not."""
    request = service_pb2.ModelInferRequest.FromString(call.message[5:])
    request.id = HOLE
    return GrpcCall(call.headers, framed(request))


def _plain_json(port: int, _form: Form, example: Example) -> tuple[Arrays, bytes]:
    """What `curl` or a program of the user sends, without a client library."""
    inputs = [
        {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.ravel().tolist()}
        for name, array in example.inputs.items()
    ]
    body = orjson.dumps({"inputs": inputs})
    with recording(port) as relay:
        connection = http.client.HTTPConnection("127.0.0.1", relay.port)
        path = f"/v2/models/{example.model}/infer"
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = orjson.loads(connection.getresponse().read())
        connection.close()
    outputs = {
        output["name"]: np.array(output["data"], np.float32).reshape(output["shape"])
        for output in answer["outputs"]
    }
    return outputs, last_http_request(relay)


def _http(key: str, title: str, examples: Sequence[Example], **fields: Any) -> Form:
    """A request of tritonclient that names outputs, as most of its users' code does."""
    fields.setdefault("names_outputs", True)
    return Form(key, f"HTTP {title}", examples, _tritonclient_http, **fields)


def _grpc(key: str, title: str, examples: Sequence[Example], **fields: Any) -> Form:
    return Form(key, f"gRPC {title}", examples, _tritonclient_grpc, is_grpc=True, **fields)


_PARAMETERS = {"user": "somebody", "temperature": 7, "stream": False}
_URGENT = {"priority": 1, "timeout": QUEUE_TIMEOUT_US}

SMALL_FORMS = [
    _http("binary", "binary, outputs named", ADD_SUB),
    _http("default", "binary, no outputs named", ADD_SUB, names_outputs=False),
    _http("id", "binary, id", ADD_SUB, options={"request_id": HOLE}),
    _http("parameters", "binary, parameters", ADD_SUB, options={"parameters": _PARAMETERS}),
    _http("priority", "binary, priority and timeout", ADD_SUB, options=_URGENT),
    _http(
        "headers", "binary, id, traceparent, authorization", ADD_SUB,
        options={"request_id": HOLE, "headers": USER_HEADERS},
    ),
    Form("asyncio", "HTTP binary, asyncio client", ADD_SUB, _tritonclient_http_asyncio),
    Form("model_client", "HTTP ModelClient", ADD_SUB, _model_client_http),
    Form("json", "HTTP JSON", ADD_SUB, _plain_json),
    _http("client_json", "JSON of the client", ADD_SUB, binary=False),
    _http("bytes_binary", "BYTES, binary", TEXT),
    _http("bytes_json", "BYTES, JSON", TEXT, binary=False),
    _http("fp16", "FP16", HALF),
    _http("bf16", "BF16", BRAIN),
    _http("shapes", f"{len(SHAPES)} shapes in turn", ANY_SHAPE),
    _grpc("grpc_client", "default call", ADD_SUB),
    _grpc("grpc_id", "id", ADD_SUB, options={"request_id": HOLE}),
    _grpc("deadline", "deadline", ADD_SUB, options={"client_timeout": DEADLINE_S}),
    _grpc(
        "grpc_all", "deadline, id, metadata, outputs named", ADD_SUB, names_outputs=True,
        options={
            "request_id": HOLE, "headers": USER_HEADERS, "client_timeout": DEADLINE_S,
        },
    ),
    _grpc("grpc_parameters", "parameters", ADD_SUB, options={"parameters": _PARAMETERS}),
    _grpc("grpc_priority", "priority and timeout", ADD_SUB, options=_URGENT),
    _grpc("grpc_bytes", "BYTES", TEXT),
    _grpc("grpc_fp16", "FP16", HALF),
    _grpc("grpc_shapes", f"{len(SHAPES)} shapes in turn", ANY_SHAPE),
    Form(
        "grpc_model_client", "gRPC ModelClient", ADD_SUB, _model_client_grpc, is_grpc=True
    ),
]  # fmt: skip
COMPOSED_FORMS = [
    _http("ensemble", "ensemble of 3 steps, binary", CHAIN),
    _grpc("grpc_ensemble", "ensemble of 3 steps", CHAIN),
    _http("bls", "BLS call, binary", CALLER),
    _http("bls_async", "BLS call awaited, binary", CALLER_ASYNC),
    _grpc("grpc_bls", "BLS call", CALLER),
]
FORMS = {form.key: form for form in (*SMALL_FORMS, *COMPOSED_FORMS)}
USER_MODELS = ("AddSub", "AddSubHalf", "AddSubAny", "EchoBrain", "Text")
COMPOSED_MODELS = ("AddSub", "Ident1", "Ident2", "Ident3", "Chain", "Caller", "CallerAsync")
