# SPDX-License-Identifier: Apache-2.0
"""What a load test asks of a server beside inference, over either protocol."""

from __future__ import annotations

import dataclasses
import http.client
import json
from collections.abc import Sequence

from pytriton.client.kserve.address import Address, Tls
from pytriton.client.kserve.errors import ErrorWords, HttpReply
from pytriton.client.kserve.http_client import kserve_client
from pytriton.client.kserve.records import KserveClient
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.plan import parse_load_address
from pytriton.utils.metrics_port import metrics_port_hint

_TIMEOUT_S = 60.0


class QuestionError(PerfError):
    """The server refused a question, or cannot be reached."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, and how it is spoken to.

    Attributes:
        url: `host:port`, with or without a scheme.
        is_grpc: gRPC instead of HTTP.
        headers: Headers of each request (metadata over gRPC).
        tls: Encrypted connections; None: plain ones, unless the URL says otherwise.
    """

    url: str
    is_grpc: bool = False
    headers: Sequence[tuple[str, str]] = ()
    tls: Tls | None = None

    @property
    def host_and_port(self) -> str:
        return self.url.split("://", 1)[-1].split("/", 1)[0]


class _QuestionWords(ErrorWords):
    """Errors in the words of load tests, which name the server as it was typed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def unreachable(self, address: Address, error: Exception, timeout_s: float) -> Exception:
        if isinstance(error, http.client.BadStatusLine):
            return QuestionError(
                f"{self._name} does not speak HTTP; is it the port for gRPC? That needs -i grpc"
            )
        return QuestionError(f"the server at {self._name} cannot be reached: {error}")

    def unexpected(
        self, address: Address, path: str, reply: HttpReply, error: Exception
    ) -> Exception:
        return QuestionError(
            metrics_port_hint(address.host, address.port)
            or f"{self._name} does not answer as a KServe v2 server does: status {reply.status}, "
            f"{reply.text[:500]!r}"
        )

    def refused(self, address: Address, reply: HttpReply) -> Exception:
        try:
            document = json.loads(reply.body)
        except ValueError as error:
            return self.unexpected(address, "", reply, error)
        text = document.get("error") if isinstance(document, dict) else None
        return QuestionError(str(text or f"the server answered with status {reply.status}"))

    def call_failed(self, address: Address, code: str, details: str, timeout_s: float) -> Exception:
        return QuestionError(details)


def questions_of(server: ServerAddress) -> KserveClient:
    """Returns a client whose errors are `QuestionError`; nothing is sent yet.

    Raises:
        GeneratorError: The address is malformed.
    """
    protocol = "grpc" if server.is_grpc else "http"
    address = parse_load_address(server.url, protocol, server.tls)
    words = _QuestionWords(server.host_and_port)
    return kserve_client(address, dict(server.headers), _TIMEOUT_S, server.tls, words)
