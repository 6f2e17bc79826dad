# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.named_principals`: `tritonserver` whose clients say who they are in a header.

Authentication finds principals of requests in a real server. This one believes the header, so that
quotas can be tried by themselves. The environment has the quotas, as JSON by principal.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import msgspec

from pytriton.base.quotas import PrincipalQuotas
from pytriton.serving.server.core import Core
from pytriton.serving.server.grpc.api import GrpcApi
from pytriton.serving.server.http.api import HttpApi
from pytriton.serving.server.tritonserver import command

HEADER = "x-principal"
QUOTAS = "PRINCIPAL_QUOTAS"


def believe_header() -> None:
    """Let front ends take principals from the header, also those of other processes."""
    resolve, open_call = HttpApi._resolve, GrpcApi.open_call

    @functools.wraps(resolve)
    def resolve_named(self: Any, connection: Any, head: Any) -> Any:
        resolved = resolve(self, connection, head)
        if resolved is not None:
            resolved.principal = head.headers.get(HEADER.encode(), b"").decode()
        return resolved

    @functools.wraps(open_call)
    def open_named(self: Any, connection: Any, stream_id: int, head: Any) -> Any:
        head.principal = str(dict(head.metadata).get(HEADER, ""))
        return open_call(self, connection, stream_id, head)

    # Assigned, and no subclasses: the server makes the objects itself.
    HttpApi._resolve = resolve_named  # type: ignore[method-assign]
    GrpcApi.open_call = open_named  # type: ignore[method-assign]


def limit_principals() -> None:
    """Give the engine the quotas of the environment."""
    text = os.environ.get(QUOTAS, "{}")
    quotas = msgspec.json.decode(text, type=dict[str, PrincipalQuotas])
    init = Core.__init__

    @functools.wraps(init)
    def init_limited(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.engine.set_quotas(quotas)

    Core.__init__ = init_limited  # type: ignore[method-assign]  # as above


if __name__ == "__main__":
    believe_header()
    limit_principals()
    command()
