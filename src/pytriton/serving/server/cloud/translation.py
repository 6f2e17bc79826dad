# SPDX-License-Identifier: Apache-2.0
"""Turns the requests of cloud providers into those of the HTTP port.

A cloud route has no rights of its own: it becomes a target in the table of HTTP endpoints, or an
endpoint with one of its groups, so that the same decision on restricted APIs applies.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from pytriton.serving.server.http.reader import RequestHead
from pytriton.serving.server.http.routes import HttpEndpoint, Route

_HEADER_LENGTH = b"inference-header-content-length"
# The provider may have asked for a compressed response, and not its client. So there is none.
_ACCEPT_ENCODING = b"accept-encoding"


class HttpTarget(NamedTuple):
    """A request for an endpoint of the HTTP port."""

    method: bytes
    target: bytes


class OwnTarget(NamedTuple):
    """A request for an endpoint that only a cloud provider has."""

    route: Route


class CloudRefusal(NamedTuple):
    """A request that nothing answers."""

    status: int
    message: str
    headers: bytes = b""


Translation = HttpTarget | OwnTarget | CloudRefusal

NOT_FOUND = CloudRefusal(404, "Not Found")


def not_allowed(endpoint: HttpEndpoint) -> CloudRefusal:
    """Returns the refusal of a method that an endpoint does not have."""
    return CloudRefusal(405, "Method Not Allowed", endpoint.allow)


def infer_target(model: str, inference_type: str = "infer") -> bytes:
    """Returns the target for inferences of a model."""
    name = quote(model, safe="", errors="surrogateescape")
    return f"/v2/models/{name}/{inference_type}".encode()


def binary_type(provider: bytes) -> re.Pattern[bytes]:
    """Returns the pattern of the Content-Type of requests with binary tensors.

    Its parameter is the length of the JSON in front of the tensors. Other parameters may follow.
    """
    name = rb"application/vnd\.%b-triton\.binary\+json" % re.escape(provider)
    return re.compile(name + rb"\s*;\s*json-header-size\s*=\s*(-?\d+|[^;\s]*)", re.IGNORECASE)


def http_head(head: RequestHead, to: HttpTarget, binary: re.Pattern[bytes]) -> RequestHead:
    """Returns the head of the same request to the HTTP port.

    Args:
        head: The head of the request as it came.
        to: What it asks for.
        binary: The pattern of `binary_type`. The HTTP port has a header of its own for the length.
    """
    headers = {name: value for name, value in head.headers.items() if name != _ACCEPT_ENCODING}
    found = binary.match(headers.get(b"content-type", b""))
    if found is not None:
        headers[_HEADER_LENGTH] = found[1]
    return msgspec.structs.replace(
        head, method=to.method, target=to.target, headers=headers, resolved=None
    )
