# SPDX-License-Identifier: Apache-2.0
"""The addresses and ports that a server listens on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.cloud_options import HTTP_PORT_VARIABLE, is_prediction
from pytriton.serving.server.options.flags import Flags, bad_value

_ANY_ADDRESS = "0.0.0.0"
_CLOUD_PORT = 8080


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address and port of one protocol."""

    port: int  # 0: a free one
    address: str = _ANY_ADDRESS
    allow: bool = True
    reuse_port: bool = False


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """All endpoints of a server."""

    http: Endpoint
    grpc: Endpoint
    metrics: Endpoint
    sagemaker: Endpoint
    vertex_ai: Endpoint


def read_endpoints(flags: Flags, variables: Mapping[str, str]) -> Endpoints:
    """Read the endpoints; `variables` are those of the environment.

    Raises:
        PyTritonValidationError: Two endpoints are equal, or SageMaker does not allow a port.
    """
    # Vertex AI sends requests to one port only, so the others are served if they are asked for.
    by_default = not is_prediction(variables)
    http = Endpoint(**flags.record("http", allow=by_default))
    endpoints = Endpoints(
        http=http,
        grpc=Endpoint(**flags.record("grpc", allow=by_default)),
        metrics=Endpoint(**flags.record("metrics", address=http.address)),
        sagemaker=Endpoint(**flags.record("sagemaker")),
        vertex_ai=Endpoint(
            **flags.record("vertex_ai", allow=not by_default, port=_vertex_ai_port(variables))
        ),
    )
    _refuse_shared_ports(endpoints)
    _refuse_unsafe_ports(endpoints, flags.value("sagemaker_safe_port_range"))
    return endpoints


def _vertex_ai_port(variables: Mapping[str, str]) -> int:
    value = variables.get(HTTP_PORT_VARIABLE) or _CLOUD_PORT
    try:
        return int(Flags({"vertex_ai_port": value}).value("vertex_ai_port"))
    except PyTritonValidationError:
        raise PyTritonValidationError(
            f"Expected a port from 0 to 65535 for the variable {HTTP_PORT_VARIABLE}, got {value!r}"
        ) from None


def _refuse_shared_ports(endpoints: Endpoints) -> None:
    taken: dict[tuple[str, int], str] = {}
    for name, endpoint in (
        ("HTTP", endpoints.http),
        ("GRPC", endpoints.grpc),
        ("metrics", endpoints.metrics),
        ("SageMaker", endpoints.sagemaker),
        ("Vertex AI", endpoints.vertex_ai),
    ):
        if not endpoint.allow or not endpoint.port:
            continue
        other = taken.setdefault((endpoint.address, endpoint.port), name)
        if other != name:
            raise PyTritonValidationError(
                f"The server cannot listen to {other} requests and {name} requests at the same "
                f"address and port {endpoint.address}:{endpoint.port}"
            )


def _refuse_unsafe_ports(endpoints: Endpoints, allowed: str | None) -> None:
    """Check the ports of other endpoints beside that of SageMaker, as Triton does."""
    if allowed is None:
        return
    name = "sagemaker_safe_port_range"
    first, dash, last = allowed.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise bad_value(name, "<first port>-<last port>", allowed)
    if not endpoints.sagemaker.allow:
        return
    for service, endpoint in (
        ("GRPC", endpoints.grpc),
        ("HTTP", endpoints.http),
        ("Vertex AI", endpoints.vertex_ai),
    ):
        if endpoint.allow and endpoint.port and not int(first) <= endpoint.port <= int(last):
            raise PyTritonValidationError(
                f"The server cannot listen to {service} requests at port {endpoint.port}, allowed "
                f"port range is [{int(first)}, {int(last)}]"
            )
