# SPDX-License-Identifier: Apache-2.0
"""Regions of system shared memory for a plan's tensors: made, registered, and removed at the end.

Only regions of this load are unregistered; those of others on the same server stay.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import secrets
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from pytriton.base.protos import service_pb2
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.link import tls_context
from pytriton.tools.perf.load.plan import LoadPlan, LoadProtocol
from pytriton.tools.perf.load.requests import SERVICE, Address
from pytriton.tools.perf.load.tensors import plain_tensor

_TIMEOUT_S = 30.0


class SharedRegions:
    """The regions of one load.

    Args:
        plan: What is sent.
        address: The server that they are registered with.
    """

    def __init__(self, plan: LoadPlan, address: Address) -> None:
        self._plan = plan
        self._address = address
        self._memories: list[SharedMemory] = []
        self._registered: list[str] = []

    def open(self) -> list[dict[str, str]]:
        """Make and register all regions.

        Returns:
            For each input set, the region of each tensor, by `i:` or `o:` and its name.

        Raises:
            LoadError: the server refuses one.
        """
        plan = self._plan
        if not plan.outputs:
            raise GeneratorError("shared memory needs the names of the outputs, got none")
        outputs = {
            f"o:{name}": self._make(bytes(plan.output_region_bytes)) for name in plan.outputs
        }
        sets = [inputs for stream in plan.inputs for inputs in stream]
        return [
            outputs
            | {
                f"i:{name}": self._make(
                    plain_tensor(name, array, each.datatypes.get(name, "")).data
                )
                for name, array in each.tensors.items()
            }
            for each in sets
        ]

    def close(self) -> None:
        """Unregister and remove what was made; may be called twice."""
        for region in self._registered:
            with contextlib.suppress(GeneratorError):  # the server may be gone
                self._call("unregister", region, {})
        self._registered.clear()
        for memory in self._memories:
            memory.close()
            with contextlib.suppress(FileNotFoundError):
                memory.unlink()
        self._memories.clear()

    def _make(self, data: bytes) -> str:
        # Not the name that Python chooses: servers reserve its prefix. macOS takes 31 characters.
        name = f"perf_{os.getpid()}_{secrets.token_hex(6)}"
        memory = SharedMemory(name, create=True, size=max(1, len(data)))
        self._memories.append(memory)
        assert memory.buf is not None
        memory.buf[: len(data)] = data
        region = f"pytriton_{name}"
        members = {"key": f"/{name}", "offset": 0, "byte_size": max(1, len(data))}
        self._call("register", region, members)
        self._registered.append(region)
        return region

    def _call(self, action: str, region: str, members: dict[str, Any]) -> None:
        is_http = self._plan.protocol is LoadProtocol.HTTP
        call = self._call_http if is_http else self._call_grpc
        try:
            problem = call(action, region, members)
        except (OSError, http.client.HTTPException) as error:
            problem = str(error)
        if problem:
            raise GeneratorError(f"the server did not {action} shared memory '{region}': {problem}")

    def _call_http(self, action: str, region: str, members: dict[str, Any]) -> str:
        host, port, tls = self._address
        if tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        else:
            context = tls_context(tls, ["http/1.1"])
            connection = http.client.HTTPSConnection(
                host, port, timeout=_TIMEOUT_S, context=context
            )
        with contextlib.closing(connection):
            target = f"/v2/systemsharedmemory/region/{region}/{action}"
            connection.request("POST", target, json.dumps(members), dict(self._plan.headers))
            answer = connection.getresponse()
            body = answer.read()
        return "" if answer.status == 200 else f"HTTP {answer.status}: {body.decode()}"

    def _call_grpc(self, action: str, region: str, members: dict[str, Any]) -> str:
        import grpc  # noqa: PLC0415  # takes 0.1 s, and is needed here only

        name = f"SystemSharedMemory{action.capitalize()}"
        request = getattr(service_pb2, f"{name}Request")(name=region, **members)
        metadata = [(key.lower(), value) for key, value in self._plan.headers]
        with _channel(grpc, self._address) as channel:
            serialise: Callable[[Any], bytes] = type(request).SerializeToString
            call = channel.unary_unary(f"{SERVICE}/{name}", serialise, bytes)
            try:
                call(request, timeout=_TIMEOUT_S, metadata=metadata)
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"
        return ""


def _channel(grpc: Any, address: Address) -> Any:
    tls = address.tls
    if tls is None:
        return grpc.insecure_channel(address.authority)

    def read(path: str | None) -> bytes | None:
        return None if path is None else pathlib.Path(path).read_bytes()

    credentials = grpc.ssl_channel_credentials(
        read(tls.ca_file), read(tls.key_file), read(tls.certificate_file)
    )
    return grpc.secure_channel(address.authority, credentials)
