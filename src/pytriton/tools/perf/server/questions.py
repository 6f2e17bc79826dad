# SPDX-License-Identifier: Apache-2.0
"""What a load test asks of a server beside inference, over either protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.plan import Tls


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

    @property
    def is_encrypted(self) -> bool:
        return self.tls is not None or self.url.startswith(("https://", "grpcs://"))


class Questions(Protocol):
    """A server as JSON documents; every method raises `QuestionError`."""

    def server_metadata(self) -> Mapping[str, Any]: ...

    def model_metadata(self, model: str, version: str = "") -> Mapping[str, Any]: ...

    def model_config(self, model: str, version: str = "") -> Mapping[str, Any]: ...

    def statistics(self, model: str, version: str = "") -> Sequence[Mapping[str, Any]]: ...

    def update_trace(self, settings: Mapping[str, Sequence[str]]) -> None: ...

    def load(self, model: str, config: str | None = None) -> None: ...

    def unload(self, model: str) -> None: ...

    def close(self) -> None: ...
