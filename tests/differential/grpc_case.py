# SPDX-License-Identifier: Apache-2.0
"""One compared gRPC call, how it is made, and what is kept of its answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import numpy as np
from google.protobuf import json_format

from pytriton.base.protos import service_pb2
from tests.e2e.waiting import DEADLINE_S

SERVICE = "/inference.GRPCInferenceService"
MAX_BYTES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Observation = dict[str, Any]  # plain JSON, stored as it is
View = Callable[[Observation], Observation]


@dataclasses.dataclass(frozen=True)
class GrpcCase:
    """A call to both servers.

    Where ours deliberately answers otherwise, `ours` says what and `because` says why. What the
    real server never answers is `only_ours`: it is not sent there.
    """

    name: str
    method: str
    requests: tuple[bytes, ...]
    is_stream: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    view: View | None = None  # the comparable part of what was seen
    ours: Observation | None = None
    because: str = ""
    only_ours: bool = False

    def __post_init__(self) -> None:
        if (self.ours is None) != (not self.because):
            raise ValueError(f"{self.name}: a difference needs both an answer and a reason")
        if self.only_ours and self.ours is None:
            raise ValueError(f"{self.name}: where the real server does not answer, ours is told")


def run(case: GrpcCase, port: int) -> Observation:
    """What the server at `port` answers, as it is stored: through JSON and back."""
    path = case.method if case.method.startswith("/") else f"{SERVICE}/{case.method}"
    with grpc.insecure_channel(f"127.0.0.1:{port}", MAX_BYTES) as channel:
        if case.is_stream:
            seen = _run_stream(channel.stream_stream(path), case)
        else:
            seen = _run_unary(channel.unary_unary(path), case)
    if case.view is not None:
        seen = case.view(seen)
    stored: Observation = json.loads(json.dumps(seen))
    return stored


def _run_unary(method: Any, case: GrpcCase) -> Observation:
    try:
        answer = method(case.requests[0], timeout=DEADLINE_S, metadata=case.metadata)
    except grpc.RpcError as error:
        return _status(error)
    return {"status": "OK", "message": _decode(answer, case.method)}


def _run_stream(method: Any, case: GrpcCase) -> Observation:
    call = method(iter(case.requests), timeout=DEADLINE_S, metadata=case.metadata)
    responses = []
    try:
        responses.extend(_decode(answer, case.method) for answer in call)
    except grpc.RpcError as error:
        return {**_status(error), "responses": responses}
    return {"status": "OK", "responses": responses}


def _status(error: Any) -> Observation:
    return {"status": error.code().name, "details": error.details()}


def _decode(answer: bytes, method: str) -> Any:
    name = method.rpartition("/")[2]
    message_class = {
        "ModelStreamInfer": service_pb2.ModelStreamInferResponse,
        "Check": None,
    }.get(name, getattr(service_pb2, f"{name}Response", None))
    if message_class is None:
        return answer.hex()
    return json_format.MessageToDict(
        message_class.FromString(answer), preserving_proto_field_name=True
    )


def by_id(seen: Observation) -> Observation:
    """Responses of one request after another, as requests of decoupled models may interleave."""
    grouped: dict[str, list[Any]] = {}
    for response in seen["responses"]:
        grouped.setdefault(response.get("infer_response", {}).get("id", ""), []).append(response)
    return {**seen, "responses": grouped}


# Requests


def message(
    model: str = "", inputs: Iterable[Any] = (), *, raw: Iterable[bytes] = (), **fields: Any
) -> Any:
    """A ModelInferRequest."""
    parameters = fields.pop("parameters", {})
    request = service_pb2.ModelInferRequest(model_name=model, inputs=inputs, **fields)
    set_parameters(request.parameters, parameters)
    request.raw_input_contents.extend(raw)
    return request


def set_parameters(target: Any, parameters: dict[str, Any]) -> None:
    """Fill a map of parameters: plain values, or pairs of a field's name and its value."""
    fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for key, value in parameters.items():
        if value is None:
            target[key].SetInParent()
            continue
        field, plain = value if isinstance(value, tuple) else (fields[type(value)], value)
        setattr(target[key], field, plain)


def tensor(
    name: str, datatype: str, shape: Iterable[int], parameters: Any = None, **contents: Any
) -> Any:
    """An element of `inputs`; keywords are fields of its typed contents."""
    made = service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    if contents:
        made.contents.CopyFrom(service_pb2.InferTensorContents(**contents))
    set_parameters(made.parameters, parameters or {})
    return made


def output(name: str, **parameters: Any) -> Any:
    """An element of `outputs`."""
    made = service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name)
    set_parameters(made.parameters, parameters)
    return made


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def integers(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def add_sub(**fields: Any) -> Any:
    """A request that is right, but for what `fields` change."""
    values = {
        "model": "add_sub",
        "inputs": [tensor("a", "FP32", [1, 1]), tensor("b", "FP32", [1, 1])],
        "raw": [floats(1), floats(2)],
        **fields,
    }
    return message(**values)


def infer(name: str, request: Any, **options: Any) -> GrpcCase:
    """A call of ModelInfer."""
    return call(name, "ModelInfer", request, **options)


def call(name: str, method: str, request: Any, **options: Any) -> GrpcCase:
    """A unary call."""
    content = request if isinstance(request, bytes) else request.SerializeToString()
    return GrpcCase(name, method, (content,), **options)


def stream(name: str, requests: Iterable[Any], **options: Any) -> GrpcCase:
    """A call of ModelStreamInfer that sends all its requests at once."""
    contents = tuple(request.SerializeToString() for request in requests)
    return GrpcCase(f"stream: {name}", "ModelStreamInfer", contents, is_stream=True, **options)


def distinct(cases: Iterable[GrpcCase]) -> Iterator[GrpcCase]:
    """The cases; ValueError where two have one name."""
    seen = set()
    for case in cases:
        if case.name in seen:
            raise ValueError(f"two cases are called {case.name!r}")
        seen.add(case.name)
        yield case
