# SPDX-License-Identifier: Apache-2.0
"""Regions of clients' shared memory: registered, asked for, used and forgotten."""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.operations_differential.asking import DEADLINE_S, both, by_stub, over_grpc, over_http
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface

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


PAGE = {"key": "/{object}", "offset": 0, "byte_size": 4096}
HANDLE = {"b64": base64.b64encode(bytes(64)).decode()}
CUDA_PAGE = {"raw_handle": HANDLE, "device_id": 0, "byte_size": 64}
MAX = 2**64 - 1


def status_of_none(server: Server) -> Observation:
    return both(server, f"{SYSTEM}/status", None, "SystemSharedMemoryStatus")


def cuda_status_of_none(server: Server) -> Observation:
    return both(server, f"{CUDA}/status", None, "CudaSharedMemoryStatus")


def status_by_name(server: Server) -> Observation:
    with region(server):
        return {
            "its own": both(
                server,
                f"{SYSTEM}/region/page/status",
                None,
                "SystemSharedMemoryStatus",
                {"name": "page"},
            ),
            "unknown": both(
                server,
                f"{SYSTEM}/region/no/status",
                None,
                "SystemSharedMemoryStatus",
                {"name": "no"},
            ),
            "as CUDA": both(
                server,
                f"{CUDA}/region/page/status",
                None,
                "CudaSharedMemoryStatus",
                {"name": "page"},
            ),
            "unknown CUDA": both(
                server, f"{CUDA}/region/no/status", None, "CudaSharedMemoryStatus", {"name": "no"}
            ),
        }


def wrong_calls(server: Server) -> Observation:
    return {
        "no name": over_http(server, f"{SYSTEM}/register", {"key": "/k", "byte_size": 1}),
        "no name of CUDA": over_http(server, f"{CUDA}/register", CUDA_PAGE),
        "empty name": over_http(server, f"{SYSTEM}/region//register", {}),
        "status with POST": over_http(server, f"{SYSTEM}/status", b""),
        "register with GET": over_http(server, f"{SYSTEM}/region/r/register"),
    }


def unregistered(server: Server) -> Observation:
    use = {"inputs": [http_tensor()]}
    with region(server):
        return [
            over_http(server, f"{CUDA}/region/page/unregister", b""),
            over_http(server, f"{CUDA}/unregister", b""),
            over_grpc(server, "CudaSharedMemoryUnregister", {"name": "page"}),
            over_http(server, "/v2/models/numbers/infer", use),
            over_http(server, f"{SYSTEM}/region/page/unregister", b""),
            over_http(server, "/v2/models/numbers/infer", use),
            over_http(server, f"{SYSTEM}/region/page/unregister", b"{}"),
            over_grpc(server, "SystemSharedMemoryUnregister", {"name": "page"}),
            over_grpc(server, "SystemSharedMemoryUnregister"),
        ]


def registered_twice(server: Server) -> Observation:
    with region(server):
        body = {"key": f"/{object_name(server)}", "byte_size": 4096}
        return [
            over_http(server, f"{SYSTEM}/region/page/register", body),
            over_grpc(server, "SystemSharedMemoryRegister", {"name": "page", **body}),
            over_http(server, f"{CUDA}/region/page/register", CUDA_PAGE),
        ]


def unlinked_object_is_used(server: Server) -> Observation:
    with region(server) as path:
        path.unlink()
        return over_http(server, "/v2/models/numbers/infer", {"inputs": [http_tensor()]})


