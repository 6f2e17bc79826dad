# SPDX-License-Identifier: Apache-2.0
"""The addresses and ports that a server listens on."""

from __future__ import annotations

import msgspec

from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT
from pytriton.exceptions import PyTritonValidationError
from pytriton.server.options.flags import Flags

_ANY_ADDRESS = "0.0.0.0"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address and port of one protocol."""

    port: int  # 0: a free one
    address: str = _ANY_ADDRESS
    allow: bool = True
    reuse_port: bool = False


def read_endpoints(flags: Flags) -> tuple[Endpoint, Endpoint, Endpoint]:
    """Returns those of HTTP, gRPC and metrics; raises PyTritonValidationError if two are equal."""
    http = Endpoint(
        allow=flags.boolean("allow_http", default=True),
        address=flags.text("http_address", _ANY_ADDRESS),
        port=flags.port("http_port", DEFAULT_HTTP_PORT),
        reuse_port=flags.boolean("reuse_http_port", default=False),
    )
    grpc = Endpoint(
        allow=flags.boolean("allow_grpc", default=True),
        address=flags.text("grpc_address", _ANY_ADDRESS),
        port=flags.port("grpc_port", DEFAULT_GRPC_PORT),
        reuse_port=flags.boolean("reuse_grpc_port", default=False),
    )
    metrics = Endpoint(
        allow=flags.boolean("allow_metrics", default=True),
        address=flags.text("metrics_address", http.address),
        port=flags.port("metrics_port", DEFAULT_METRICS_PORT),
    )
    _refuse_shared_ports({"HTTP": http, "GRPC": grpc, "metrics": metrics})
    return http, grpc, metrics


def read_cloud_endpoint(flags: Flags, name: str) -> Endpoint:
    """Returns the endpoint for requests in the form of a cloud provider."""
    return Endpoint(
        allow=flags.boolean(f"allow_{name}", default=False), port=flags.port(f"{name}_port", 8080)
    )


def _refuse_shared_ports(endpoints: dict[str, Endpoint]) -> None:
    taken: dict[tuple[str, int], str] = {}
    for name, endpoint in endpoints.items():
        if not endpoint.allow or not endpoint.port:
            continue
        other = taken.setdefault((endpoint.address, endpoint.port), name)
        if other != name:
            raise PyTritonValidationError(
                f"The server cannot listen to {other} requests and {name} requests at the same "
                f"address and port {endpoint.address}:{endpoint.port}"
            )
