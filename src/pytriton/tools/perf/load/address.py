# SPDX-License-Identifier: Apache-2.0
"""Where the server of a plan is."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.plan import LoadPlan, LoadProtocol, Tls

_SCHEMES = {
    LoadProtocol.HTTP: ("http", "https"),
    LoadProtocol.GRPC: ("grpc", "grpcs", "http", "https"),
}


class Address(NamedTuple):
    """A server: its host, its port, and how connections to it are encrypted."""

    host: str
    port: int
    tls: Tls | None

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def address_of(plan: LoadPlan) -> Address:
    """The address in the URL of a plan.

    Raises:
        LoadError: the URL is not one.
    """
    url = plan.url if "://" in plan.url else f"{plan.protocol.value}://{plan.url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise GeneratorError(
            f"expected an address `host:port`, got {plan.url!r}: {error}"
        ) from error
    schemes = _SCHEMES[plan.protocol]
    if not host or parts.scheme not in schemes:
        raise GeneratorError(
            f"expected an address `host:port`, or one that begins with {' or '.join(schemes)}, "
            f"got {plan.url!r}"
        )
    if port is None:
        port = DEFAULT_HTTP_PORT if plan.protocol is LoadProtocol.HTTP else DEFAULT_GRPC_PORT
    tls = plan.tls
    if tls is None and parts.scheme in ("https", "grpcs"):
        tls = Tls()
    return Address(host, port, tls)
