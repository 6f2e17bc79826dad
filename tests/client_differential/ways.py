# SPDX-License-Identifier: Apache-2.0
"""The five clients made alike: one `use` of a client can be asked of each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)

Use = Callable[[Any], Any]  # what is done with a client

FUTURE_LIMIT_S = 55.0


@dataclass(frozen=True)
class Way:
    """A client and a protocol, and how to get from its method's result to plain outputs."""

    client_class: Any
    scheme: str
    finish: Callable[[Any, Use], Any]

    def __str__(self) -> str:
        return f"{self.client_class.__name__} {self.scheme}"

    def ask(self, url: str, model: str, use: Use, **settings: Any) -> Any:
        """What comes of the use of a new client."""
        return self.finish(lambda: self.client_class(url, model, **settings), use)


def finish_at_once(make: Callable[[], Any], use: Use) -> Any:
    with make() as client:
        return use(client)


def finish_future(make: Callable[[], Any], use: Use) -> Any:
    with make() as client:
        return use(client).result(FUTURE_LIMIT_S)


def finish_stream(make: Callable[[], Any], use: Use) -> Any:
    with make() as client:
        return list(use(client))


def finish_awaitable(make: Callable[[], Any], use: Use) -> Any:
    async def run() -> Any:
        async with make() as client:
            return await use(client)

    return asyncio.run(run())


def finish_async_stream(make: Callable[[], Any], use: Use) -> Any:
    async def run() -> Any:
        async with make() as client:
            return [response async for response in use(client)]

    return asyncio.run(run())


SYNC = [Way(ModelClient, scheme, finish_at_once) for scheme in ("http", "grpc")]
FUTURES = [Way(FuturesModelClient, scheme, finish_future) for scheme in ("http", "grpc")]
ASYNCIO = [Way(AsyncioModelClient, scheme, finish_awaitable) for scheme in ("http", "grpc")]
COUPLED = [*SYNC, *FUTURES, *ASYNCIO]
STREAM = Way(DecoupledModelClient, "grpc", finish_stream)
ASYNC_STREAM = Way(AsyncioDecoupledModelClient, "grpc", finish_async_stream)
DECOUPLED = [STREAM, ASYNC_STREAM]
