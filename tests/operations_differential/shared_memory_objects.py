# SPDX-License-Identifier: Apache-2.0
"""Objects of shared memory for the cases, and requests that use them."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.operations_differential.asking import DEADLINE_S, by_stub, over_grpc, over_http
from tests.operations_differential.server import Observation, Server

FOLDER = Path("/dev/shm")
PAGE_BYTES = 4096
NUMBERS = np.arange(PAGE_BYTES // 4, dtype=np.int32).tobytes()
WORDS = b"".join(struct.pack("<I", len(word)) + word for word in (b"ab", b"", b"xyz"))
SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"


def object_name(server: Server) -> str:
    """A name that no other server has; in answers the port is replaced."""
    return f"pytriton-cases-{server.http}"


@contextlib.contextmanager
def memory(server: Server, content: bytes = NUMBERS) -> Iterator[Path]:
    """An object of one page that begins with `content`; all regions are forgotten at the end."""
    path = FOLDER / object_name(server)
    path.write_bytes(content.ljust(PAGE_BYTES, b"\0"))
    try:
        yield path
    finally:
        over_http(server, f"{SYSTEM}/unregister", b"")
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def region(server: Server, content: bytes = NUMBERS) -> Iterator[Path]:
    """The same, registered as the region "page"."""
    with memory(server, content) as path:
        body = {"key": f"/{object_name(server)}", "offset": 0, "byte_size": PAGE_BYTES}
        assert over_http(server, f"{SYSTEM}/region/page/register", body)["status"] == 200
        yield path


def filled(server: Server, value: Any) -> Any:
    """A body or the fields of a message with the name of the object in them."""
    if isinstance(value, str):
        return value.replace("{object}", object_name(server))
    if isinstance(value, bytes):
        return value.replace(b"{object}", object_name(server).encode())
    if isinstance(value, dict):
        return {key: filled(server, each) for key, each in value.items()}
    return value


Ask = Callable[[Server], Observation]


def register_http(body: Any, name: str = "page", kind: str = SYSTEM) -> Ask:
    """Registers over HTTP, then asks for what is registered."""

    def ask(server: Server) -> Observation:
        with memory(server):
            answer = over_http(server, f"{kind}/region/{name}/register", filled(server, body))
            return [answer, over_http(server, f"{SYSTEM}/status")]

    return ask


def register_grpc(fields: Mapping[str, Any], method: str = "SystemSharedMemoryRegister") -> Ask:
    """Registers over gRPC, then asks for what is registered."""

    def ask(server: Server) -> Observation:
        with memory(server):
            answer = over_grpc(server, method, filled(server, dict(fields)))
            return [answer, over_grpc(server, "SystemSharedMemoryStatus")]

    return ask


def http_tensor(name: str = "INPUT0", **parameters: Any) -> dict[str, Any]:
    """An input of four numbers at the beginning of the page, unless parameters say otherwise."""
    place = {"shared_memory_region": "page", "shared_memory_byte_size": 16, **parameters}
    given = {key: value for key, value in place.items() if value is not None}
    return {"name": name, "datatype": "INT32", "shape": [4], "parameters": given}


def http_output(name: str = "OUTPUT0", **parameters: Any) -> dict[str, Any]:
    """An output at 1000 in the page."""
    place = {"shared_memory_offset": 1000, **parameters}
    return {"name": name, "parameters": http_tensor(**place)["parameters"]}


def infer_http(
    body: Mapping[str, Any], model: str = "numbers", content: bytes = NUMBERS, end: int = 1016
) -> Ask:
    """Infers with the page; the answer is shown with the bytes from 1000 on."""

    def ask(server: Server) -> Observation:
        with region(server, content) as path:
            path_name = f"/v2/models/{model}/infer"
            answer = over_http(server, path_name, dict(body), show=("Content-Type",))
            return [answer, path.read_bytes()[1000:end].hex()]

    return ask


def grpc_parameters(place: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a tensor in a message; a dictionary is a parameter of another type."""
    fields: dict[type, str] = {str: "string_param", int: "int64_param", bool: "bool_param"}
    return {
        key: value if isinstance(value, dict) else {fields[type(value)]: value}
        for key, value in place.items()
        if value is not None
    }


def grpc_tensor(name: str = "INPUT0", **parameters: Any) -> dict[str, Any]:
    """Like `http_tensor`, for a message."""
    tensor = http_tensor(name)
    place = {**tensor["parameters"], **parameters}
    return {**tensor, "parameters": grpc_parameters(place)}


def grpc_output(name: str = "OUTPUT0", **parameters: Any) -> dict[str, Any]:
    """Like `http_output`, for a message."""
    place = {**http_output()["parameters"], **parameters}
    return {"name": name, "parameters": grpc_parameters(place)}


def infer_grpc(
    fields: Mapping[str, Any], model: str = "numbers", *, in_stream: bool = False
) -> Ask:
    """Infers with the page; the answer is shown with the bytes from 1000 on."""

    def ask(server: Server) -> Observation:
        message = {"model_name": model, **fields}
        with region(server) as path:
            if in_stream:
                answer = streamed(server, message)
            else:
                answer = over_grpc(server, "ModelInfer", message)
            return [answer, path.read_bytes()[1000:1016].hex()]

    return ask


def streamed(server: Server, fields: Mapping[str, Any]) -> Observation:
    """What a stream answers to one request."""
    from google.protobuf import json_format  # noqa: PLC0415
    from tritonclient.grpc import service_pb2  # noqa: PLC0415

    request = json_format.ParseDict(dict(fields), service_pb2.ModelInferRequest())
    return by_stub(
        server, lambda stub: next(stub.ModelStreamInfer(iter([request]), timeout=DEADLINE_S))
    )