REGISTER_HTTP: Mapping[str, Any] = {
    "whole page": PAGE,
    "without an offset": {"key": "/{object}", "byte_size": 16},
    "without a slash": {"key": "{object}", "byte_size": 16},
    "no JSON": b"",
    "broken JSON": b"{",
    "a list": [],
    "no members": {},
    "no size": {"key": "/{object}"},
    "no key": {"byte_size": 16},
    "key is a number": {"key": 5, "byte_size": 16},
    "size is text": {"key": "/{object}", "byte_size": "16"},
    "size is negative": {"key": "/{object}", "byte_size": -1},
    "size is a float": {"key": "/{object}", "byte_size": 16.0},
    "size beyond 64 bits": {"key": "/{object}", "byte_size": MAX + 1},
    "largest size": {"key": "/{object}", "byte_size": MAX},
    "size is 2^63": {"key": "/{object}", "byte_size": 2**63},
    "size is 0": {"key": "/{object}", "byte_size": 0},
    "one byte too many": {"key": "/{object}", "byte_size": 4097},
    "offset is text": {"key": "/{object}", "offset": "0", "byte_size": 16},
    "offset is negative": {"key": "/{object}", "offset": -1, "byte_size": 16},
    "offset is a float": {"key": "/{object}", "offset": 0.5, "byte_size": 16},
    "largest offset": {"key": "/{object}", "offset": MAX, "byte_size": 16},
    "offset is 2^63": {"key": "/{object}", "offset": 2**63, "byte_size": 16},
    "offset at the end": {"key": "/{object}", "offset": 4096, "byte_size": 1},
    "offset in a page": {"key": "/{object}", "offset": 1000, "byte_size": 16},
    "unknown object": {"key": "/not-there", "byte_size": 16},
    "empty key": {"key": "", "byte_size": 16},
    "only slashes": {"key": "//", "byte_size": 16},
    "slash in the key": {"key": "/a/b", "byte_size": 16},
    "parent folder": {"key": "/..", "byte_size": 16},
    "way out of the folder": {"key": "../shm/{object}", "byte_size": 16},
    "long key": {"key": "x" * 300, "byte_size": 16},
    "key of the Python backend": {"key": "/triton_python_backend_shm_region_x", "byte_size": 16},
}
REGISTER_GRPC: Mapping[str, Any] = {
    "whole page": {"name": "page", **PAGE},
    "no size": {"name": "page", "key": "/{object}"},
    "one byte too many": {"name": "page", "key": "/{object}", "byte_size": 4097},
    "largest numbers": {"name": "page", "key": "/{object}", "offset": MAX, "byte_size": MAX},
    "unknown object": {"name": "page", "key": "/not-there", "byte_size": 16},
    "empty key": {"name": "page", "byte_size": 16},
}
CUDA_HTTP: Mapping[str, Any] = {
    "handle": CUDA_PAGE,
    "no handle": {},
    "no text in the handle": {**CUDA_PAGE, "raw_handle": {}},
    "handle is text": {**CUDA_PAGE, "raw_handle": "x"},
    "handle is not base64": {**CUDA_PAGE, "raw_handle": {"b64": "%"}},
    "short handle": {**CUDA_PAGE, "raw_handle": {"b64": "AAAA"}},
    "no size": {"raw_handle": HANDLE, "device_id": 0},
    "no device": {"raw_handle": HANDLE, "byte_size": 64},
    "negative device": {**CUDA_PAGE, "device_id": -1},
}
# What the parameters of an input or of an output may say, for both protocols.
PLACES: Mapping[str, dict[str, Any]] = {
    "in the page": {},
    "at an offset": {"shared_memory_offset": 1008},
    "at the very end": {"shared_memory_offset": 4080},
    "in an unknown region": {"shared_memory_region": "no"},
    "in a region that is a number": {"shared_memory_region": 5},
    "without a size": {"shared_memory_byte_size": None},
    "with size 0": {"shared_memory_offset": 0, "shared_memory_byte_size": 0},
    "with a negative size": {"shared_memory_offset": 0, "shared_memory_byte_size": -1},
    "with size as text": {"shared_memory_byte_size": "16"},
    "one byte too short": {"shared_memory_byte_size": 15},
    "one byte too long": {"shared_memory_byte_size": 17},
    "with a negative offset": {"shared_memory_offset": -1},
    "with the offset as text": {"shared_memory_offset": "0"},
    "with the offset at the end": {"shared_memory_offset": 4096},
    "over the end": {"shared_memory_offset": 4084},
    "with an offset of 2^63-1": {"shared_memory_offset": 2**63 - 1},
    "with a size of 2^63-1": {"shared_memory_byte_size": 2**63 - 1},
    "only an offset": {
        "shared_memory_region": None,
        "shared_memory_byte_size": None,
        "shared_memory_offset": 0,
    },
}
INLINE = {"name": "INPUT0", "datatype": "INT32", "shape": [4], "data": [9, 8, 7, 6]}
INLINE_PB = {**INLINE, "contents": {"int_contents": [9, 8, 7, 6]}}
del INLINE_PB["data"]
RAW_PB = {"name": "INPUT1", "datatype": "INT32", "shape": [4]}
RAW = base64.b64encode(bytes(range(16))).decode()

MORE_HTTP: Mapping[str, dict[str, Any]] = {
    "data and a region": {"inputs": [{**http_tensor(), "data": [1, 2, 3, 4]}]},
    "binary data and a region": {"inputs": [http_tensor(binary_data_size=16)]},
    "another datatype": {"inputs": [{**http_tensor(), "datatype": "FP32"}]},
    "another shape": {"inputs": [{**http_tensor(), "shape": [5]}]},
    "inline input, output in the page": {"inputs": [INLINE], "outputs": [http_output()]},
    "output as classes, too": {"inputs": [INLINE], "outputs": [http_output(classification=1)]},
    "output as binary data, too": {"inputs": [INLINE], "outputs": [http_output(binary_data=True)]},
    "output not as binary data": {"inputs": [INLINE], "outputs": [http_output(binary_data=False)]},
    "binary by default": {
        "inputs": [INLINE],
        "outputs": [http_output()],
        "parameters": {"binary_data_output": True},
    },
    "largest offset": {"inputs": [http_tensor(shared_memory_offset=MAX)]},
    "largest size": {"inputs": [http_tensor(shared_memory_byte_size=MAX)]},
    "sum beyond 64 bits": {
        "inputs": [http_tensor(shared_memory_offset=1, shared_memory_byte_size=MAX)]
    },
    "unknown regions twice": {
        "inputs": [http_tensor(shared_memory_region="a")],
        "outputs": [http_output(shared_memory_region="b")],
    },
}
TEXT = {**http_tensor(), "datatype": "BYTES", "shape": [3]}


