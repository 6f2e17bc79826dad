# SPDX-License-Identifier: Apache-2.0
"""What is seen of a server over HTTP, over gRPC, in its metrics and in its log, as plain JSON.

`tests.python_backend_differential.clients` has inferences by the official clients, whose functions
take these servers, too.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import tritonclient.grpc as grpc_client
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.waiting import DEADLINE_S, eventually
from tests.operations_differential.server import Observation, Server


def over_http(
    server: Server,
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    port: str = "http",
    show: tuple[str, ...] = (),
) -> Observation:
    """The status and the body of a call, and the headers in `show`.

    It is GET without a body and POST with one unless `method` says otherwise. A body that is
    neither bytes nor text is written as JSON.
    """
    data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    connection = http.client.HTTPConnection("127.0.0.1", server.ports[port], timeout=DEADLINE_S)
    try:
        connection.request(
            method or ("GET" if data is None else "POST"), path, data, dict(headers or {})
        )
        answer = connection.getresponse()
        content = answer.read().decode(errors="replace")
        shown = {name: server.normalised(answer.getheader(name, "")) for name in show}
    finally:
        connection.close()
    seen = {"status": answer.status, "body": _read(server.normalised(content))}
    return {**seen, "headers": shown} if show else seen


def _read(text: str) -> Observation:
    """JSON as such, and every other body as its text."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def over_grpc(server: Server, method: str, fields: Mapping[str, Any] | None = None) -> Observation:
    """What an unary call with these fields of its request answers, or its status and message."""
    request = getattr(service_pb2, f"{method.removeprefix('Model')}Request", None)
    request = getattr(service_pb2, f"{method}Request", request)
    message = json_format.ParseDict(dict(fields or {}), request())
    return by_stub(server, lambda stub: getattr(stub, method)(message, timeout=DEADLINE_S))


def by_stub(server: Server, call: Callable[[Any], Any]) -> Observation:
    """The same for a call that is not made of plain fields."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        try:
            answer = call(service_pb2_grpc.GRPCInferenceServiceStub(channel))
        except grpc.RpcError as error:
            return {
                "status": error.code().name,
                "error": server.normalised(error.details() or ""),
            }
    return json.loads(
        server.normalised(json_format.MessageToJson(answer, preserving_proto_field_name=True))
    )


def both(
    server: Server, path: str, body: Any, method: str, fields: Mapping[str, Any] | None = None
) -> Observation:
    """The same question over both protocols."""
    return {"HTTP": over_http(server, path, body), "gRPC": over_grpc(server, method, fields)}


def metrics(server: Server, *prefixes: str) -> Observation:
    """The lines of /metrics about families whose names begin with one of the prefixes."""
    text = over_http(server, "/metrics", port="metrics")["body"]
    starts = tuple(start + prefix for prefix in prefixes for start in ("", "# HELP ", "# TYPE "))
    return sorted(line for line in text.splitlines() if line.startswith(starts))


def length_of_log(server: Server) -> int:
    return len(server.log.read_text(errors="replace"))


def log_lines(server: Server, position: int, mark: str, last: str = "") -> Observation:
    """The lines with `mark` that the log has after a position; `last` is waited for."""

    def text() -> str:
        return server.log.read_text(errors="replace")[position:]

    eventually(lambda: (last or mark) in text())
    return [server.normalised(line) for line in text().splitlines() if mark in line]


def int32_request(model: str = "numbers", values: tuple[int, ...] = (1, 2, 3)) -> Observation:
    """The path and the JSON of an inference of numbers; the model's input is INPUT0."""
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [len(values)], "data": list(values)}
    return f"/v2/models/{model}/infer", {"inputs": [tensor]}


def open_grpc(server: Server) -> Any:
    """The official gRPC client."""
    return grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}")
