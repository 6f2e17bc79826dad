# SPDX-License-Identifier: Apache-2.0
"""The helper functions around clients of the official package."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import tritonclient.grpc.aio
import tritonclient.http.aio

from pytriton.client import asyncio_utils, utils
from pytriton.client.auth import create_auth_headers
from tests.client_differential.case import SCHEMES, Case, Servers
from tests.client_differential.models import TOKEN

TIME_S = 10.0
SHORT_S = 1.0
ASYNCIO_LIBRARIES = {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}

Ask = Callable[[Any, str], Any]  # given a client and its scheme


def helper(
    name: str, ask: Ask, server: str = "open", *, is_slow: bool = False, **settings: Any
) -> list[Case]:
    def run(servers: Servers, scheme: str) -> Any:
        client = utils.create_client_from_url(servers.url(scheme, server), **settings)
        with contextlib.closing(client):
            return ask(client, scheme)

    return cases_of(name, run, is_slow=is_slow)


def async_helper(
    name: str, ask: Callable[[Any], Awaitable[Any]], server: str = "open", *, is_slow: bool = False
) -> list[Case]:
    async def run(servers: Servers, scheme: str) -> Any:
        address = servers.url(scheme, server).partition("://")[2]
        client = ASYNCIO_LIBRARIES[scheme].InferenceServerClient(address)
        try:
            return await ask(client)
        finally:
            await client.close()

    return cases_of(name, lambda *which: asyncio.run(run(*which)), is_slow=is_slow)


def cases_of(name: str, run: Callable[[Servers, str], Any], *, is_slow: bool) -> list[Case]:
    return [
        Case(f"{name}: {scheme}", lambda servers, s=scheme: run(servers, s), is_slow)
        for scheme in SCHEMES
    ]


def state(model: str, version: str | None = None) -> Ask:
    def ask(client: Any, scheme: str) -> Any:
        headers = create_auth_headers(TOKEN, scheme)
        return utils.get_model_state(client, model, version, headers)

    return ask


def server_ready(timeout_s: float | None) -> Ask:
    return lambda client, _: utils.wait_for_server_ready(client, timeout_s)


def model_ready(model: str, version: str | None = None, timeout_s: float | None = SHORT_S) -> Ask:
    return lambda client, _: utils.wait_for_model_ready(client, model, version, timeout_s)


def config(model: str, version: str | None = None, timeout_s: float | None = SHORT_S) -> Ask:
    return lambda client, _: utils.get_model_config(client, model, version, timeout_s)


async def waited_for_server(client: Any) -> Any:
    return await asyncio_utils.asyncio_wait_for_server_ready(client, 0.1)


async def waited_for_status(client: Any) -> Any:
    return await asyncio_utils.asyncio_wait_for_model_status_loaded(client, "AddSub", 0.1)


SHORT_NETWORK = {"network_timeout_s": SHORT_S}
CASES = (
    *helper(
        "class of the client",
        lambda client, _: f"{type(client).__module__} {type(client).__name__}",
    ),
    *helper(
        "class of the client with a time", lambda c, _: type(c).__name__, network_timeout_s=5.0
    ),
    *helper("server is live", lambda client, _: client.is_server_live()),
    *helper("metadata", lambda client, _: bool(client.get_server_metadata())),
    *helper("server ready", server_ready(TIME_S)),
    *helper("server ready, default time", server_ready(None)),
    *helper(
        "server ready, nobody listens",
        server_ready(SHORT_S),
        "nobody",
        is_slow=True,
        **SHORT_NETWORK,
    ),
    *helper("model ready", model_ready("AddSub", None, TIME_S)),
    *helper("model ready, default time", model_ready("AddSub", None, None)),
    *helper("model ready, version", model_ready("Versioned", "3", TIME_S)),
    *helper("model ready, unknown", model_ready("Nowhere"), is_slow=True),
    *helper("model ready, unknown version", model_ready("AddSub", "7"), is_slow=True),
    *helper(
        "model ready, nobody listens",
        model_ready("AddSub"),
        "nobody",
        is_slow=True,
        **SHORT_NETWORK,
    ),
    *helper("config", config("AddSub", None, TIME_S)),
    *helper("config, version", config("Versioned", "3", TIME_S)),
    *helper("config, unknown", config("Nowhere"), is_slow=True),
    *helper("config, protected", config("AddSub", None, TIME_S), "private"),
    *helper("state", state("AddSub")),
    *helper("state of a version", state("Versioned", "3")),
    *helper("state of an unknown version", state("AddSub", "7")),
    *helper("state of an unknown model", state("Nowhere")),
    *helper("state without token", lambda client, _: utils.get_model_state(client, "AddSub")),
    *helper(
        "state, no token needed", lambda c, _: utils.get_model_state(c, "AddSub"), "unrestricted"
    ),
    *async_helper("asyncio server ready", waited_for_server),
    *async_helper("asyncio status loaded", waited_for_status),
    *async_helper(
        "asyncio model ready",
        lambda c: asyncio_utils.asyncio_wait_for_model_ready(c, "AddSub", None, 5),
    ),
    *async_helper(
        "asyncio model ready, version",
        lambda c: asyncio_utils.asyncio_wait_for_model_ready(c, "Versioned", "3", 5),
    ),
    *async_helper(
        "asyncio model ready, unknown",
        lambda c: asyncio_utils.asyncio_wait_for_model_ready(c, "Nowhere", None, SHORT_S),
        is_slow=True,
    ),
    *async_helper(
        "asyncio model ready, nobody listens",
        lambda c: asyncio_utils.asyncio_wait_for_model_ready(c, "AddSub", None, SHORT_S),
        "nobody",
        is_slow=True,
    ),
    *async_helper("asyncio config", lambda c: asyncio_utils.asyncio_get_model_config(c, "AddSub")),
    *async_helper(
        "asyncio config, unknown",
        lambda c: asyncio_utils.asyncio_get_model_config(c, "Nowhere", None, SHORT_S),
        is_slow=True,
    ),
    *async_helper(
        "asyncio state",
        lambda c: asyncio_utils.asyncio_get_model_state(c, "AddSub"),
        "unrestricted",
    ),
    *async_helper(
        "asyncio state of an unknown model",
        lambda c: asyncio_utils.asyncio_get_model_state(c, "Nowhere"),
        "unrestricted",
    ),
    *async_helper(
        "asyncio state without token", lambda c: asyncio_utils.asyncio_get_model_state(c, "AddSub")
    ),
)