def texts(size: int, output_size: int | None = None) -> dict[str, Any]:
    place = {"shared_memory_region": "page", "shared_memory_byte_size": size}
    body: dict[str, Any] = {"inputs": [{**TEXT, "parameters": place}]}
    if output_size is not None:
        body["outputs"] = [http_output(shared_memory_byte_size=output_size)]
    return body


MORE_GRPC: Mapping[str, dict[str, Any]] = {
    "contents and a region": {"inputs": [{**INLINE_PB, **grpc_tensor()} | {
        "contents": {"int_contents": [1, 2, 3, 4]}}]},
    "raw contents that no input needs": {
        "inputs": [grpc_tensor()], "raw_input_contents": [RAW]},
    "offset as uint64": {
        "inputs": [grpc_tensor(shared_memory_offset={"uint64_param": 16})]},
    "typed input, output in the page": {"inputs": [INLINE_PB], "outputs": [grpc_output()]},
    "output as classes, too": {"inputs": [INLINE_PB], "outputs": [grpc_output(classification=1)]},
}  # fmt: skip
PAIRS: Mapping[str, dict[str, Any]] = {
    "raw second input": {
        "inputs": [grpc_tensor(), RAW_PB],
        "outputs": [grpc_output(), {"name": "OUTPUT1"}],
        "raw_input_contents": [RAW],
    },
    "raw first input": {
        "inputs": [{**RAW_PB, "name": "INPUT0"}, grpc_tensor("INPUT1")],
        "outputs": [{"name": "OUTPUT0"}, grpc_output("OUTPUT1")],
        "raw_input_contents": [RAW],
    },
    "no raw second input": {"inputs": [grpc_tensor(), RAW_PB]},
}


def cases(prefix: str, asks: Mapping[str, Ask]) -> tuple[Case, ...]:
    return tuple(Case(f"{prefix}: {name}", ask) for name, ask in asks.items())


def inputs_and_outputs() -> tuple[Case, ...]:
    places = PLACES.items()
    return (
        *cases(
            "HTTP input",
            {name: infer_http({"inputs": [http_tensor(**place)]}) for name, place in places},
        ),
        *cases(
            "HTTP output",
            {
                name: infer_http({"inputs": [INLINE], "outputs": [http_output(**place)]})
                for name, place in places
            },
        ),
        *cases(
            "gRPC input",
            {name: infer_grpc({"inputs": [grpc_tensor(**place)]}) for name, place in places},
        ),
        *cases(
            "gRPC output",
            {
                name: infer_grpc({"inputs": [INLINE_PB], "outputs": [grpc_output(**place)]})
                for name, place in places
            },
        ),
        *cases(
            "stream",
            {
                name: infer_grpc(
                    {"inputs": [grpc_tensor(**place)], "outputs": [grpc_output()]}, in_stream=True
                )
                for name, place in places
                if name in ("in the page", "in an unknown region", "one byte too short")
            },
        ),
    )


SURFACE = Surface(
    "shared_memory",
    cases=(
        Case("status of no regions", status_of_none),
        Case("CUDA status of no regions", cuda_status_of_none),
        Case("status by name", status_by_name),
        Case("wrong calls", wrong_calls),
        Case("unregistered regions", unregistered),
        Case("a name that is taken", registered_twice),
        Case("an object without a name", unlinked_object_is_used),
        *cases("register", {name: register_http(body) for name, body in REGISTER_HTTP.items()}),
        *cases(
            "register over gRPC",
            {name: register_grpc(fields) for name, fields in REGISTER_GRPC.items()},
        ),
        *cases(
            "register CUDA",
            {name: register_http(body, kind=CUDA) for name, body in CUDA_HTTP.items()},
        ),
        Case(
            "register CUDA over gRPC",
            register_grpc(
                {"name": "page", "raw_handle": HANDLE["b64"], "byte_size": 64},
                "CudaSharedMemoryRegister",
            ),
        ),
        Case("register a name with a blank", register_http(PAGE, "a%20b")),
        *inputs_and_outputs(),
        *cases("HTTP", {name: infer_http(body) for name, body in MORE_HTTP.items()}),
        *cases("gRPC", {name: infer_grpc(fields) for name, fields in MORE_GRPC.items()}),
        *cases("gRPC, two inputs", {n: infer_grpc(f, "pair") for n, f in PAIRS.items()}),
        *cases(
            "texts",
            {
                "all": infer_http(texts(17), "texts", WORDS),
                "into the page": infer_http(texts(17, 100), "texts", WORDS, end=1017),
                "into too little": infer_http(texts(17, 16), "texts", WORDS),
                "one more": infer_http(texts(21), "texts", WORDS),
                "cut": infer_http(texts(16), "texts", WORDS),
            },
        ),
    ),
    # The real one of this release always allows it.
    setup=Setup(our_options=("--allow-client-shm=true",)),
)
