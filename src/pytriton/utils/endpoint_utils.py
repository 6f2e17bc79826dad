# SPDX-License-Identifier: Apache-2.0
"""The address of a server for the process that started it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pytriton.constants import (
    DEFAULT_GRPC_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_METRICS_PORT,
    TRITON_LOCAL_IP,
)

if TYPE_CHECKING:
    from pytriton.base.triton_config import TritonConfig

# Addresses of zeros only: the server listens on all interfaces, so loopback works.
_ANY_ADDRESS = re.compile(r"(0+\.){3}0+|0+|::")


def get_endpoint(config: TritonConfig, endpoint: Literal["http", "grpc", "metrics"]) -> str:
    """Returns the URL of one of the server's endpoints for clients on the same machine.

    Args:
        config: configuration the server was started with.
        endpoint: which of the endpoints.

    Returns:
        `{scheme}://{host}:{port}`; the scheme of metrics is http. Those of encrypted endpoints are
        https and grpcs.
    """
    if endpoint == "http":
        address, port = config.http_address, config.http_port or DEFAULT_HTTP_PORT
    elif endpoint == "grpc":
        address, port = config.grpc_address, config.grpc_port or DEFAULT_GRPC_PORT
    else:
        address = config.metrics_address or config.http_address
        port = config.metrics_port or DEFAULT_METRICS_PORT
    host = TRITON_LOCAL_IP if not address or _ANY_ADDRESS.fullmatch(address) else address
    scheme = "grpc" if endpoint == "grpc" else "http"
    if config.tls_cert is not None or (endpoint == "grpc" and _is_grpc_encrypted(config)):
        scheme += "s"
    return f"{scheme}://{host}:{port}"


def _is_grpc_encrypted(config: TritonConfig) -> bool:
    return bool(config.grpc_use_ssl or config.grpc_use_ssl_mutual)
